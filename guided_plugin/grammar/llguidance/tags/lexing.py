"""Whether a lexer reads a structural tag as it is meant. Depends on nodes.

A lexer takes the longest text that any lexeme which may come next allows, and never
goes back. So where a lexeme could go on past the place at which it should end, some
outputs would be refused, or begun and never finished. Such tags are found here: leaves
are lexemes, and any two that may come next at one place are looked at together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import product

from guided_plugin.errors import shown
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
    Until,
)

_NONE: frozenset[int] = frozenset()
_ANY = frozenset(range(256))
_NUMBER = frozenset(b"0123456789.eE+-")

_SEVERAL_WAYS = "repetitions that can be counted in several ways"

_BEGINNINGS = {
    "null": frozenset(b"n"),
    "boolean": frozenset(b"tf"),
    "number": frozenset(b"-0123456789"),
    "string": frozenset(b'"'),
    "array": frozenset(b"["),
    "object": frozenset(b"{"),
}

TypesOf = Callable[[Schema], frozenset[str]]

_Loop = tuple[int, bool]
"""The number of a repetition in its tag, and whether its times are counted."""


@dataclass(slots=True)
class _Ends:
    """Of a node: whether it may be empty, and its first and last leaves."""

    nullable: bool
    first: frozenset[int]
    last: frozenset[int]


def misread(node: Node, types_of: TypesOf) -> str | None:
    """What a lexer reads otherwise than it is meant, or None. `types_of`: the types of
    a schema's values."""
    tag = _Places()
    start = tag.ends(node).first
    return _SEVERAL_WAYS if tag.ambiguous else _Lexing(tag, types_of).misread(start)


class _Places:
    """The leaves of a tag by their place in it, and which may follow which."""

    def __init__(self) -> None:
        self.leaves: list[Leaf] = []
        self.follow: list[set[int]] = []
        self.loops: list[_Loop | None] = []
        """The innermost loop around each leaf."""
        self.ambiguous = False
        """Whether a loop's end may also be inside of it, where one of both counts."""
        self._loop: _Loop | None = None
        self._loop_count = 0

    def ends(self, node: Node) -> _Ends:
        """Add the leaves of a node."""
        match node:
            case Sequence(parts):
                return self._sequence([self.ends(part) for part in parts])
            case Either(options):
                found = [self.ends(option) for option in options]
                first = _NONE.union(*(e.first for e in found))
                last = _NONE.union(*(e.last for e in found))
                return _Ends(any(each.nullable for each in found), first, last)
            case Repeat(part, low, high):
                inner = (
                    self._inside_loop(part, low, high) if high != 1 else self.ends(part)
                )
                return _Ends(inner.nullable or low == 0, inner.first, inner.last)
            case Text() | Control() | Free() | Until() | Regex() | Schema():
                self.leaves.append(node)
                self.follow.append(set())
                self.loops.append(self._loop)
                only = frozenset({len(self.leaves) - 1})
                return _Ends(False, only, only)
            case _:
                raise TypeError(f"free text was not written out: {node!r}")

    def _inside_loop(self, part: Node, low: int, high: int | None) -> _Ends:
        outer = self._loop
        start = len(self.leaves)
        self._loop_count += 1
        self._loop = loop = self._loop_count, low > 1 or high is not None
        inner = self.ends(part)
        again = any(self.follow[place] & inner.first for place in inner.last)
        counted = any(
            each is not None and each[1] for each in (loop, *self.loops[start:])
        )
        self.ambiguous |= counted and (again or inner.nullable)
        self._link(inner.last, inner.first)
        self._loop = outer
        return inner

    def _sequence(self, parts: list[_Ends]) -> _Ends:
        whole = _Ends(True, _NONE, _NONE)
        for part in parts:
            self._link(whole.last, part.first)
            whole = _Ends(
                whole.nullable and part.nullable,
                whole.first | part.first if whole.nullable else whole.first,
                whole.last | part.last if part.nullable else part.last,
            )
        return whole

    def _link(self, last: frozenset[int], first: frozenset[int]) -> None:
        for place in last:
            self.follow[place] |= first


