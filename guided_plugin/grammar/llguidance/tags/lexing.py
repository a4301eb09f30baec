"""The check that a lexer reads a structural tag as it is meant. Depends on nodes.

A lexer takes the longest text that any lexeme which may come next allows, and never
goes back. So where a lexeme could go on past the place at which it should end, some
outputs would be refused, or begun and never finished. Such tags are found here: leaves
are lexemes, and any two that may come next at one place are looked at together.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from itertools import product
from typing import NamedTuple

from guided_plugin.errors import UnsupportedSpecError, shown
from guided_plugin.grammar.llguidance.tags.nodes import (
    Control,
    Either,
    Free,
    Leaf,
    Node,
    Regex,
    Repeat,
    Schema,
    Sequence,
    Text,
)

TypesOf = Callable[[Schema], frozenset[str]]
_Bytes = frozenset[int]

_NONE: _Bytes = frozenset()
_ANY: _Bytes = frozenset(range(256))
_NUMBER: _Bytes = frozenset(b"0123456789.eE+-")
_BEGINNINGS = {
    "null": frozenset(b"n"),
    "boolean": frozenset(b"tf"),
    "number": frozenset(b"-0123456789"),
    "string": frozenset(b'"'),
    "array": frozenset(b"["),
    "object": frozenset(b"{"),
}

_SEVERAL_WAYS = "repetitions that can be counted in several ways"
"""A parser keeps all ways, and stops when they are too many."""


class _Span(NamedTuple):
    """The leaves that a node begins and ends with."""

    first: frozenset[int] = frozenset()
    """The leaves that may come first in it."""
    last: frozenset[int] = frozenset()
    empty: bool = True
    """True if there may be nothing of it."""


class Lexing:
    """A tag as an automaton whose states are its leaves, by their numbers.

    `types_of`: the types of a schema's values.
    """

    def __init__(self, node: Node, types_of: TypesOf) -> None:
        self._leaves: list[Leaf] = []
        self._loops: list[int] = []
        """The number of the innermost loop around each leaf; 0: none."""
        self._behind: list[set[int]] = []
        self._numbers = itertools.count(1)
        self._start = self._add(node, loop=0).first
        self._follow = list(map(frozenset, self._behind))
        """The leaves that may follow each leaf."""
        self._begins = [_beginning(leaf, types_of) for leaf in self._leaves]
        """The bytes with which each leaf may begin."""
        self._goes_on = [_continuing(leaf, types_of) for leaf in self._leaves]
        """The bytes with which each leaf may go on where it could end."""
        self._next = [
            _NONE.union(*(self._begins[place] for place in places))
            for places in self._follow
        ]

    def check(self) -> None:
        """Refuse a tag that is misread."""
        for place, leaf in enumerate(self._leaves):
            if self._goes_on[place] & self._next[place]:
                raise _misread(f"{_told(leaf)} before a text that may be a part of it")
        pending = [(self._start, self._start)]
        seen = set(pending)
        while pending:
            for one, other in product(*pending.pop()):
                if not self._end_together(one, other):
                    continue
                loops = {self._loops[one], self._loops[other]} - {0}
                if len(loops) > 1:
                    raise _misread(_SEVERAL_WAYS)
                behind = self._follow[one], self._follow[other]
                if behind not in seen:
                    seen.add(behind)
                    pending.append(behind)

    def _add(self, node: Node, loop: int) -> _Span:
        """Add the leaves of a node, and what follows them in it."""
        match node:
            case Sequence(parts):
                whole = _Span()
                for part in parts:
                    span = self._add(part, loop)
                    self._lead(whole.last, span.first)
                    whole = _Span(
                        whole.first | span.first if whole.empty else whole.first,
                        whole.last | span.last if span.empty else span.last,
                        whole.empty and span.empty,
                    )
                return whole
            case Either(options):
                spans = [self._add(option, loop) for option in options]
                firsts, lasts, empties = zip(*spans, strict=True)
                none = frozenset[int]()
                return _Span(none.union(*firsts), none.union(*lasts), any(empties))
            case Repeat(part, low):
                span = self._add(part, next(self._numbers) if node.loop else loop)
                if node.loop:
                    if any(span.first & self._behind[place] for place in span.last):
                        raise _misread(_SEVERAL_WAYS)
                    self._lead(span.last, span.first)
                return span._replace(empty=span.empty or low == 0)
            case _:
                place = frozenset({len(self._leaves)})
                self._leaves.append(node)
                self._loops.append(loop)
                self._behind.append(set())
                return _Span(place, place, empty=False)

    def _lead(self, places: frozenset[int], first: frozenset[int]) -> None:
        """Some leaves may be followed by others."""
        for place in places:
            self._behind[place] |= first

    def _end_together(self, one: int, other: int) -> bool:
        """Tell whether two leaves that may come at one place may end at the same place.

        Refuses two of which one goes on where the other should end. Each pair comes in
        both orders.
        """
        match self._leaves[one], self._leaves[other]:
            case Text(text), Text(head):
                clash = text.startswith(head) and self._may_follow(other, text, head)
                together = text == head
            case Free(), Text():
                return self._end_together(other, one)
            case Text(text), Free(stops) as free:
                ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
                head = text[: min(ends, default=0)]
                ends_free = free.reaches_stop and head.endswith(free.ending)
                clash = not ends or (ends_free and self._may_follow(other, text, head))
                together = ends_free and text == head
            case Free(stops), Free(also):
                clash = stops != also
                together = True
            case Schema(), Schema():
                # Numbers are what may go on, and those are looked at one by one.
                return True
            case leaf, second:
                together = leaf == second
                clash = not together and bool(self._begins[one] & self._begins[other])
        if clash:
            told = _told(self._leaves[other])
            raise _misread(f"{told} next to {_told(self._leaves[one])}")
        return together

    def _may_follow(self, place: int, text: str, head: str) -> bool:
        """Tell whether what follows a leaf may begin as a text does behind its head."""
        rest = text.removeprefix(head).encode()
        return bool(rest) and rest[0] in self._next[place]


def _beginning(leaf: Leaf, types_of: TypesOf) -> _Bytes:
    """The bytes with which a leaf may begin."""
    match leaf:
        case Text(text):
            return frozenset(text.encode()[:1])
        case Control():
            return _NONE
        case Free():
            return _ANY
        case Regex():
            return leaf.alphabet
        case Schema():
            return _NONE.union(*(_BEGINNINGS[kind] for kind in types_of(leaf)))


def _continuing(leaf: Leaf, types_of: TypesOf) -> _Bytes:
    """The bytes with which a leaf may go on where it could end as well."""
    match leaf:
        case Free() if not leaf.reaches_stop:
            return _ANY
        case Regex():
            return leaf.alphabet
        case Schema() if "number" in types_of(leaf):
            return _NUMBER
        case _:
            return _NONE


def _misread(what: str) -> UnsupportedSpecError:
    """An error about a tag that a lexer would read otherwise."""
    return UnsupportedSpecError(
        f"can't be read from left to right: {what}",
        where="structural_tag (llguidance)",
        hint="let the parts begin and end with texts that differ",
    )


def _told(leaf: Leaf) -> str:
    """A leaf in words."""
    match leaf:
        case Text(text):
            return shown(text)
        case Regex(pattern):
            return f"the regex {shown(pattern)}"
        case Schema():
            return "JSON"
        case _:
            return "free text"
