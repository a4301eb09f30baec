"""Where in an output's JSON it is: the containers that are open, and the text of the items in progress.

States never change: going back is taking an earlier one. Values that are remembered (`Seen`) are shared by
the states of one output, and each state knows how many of them are its own. Depends on demands and seen.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Protocol

from guided_plugin.grammar.llguidance.distinct.demands import Place
from guided_plugin.grammar.llguidance.distinct.seen import Seen
from guided_plugin.grammar.llguidance.distinct.spellings import ESCAPE, PLAIN, SCALAR, SPACES, escape
from guided_plugin.grammar.llguidance.distinct.values import plain_end


class Mode(IntEnum):
    """What the next byte continues."""

    BETWEEN = 0
    SCALAR = 1
    """A number or a literal."""
    STRING = 2
    NAME = 3


@dataclass(slots=True, eq=False)
class Frame:
    """An open container. Never changed: frozen classes take several times longer to make."""

    parent: Frame | None
    array: bool
    place: Place | None
    seen: Seen | None
    """Its items, or names, if they must be distinct."""
    count: int = 0
    """How many of those are there."""
    index: int = 0
    """How many items are finished."""
    start: int = -1
    """Where in the state's text the item, or name, in progress begins; -1 between them."""
    raw_start: int = -1
    """Where in the output it begins."""
    child: Place | None = None
    """The place of the property whose name was last."""

    def between(self, seen: Seen | None, count: int, index: int, child: Place | None) -> Frame:
        """The same container, with no item in progress."""
        return Frame(self.parent, self.array, self.place, seen, count, index, -1, self.raw_start, child)

    def within(self, start: int, raw_start: int) -> Frame:
        """The same container, with an item in progress."""
        place, seen, child = self.place, self.seen, self.child
        return Frame(self.parent, self.array, place, seen, self.count, self.index, start, raw_start, child)

    def copied(self, parent: Frame | None, seen: Seen | None) -> Frame:
        """The same container, with values of its own."""
        return replace(self, parent=parent, seen=seen)


class Outside(Protocol):
    """Where an output is outside of the JSON that is looked at."""

    def step(self, byte: int) -> Outside | Part | None:
        """What is behind a byte; a part where one begins with it; None where no output goes on so."""

    def control(self, token: int) -> Outside | None:
        """What is behind a control token; None where it has no place."""


@dataclass(slots=True, eq=False)
class Part:
    """JSON that is a part of an output, or all of it."""

    place: Place | None
    """What it demands."""
    bytewise: Callable[[], Any]
    """A matcher of this part alone whose token i is byte i."""
    after: Outside | None = None
    """What is behind it; None where it is all."""


@dataclass(slots=True, eq=False)
class State:
    """Where an output is. Never changed."""

    part: Part | None
    """The JSON in progress, or the last; None where there was none."""
    base: int = 0
    """Where in the output that begins."""
    outside: Outside | None = None
    """Where it is, if outside of JSON."""
    frame: Frame | None = None
    mode: Mode = Mode.BETWEEN
    naming: bool = False
    """Whether the next string is a name."""
    pending: bytes = b""
    """The beginning of an escape."""
    name: bytes = b""
    text: bytes = b""
    """What was written since the outermost item in progress began, in the spelling that is compared."""
    active: int = 0
    """How many items and names are in progress that must be distinct."""
    raw: int = 0
    """How many bytes were written."""


class Finish(Protocol):
    """What is done with each finished item or name."""

    def __call__(self, frame: Frame, text: bytes, raw_end: int) -> Seen | None:
        """The values with this one added; None if it is there already."""


