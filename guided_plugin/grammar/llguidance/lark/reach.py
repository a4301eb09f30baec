"""Short texts of a terminal, how many characters may still be needed wherever in it an
output is, and which characters end a text in it. Depends on constraints and spec.

The number is a bound: of a pattern with counted repetitions, that many times their
part.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

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
                texts = _texts(searched(source), missing)
    allowed = [
        text
        for text in texts
        if len(text) >= string.shortest and text not in string.excluded
    ]
    most = _QUOTES + string.shortest + sum(known.most for known in demands)
    return Known(_quoted(allowed), most, frozenset().union(*marks), "string")


def _quoted(texts: Iterable[str]) -> tuple[str, ...]:
    """Texts as JSON strings."""
    return tuple(json.dumps(text, ensure_ascii=False) for text in texts)


def known_of(node: Node) -> Known:
    """What is known of the texts of an expression."""
    return Known(tuple(_texts(node)), _need(node)[1], frozenset(_marks(node)))


@remembered(lambda source, known: texts_bytes(source, *known.texts))
def known_of_pattern(source: str) -> Known:
    """What is known of the texts in which a pattern is found."""
    return known_of(searched(source))


@remembered(lambda name, known: texts_bytes(name, *known.texts))
def _known_of_format(name: str) -> Known:
    return known_of(parse(FORMATS[name]))


def _need(node: Node) -> tuple[int, int]:
    """Bytes of the shortest text, and those that may be missing from any place in
    one."""
    least = 0
    most = 0
    match node:
        case Characters():
            least = most = len(_character(node).encode(errors="replace"))
        case Sequence(parts):
            for part in reversed(parts):
                once, missing = _need(part)
                most = max(most, missing + least)
                least += once
        case Alternation(options) if options:
            needs = list(map(_need, options))
            least = min(once for once, _ in needs)
            most = max(missing for _, missing in needs)
        case Repeat(part, low, _):
            once, most = _need(part)
            most += max(low - 1, 0) * once
            least = low * once
        case Both(parts):
            for once, missing in map(_need, _taken(parts)):
                least = max(least, once)
                most += missing
    return least, most


def _taken(parts: Iterable[Node]) -> list[Node]:
    """The parts of an intersection that are not opposites."""
    return [part for part in parts if not isinstance(part, Not)]


def _texts(node: Node, missing: int = 0) -> list[str]:
    """Texts, the shortest first; of a choice one for each way to write it. `missing`:
    some have so many characters more, where a part may come again and again."""
    found = [""]
    match node:
        case Characters():
            found = [_character(node)]
        case Sequence(parts):
            found = _texts_in_order([_texts(part, missing) for part in parts])
        case Alternation(options):
            for option in options:
                found += _texts(option, missing)
            found = sorted(found[1:], key=len) or found
        case Repeat(part, low, high):
            once = _texts(part)
            found = once if low == 1 else [once[0] * min(low, _LONGEST)]
            if missing and high is None:
                more = -(-missing // max(len(once[0]), 1))
                found = [*found, once[0] * (low + more)]
        case Both(parts):
            for part in _taken(parts)[:1]:
                found = _texts(part, missing)
    cut = [text[: _LONGEST + missing] for text in found]
    return list(dict.fromkeys(cut))[:_WAYS]


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
    found = {chr(code) for code in range(32, _BEYOND) if not _holds(ranges, code)}
    left = [each for each in complement(ranges) if each not in _NO_TEXT]
    if any(high >= _BEYOND for _, high in left):
        found.add(chr(_BEYOND))
    return found.difference('"\\<')


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
