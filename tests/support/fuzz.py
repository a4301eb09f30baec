"""Random schemas, their grammars and an oracle: where do they disagree.

    python tests/support/fuzz.py [--count N] [--seed S] [--json OUT]

Each schema is compiled in a mode of its own (strict or not, in each `whitespace`, by
itself, in a structural tag or in a Lark grammar). Instances around it, and outputs at
random from its masks, are judged by `oracle`. Prints a table, and of each kind of fault
the smallest schemas found. The exit status is 1 after a wrong accept, a dead end, an
early stop, a crash, or an output that one tokenization decides otherwise than another.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from oracle import OracleError, oracle, read_exactly
from schemas import random_schema
from subjects import Finding, Mode, Subject, check, says_unsatisfiable

from guided_plugin.errors import GuidedError

__all__ = ["SERIOUS", "Fault", "Report", "fuzz", "shrink", "smallest"]

SERIOUS = ("wrong accept", "dead end", "early stop", "inconsistent", "crash")
"""Faults that no output may ever meet."""
MINOR = ("wrong refusal", "called unsatisfiable")
"""Valid values that can't be written."""
_SHOWN = 10
"""Schemas of each fault, at most."""
_COUNTED = (
    "schemas",
    "checked",
    "refused",
    "refused, but satisfiable",
    "beyond the oracle",
    "valid instances",
    "invalid instances",
    "walks",
    "unfinished walks",
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One schema with something wrong about it."""

    number: int
    """Which schema of the seed."""
    mode: Mode
    schema: Any
    finding: Finding

    def line(self):
        """The smallest schema and text first."""
        schema = json.dumps(self.schema, ensure_ascii=False)
        where = f"({self.mode}; #{self.number})"
        return f"{self.finding.kind}: {schema}  {self.finding.text[:200]!r}  {where}"


@dataclass(slots=True)
class Report:
    """The sums of one run."""

    totals: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    faults: list[Fault] = field(default_factory=list)

    def add(self, number, mode, schema, outcome):
        """Count one schema."""
        totals = self.totals
        totals.update(("schemas", outcome.status))
        if outcome.status == "refused":
            totals["refused, but satisfiable"] += outcome.satisfiable
            self.refused[reason_kind(outcome.reason)] += 1
        totals["walks"] += outcome.walks
        totals["unfinished walks"] += outcome.unfinished
        totals["invalid instances"] += outcome.invalid
        totals["valid instances"] += outcome.valid * (not mode.strict)
        for finding in outcome.findings:
            totals[finding.kind] += 1
            self.faults.append(Fault(number, mode, schema, finding))

    def lines(self):
        """The table."""
        for name in (*_COUNTED, *SERIOUS, *MINOR):
            yield f"{name:28}{self.totals[name]:>10,}"
        yield "refused for:"
        for reason, count in self.refused.most_common(25):
            yield f"    {count:>6,}  {reason}"


def reason_kind(reason):
    """A reason without its numbers and names."""
    text = re.sub(r"'[^']*'|\"[^\"]*\"|-?\d+(\.\d+)?(e[+-]?\d+)?", "*", reason)
    return text.splitlines()[0][:100] if text else "no reason given"


def fuzz(numbers, seed, *, instances=60):
    """Check the schemas of these numbers."""
    report = Report()
    for number in numbers:
        source = Random(f"{seed}:{number}")
        schema = random_schema(source)
        mode = _random_mode(source)
        report.add(number, mode, schema, check(schema, mode, source, count=instances))
    return report


def _random_mode(source):
    layouts = ("flexible", "spaced", "compact")
    tags = ("",) * 9 + ("tag", "triggered_tags", "lark")
    return Mode(
        strict=source.random() < 0.25,
        whitespace=source.choices(layouts, (0.3, 0.2, 0.5))[0],
        tag=source.choice(tags),
    )


def smallest(fault):
    """The same fault of a smaller schema."""
    # First in a plainer mode, if it fails there too.
    for part in ({"strict": False}, {"whitespace": "compact"}):
        other = replace(fault, mode=fault.mode._replace(**part))
        fault = other if _fails(fault.schema, other) else fault
    schema = shrink(fault.schema, lambda smaller: _fails(smaller, fault))
    return replace(fault, schema=schema)


def _fails(schema, fault):
    if not isinstance(schema, dict):
        return False
    kind = fault.finding.kind
    text = fault.finding.text
    if kind in ("crash", "early stop"):
        outcome = check(schema, fault.mode, Random(fault.number), count=20, walks=6)
        return any(finding.kind == kind for finding in outcome.findings)
    try:
        if kind == "called unsatisfiable":
            return _called_unsatisfiable(schema, fault)
        subject = Subject(schema, fault.mode)
        if kind == "dead end":
            return subject.stuck(text.encode())
        taken = subject.verdicts(text)
        if kind == "inconsistent":
            masks = [walk.accepted for walk in subject.masked(text)]
            return len(taken) > 1 or (taken == {True} and not all(masks))
        instance = fault.mode.instance_in(text)
        allowed = subject.allows(instance) and subject.is_laid_out(instance)
        owed = kind == "wrong refusal"
        return allowed is owed and (not owed) in taken
    except (GuidedError, OracleError, ValueError):
        return False


def _called_unsatisfiable(schema, fault):
    instance = read_exactly(fault.mode.instance_in(fault.finding.text))
    if not oracle(schema)(instance):
        return False
    try:
        Subject(schema, fault.mode)
    except GuidedError as error:
        return says_unsatisfiable(error)
    return False


def shrink(value, fails, *, attempts=1_500):
    """A smaller JSON value that still fails; the same one where none is found."""
    left = iter(range(attempts))
    while True:
        for smaller in _smaller(value):
            if next(left, None) is None:
                return value
            if fails(smaller):
                value = smaller
                break
        else:
            return value


def _smaller(value):
    """Values with one thing less, the largest steps first."""
    found = {_key(other): other for other in _steps(value)}
    size = len(_key(value))
    yield from (found[key] for key in sorted(found, key=len) if len(key) < size)


def _key(value):
    return json.dumps(value)


def _steps(value):
    if isinstance(value, dict):
        for name, child in value.items():
            rest = {other: value[other] for other in value if other != name}
            yield rest
            yield child
            # Branches may move up, next to what stands there.
            for part in child if isinstance(child, list) else (child,):
                if isinstance(part, dict):
                    yield {**rest, **part}
            for step in _steps(child):
                yield {**value, name: step}
    elif isinstance(value, list):
        yield from value
        for place, child in enumerate(value):
            yield value[:place] + value[place + 1 :]
            for step in _steps(child):
                yield [*value[:place], step, *value[place + 1 :]]
    elif isinstance(value, str) and value:
        yield from (value[1:], value[:-1], value[: len(value) // 2])
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from (0, 1, int(value), round(value, 1))


def main():
    """Fuzz, and print what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--count", type=int, default=2_000, help="schemas (default 2000)")
    add("--seed", type=int, default=None, help="default: another one each time")
    add("--instances", type=int, default=60, help="instances a schema (default 60)")
    add("--json", type=Path, metavar="OUT", help="write the sums, compressed")
    options = parser.parse_args()
    seed = Random().randrange(10**6) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    report = fuzz(range(options.count), seed, instances=options.instances)
    print(*report.lines(), sep="\n", flush=True)
    _show(report.faults)
    if options.json:
        document = {
            "seed": seed,
            "totals": {**dict.fromkeys((*SERIOUS, *MINOR), 0), **report.totals},
            "refused": dict(report.refused),
            "faults": [fault.line() for fault in report.faults[:200]],
        }
        options.json.write_bytes(gzip.compress(json.dumps(document).encode(), mtime=0))
    return int(any(report.totals[kind] for kind in SERIOUS))


def _show(faults):
    """Each kind's smallest schemas, each once."""
    faults = sorted(faults, key=lambda fault: len(json.dumps(fault.schema)))
    for kind in (*SERIOUS, *MINOR):
        found = {fault.number: fault for fault in faults if fault.finding.kind == kind}
        small = [smallest(fault) for fault in list(found.values())[:_SHOWN]]
        # One for each set of keywords.
        by_words = {
            frozenset(re.findall(r'"(\$?[a-zA-Z]{3,})":', json.dumps(one.schema))): one
            for one in small
        }
        for fault in by_words.values():
            print(fault.line(), flush=True)


if __name__ == "__main__":
    sys.exit(main())
