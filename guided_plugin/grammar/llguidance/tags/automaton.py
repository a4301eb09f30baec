"""Where an output of a structural tag is, byte by byte, outside of JSON's arrays and objects.

A state is the leaves that may be in progress. Counts of repetitions are not kept, so that a state may hold
leaves which the grammar allows no more; `misread` has told the rest apart. Depends on lexing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from guided_plugin.errors import UnsupportedSpecError
from guided_plugin.grammar.llguidance.tags.lexing import BEGINNINGS, NUMBER, Positions, TypesOf
from guided_plugin.grammar.llguidance.tags.nodes import Control, Free, Leaf, Node, Regex, Schema, Text, Until

Part = TypeVar("Part")
Key = tuple[int, bytes]
"""Leaves that move alike, by a number, and what is known of their text so far: nothing where they begin."""
Going = dict[Key, frozenset[int]]
"""The leaves that may be in progress, by their positions."""

_WORDS = {b"t": b"true", b"f": b"false", b"n": b"null"}
_QUOTE, _ESCAPE, _DIGIT = b'"', b"\\", b"0"
_SAMPLES = frozenset(b'"[{-0tfn')
"""A byte for each kind of JSON value's beginning."""

# A move of one leaf takes a microsecond. Tags of a hundred tools need some ten thousand.
_MAX_MOVES = 1_000_000


class Around(Generic[Part]):
    """A place of an output outside of arrays and objects."""

    __slots__ = ("_automaton", "_steps", "going")

    def __init__(self, automaton: Automaton[Part], going: Going) -> None:
        self._automaton = automaton
        self.going = going
        self._steps: dict[int, Around[Part] | Part | None] = {}

    def step(self, byte: int) -> Around[Part] | Part | None:
        """The place behind a byte; the array or object that it opens; None where it fits nowhere."""
        if byte not in self._steps:
            self._steps[byte] = self._automaton.step(self.going, byte)
        return self._steps[byte]

    def control(self, token: int) -> Around[Part] | None:
        """The place behind a control token; None where it fits nowhere."""
        if ~token not in self._steps:
            self._steps[~token] = self._automaton.control(self.going, token)
        return self._steps[~token]  # type: ignore[return-value]


class _FreeText:
    """Free text up to the same stops: where it ends, and how much of its end is worth knowing."""

    def __init__(self, stops: tuple[str, ...], leaves: Iterable[Free | Until]) -> None:
        self._stops = tuple(stop.encode() for stop in stops)
        words = {*self._stops}
        for leaf in leaves:
            words |= (
                {leaf.suffix.encode()} if isinstance(leaf, Free) else {each.encode() for each in leaf.barred}
            )
        self._next: dict[bytes, set[int]] = {b"": set()}
        """The bytes that may follow the beginnings of these."""
        for word in words:
            for end, byte in enumerate(word):
                self._next.setdefault(word[:end], set()).add(byte)
        self._moves: dict[bytes, tuple[bytes, bool]] = {}

    def moved(self, text: bytes) -> tuple[bytes, bool]:
        """What is worth knowing of a text's end, and whether a stop is there."""
        if text not in self._moves:
            kept = next((text[at:] for at in range(len(text)) if text[at:] in self._next), b"")
            self._moves[text] = kept, text.endswith(self._stops) if self._stops else False
        return self._moves[text]

    def wanted(self, text: bytes) -> set[int]:
        """The bytes that matter behind a text."""
        return set().union(*(self._next.get(text[at:], ()) for at in range(len(text) + 1)))


