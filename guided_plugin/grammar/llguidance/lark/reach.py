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
    ANY,
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
from guided_plugin.spec.languages import searched
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
        most = _QUOTES + max(sizes, default=0)
        return Known(_quoted(shortest), most, form="string")
    demands = [_known_of_format(name) for name in sorted(string.formats)]
    demands += map(known_of_pattern, sorted(string.patterns))
    refused = list(map(known_of_pattern, string.no_patterns))
    marks = [known.marks for known in (*demands, *refused)]
    texts: list[str] = []
    if not refused and len(demands) < _SEVERAL:
        texts += demands[0].texts if demands else ("a" * string.shortest,)
        missing = string.shortest - len(texts[0])
        if missing > 0:
            for source in string.patterns:
                texts = _longer(searched(source), missing)
    allowed = [text for text in texts if text not in string.excluded]
    most = _QUOTES + string.shortest + sum(known.most for known in demands)
    return Known(_quoted(allowed), most, frozenset().union(*marks), "string")


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
            for part in reversed(parts):
                need = _need(part)
                most = max(most, need.most + least)
                least += need.least
            return Need(least, most)
        case Alternation(options) if options:
            needs = list(map(_need, options))
            return Need(
                min(need.least for need in needs),
                max(need.most for need in needs),
            )
        case Repeat(part, low, _):
            once = _need(part)
            before = max(low - 1, 0) * once.least
            return Need(low * once.least, once.most + before)
        case Both(parts):
            needs = list(map(_need, _taken(parts)))
            return Need(
                max((need.least for need in needs), default=0),
                sum(need.most for need in needs),
            )
    return Need(0, 0)


def _taken(parts: Iterable[Node]) -> list[Node]:
    """The parts of an intersection that are not opposites."""
    return [part for part in parts if not isinstance(part, Not)]


def _texts(node: Node) -> list[str]:
    """Texts, the shortest first; of a choice one for each way to write it."""
    found = [""]
    match node:
        case Characters():
            found = [_character(node)]
        case Sequence(parts):
            found = _texts_in_order([_texts(part) for part in parts])
        case Alternation(options):
            for option in options:
                found += _texts(option)
            found = sorted(found[1:], key=len) or found
        case Repeat(part, low, _) if low:
            found = _texts(part)
            if low > 1:
                found = [found[0] * min(low, _LONGEST)]
        case Both(parts):
            for part in _taken(parts)[:1]:
                found = _texts(part)
    cut = [text[:_LONGEST] for text in found]
    return list(dict.fromkeys(cut))[:_WAYS]


def _longer(node: Node, missing: int) -> list[str]:
    """A text with so many characters more than the first of `_texts`, where a part may
    come again and again."""
    match node:
        case Sequence(parts):
            known = [_texts(part)[:1] + _longer(part, missing) for part in parts]
            return _texts_in_order(known)[1:2]
        case Alternation(options):
            known = [_longer(option, missing) for option in options]
            return next(filter(None, known), [])
        case Repeat(part, low, None):
            once = _texts(part)[0] or "a"
            return [once * (low + -(-missing // len(once)))]
    return []


def _texts_in_order(known: list[list[str]]) -> list[str]:
    """Texts of a sequence: the first of each part, or another one in one place."""
    usual = [texts[0] for texts in known]
    found = ["".join(usual)]
    for place, texts in enumerate(known):
        before = "".join(usual[:place])
        behind = "".join(usual[place + 1 :])
        found += [before + other + behind for other in texts[1:]]
    return found


def _marks(node: Node) -> set[str]:
    """What a class leaves out that holds all that a free text may hold."""
    if not isinstance(node, Characters):
        return set().union(*map(_marks, children(node)))
    ranges = node.ranges
    if node == ANY or not all(_holds(ranges, code) for code in PROBES):
        return set()
    found: set[str] = set()
    for low, high in complement(ranges):
        if (low, high) in _NO_TEXT:
            continue
        first = min(low, _BEYOND)
        last = min(high, _BEYOND)
        found.update(map(chr, range(first, last + 1)))
    return {char for char in found if char >= " " and char not in '"\\<'}


def _character(node: Characters) -> str:
    """One character of a class, a usual one if that may be."""
    ranges = node.ranges
    for code in _USUAL:
        if _holds(ranges, code):
            return chr(code)
    if not ranges:
        return "a"
    low, _ = ranges[0]
    return chr(low)


def _holds(ranges: Ranges, code: int) -> bool:
    return any(low <= code <= high for low, high in ranges)
