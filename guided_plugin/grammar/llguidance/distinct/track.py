"""Where in its arrays of distinct items an output is, byte by byte, and what can still
come there.

States never change: going back is taking an earlier one. The items so far (`Seen`) are
shared by the states of one output, and each state knows how many of them are its own.
Depends on seen and spellings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

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

ENDS = b",]} "
"""What ends a number: a space stands for all whitespace."""

_OPENS = re.compile(rb"[\[{]")
_PLAIN = re.compile(rb'[^"\\[{]+')


@dataclass(slots=True, eq=False)
class Frame:
    """An open container. Never changed: frozen classes take several times longer to
    make."""

    parent: Frame | None = None
    names: bool = False
    """Whether it is an object: its names must differ."""
    seen: Seen | None = None
    """Its items, or names, if they must be distinct."""
    count: int = 0
    """How many of those are there."""
    start: int = -1
    """Where in the state's text the one in progress begins; -1 between them."""

    @property
    def active(self) -> bool:
        """Whether an item is in progress here or in a container around."""
        return self.start >= 0 or (self.parent is not None and self.parent.active)


@dataclass(slots=True, eq=False)
class State:
    """Where an output is."""

    frame: Frame | None = None
    """The innermost container, if it is in one whose items must be distinct."""
    mode: Mode = Mode.BETWEEN
    text: bytes = b""
    """What was written since the outermost item in progress began, as it is compared:
    without whitespace, but for a space behind a number, until more comes."""
    size: int = 0
    """How many bytes the matcher has moved past."""

    @property
    def written(self) -> bytes:
        """The text, without the space behind a number."""
        return self.text.removesuffix(b" ") if self.mode is Mode.BETWEEN else self.text