class Automaton(Generic[Part]):
    """The places of one tag. All are found when it is made, with `part` of what the JSON there may be."""

    def __init__(
        self, node: Node, types_of: TypesOf, part: Callable[[list[Schema], Around[Part]], Part]
    ) -> None:
        """`node`: a tag without `Dispatch` that is not misread. `part`: an array or object of one of some
        schemas, and the place behind it."""
        positions = Positions()
        first = positions.ends(node).first
        self._leaves = positions.leaves
        self._part = part
        self._states: dict[frozenset[tuple[Key, frozenset[int]]], Around[Part]] = {}
        self._pending: list[Around[Part]] = []
        self._begins = {
            at: frozenset().union(*(BEGINNINGS[kind] for kind in types_of(leaf)))
            for at, leaf in enumerate(self._leaves)
            if isinstance(leaf, Schema)
        }
        self._texts = {
            at: leaf.text.encode() for at, leaf in enumerate(self._leaves) if isinstance(leaf, Text)
        }
        self._alike = list(range(len(self._leaves)))
        self._free = self._free_texts()
        self._unending = frozenset(at for at, leaf in enumerate(self._leaves) if isinstance(leaf, Free))
        self._follow = [self._beginning(found) for found in positions.follow]
        self.start = self._state(self._beginning(first))
        self._explore()

    def step(self, going: Going, byte: int) -> Around[Part] | Part | None:
        """What is behind a byte."""
        found: Going = {}
        opened: list[int] = []
        fits = False
        for (alike, text), positions in going.items():
            if not text and byte in b"[{" and byte in self._begins.get(alike, ()):
                opened.append(alike)
                continue
            if alike in self._free:
                more, ended = self._moved_free(alike, text + bytes([byte]), positions)
            else:
                more, ends = self._moved(alike, text, byte)
                ended = [alike] if ends else []
            if more is not None:
                found[alike, more] = found.get((alike, more), frozenset()) | positions
            self._add_behind(found, ended)
            fits = fits or bool(ended) or more is not None
        if not opened:
            return self._state(found) if fits else None
        if fits:
            return None
        schemas = [leaf for at in sorted(opened) if isinstance(leaf := self._leaves[at], Schema)]
        self._add_behind(found, opened)
        return self._part(schemas, self._state(found))

    def control(self, going: Going, token: int) -> Around[Part] | None:
        """What is behind a control token."""
        ended = [alike for alike, _ in going if self._leaves[alike] == Control(token)]
        found: Going = {}
        self._add_behind(found, ended)
        return self._state(found) if ended else None

    def _free_texts(self) -> dict[int, _FreeText]:
        """Free text by the first leaf of those with the same stops, as which the others count."""
        groups: dict[tuple[str, ...], dict[int, Free | Until]] = {}
        for at, leaf in enumerate(self._leaves):
            if isinstance(leaf, Free | Until):
                groups.setdefault(leaf.stops, {})[at] = leaf
        for leaves in groups.values():
            for at in leaves:
                self._alike[at] = min(leaves)
        return {min(leaves): _FreeText(stops, leaves.values()) for stops, leaves in groups.items()}

    def _beginning(self, positions: Iterable[int]) -> Going:
        found: dict[Key, set[int]] = {}
        for at in positions:
            found.setdefault((self._alike[at], b""), set()).add(at)
        return {key: frozenset(each) for key, each in found.items()}

    def _add_behind(self, found: Going, ended: Iterable[int]) -> None:
        for at in ended:
            for key, positions in self._follow[at].items():
                before = found.get(key)
                found[key] = positions if before is None else before | positions

    def _state(self, going: Going) -> Around[Part]:
        key = frozenset(going.items())
        found = self._states.get(key)
        if found is None:
            found = self._states[key] = Around(self, going)
            self._pending.append(found)
        return found

    def _explore(self) -> None:
        moves = 0
        while self._pending:
            state = self._pending.pop()
            samples = self._samples(state.going)
            moves += len(samples) * sum(map(len, state.going.values()))
            if moves > _MAX_MOVES:
                raise UnsupportedSpecError(
                    "has too many parts to find those with `uniqueItems`, or counted properties",
                    where="structural_tag (llguidance)",
                    hint="split the tag, or leave these keywords out",
                )
            for byte in samples:
                state.step(byte)
            for alike, _ in state.going:
                leaf = self._leaves[alike]
                if isinstance(leaf, Control):
                    state.control(leaf.token)

    def _samples(self, going: Going) -> frozenset[int]:
        """A byte for each way out of a state."""
        wanted = frozenset().union(*(self._wanted(alike, text) for alike, text in going))
        other = next((byte for byte in b"~0\0" if byte not in wanted), None)
        return wanted if other is None else wanted | {other}

    def _wanted(self, position: int, text: bytes) -> Iterable[int]:
        leaf = self._leaves[position]
        if position in self._texts:
            return self._texts[position][len(text) : len(text) + 1]
        if position in self._free:
            return self._free[position].wanted(text)
        if isinstance(leaf, Regex):
            return sorted(leaf.alphabet)[:1]
        if isinstance(leaf, Schema):
            word = _WORDS.get(text[:1], b"")[len(text) : len(text) + 1]
            return word or b'"\\0' if text else self._begins[position] & _SAMPLES
        return ()

    def _moved(self, position: int, text: bytes, byte: int) -> tuple[bytes | None, bool]:
        """What is known of a leaf's text behind a byte, None where it can't go on; whether it may end."""
        leaf = self._leaves[position]
        if position in self._texts:
            whole = self._texts[position]
            if whole[len(text)] != byte:
                return None, False
            ends = len(text) + 1 == len(whole)
            return (None if ends else whole[: len(text) + 1]), ends
        if isinstance(leaf, Regex):
            return (b".", True) if byte in leaf.alphabet else (None, False)
        return _scalar(text, byte) if text or byte in self._begins.get(position, ()) else (None, False)

    def _moved_free(
        self, alike: int, text: bytes, positions: frozenset[int]
    ) -> tuple[bytes | None, list[int]]:
        """The same for free text, with the leaves that may end."""
        kept, stopped = self._free[alike].moved(text)
        likely = positions if stopped else positions & self._unending
        ended = [at for at in likely if _may_end(self._leaves[at], text, stopped)]
        return (None if stopped else kept), ended


def _may_end(leaf: Leaf, text: bytes, stopped: bool) -> bool:
    """Whether free text may end here, where a stop is there, or none."""
    if isinstance(leaf, Free):
        return not stopped and text.endswith(leaf.suffix.encode())
    barred = isinstance(leaf, Until) and any(text.endswith(each.encode()) for each in leaf.barred)
    return isinstance(leaf, Until) and stopped and text.endswith(leaf.stop.encode()) and not barred


def _scalar(text: bytes, byte: int) -> tuple[bytes | None, bool]:
    """The same for a JSON value that is no array and no object."""
    if text == _ESCAPE:
        return _QUOTE, False
    if text == _QUOTE:
        return (None, True) if byte == 34 else (_ESCAPE if byte == 92 else _QUOTE, False)
    if byte == 34:
        return (_QUOTE, False) if not text else (None, False)
    if byte in NUMBER and text in (b"", _DIGIT):
        return _DIGIT, True
    text += bytes([byte])
    word = _WORDS.get(text[:1], b"")
    return (None if text == word else text, text == word) if word.startswith(text) else (None, False)