class Scan:
    """Moves a state past bytes."""

    def __init__(self, state: State, finish: Finish, new_seen: Callable[[], Seen]) -> None:
        self.part = state.part
        self.base = state.base
        self.outside = state.outside
        self.frame = state.frame
        self.mode = state.mode
        self.naming = state.naming
        self.pending = state.pending
        self.name = state.name
        self.text = state.text
        self.active = state.active
        self.raw = state.raw
        self._finish = finish
        self._new_seen = new_seen
        self.continued: list[Seen] = []
        """Arrays and objects that have got a comma."""

    def state(self) -> State:
        """Where it is now."""
        return State(
            self.part,
            self.base,
            self.outside,
            self.frame,
            self.mode,
            self.naming,
            self.pending,
            self.name,
            self.text,
            self.active,
            self.raw,
        )

    def feed(self, data: bytes) -> bool:
        """Move past bytes; False where an item or name is there already, or where they have no place."""
        base, at = self.raw, 0
        while at < len(data):
            if self.outside is not None:
                at, fine = self._step(data, at)
            elif self.mode >= Mode.STRING:
                at, fine = self._in_string(data, at)
            elif self.mode is Mode.SCALAR:
                if data[at] in SCALAR:
                    self._put(data[at : at + 1])
                    at, fine = at + 1, True
                else:
                    self.mode = Mode.BETWEEN
                    if self.active:
                        self.text = plain_end(self.text)
                    fine = self._end_value()
            else:
                fine = self._between(data[at : at + 1])
                at += 1
            self.raw = base + at
            if not fine:
                return False
        return True

    def control(self, token: int) -> None:
        """Move past a token without text."""
        if self.outside is not None:
            self.outside = self.outside.control(token) or self.outside

    def _step(self, data: bytes, at: int) -> tuple[int, bool]:
        found = self.outside.step(data[at]) if self.outside is not None else None
        if not isinstance(found, Part):
            self.outside = found
            return at + 1, found is not None
        self.part, self.base, self.outside = found, self.raw, None
        return at, True

    def _put(self, piece: bytes) -> None:
        if self.active:
            self.text += piece

    def _in_string(self, data: bytes, at: int) -> tuple[int, bool]:
        if self.pending:
            self.pending += data[at : at + 1]
            if ESCAPE.fullmatch(self.pending):
                self._put_string(escape(self.pending))
                self.pending = b""
            return at + 1, True
        plain = PLAIN.match(data, at)
        if plain:
            self._put_string(plain[0])
            return plain.end(), True
        if data[at] == 92:
            self.pending = b"\\"
            return at + 1, True
        self._put_string(b'"')
        named, self.mode = self.mode is Mode.NAME, Mode.BETWEEN
        self.raw += 1
        fine = self._end_name() if named else self._end_value()
        return at + 1, fine

    def _put_string(self, piece: bytes) -> None:
        self._put(piece)
        if self.mode is Mode.NAME:
            self.name += piece

    def _between(self, byte: bytes) -> bool:
        if byte in SPACES:
            return True
        if byte == b'"' and self.naming:
            self.mode, self.name, self.naming = Mode.NAME, b'"', False
            frame = self.frame
            if frame is not None and frame.seen is not None:
                self._begin(frame)
            self._put(byte)
        elif byte in b"]}":
            self._put(byte)
            self.frame = self.frame.parent if self.frame is not None else None
            self.naming = False
            self.raw += 1
            if self.frame is None and self.part is not None:
                self.outside = self.part.after
            return self._end_value()
        elif byte in b",:":
            self._put(byte)
            frame = self.frame
            self.naming = byte == b"," and frame is not None and not frame.array
            if byte == b"," and frame is not None and frame.seen is not None:
                self.continued.append(frame.seen)
        else:
            self._begin_value()
            self._put(byte)
            if byte in b"[{":
                self._open(byte == b"[")
            else:
                self.mode = Mode.STRING if byte == b'"' else Mode.SCALAR
        return True

    def _begin_value(self) -> None:
        frame = self.frame
        if frame is not None and frame.array and frame.seen is not None:
            self._begin(frame)

    def _begin(self, frame: Frame) -> None:
        if not self.active:
            self.text = b""
        self.active += 1
        self.frame = frame.within(len(self.text), self.raw)

    def _open(self, array: bool) -> None:
        frame, place = self.frame, self.part.place if self.part is not None else None
        if frame is not None:
            inner = frame.place.item(frame.index) if frame.array and frame.place is not None else None
            place = inner if frame.array else frame.child
        if array:
            distinct = place is not None and place.distinct_items
        else:
            # Repeated names would make equal objects of different lengths.
            distinct = self.active > 0 or (place is not None and place.distinct_names)
        self.frame = Frame(frame, array, place, self._new_seen() if distinct else None)
        self.naming = not array

    def _end_value(self) -> bool:
        frame = self.frame
        if frame is None or not frame.array:
            return True
        if frame.seen is None:
            if frame.place is not None:
                self.frame = frame.between(None, 0, frame.index + 1, None)
            return True
        return self._end(frame)

    def _end_name(self) -> bool:
        frame = self.frame
        if frame is None:
            return True
        if frame.place is not None:
            name, listed = _decoded(self.name), frame.place.listed
            child = frame.place.member(name)
            if frame.seen is not None and name in listed:
                self.active -= 1
                self.frame = frame.between(frame.seen, frame.count, 0, child)
                return True
            if child is not frame.child:
                frame = self.frame = replace(frame, child=child)
        return frame.seen is None or self._end(frame)

    def _end(self, frame: Frame) -> bool:
        self.active -= 1
        seen = self._finish(frame, self.text[frame.start :], self.raw)
        if seen is None:
            return False
        self.frame = frame.between(seen, frame.count + 1, frame.index + 1, frame.child)
        return True


def _decoded(name: bytes) -> str:
    try:
        return str(json.loads(name.decode(errors="replace")))
    except ValueError:
        return name.decode(errors="replace")


def watched(frame: Frame | None) -> bool:
    """Whether a container is open whose items or names must differ."""
    while frame is not None and frame.seen is None:
        frame = frame.parent
    return frame is not None


def frame_of(frame: Frame | None, seen: Seen) -> Frame | None:
    """The open container with these values."""
    while frame is not None and frame.seen is not seen:
        frame = frame.parent
    return frame


def copied(frame: Frame | None, seen: dict[int, Seen], frames: dict[int, Frame]) -> Frame | None:
    """A container with those around it, and values of their own."""
    if frame is None:
        return None
    found = frames.get(id(frame))
    if found is None:
        own = frame.seen
        if own is not None and id(own) not in seen:
            seen[id(own)] = own.copy()
        copy = None if own is None else seen[id(own)]
        found = frames[id(frame)] = frame.copied(copied(frame.parent, seen, frames), copy)
    return found
