"""The whitespace that a model writes between the parts of JSON, learnt from its
outputs.

With `flexible` whitespace a grammar leaves the layout open, so nothing is forced behind
a comma or a colon. A model keeps to one layout, though. `Layouts` remembers what it
wrote at each kind of place, over all schemas, and `OutputLayout` says what it would
write next in one output. That is a guess: a draft that is verified.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

SPACES = b" \t\r\n"
"""JSON's whitespace."""

_PIECE = re.compile(rb'[ \t\r\n]+|["{}\[\],:]|[^ \t\r\n"{}\[\],:]+')
_IN_STRING = re.compile(rb'[^"\\\n]+')
_MOST_LEAD = 8
"""The lead of the whitespace seen most often at a kind of place, at most: as many
outputs that write other whitespace take its place. Chosen, not measured: models keep to
one layout."""
LAYOUTS_BYTES = 1 << 13
"""What all kinds of places take."""

_DEEPEST = 64
"""Containers that are followed; in a text that is not JSON, brackets may never
close."""


class Part(IntEnum):
    """What stands next to whitespace."""

    VALUE = 0
    """A value or a name: before whitespace its end, after it its beginning."""
    OPENING = 1
    CLOSING = 2
    COMMA = 3
    COLON = 4


_PARTS = {
    **dict.fromkeys(b"{[", Part.OPENING),
    **dict.fromkeys(b"}]", Part.CLOSING),
    ord(","): Part.COMMA,
    ord(":"): Part.COLON,
}
_BEGINNINGS = {
    Part.CLOSING: b"}]",
    Part.COMMA: b",",
    Part.COLON: b":",
    Part.VALUE: b'"{[-0123456789tfn',
}
"""What each part may begin with."""


class Place(NamedTuple):
    """A kind of place between two parts of JSON."""

    before: int
    """The bracket that opened, else its `Part`."""
    after: Part
    broken: bool
    """Whether the innermost container began with a line's end."""


class Whitespace(NamedTuple):
    """The whitespace at a place."""

    text: bytes
    """All of it; up to the last line's end if there is one."""
    indent: bytes | None = None
    """Behind a line's end: what follows the indentation of the line on which the
    container opened."""


@dataclass(slots=True)
class _Vote:
    """The whitespace that leads at a kind of place."""

    leader: Whitespace
    lead: int


class Layouts:
    """What models wrote at each kind of place. It holds no text of any output."""

    def __init__(self) -> None:
        self._votes: dict[Place, _Vote] = {}
        self.likeliest = b""
        """Another one when something else leads at a place."""
        self._seen = self._led = 0

    @property
    def sure(self) -> float:
        """In what part of the places that which led before was written."""
        return (self._led + 1) / (self._seen + 2)

    def learn(self, place: Place, written: Whitespace) -> None:
        """Count whitespace at a place."""
        vote = self._votes.get(place)
        self._seen += 1
        if vote is not None and vote.leader == written:
            self._led += 1
            vote.lead = min(vote.lead + 1, _MOST_LEAD)
        elif vote is not None and vote.lead > 1:
            vote.lead -= 1
        else:
            self._votes[place] = _Vote(written, 1)
            self.likeliest = b"%d" % self._seen

    def at(self, place: Place) -> Whitespace | None:
        """The whitespace that most outputs had there."""
        vote = self._votes.get(place)
        return vote.leader if vote is not None else None


@dataclass(slots=True)
class _Container:
    """An open array or object."""

    indent: bytes
    """The indentation of the line on which it opened."""
    broken: bool = False


