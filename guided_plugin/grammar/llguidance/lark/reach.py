"""A shortest text of a terminal, and how many characters may still be needed wherever in
it an output is. Depends on constraints and spec.

The number is a bound: of a pattern with counted repetitions, that many times their
part.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

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

PROBES = b"a 0Z-.{]"
"""Characters that may all come next in a free text."""
_USUAL = b"a0A "
"""Characters that texts have where they may."""
_QUOTES = 2
_LONGEST = 1 << 12
"""Characters of a text; longer ones are cut, and then are no text of theirs."""


@dataclass(frozen=True, slots=True)
class Need:
    """What the texts of an expression need."""

    text: str
    """A shortest one; not of lookahead."""
    most: int
    """Bytes that may be missing, from any place in it."""

    @property
    def least(self) -> int:
        """Bytes of the shortest text."""
        return len(self.text.encode(errors="replace"))


def reach_of(string: String) -> int:
    """The bytes that a string of a constraint may still need, its quotes included."""
    if string.values is not None:
        return _QUOTES + max((len(each.encode()) for each in string.values), default=0)
    needs = [_need_of_format(name) for name in string.formats]
    needs += [need_of_pattern(source) for source in string.patterns]
    return _QUOTES + string.shortest + sum(need.most for need in needs)


def text_of(string: String) -> bytes | None:
    """A string of a constraint that is likely to be a shortest one, with its quotes;
    None where several demands meet."""
    if string.values is not None:
        text = min(string.values, key=len)
    elif string.no_patterns or len(string.patterns) + len(string.formats) > 1:
        return None
    else:
        needs = [*map(_need_of_format, string.formats)]
        needs += map(need_of_pattern, string.patterns)
        text = needs[0].text if needs else "a" * string.shortest
    if len(text) < string.shortest or text in string.excluded:
        return None
    return json.dumps(text, ensure_ascii=False).encode(errors="replace")


def ends_texts(string: String) -> bool:
    """Whether a character that most texts may have ends some text of a constraint, or
    makes another one of it."""
    return bool(string.no_patterns) or any(map(_pattern_ends, string.patterns))


def need_of(node: Node) -> Need:
    """What the texts of an expression need."""
    match node:
        case Characters():
            text = _character(node)
            return Need(text, len(text.encode(errors="replace")))
        case Sequence(parts):
            return _in_a_row([need_of(part) for part in parts])
        case Alternation(options) if options:
            needs = [need_of(option) for option in options]
            shortest = min(needs, key=lambda need: len(need.text))
            return Need(shortest.text, max(need.most for need in needs))
        case Repeat(part, low, _):
            once = need_of(part)
            times = min(low, _LONGEST // max(len(once.text), 1) + 1)
            most = once.most + max(low - 1, 0) * once.least
            return Need(once.text * times, most)
        case Both(parts) if parts:
            needs = [need_of(part) for part in parts if not isinstance(part, Not)]
            longest = max((need.text for need in needs), key=len, default="")
            return Need(longest, sum(need.most for need in needs))
    return Need("", 0)


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


def _character(node: Characters) -> str:
    """One character of a class, a usual one if that may be."""
    ranges = complement(node.ranges) if node.negated else node.ranges
    for code in _USUAL:
        if any(low <= code <= high for low, high in ranges):
            return chr(code)
    return chr(ranges[0][0]) if ranges else "a"


def _in_a_row(needs: list[Need]) -> Need:
    text = ""
    most = 0
    for need in reversed(needs):
        most = max(most, need.most + len(text.encode(errors="replace")))
        text = need.text + text
    return Need(text[:_LONGEST], most)


@remembered(lambda source, need: texts_bytes(source, need.text))
def need_of_pattern(source: str) -> Need:
    """What the texts need in which a pattern is found."""
    return need_of(searched(source))


@remembered(texts_bytes)
def _pattern_ends(source: str) -> bool:
    return tells_characters_apart(searched(source))


@remembered(lambda name, need: texts_bytes(name, need.text))
def _need_of_format(name: str) -> Need:
    return need_of(parse(FORMATS[name]))
