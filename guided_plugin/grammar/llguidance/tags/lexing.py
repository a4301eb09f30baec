"""Whether a lexer reads a structural tag as it is meant. Depends on nodes.

A lexer takes the longest text that any lexeme which may come next allows, and never goes back. So where a
lexeme could go on past the place at which it should end, some outputs would be refused, or begun and never
finished. Such tags are found here: leaves are lexemes, and the leaves that may come next are looked at
together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

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

_ANY = frozenset(range(256))
NUMBER = frozenset(b"0123456789.eE+-")
# Tags need some dozens of states.
_MAX_STATES = 5_000

_SEVERAL_WAYS = "repetitions that can be counted in several ways"

BEGINNINGS = {
    "null": frozenset(b"n"),
    "boolean": frozenset(b"tf"),
    "number": frozenset(b"-0123456789"),
    "string": frozenset(b'"'),
    "array": frozenset(b"["),
    "object": frozenset(b"{"),
}

TypesOf = Callable[[Schema], frozenset[str]]


@dataclass(slots=True)
class _Ends:
    """Of a node: whether it may be empty, and its first and last leaves."""

    nullable: bool
    first: frozenset[int]
    last: frozenset[int]


def misread(node: Node, types_of: TypesOf) -> str | None:
    """What a lexer reads otherwise than it is meant, or None. `types_of`: the types of a schema's values."""
    return _Lexing(node, types_of).misread()


