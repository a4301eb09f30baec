"""Whether a backend takes exactly what a schema allows: instances near it, judged by an oracle.

    python tests/support/equality.py DIR [--count N] [--seed S]

fuzzes the schemas of MaskBench files (`schema`, and `tests` whose `data` are edited) and prints where
grammar and oracle disagree.
"""

from __future__ import annotations

import argparse
import collections
import json
import math
import pathlib
import random
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from equality_instances import instances
from equality_oracle import OracleError, oracle, read_exactly

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import GuidedConfig
from guided_plugin.errors import GuidedError
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.spec import OutputSpec
from guided_plugin.spec.schema import walk

__all__ = ["Disagreement", "Judge", "judge", "near", "text_of"]

BYTES = Vocabulary.from_tokens([*(bytes([byte]) for byte in range(256)), b"</s>"], [256])
"""Token i is byte i; so a text has one tokenization, and one forked matcher judges it."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """One text that a grammar takes and shouldn't, or the other way round."""

    kind: str
    """`wrong accept`, `wrong refusal`, or `order`: refused, but not with its keys in the schema's order."""
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text[:300]}"


class Judge:
    """A schema compiled once, and the oracle for it."""

    def __init__(
        self, schema: Any, backend: str = "auto", *, compiler: GrammarCompiler | None = None
    ) -> None:
        self.compiler = compiler or COMPILER
        self.valid = oracle(schema)
        spec = OutputSpec.json_schema(schema, strict=False, backend=backend)
        self.grammar = self.compiler.compile(spec)
        owner = self.compiler.backend(self.grammar.backend)
        self._start = owner.start(self.grammar, BYTES.stop_token_ids)
        self._rank = _name_order(schema)

    def takes(self, text: str) -> bool:
        """Whether the grammar takes a whole text."""
        matcher = self._start.fork()
        return matcher.accept_text(text.encode()) and matcher.complete

    def disagreements(self, values: Iterable[Any]) -> Iterator[Disagreement]:
        """What grammar and oracle see differently, each text once."""
        seen = set()
        for value in values:
            try:
                text = text_of(value)
                text.encode()
            except (OverflowError, UnicodeEncodeError, RecursionError):
                continue
            if text in seen:
                continue
            seen.add(text)
            # Judged as it is read back: 1.0 and 1 are two texts of one number.
            if not self.valid(read_exactly(text)):
                yield from (Disagreement("wrong accept", t) for t in (text, *respelt(value)) if self.takes(t))
            elif not self.takes(text):
                ordered = self.takes(text_of(_reordered(value, self._rank)))
                yield Disagreement("order" if ordered else "wrong refusal", text)


COMPILER = GrammarCompiler(BYTES, config=GuidedConfig(threads=1, cache_bytes=0))


def judge(schema: Any, values: Iterable[Any], backend: str = "auto") -> list[Disagreement]:
    """All disagreements. Raises the GrammarError of a schema that is refused."""
    return list(Judge(schema, backend).disagreements(values))


def near(schema: Any, seeds: Iterable[Any] = (), *, count: int = 300, seed: int = 0) -> Iterator[Any]:
    """Instances near a schema, the same for the same seed."""
    return instances(schema, list(seeds), count, random.Random(seed))


def text_of(value: Any) -> str:
    """The text of an instance in its plainest form: no spaces, no escapes, no exponents of usual size."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{text_of(name)}:{text_of(child)}" for name, child in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(text_of, value)) + "]"
    if isinstance(value, float):
        if not math.isfinite(value):
            raise OverflowError("JSON has no such number")
        if "e" in repr(value) and 1e-30 < abs(value) < 1e30:
            return format(Decimal(repr(value)), "f")
    return json.dumps(value, ensure_ascii=False)


def respelt(value: Any) -> list[str]:
    """Other texts of the same value: every character escaped, numbers with exponents, upper-case escapes."""
    texts = [_escaped(value, "e0", str), _escaped(value, ".0E+00", str.upper)]
    return [text for text in dict.fromkeys(texts) if text != text_of(value)]


def _escaped(value: Any, exponent: str, case: Any) -> str:
    if isinstance(value, dict):
        pairs = (f"{_escaped(n, exponent, case)}:{_escaped(c, exponent, case)}" for n, c in value.items())
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_escaped(child, exponent, case) for child in value) + "]"
    if isinstance(value, str):
        units = value.encode("utf-16-be", "surrogatepass").hex(" ", 2).split()
        return '"' + "".join("\\u" + case(unit) for unit in units) + '"'
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value}{exponent}"
    return text_of(value)


def _name_order(schema: Any) -> dict[str, int]:
    """Property names by where a schema first mentions them."""
    order: dict[str, int] = {}
    for _, node in sorted(walk(schema), key=lambda step: len(step[0])):
        if isinstance(node, Mapping):
            for keyword in ("properties", "required"):
                for name in node[keyword] if isinstance(node.get(keyword), dict | list) else ():
                    order.setdefault(str(name), len(order))
    return order


def _reordered(value: Any, rank: Mapping[str, int]) -> Any:
    if isinstance(value, dict):
        names = sorted(value, key=lambda name: rank.get(name, len(rank)))
        return {name: _reordered(value[name], rank) for name in names}
    return [_reordered(child, rank) for child in value] if isinstance(value, list) else value


def main() -> int:
    """Fuzz MaskBench files; 1 where a text is taken that the schema forbids."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path, metavar="DIR")
    parser.add_argument("--count", type=int, default=200, help="instances a schema (default 200)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="take only each Nth file")
    parser.add_argument(
        "--show", type=int, default=3, metavar="N", help="disagreements shown a file and kind"
    )
    options = parser.parse_args()
    files = sorted(options.folder.rglob("*.json"))[:: options.every]
    if not files:
        parser.error(f"{options.folder} holds no .json file")
    totals: collections.Counter[str] = collections.Counter()
    for path in files:
        content = json.loads(path.read_text())
        seeds = [test["data"] for test in content.get("tests", ())]
        try:
            judged = Judge(content["schema"], options.backend)
            values = near(content["schema"], seeds, count=options.count, seed=options.seed)
            found = list(judged.disagreements(values))
        except OracleError as error:
            totals["schemas beyond the oracle"] += 1
            print(f"{path.name}: beyond the oracle: {str(error)[:200]}")
            continue
        except GuidedError as error:
            totals["schemas refused"] += 1
            print(f"{path.name}: refused: {str(error)[:200]}")
            continue
        totals["schemas judged"] += 1
        for kind, count in collections.Counter(one.kind for one in found).items():
            totals[kind] += count
            totals[f"schemas with {kind}"] += 1
            shown = [one.text for one in found if one.kind == kind][: options.show]
            print(f"{path.name}: {kind} {count} ({judged.grammar.reason or judged.grammar.backend})")
            print(*(f"    {text[:400]}" for text in sorted(shown, key=len)), sep="\n")
    print(*(f"{name}: {count}" for name, count in sorted(totals.items())), sep="\n")
    return 1 if totals["wrong accept"] else 0


if __name__ == "__main__":
    sys.exit(main())
