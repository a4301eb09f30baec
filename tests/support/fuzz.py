"""Random schemas, their grammars and an oracle: where do they disagree.

    python tests/support/fuzz.py [--count N] [--seed S] [--json OUT]

Each schema is compiled in a mode of its own (strict or not, in each `whitespace`, by
itself, in a structural tag or in a Lark grammar). Instances around it, and outputs at
random from its masks, are judged by `oracle`. Prints a table, and of each kind of fault
the smallest of the schemas. The exit status is 1 after a wrong accept, a dead end, an
early stop, a crash, or an output that one tokenization decides otherwise than another.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from schemas import random_schema
from subjects import Finding, Mode, check

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
    tags = ("",) * 9 + ("tag", "triggered_tags")
    return Mode(
        strict=source.random() < 0.25,
        whitespace=source.choices(layouts, (0.3, 0.2, 0.5))[0],
        tag=source.choice(tags),
    )


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
        small = list(found.values())[:_SHOWN]
        # One for each set of keywords.
        by_words = {
            frozenset(re.findall(r'"(\$?[a-zA-Z]{3,})":', json.dumps(one.schema))): one
            for one in small
        }
        for fault in by_words.values():
            print(fault.line(), flush=True)


if __name__ == "__main__":
    sys.exit(main())