class Track:
    """Follows one output with a matcher over bytes, of a grammar with marks."""

    __slots__ = ("_explores", "_fed", "_matcher", "_start", "_states", "state")

    def __init__(
        self,
        start: Callable[[], Any],
        frame: Frame | None = None,
        *,
        explores: bool = True,
    ) -> None:
        """`start`: a matcher over `BYTES` at the beginning. `explores`: whether it
        finds out what items can still become; else it finds repeated items alone."""
        self._start = start
        self._explores = explores
        self._matcher = start()
        self._fed: list[int] = []
        self.state = State(frame)
        self._states = [self.state]
        """Before each move, and now."""

    def move(self, data: bytes) -> bool:
        """Move past bytes; False, and no move, where an item is there already, or they
        have no place."""
        before = self.state
        state = self.state = State(before.frame, before.mode, before.text, before.size)
        done = at = 0
        fine = True
        while fine and at < len(data):
            if state.frame is None:
                found = _OPENS.search(data, at)
                at = found.end() if found else len(data)
                begins = found is not None
            elif state.mode >= Mode.STRING:
                at = self._in_string(state, data, at)
                begins = data[at - 1] in b"[{"
            else:
                fine = self._outside(state, data[at : at + 1])
                begins = data[at] in b"[{,"
                at += 1
            if fine and begins:
                fine = self._feed([*data[done:at]])
                self._begin(state, data[at - 1 : at])
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
        for frame, seen in checked(state.frame):
            seen.cut(frame.count)

    def copy(self, *, explores: bool = True) -> Track:
        """An independent one in the same position, from which it can't go back."""
        other = Track(self._matcher.deep_copy, explores=explores)
        other._start = self._start
        other._fed = [*self._fed]
        other.state = replace(self.state, frame=_own(self.state.frame, explores))
        other._states = [other.state]
        return other

    def limit(self) -> str:
        """What its matcher says went wrong; empty if nothing did."""
        return str(self._matcher.get_error()) if self._matcher.is_error() else ""

    def allowed(self) -> Iterator[int]:
        """The bytes that may come next, without whitespace between values."""
        bits = int.from_bytes(self._matcher.compute_bitmask()[:32], "little")
        while bits:
            byte = (bits & -bits).bit_length() - 1
            bits &= bits - 1
            if self.state.mode >= Mode.STRING or byte not in SPACES:
                yield byte

    def begins_checked(self, head: bytes) -> bool:
        """Whether bytes end where an item begins that must differ from others."""
        other = self._matcher.deep_copy()
        return bool(other.consume_tokens([*head])) and _marks(other) not in (0, PLAIN)

    def accept(self, data: bytes) -> bool:
        """Move past bytes; False, and no move, where nothing new can come of an item in
        progress then."""
        if not self.move(data):
            return False
        text = self.state.text
        for frame, seen in checked(self.state.frame):
            if frame.start >= 0 and text[frame.start :] in seen.dead:
                self.back(1)
                return False
        ways = self.insides()
        if ways is not None and not ways:
            self.back(1)
            return False
        return True

    def insides(self) -> list[int] | None:
        """Behind a bracket that must not be closed at once, as that would repeat an
        item: the bytes that may begin something in it. Behind whitespace there may be
        none: some of that is the closing one's."""
        state = self.state
        closing = (
            {b"[": b"]", b"{": b"}"}.get(state.written[-1:])
            if state.mode is Mode.BETWEEN
            else None
        )
        if closing is None:
            return None
        text = state.written + closing
        frames = (
            (frame.start, seen.dead)
            for frame, seen in checked(state.frame)
            if frame.start >= 0
        )
        if not any(text[start:] in dead for start, dead in frames):
            return None
        return [byte for byte in self.allowed() if byte != closing[0]]

    def reaches(self, spaces: bytes, ways: list[int]) -> bool:
        """Whether one of these bytes may come behind whitespace."""
        due = len(spaces) + 1
        return any(
            self._matcher.validate_tokens([*spaces, byte]) == due for byte in ways
        )

    def fits(self, data: bytes) -> bool:
        """Whether something new can come after bytes."""
        if not self.accept(data):
            return False
        self.back(1)
        return True

    # Moving

    def _feed(self, tokens: list[int]) -> bool:
        self._fed += tokens
        return not tokens or bool(self._matcher.consume_tokens(tokens))

    def _in_string(self, state: State, data: bytes, at: int) -> int:
        plain = _PLAIN.match(data, at) if state.mode is Mode.STRING else None
        piece = plain[0] if plain else data[at : at + 1]
        _put(state, piece)
        if state.mode is Mode.ESCAPED:
            state.mode = Mode.STRING
        elif piece == b"\\":
            state.mode = Mode.ESCAPED
        elif piece == b'"':
            state.mode = Mode.BETWEEN
        return at + len(piece)

    def _outside(self, state: State, byte: bytes) -> bool:
        """Move past a byte outside strings; False where it ends an item that is there
        already."""
        frame = state.frame
        if state.mode is Mode.SCALAR and byte[0] not in SCALAR:
            state.text = state.text.removesuffix(b".0")
        if byte in SPACES or frame is None:
            if state.mode is Mode.SCALAR:
                _put(state, b" ")
            state.mode = Mode.BETWEEN
            return True
        state.text = state.written
        ends = frame.start >= 0 and (byte == b":" if frame.names else byte in b",]")
        if ends and frame.seen is not None and len(state.text) > frame.start:
            if not frame.seen.add(frame.count, state.text[frame.start :]):
                return False
            frame = Frame(frame.parent, frame.names, frame.seen, frame.count + 1)
        state.frame = frame.parent if byte in b"]}" else frame
        state.mode = (
            Mode.STRING
            if byte == b'"'
            else Mode.SCALAR
            if byte[0] in SCALAR
            else Mode.BETWEEN
        )
        _put(state, byte)
        return True

    def _begin(self, state: State, byte: bytes) -> None:
        """Behind a bracket or comma, where an item may begin that must differ from
        those before it."""
        marks = _marks(self._matcher)
        frame = state.frame
        must_differ = marks not in (0, PLAIN)
        if state.mode >= Mode.STRING:
            if not must_differ:
                return
            # Strings hold no items: what began like one was another text of a client's
            # grammar.
            frame = None
            state.mode = Mode.BETWEEN
        if byte != b"," and (frame is not None or must_differ):
            frame = state.frame = Frame(frame, byte == b"{")
        if frame is None or not must_differ:
            return
        seen = frame.seen
        if seen is None or marks & (CHANGING | PLAIN) or seen.marks != marks:
            seen = Seen(marks, () if seen is None else islice(seen.values, frame.count))
        if not frame.active:
            state.text = b""
        state.frame = Frame(
            frame.parent, frame.names, seen, frame.count, len(state.text)
        )
        for value in seen.unexplored() if self._explores else ():
            self._explore(seen, value)

    # What can come

    def _explore(self, seen: Seen, value: bytes) -> None:
        """Find the dead beginnings of an item, where one begins."""
        end = len(value)
        if value[:1] in b'"[{':
            seen.kill(value)
            end -= 1
        else:
            for byte in ENDS:
                seen.kill(value + bytes([byte]))
        while end >= 0 and not self._lives(seen, value[:end]):
            seen.kill(value[:end])
            end -= 1

    def _lives(self, seen: Seen, text: bytes) -> bool:
        """Whether something new can come of the beginning of an item."""
        # Arrays and objects in it may have checks of their own.
        other = Track(self._matcher.deep_copy, Frame(start=0))
        if not other.move(text):
            return False
        scalar = other.state.mode is Mode.SCALAR
        nested = text[:1] in b"[{"
        found = ended = False
        for byte in other.allowed():
            end = scalar and byte not in SCALAR
            way = (text.removesuffix(b".0") if end else text) + bytes([byte])
            if way in seen.dead or (nested and not other.fits(bytes([byte]))):
                continue
            if scalar and way.endswith((b".", b".0")) and not self._lives(seen, way):
                # It leads to the same number only.
                seen.kill(way)
                continue
            found = True
            ended = ended or end
            if ended or not scalar:
                return True
        if scalar:
            # Behind whitespace only its end can come.
            seen.kill(text + b" ")
        return found


def checked(frame: Frame | None) -> Iterator[tuple[Frame, Seen]]:
    """The containers whose items must be distinct, the innermost first."""
    while frame is not None:
        if frame.seen is not None:
            yield frame, frame.seen
        frame = frame.parent


def _own(frame: Frame | None, explores: bool) -> Frame | None:
    """The same containers, with items of their own."""
    if frame is None:
        return None
    seen = frame.seen
    if seen is not None:
        seen = seen.copy() if explores else Seen(seen.marks, seen.values)
    return replace(frame, parent=_own(frame.parent, explores), seen=seen)


def _put(state: State, piece: bytes) -> None:
    if state.frame is not None and state.frame.active:
        state.text += piece


def _marks(matcher: Any) -> int:
    """The marks that may come next, as bits."""
    return (
        int.from_bytes(matcher.compute_bitmask(), "little") >> MARKS.start
        & (1 << len(MARKS)) - 1
    )
