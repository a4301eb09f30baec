"""How many characters a text may still need, wherever in it an output is. Depends on
constraints and spec.

A bound, not the exact number: of a pattern with counted repetitions, that many times
their part.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from guided_plugin.grammar.llguidance.lark.constraints import String
from guided_plugin.spec.ecma import (
    Alternation,
    Both,
    Characters,
    Node,
    Not,
    Repeat,
    Sequence,
    children,
    complement,
    parse,
)
from guided_plugin.spec.formats import FORMATS
from guided_plugin.spec.languages import ANY, searched
from guided_plugin.spec.memo import remembered, texts_bytes

_QUOTES = 2
PROBES = b"a 0Z-.{]"
"""Characters that may all come next in a free text."""


class Need(NamedTuple):
    """What a part of an expression needs."""

    least: int
    """Bytes of its shortest text."""
    most: int
    """Bytes that may be missing, from any place in it."""


def reach_of(string: String) -> int:
    """The bytes that a string of a constraint may still need, its quotes included."""
    if string.values is not None:
        return _QUOTES + max((len(each.encode()) for each in string.values), default=0)
    formats = sum(_format_need(name) for name in string.formats)
    patterns = sum(_pattern_need(source) for source in string.patterns)
    return _QUOTES + string.shortest + formats + patterns


def text_of(string: String) -> bytes | None:
    """A shortest string of a constraint, with its quotes; None where that is to be
    found out."""
    if string.values is not None:
        return json.dumps(min(string.values, key=len), ensure_ascii=False).encode(
            errors="replace"
        )
    if string.patterns or string.no_patterns or string.formats:
        return None
    return b'"' + b"a" * string.shortest + b'"'


def ends_texts(string: String) -> bool:
    """Whether a character that most texts may have ends some text of a constraint, or
    makes another one of it."""
    return bool(string.no_patterns) or any(map(_pattern_ends, string.patterns))


def need_of(node: Node) -> Need:
    """What the texts of an expression need."""
    match node:
        case Characters():
            ranges = complement(node.ranges) if node.negated else node.ranges
            lowest = min((low for low, _ in ranges), default=0)
            size = len(chr(lowest).encode(errors="replace"))
            return Need(size, size)
        case Sequence(parts):
            return _in_a_row([need_of(part) for part in parts])
        case Alternation(options):
            needs = [need_of(option) for option in options]
            return Need(
                min((need.least for need in needs), default=0),
                max((need.most for need in needs), default=0),
            )
        case Repeat(part, low, _):
            once = need_of(part)
            return Need(low * once.least, once.most + max(low - 1, 0) * once.least)
        case Both(parts):
            needs = [need_of(part) for part in parts if not isinstance(part, Not)]
            return Need(
                max((need.least for need in needs), default=0),
                sum(need.most for need in needs),
            )
    return Need(0, 0)


def tells_characters_apart(node: Node) -> bool:
    """Whether a class holds all that a free text may hold, and leaves something out."""
    if isinstance(node, Not):
        return True
    if not isinstance(node, Characters):
        return any(map(tells_characters_apart, children(node)))
    if node == ANY or node.properties:
        return bool(node.properties)
    ranges = complement(node.ranges) if node.negated else node.ranges
    return all(any(low <= code <= high for low, high in ranges) for code in PROBES)


def _in_a_row(needs: list[Need]) -> Need:
    least = 0
    most = 0
    for need in reversed(needs):
        most = max(most, need.most + least)
        least += need.least
    return Need(least, most)


@remembered(texts_bytes)
def _pattern_need(source: str) -> int:
    return need_of(searched(source)).most


@remembered(texts_bytes)
def _pattern_ends(source: str) -> bool:
    return tells_characters_apart(searched(source))


@remembered(texts_bytes)
def _format_need(name: str) -> int:
    return need_of(parse(FORMATS[name])).most
