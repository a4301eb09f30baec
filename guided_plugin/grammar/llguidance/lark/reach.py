"""Short texts of a terminal, how many characters may still be needed wherever in it an
output is, and which characters end a text in it. Depends on constraints and spec.

The number is a bound: of a pattern with counted repetitions, that many times their
part.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from guided_plugin.grammar.llguidance.lark.constraints import String
from guided_plugin.grammar.llguidance.lark.expressions import Known
from guided_plugin.spec.ecma import (
    Alternation,
    Both,
    Characters,
    Node,
    Not,
    Ranges,
    Repeat,
    Sequence,
    children,
    complement,
    parse,
)
from guided_plugin.spec.formats import FORMATS
from guided_plugin.spec.languages import ANY, searched
from guided_plugin.spec.memo import remembered, texts_bytes

PROBES = b"a 0Z-.{]"
"""Characters that may all come next in a free text."""
_USUAL = b"a0A "
"""Characters that texts have where they may."""
_QUOTES = 2
_SEVERAL = 2
_LONGEST = 256
"""Characters of a text; one that is cut is no text, and no ending is found with it."""
_WAYS = 8
"""Texts of one expression, the shortest. Chosen, not measured."""
_BEYOND = 128
"""One character stands for all beyond ASCII."""
_NO_TEXT = ((0x2028, 0x2029), (0xD800, 0xDFFF))
"""What the dot, and the strings of JSON, leave out."""


@dataclass(frozen=True, slots=True)
class Need:
    """What the texts of an expression need."""

    least: int
    """Bytes of the shortest."""
    most: int
    """Bytes that may be missing, from any place in one."""


def known_of_string(string: String) -> Known:
    """What is known of the strings of a constraint, with their quotes: no texts where
    several demands meet."""
    if string.values is not None:
        sizes = [len(each.encode()) for each in string.values]
        shortest = sorted(string.values, key=len)[:_WAYS]
        return Known(_quoted(shortest), _QUOTES + max(sizes, default=0))
    demands = [_known_of_format(name) for name in sorted(string.formats)]
    demands += map(known_of_pattern, sorted(string.patterns))
    refused = list(map(known_of_pattern, string.no_patterns))
    marks = [known.marks for known in (*demands, *refused)]
    texts: list[str] = []
    if not refused and len(demands) < _SEVERAL:
        usual = demands[0].texts if demands else ("",)
        # Where a pattern may be found anywhere, a longer text has more before it.
        texts = [text.rjust(string.shortest, "a") for text in usual]
    allowed = [text for text in texts if text not in string.excluded]
    most = _QUOTES + string.shortest + sum(known.most for known in demands)
    return Known(_quoted(allowed), most, frozenset().union(*marks))


def _quoted(texts: Iterable[str]) -> tuple[str, ...]:
    """Texts as JSON strings."""
    return tuple(json.dumps(text, ensure_ascii=False) for text in texts)


def known_of(node: Node) -> Known:
    """What is known of the texts of an expression."""
    return Known(tuple(_texts(node)), _need(node).most, frozenset(_marks(node)))


@remembered(lambda source, known: texts_bytes(source, *known.texts))
def known_of_pattern(source: str) -> Known:
    """What is known of the texts in which a pattern is found."""
    return known_of(searched(source))


@remembered(lambda name, known: texts_bytes(name, *known.texts))
def _known_of_format(name: str) -> Known:
    return known_of(parse(FORMATS[name]))


def _need(node: Node) -> Need:
    match node:
        case Characters():
            size = len(_character(node).encode(errors="replace"))
            return Need(size, size)
        case Sequence(parts):
            least = 0
            most = 0
            for need in reversed([_need(part) for part in parts]):
                most = max(most, need.most + least)
                least += need.least
            return Need(least, most)
        case Alternation(options) if options:
            needs = [_need(option) for option in options]
            least = min(need.least for need in needs)
            most = max(need.most for need in needs)
            return Need(least, most)
        case Repeat(part, low, _):
            once = _need(part)
            return Need(low * once.least, once.most + max(low - 1, 0) * once.least)
        case Both(parts):
            needs = [_need(part) for part in parts if not isinstance(part, Not)]
            least = max((need.least for need in needs), default=0)
            return Need(least, sum(need.most for need in needs))
    return Need(0, 0)


def _texts(node: Node) -> list[str]:
    """Texts, the shortest first; of a choice one for each way to write it."""
    found = [""]
    match node:
        case Characters():
            found = [_character(node)]
        case Sequence(parts):
            known = [_texts(part) for part in parts]
            usual = [texts[0] for texts in known]
            found = ["".join(usual)]
            for at, texts in enumerate(known):
                for other in texts[1:]:
                    before = usual[:at]
                    behind = usual[at + 1 :]
                    found.append("".join([*before, other, *behind]))
        case Alternation(options):
            found = [text for option in options for text in _texts(option)] or [""]
            found.sort(key=len)
        case Repeat(part, low, _) if low:
            once = _texts(part)
            found = once if low == 1 else [once[0] * min(low, _LONGEST)]
        case Both(parts):
            wanted = [part for part in parts if not isinstance(part, Not)]
            found = _texts(wanted[0]) if wanted else [""]
    return list(dict.fromkeys(text[:_LONGEST] for text in found))[:_WAYS]


def _marks(node: Node) -> set[str]:
    """What a class leaves out that holds all that a free text may hold."""
    if not isinstance(node, Characters):
        return set().union(*map(_marks, children(node)))
    if node == ANY:
        return set()
    ranges = complement(node.ranges) if node.negated else node.ranges
    if not all(_holds(ranges, code) for code in PROBES):
        return set()
    found: set[str] = set()
    for low, high in set(complement(ranges)).difference(_NO_TEXT):
        codes = range(min(low, _BEYOND), min(high, _BEYOND) + 1)
        found.update(map(chr, codes))
    return {char for char in found if char >= " " and char not in '"\\<'}


def _character(node: Characters) -> str:
    """One character of a class, a usual one if that may be."""
    ranges = complement(node.ranges) if node.negated else node.ranges
    for code in _USUAL:
        if _holds(ranges, code):
            return chr(code)
    return chr(ranges[0][0]) if ranges else "a"


def _holds(ranges: Ranges, code: int) -> bool:
    return any(low <= code <= high for low, high in ranges)