class _Lexing:
    def __init__(self, tag: _Places, types_of: TypesOf) -> None:
        self._leaves = tag.leaves
        self._loops = tag.loops
        self._follow = [frozenset(after) for after in tag.follow]
        found = [_beginning_and_continuing(leaf, types_of) for leaf in tag.leaves]
        self._begins = [begin for begin, _ in found]
        self._continuing = [after for _, after in found]
        self._next = [
            _NONE.union(*(self._begins[place] for place in after))
            for after in tag.follow
        ]

        texts = [leaf.text if isinstance(leaf, Text) else None for leaf in tag.leaves]
        self._rank = [
            (text is None, len(text or ""), place) for place, text in enumerate(texts)
        ]

    def misread(self, start: frozenset[int]) -> str | None:
        for leaf, continuing, after in zip(
            self._leaves, self._continuing, self._next, strict=True
        ):
            if continuing & after:
                return f"{_told(leaf)} before a text that may be a part of it"
        seen: set[tuple[int, int]] = set()
        following = done = {(start, start)}
        while following:
            pending = set().union(*(self._pairs(*both) for both in following)) - seen
            seen |= pending
            following = set()
            for one, other in pending:
                first = self._leaves[one]
                second = self._leaves[other]
                if one != other and self._clash(one, other):
                    return f"{_told(first)} next to {_told(second)}"
                if _end_together(first, second):
                    if one != other and self._several_ways(one, other):
                        return _SEVERAL_WAYS
                    following.add((self._follow[one], self._follow[other]))
            following -= done
            done = done | following
        return None

    def _pairs(
        self, ones: Collection[int], others: Collection[int]
    ) -> set[tuple[int, int]]:
        """Pairs of places, in whichever order they come: texts first, the shorter one
        before the longer."""
        return {
            (one, other) if self._rank[one] <= self._rank[other] else (other, one)
            for one, other in product(ones, others)
        }

    def _several_ways(self, one: int, other: int) -> bool:
        loops = {
            loop for loop in (self._loops[one], self._loops[other]) if loop is not None
        }
        return len(loops) > 1 or any(counts for _, counts in loops)

    def _clash(self, one: int, other: int) -> bool:
        """Whether one of two leaves that may come next goes on where the other should
        end."""
        match self._leaves[one], self._leaves[other]:
            case Text(shorter), Text(longer):
                return (
                    longer != shorter
                    and longer.startswith(shorter)
                    and self._goes_on(longer, shorter, one)
                )
            case Text(text), Free(stops) | Until(_, stops):
                # The text ends with the first stop in it, or it has none.
                end = min(
                    (text.find(stop) + len(stop) for stop in stops if stop in text),
                    default=None,
                )
                if end is None:
                    return bool(self._next[one])
                until = self._leaves[other]
                ends = isinstance(until, Until) and text[:end].endswith(until.stop)
                return ends and self._goes_on(text, text[:end], other)
            case ((Free(stops) | Until(_, stops)), (Free(also) | Until(_, also))):
                return stops != also
            case Schema(), Schema():
                # What may go on are numbers, and those are looked at one by one.
                return False
            case first, second:
                return first != second and bool(self._begins[one] & self._begins[other])

    def _goes_on(self, text: str, head: str, place: int) -> bool:
        """Whether what follows a leaf may begin as a text does behind its head."""
        rest = _raw(text)[len(_raw(head)) :]
        return bool(rest) and rest[0] in self._next[place]


def _end_together(first: Leaf, second: Leaf) -> bool:
    """Whether two leaves that may come next may end at the same place."""
    match first, second:
        case (Schema(), Schema()):
            return True
        case (Text(text), Until(stop)):
            return text.endswith(stop)
        case (Until(_, stops), Until(_, also)) | (Free(stops), Free(also)):
            return stops == also
        case _:
            return first == second


def _beginning_and_continuing(
    leaf: Leaf, types_of: TypesOf
) -> tuple[frozenset[int], frozenset[int]]:
    """The bytes with which a leaf may begin, and those with which it may go on where it
    could end as well."""
    match leaf:
        case Text(text):
            return frozenset(_raw(text)[:1]), _NONE
        case Control():
            return _NONE, _NONE
        case Until():
            return _ANY, _NONE
        case Free():
            return _ANY, _ANY
        case Regex(alphabet=alphabet):
            return alphabet, alphabet
        case Schema():
            types = types_of(leaf)
            begins = _NONE.union(*(_BEGINNINGS[kind] for kind in types))
            return begins, _NUMBER if "number" in types else _NONE


def _raw(text: str) -> bytes:
    return text.encode(errors="replace")


def _told(leaf: Leaf) -> str:
    match leaf:
        case Text(text):
            return shown(text)
        case Regex(pattern):
            return f"the regex {shown(pattern)}"
        case Schema():
            return "JSON"
        case Control(token):
            return f"token {token}"
        case _:
            return "free text"
