"""The place of an output in its arrays of distinct items, byte by byte, and what can
still come there.

States never change: going back is taking an earlier one. The items so far (`Seen`) are
shared by the states of one output, and each state knows how many of them are its own.
Items are scalars, so no such array is inside another one. Depends on seen and
spellings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Self

from guided_plugin.grammar.layout import SPACES
from guided_plugin.grammar.llguidance.distinct.seen import Seen
from guided_plugin.grammar.llguidance.distinct.spellings import SCALAR, Mode
from guided_plugin.grammar.llguidance.lark.emitter import (
    CHANGING,
    CONTROL,
    MARKS,
    PLAIN,
)
from guided_plugin.grammar.vocabulary import Vocabulary

BYTES = Vocabulary.from_tokens(
    [
        *(bytes([i]) for i in range(256)),
        b"</s>",
        *(b"<%d>" % i for i in range(CONTROL, MARKS.stop)),
    ],
    [256],
    frozenset(range(CONTROL, MARKS.stop)),
)
"""Token i is byte i; then come a stop token, one in front of a control token's number,
and the marks."""

_ENDS = b",] "
"""The bytes that end a number: a space stands for all whitespace."""

_SEVERAL = 2
"""With so many ways to go on, one is left when an item ends."""


@dataclass(slots=True, eq=False)
class State:
    """The state of an output."""

    seen: Seen | None = None
    """The items of the array that it is in, if these must be distinct."""
    count: int = 0
    """The number of them so far."""
    behind: bool = False
    """True if it is behind an item: none is in progress or may begin."""
    mode: Mode = Mode.BETWEEN
    text: bytes = b""
    """The part of the item in progress that is there."""
    size: int = 0
    """The number of bytes that the matcher has moved past."""

    def take(self, seen: Seen, byte: bytes) -> bool:
        """Move past a byte in an array; False where it ends an item that is there
        already."""
        if self.mode >= Mode.STRING:
            self.text += byte
            if self.mode is Mode.ESCAPED:
                self.mode = Mode.STRING
            elif byte == b"\\":
                self.mode = Mode.ESCAPED
            elif byte == b'"':
                return self._end(seen)
            return True
        if byte[0] in SCALAR:
            self.text += byte
            self.mode = Mode.SCALAR
            return True
        if self.mode is Mode.SCALAR and not self._end(seen):
            return False
        if byte == b'"':
            self.text = byte
            self.mode = Mode.STRING
        elif byte in b"[{]":
            self.seen = None  # it ends, or is not such an array
        return True

    def _end(self, seen: Seen) -> bool:
        self.mode = Mode.BETWEEN
        self.behind = True
        fresh = seen.add(self.count, self.text)
        self.count += 1
        return fresh


class Track:
    """Follows one output with a matcher over bytes, of a grammar with marks."""

    def __init__(self, start: Callable[[], Any]) -> None:
        """`start`: a matcher over `BYTES` at the beginning."""
        self._start = start
        self._explores = True
        """True if it finds out what items can still become; else it finds repeated
        items alone."""
        self._matcher = start()
        self._fed: list[int] = []
        self.state = State()
        self._states = [self.state]
        """Before each move, and now."""

    def move(self, data: bytes) -> bool:
        """Move past bytes; False, and no move, where an item is there already, or they
        have no place."""
        state = self.state = replace(self.state)
        done = at = 0
        fine = True
        while fine and at < len(data):
            if state.seen is None:
                at = data.find(b"[", at) + 1
                begins = at > 0
                at = at or len(data)
            else:
                byte = data[at : at + 1]
                fine = state.take(state.seen, byte)
                begins = state.mode is Mode.BETWEEN and byte in b"[,"
                at += 1
            if fine and begins:
                fine = self._feed([*data[done:at]])
                self._begin(state)
                done = at
        if fine and self._feed([*data[done:]]):
            state.size = len(self._fed)
            self._states.append(state)
            return True
        self.back(0)
        return False

    def control(self, token: int) -> bool:
        """Move past a control token."""
        fine = self._feed([CONTROL, *b"%d;" % token])
        self.state = replace(self.state, size=len(self._fed))
        self._states.append(self.state)
        return fine

    def back(self, moves: int) -> None:
        """Take the last moves back, and what was moved since."""
        del self._states[len(self._states) - moves :]
        state = self.state = self._states[-1]
        rest = len(self._fed) - state.size
        del self._fed[state.size :]
        if rest and (self._matcher.is_error() or not self._matcher.rollback(rest)):
            self._matcher = self._start()
            self._matcher.consume_tokens(self._fed)
        elif rest:
            # Else it shows the mask that it has computed behind as many bytes before.
            self._matcher.compute_bitmask()
        if state.seen is not None:
            state.seen.cut(state.count)

    def fork(self, *, explores: bool = True) -> Self:
        """An independent one in the same position, from which it can't go back."""
        other = copy(self)
        other._explores = explores
        other._matcher = self._matcher.deep_copy()
        other._fed = [*self._fed]
        seen = self.state.seen
        if seen is not None:
            seen = seen.copy() if explores else Seen(seen.marks, seen.values)
        other.state = replace(self.state, seen=seen)
        other._states = [other.state]
        return other

    def limit(self) -> str:
        """Return the error of its matcher; empty if there is none."""
        return str(self._matcher.get_error()) if self._matcher.is_error() else ""

    def accept_bytes(self, data: bytes) -> bool:
        """Move past bytes; False, and no move, where nothing new can come of an item in
        progress then."""
        if not self.move(data):
            return False
        if self.state.text in self.dead:
            self.back(1)
            return False
        return True

    def fits(self, data: bytes) -> bool:
        """True if something new can come after bytes."""
        if not self.accept_bytes(data):
            return False
        self.back(1)
        return True

    @property
    def dead(self) -> set[bytes]:
        """The dead texts of the item in progress, or that may begin; none if there is
        no such item."""
        seen = self.state.seen
        return set() if seen is None or self.state.behind else seen.dead

    def has_room(self) -> bool:
        """True if an item in progress may go on in several ways: when it ends, the next
        one may begin as it did. False where that is not known."""
        state = self.state
        dead = self.dead
        ways = 0
        for byte in _bytes(self._matcher, state.text) if state.text else ():
            ends = state.mode is Mode.SCALAR and byte not in SCALAR
            ways += not ends and state.text + bytes([byte]) not in dead
            if ways == _SEVERAL:
                return True
        return False

    # Inside

    def _feed(self, tokens: list[int]) -> bool:
        self._fed += tokens
        return not tokens or bool(self._matcher.consume_tokens(tokens))

    def _begin(self, state: State) -> None:
        """Behind a bracket or comma, where an item may begin that must differ from
        those before it."""
        marks = _marks(self._matcher)
        seen = state.seen
        if marks in (0, PLAIN):
            state.seen = None
            return
        if seen is None:
            state.count = 0
        if seen is None or marks & (CHANGING | PLAIN) or seen.marks != marks:
            seen = Seen(marks, () if seen is None else islice(seen.values, state.count))
        state.seen = seen
        state.behind = False
        state.text = b""
        for value in seen.unexplored() if self._explores else ():
            self._explore(seen, value)

    def _explore(self, seen: Seen, value: bytes) -> None:
        """Find the dead beginnings of an item, where one begins."""
        end = len(value)
        if value.startswith(b'"'):
            seen.kill(value)
            end -= 1
        else:
            for byte in _ENDS:
                seen.kill(value + bytes([byte]))
        while end >= 0 and not self._lives(seen, value[:end]):
            seen.kill(value[:end])
            end -= 1

    def _lives(self, seen: Seen, text: bytes) -> bool:
        """True if something new can come of the beginning of an item."""
        ahead = self._matcher.deep_copy()
        if text and not ahead.consume_tokens([*text]):
            return False
        ways = _bytes(ahead, text)
        return any(text + bytes([byte]) not in seen.dead for byte in ways)


def _bytes(matcher: Any, text: bytes) -> Iterator[int]:
    """The bytes that may come behind the beginning of an item, without whitespace that
    is not in a string."""
    bits = int.from_bytes(matcher.compute_bitmask()[:32], "little")
    while bits:
        byte = (bits & -bits).bit_length() - 1
        bits &= bits - 1
        if text.startswith(b'"') or byte not in SPACES:
            yield byte


def _marks(matcher: Any) -> int:
    """The marks that may come next, as bits."""
    return (
        int.from_bytes(matcher.compute_bitmask(), "little") >> MARKS.start
        & (1 << len(MARKS)) - 1
    )
