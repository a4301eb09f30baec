"""The check that a lexer reads a structural tag as it is meant. Depends on nodes.

A lexer takes the longest text that any lexeme which may come next allows, and never
goes back. So where a lexeme could go on past the place at which it should end, some
outputs would be refused, or begun and never finished. Such tags are found here: leaves
are lexemes, and any two that may come next at one place are looked at together.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

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


class Lexing:
    """A tag as an automaton: from state to state by a leaf, or by nothing.

    A place is the number of a leaf. `types_of`: the types of a schema's values.
    """

    def __init__(self, node: Node, types_of: TypesOf) -> None:
        self._leaves: list[Leaf] = []
        self._loops: list[int] = []
        """The state in which the innermost loop around each leaf begins; 0: none."""
        self._behind: list[int] = []
        """The state after each leaf."""
        self._places: list[list[int]] = []
        """The leaves that begin in each state."""
        self._skips: list[list[int]] = []
        """The states that each state is as well."""
        start = self._state()
        self._add(node, start, loop=0)
        self._start = self._next_places(start)
        """The leaves that may come first."""
        self._follow = [self._next_places(state) for state in self._behind]
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

    def _add(self, node: Node, state: int, loop: int) -> int:
        """Add a node that begins in a state; the state after it."""
        match node:
            case Sequence(parts):
                for part in parts:
                    state = self._add(part, state, loop)
                return state
            case Either(options):
                after = self._state()
                for option in options:
                    self._skips[self._add(option, state, loop)].append(after)
                return after
            case Repeat(part, low):
                begin = self._state()
                self._skips[state].append(begin)
                first = len(self._leaves)
                after = self._add(part, begin, begin if node.loop else loop)
                if node.loop:
                    self._close_loop(begin, after, self._behind[first:])
                if low == 0:
                    self._skips[begin].append(after)
                return after
            case _:
                self._places[state].append(len(self._leaves))
                self._leaves.append(node)
                self._loops.append(loop)
                self._behind.append(self._state())
                return self._behind[-1]

    def _close_loop(self, begin: int, after: int, inside: list[int]) -> None:
        """Lead from the end of a loop to its beginning. `inside`: the states after its
        leaves."""
        first = self._next_places(begin)
        for state in inside:
            ends = after in self._same(state)
            if ends and not first.isdisjoint(self._next_places(state)):
                raise _misread(_SEVERAL_WAYS)
        self._skips[after].append(begin)

    def _state(self) -> int:
        """Add a state."""
        self._places.append([])
        self._skips.append([])
        return len(self._skips) - 1

    def _same(self, state: int) -> set[int]:
        """What a state is as well, itself included."""
        seen = {state}
        pending = [state]
        while pending:
            fresh = set(self._skips[pending.pop()]) - seen
            seen |= fresh
            pending += fresh
        return seen

    def _next_places(self, state: int) -> frozenset[int]:
        """The leaves that may come next in a state."""
        return frozenset(
            place for same in self._same(state) for place in self._places[same]
        )

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
