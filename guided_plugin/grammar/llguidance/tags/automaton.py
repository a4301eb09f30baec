"""Where an output of a structural tag is, byte by byte, outside of JSON's arrays and objects.

A state is the leaves that may be in progress. Counts of repetitions are not kept, so that a state may hold
leaves which the grammar allows no more; `misread` has told the rest apart. Depends on lexing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from guided_plugin.errors import UnsupportedSpecError
from guided_plugin.grammar.llguidance.tags.lexing import BEGINNINGS, NUMBER, Positions, TypesOf
from guided_plugin.grammar.llguidance.tags.nodes import Control, Free, Node, Regex, Schema, Text, Until

Part = TypeVar("Part")
Progress = tuple[int, bytes]
"""A leaf by its position, and what is known of its text so far: empty where it has not begun."""

_WORDS = {b"t": b"true", b"f": b"false", b"n": b"null"}
_QUOTE, _ESCAPE, _DIGIT = b'"', b"\\", b"0"
_SAMPLES = frozenset(b'"[{-0tfn')
"""A byte for each kind of JSON value's beginning."""

# A move of one leaf takes a microsecond. Tags of a hundred tools need some ten thousand.
_MAX_MOVES = 1_000_000


class Around(Generic[Part]):
    """A place of an output outside of arrays and objects."""

    __slots__ = ("_automaton", "_steps", "going")

    def __init__(self, automaton: Automaton[Part], going: frozenset[Progress]) -> None:
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


@dataclass(frozen=True, slots=True)
class _Words:
    """Of free text: what ends it, and how much of its end is worth knowing."""

    stops: tuple[bytes, ...]
    own: bytes
    """The stop, or suffix, with which it may end."""
    barred: tuple[bytes, ...]
    starts: frozenset[bytes]
    """The beginnings of all these."""
    letters: frozenset[int]

    @staticmethod
    def of(leaf: Free | Until) -> _Words:
        """The words of a leaf."""
        stops = tuple(stop.encode() for stop in leaf.stops)
        own = (leaf.suffix if isinstance(leaf, Free) else leaf.stop).encode()
        barred = () if isinstance(leaf, Free) else tuple(text.encode() for text in leaf.barred)
        words = (*stops, own, *barred)
        starts = frozenset(word[:end] for word in words for end in range(1, len(word)))
        return _Words(stops, own, barred, starts, frozenset(b"".join(words)))

    def kept(self, tail: bytes) -> bytes:
        """The part of a text's end that may begin one of the words."""
        return next((tail[at:] for at in range(len(tail)) if tail[at:] in self.starts), b"")


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
        self._follow = [frozenset((each, b"") for each in found) for found in positions.follow]
        self._part = part
        self._states: dict[frozenset[Progress], Around[Part]] = {}
        self._begins = {
            at: frozenset().union(*(BEGINNINGS[kind] for kind in types_of(leaf)))
            for at, leaf in enumerate(self._leaves)
            if isinstance(leaf, Schema)
        }
        self._words = {
            at: _Words.of(leaf) for at, leaf in enumerate(self._leaves) if isinstance(leaf, Free | Until)
        }
        self._texts = {
            at: leaf.text.encode() for at, leaf in enumerate(self._leaves) if isinstance(leaf, Text)
        }
        self._pending: list[Around[Part]] = []
        self.start = self._state(frozenset((each, b"") for each in first))
        self._explore()

    def step(self, going: frozenset[Progress], byte: int) -> Around[Part] | Part | None:
        """What is behind a byte."""
        found: set[Progress] = set()
        opened: list[int] = []
        fits = False
        for position, text in going:
            if not text and byte in b"[{" and byte in self._begins.get(position, ()):
                opened.append(position)
                continue
            more, ends = self._moved(position, text, byte)
            if more is not None:
                found.add((position, more))
            if ends:
                found |= self._follow[position]
            fits = fits or ends or more is not None
        if not opened:
            return self._state(frozenset(found)) if fits else None
        if fits:
            return None
        schemas = [leaf for at in sorted(opened) if isinstance(leaf := self._leaves[at], Schema)]
        after = self._state(frozenset().union(*(self._follow[at] for at in opened)))
        return self._part(schemas, after)

    def control(self, going: frozenset[Progress], token: int) -> Around[Part] | None:
        """What is behind a control token."""
        ended = [at for at, _ in going if self._leaves[at] == Control(token)]
        return self._state(frozenset().union(*(self._follow[at] for at in ended))) if ended else None

    def _state(self, going: frozenset[Progress]) -> Around[Part]:
        found = self._states.get(going)
        if found is None:
            found = self._states[going] = Around(self, going)
            self._pending.append(found)
        return found

    def _explore(self) -> None:
        moves = 0
        while self._pending:
            state = self._pending.pop()
            samples = self._samples(state.going)
            moves += len(state.going) * len(samples)
            if moves > _MAX_MOVES:
                raise UnsupportedSpecError(
                    "has too many parts to find those with `uniqueItems`, or counted properties",
                    where="structural_tag (llguidance)",
                    hint="split the tag, or leave these keywords out",
                )
            for byte in samples:
                state.step(byte)
            for at, _ in state.going:
                leaf = self._leaves[at]
                if isinstance(leaf, Control):
                    state.control(leaf.token)

    def _samples(self, going: Iterable[Progress]) -> frozenset[int]:
        """A byte for each way out of a state."""
        wanted = frozenset().union(*(self._wanted(position, text) for position, text in going))
        other = next((byte for byte in b"~0\0" if byte not in wanted), None)
        return wanted if other is None else wanted | {other}

    def _wanted(self, position: int, text: bytes) -> Iterable[int]:
        leaf = self._leaves[position]
        if position in self._texts:
            return self._texts[position][len(text) : len(text) + 1]
        if position in self._words:
            return self._words[position].letters
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
        if position in self._words:
            words, text = self._words[position], text + bytes([byte])
            free = isinstance(leaf, Free)
            if any(map(text.endswith, words.stops)):
                return None, not free and text.endswith(words.own) and not any(
                    map(text.endswith, words.barred)
                )
            return words.kept(text), free and text.endswith(words.own)
        if isinstance(leaf, Regex):
            return (b".", True) if byte in leaf.alphabet else (None, False)
        return _scalar(text, byte) if text or byte in self._begins.get(position, ()) else (None, False)


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