class OutputLayout:
    """Follows one output, and tells the whitespace that comes next."""

    __slots__ = (
        "_before",
        "_containers",
        "_escaped",
        "_in_string",
        "_indent",
        "_spaces",
        "layouts",
    )

    def __init__(self, layouts: Layouts) -> None:
        self.layouts = layouts
        self._containers: list[_Container] = []
        self._before = 0
        """The byte before the whitespace at the end of the output; 0 if nothing came
        before."""
        self._spaces = b""
        """The whitespace at the end of the output."""
        self._indent = b""
        """The indentation of the current line."""
        self._in_string = False
        self._escaped = False

    def copy(self) -> OutputLayout:
        """Another one at the same place."""
        other = OutputLayout(self.layouts)
        other._containers = [
            _Container(one.indent, one.broken) for one in self._containers
        ]
        other._before = self._before
        other._spaces = self._spaces
        other._indent = self._indent
        other._in_string = self._in_string
        other._escaped = self._escaped
        return other

    def feed(self, text: bytes, *, learn: bool) -> None:
        """Move past a text; with `learn`, count the whitespace in it."""
        at = 0
        while at < len(text):
            at = (
                self._past_string(text, at)
                if self._in_string
                else self._past_piece(text, at, learn=learn)
            )

    def _past_string(self, text: bytes, at: int) -> int:
        """Move past a part of a string."""
        if self._escaped:
            self._escaped = False
            return at + 1
        plain = _IN_STRING.match(text, at)
        if plain is not None:
            return plain.end()
        if text[at] == ord("\\"):
            self._escaped = True
            return at + 1
        # A string of JSON has no line's end: what looked like one was a quote in a text
        # around JSON.
        self._in_string = False
        if text[at] == ord('"'):
            self._before = ord('"')
            return at + 1
        return at

    def _past_piece(self, text: bytes, at: int, *, learn: bool) -> int:
        """Move past whitespace, a mark or a part of a scalar."""
        found = _PIECE.match(text, at)
        if found is None:
            return len(text)
        piece = found[0]
        if piece[0] in SPACES:
            self._spaces += piece
            return found.end()
        self._end_whitespace(piece[0], learn=learn)
        if piece in (b"{", b"["):
            self._containers.append(_Container(self._indent))
            del self._containers[:-_DEEPEST]
        elif piece in (b"}", b"]"):
            del self._containers[-1:]
        self._before = piece[-1]
        self._in_string = piece == b'"'
        return found.end()

    def _end_whitespace(self, following: int, *, learn: bool) -> None:
        """Leave the whitespace that ends before a byte."""
        spaces = self._spaces
        self._spaces = b""
        head, line_end, indent = spaces.rpartition(b"\n")
        if self._containers and (self._before in _PARTS or following in _PARTS):
            innermost = self._containers[-1]
            written = Whitespace(spaces)
            if line_end:
                written = Whitespace(
                    head + line_end, indent.removeprefix(innermost.indent)
                )
            if learn:
                self.layouts.learn(
                    self._place(_PARTS.get(following, Part.VALUE)), written
                )
            if self._before in b"{[":
                innermost.broken = bool(line_end)
        if line_end:
            self._indent = indent

    def _place(self, after: Part) -> Place:
        """The kind of the place before a part."""
        before = _PARTS.get(self._before, Part.VALUE)
        if after is Part.OPENING:
            after = Part.VALUE
        # Where a container opens it is not known whether it is broken.
        broken = before is not Part.OPENING and self._containers[-1].broken
        return Place(self._before if before is Part.OPENING else before, after, broken)

    def next(self, fits: Callable[[int], bool]) -> bytes:
        """What comes next: the whitespace that is still to come, and the byte behind it
        if one alone may follow. Empty where that is not known. `fits`: whether a byte
        may; asked of those that decide."""
        if self._in_string or not self._containers:
            return b""
        rest: bytes | None = None
        following = b""
        for after, beginnings in _BEGINNINGS.items():
            known = self.layouts.at(self._place(after))
            own = None if known is None else known.text
            if known is not None and known.indent is not None:
                own = known.text + self._containers[-1].indent + known.indent
            if own is not None and not own.startswith(self._spaces):
                continue
            for byte in beginnings:
                differs = own is not None and own != rest
                if (len(following) < 2 or differs) and fits(byte):
                    if differs and rest is not None:
                        return b""
                    if rest is None:
                        rest = own
                    following += bytes([byte])
        if rest is None:
            return b""
        if len(following) == 1:
            rest += following
        return rest[len(self._spaces) :]