class _Lexing:
    def __init__(self, node: Node, types_of: TypesOf) -> None:
        self._types_of = types_of
        self._leaves: list[Leaf] = []
        """The leaves of a tag, by their place in it,"""
        self._follow: list[set[int]] = []
        """and which may follow which."""
        self._loops: list[int] = []
        """The innermost loop around each leaf; 0: none. Odd ones count."""
        self._loop = self._loop_count = 0
        self._ambiguous = False
        """Whether a loop's end may also be inside of it, where one of both counts."""
        self._start = self._ends(node).first
        self._begins = [self._beginning(leaf) for leaf in self._leaves]
        self._next = [self._beginnings(found) for found in self._follow]

    def misread(self) -> str | None:
        if self._ambiguous:
            return _SEVERAL_WAYS
        for position, leaf in enumerate(self._leaves):
            if self._continuing(leaf) & self._next[position]:
                return f"{_told(leaf)} in front of what may be a part of it"
        seen: set[frozenset[int]] = set()
        pending = [self._start]
        while pending:
            state = pending.pop()
            if state in seen:
                continue
            seen.add(state)
            if len(seen) > _MAX_STATES:
                return "so many parts that may come next"
            found = self._clash(state)
            if found is not None:
                return found
            for group in self._groups(state):
                loops = {self._loops[position] for position in group} - {0}
                if len(loops) > 1 or (len(group) > 1 and any(loop % 2 for loop in loops)):
                    return _SEVERAL_WAYS
                pending.append(frozenset().union(*(self._follow[position] for position in group)))
        return None

    def _ends(self, node: Node) -> _Ends:
        match node:
            case Sequence(parts):
                return self._sequence([self._ends(part) for part in parts])
            case Either(options):
                found = [self._ends(option) for option in options]
                first = frozenset().union(*(each.first for each in found))
                last = frozenset().union(*(each.last for each in found))
                return _Ends(any(each.nullable for each in found), first, last)
            case Repeat(part, low, high):
                inner = self._inside_loop(part, low, high) if high != 1 else self._ends(part)
                return _Ends(inner.nullable or low == 0, inner.first, inner.last)
            case Text() | Control() | Free() | Until() | Regex() | Schema():
                self._leaves.append(node)
                self._follow.append(set())
                self._loops.append(self._loop)
                only = frozenset({len(self._leaves) - 1})
                return _Ends(False, only, only)
            case _:
                raise TypeError(f"free text was not written out: {node!r}")

    def _inside_loop(self, part: Node, low: int, high: int | None) -> _Ends:
        outer, start = self._loop, len(self._leaves)
        counts = low > 1 or high is not None
        self._loop_count += 1
        self._loop = 2 * self._loop_count + counts
        inner = self._ends(part)
        again = any(self._follow[position] & inner.first for position in inner.last)
        if (again or inner.nullable) and any(loop % 2 for loop in (self._loop, *self._loops[start:])):
            self._ambiguous = True
        self._link(inner.last, inner.first)
        self._loop = outer
        return inner

    def _sequence(self, parts: list[_Ends]) -> _Ends:
        whole = _Ends(True, frozenset(), frozenset())
        for part in parts:
            self._link(whole.last, part.first)
            whole = _Ends(
                whole.nullable and part.nullable,
                whole.first | part.first if whole.nullable else whole.first,
                whole.last | part.last if part.nullable else part.last,
            )
        return whole

    def _link(self, last: frozenset[int], first: frozenset[int]) -> None:
        for position in last:
            self._follow[position] |= first

    def _beginning(self, leaf: Leaf) -> frozenset[int]:
        match leaf:
            case Text(text):
                return frozenset(text.encode(errors="replace")[:1])
            case Control():
                return frozenset()
            case Free() | Until():
                return _ANY
            case Regex(alphabet=alphabet):
                return alphabet
            case Schema():
                return frozenset().union(*(BEGINNINGS[kind] for kind in self._types_of(leaf)))

    def _beginnings(self, positions: Iterable[int]) -> frozenset[int]:
        return frozenset().union(*(self._begins[position] for position in positions))

    def _continuing(self, leaf: Leaf) -> frozenset[int]:
        """Bytes that may follow in a leaf where it could end as well."""
        match leaf:
            case Text() | Control() | Until():
                return frozenset()
            case Free():
                return _ANY
            case Regex(alphabet=alphabet):
                return alphabet
            case Schema():
                return NUMBER if "number" in self._types_of(leaf) else frozenset()

    def _clash(self, state: frozenset[int]) -> str | None:
        """Two leaves that may come next, of which one goes on where the other should end."""
        texts: dict[str, list[int]] = {}
        others = []
        for position in sorted(state):
            leaf = self._leaves[position]
            if isinstance(leaf, Text):
                texts.setdefault(leaf.text, []).append(position)
            elif not isinstance(leaf, Control):
                others.append(position)
        for text in texts:
            raw = text.encode(errors="replace")
            for end in range(1, len(text)):
                shorter = texts.get(text[:end], ())
                after = raw[len(text[:end].encode(errors="replace"))]
                if any(after in self._next[position] for position in shorter):
                    return f"{shown(text[:end])} next to {shown(text)}"
            for other in others:
                if any(self._differs(position, other) for position in texts[text]):
                    return f"{shown(text)} next to {_told(self._leaves[other])}"
        for index, position in enumerate(others):
            for other in others[index + 1 :]:
                if not self._alike(position, other) and self._begins[position] & self._begins[other]:
                    return f"{_told(self._leaves[position])} next to {_told(self._leaves[other])}"
        return None

    def _alike(self, one: int, other: int) -> bool:
        """Whether no two texts of two leaves are such that one goes on where the other should end."""
        first, second = self._leaves[one], self._leaves[other]
        if isinstance(first, Free | Until) and isinstance(second, Free | Until):
            return first.stops == second.stops
        if isinstance(first, Schema) and isinstance(second, Schema):
            # What may go on are numbers, and those are looked at one by one.
            return True
        return first == second

    def _differs(self, text: int, other: int) -> bool:
        """Whether a text and another leaf may be read for each other."""
        leaf, found = self._leaves[text], self._leaves[other]
        if not isinstance(leaf, Text):
            return False
        if not isinstance(found, Free | Until):
            return bool(self._begins[text] & self._begins[other])
        stops = [leaf.text.find(stop) + len(stop) for stop in found.stops if stop in leaf.text]
        end = min(stops, default=None)
        if end is None:
            return bool(self._next[text])
        if isinstance(found, Free) or not leaf.text[:end].endswith(found.stop):
            return False
        rest = leaf.text[end:].encode(errors="replace")
        return bool(rest) and rest[0] in self._next[other]

    def _groups(self, state: frozenset[int]) -> Iterator[set[int]]:
        """Leaves that may end at the same place."""
        groups: dict[object, set[int]] = {}
        for position in state:
            leaf = self._leaves[position]
            key: object = leaf
            if isinstance(leaf, Schema):
                key = Schema
            elif isinstance(leaf, Until):
                key = leaf.stops
            elif isinstance(leaf, Free):
                key = ("free", leaf.stops)
            groups.setdefault(key, set()).add(position)
        for key, group in groups.items():
            if isinstance(key, Text):
                untils = ((each, self._leaves[each]) for each in state)
                group |= {
                    at for at, leaf in untils if isinstance(leaf, Until) and key.text.endswith(leaf.stop)
                }
            yield group


def _told(leaf: Leaf) -> str:
    match leaf:
        case Text(text):
            return repr(text)
        case Regex(pattern):
            return f"the regex {shown(pattern)}"
        case Schema():
            return "JSON"
        case Control(token):
            return f"token {token}"
        case _:
            return "free text"
