"""The whitespace that a model writes between the parts of JSON, learnt from its
outputs.

With `flexible` whitespace a grammar leaves the layout open, so nothing is forced behind
a comma or a colon. A model keeps to one layout, though. `Layouts` remembers what it
wrote at each kind of place, over all schemas, and says what it would write next in one
output. That is a guess: a draft that is verified.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from guided_plugin.grammar.outline import Container, Gap, Outline

SPACES = b" \t\r\n"
"""JSON's whitespace."""

_MOST_LEAD = 8
"""The lead of the whitespace seen most often at a kind of place, at most: as many
outputs that write other whitespace take its place. Chosen, not measured: models keep to
one layout."""
LAYOUTS_BYTES = 1 << 13
"""The size of all kinds of places."""

_INDENT = b"|"
"""In learnt whitespace: the indentation of the line on which the container opened."""

_BEGINNINGS = {b"}": b"}]", b",": b",", b":": b":", b'"': b'"{[-0123456789tfn'}
"""The bytes with which parts of each kind begin."""

_KINDS = {b"]": b"}", **{mark: mark for mark in (b"}", b",", b":")}}
"""The kind of a part by its first or last byte; else it is a value, a quote."""

_Place = tuple[bytes, bytes, bool]
"""A kind of place: the opening bracket or the kind of the part before it, the kind of
the part behind it, and whether the innermost container began with a line's end."""


@dataclass(slots=True)
class _Vote:
    """The whitespace that leads at a kind of place."""

    leader: bytes
    lead: int


class Layouts:
    """The whitespace that models wrote at each kind of place; no text of any output."""

    def __init__(self) -> None:
        self._votes: dict[_Place, _Vote] = {}
        self.likeliest = b""
        """Another one when something else leads at a place."""
        self._seen = 0
        self._led = 0

    @property
    def sure(self) -> float:
        """In what part of the places that which led before was written."""
        return (self._led + 1) / (self._seen + 2)

    def learn(self, gap: Gap) -> None:
        """Count the whitespace between two parts."""
        head, line_end, indent = gap.spaces.rpartition(b"\n")
        written = gap.spaces
        if line_end:
            indent = indent.removeprefix(gap.container.indent)
            written = head + line_end + _INDENT + indent
        place = _place(gap.before, _KINDS.get(gap.after, b'"'), gap.container)
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

    def next(self, outline: Outline, fits: Callable[[int], bool]) -> bytes:
        """Return the whitespace that is still to come, and the byte behind it if one
        alone may follow; empty where that is not known. `fits`: whether a byte may."""
        container = outline.container
        if container is None or outline.begun.startswith(b'"'):
            return b""
        before = b'"' if outline.in_value else outline.before
        begun = b"" if outline.in_value else outline.begun
        expected: bytes | None = None
        following = b""
        for kind, beginnings in _BEGINNINGS.items():
            vote = self._votes.get(_place(before, kind, container))
            spaces: bytes | None = None
            if vote is not None:
                spaces = vote.leader.replace(_INDENT, container.indent)
            if spaces is not None and not spaces.startswith(begun):
                continue
            fitting = bytes(byte for byte in beginnings if fits(byte))
            following += fitting
            if not fitting or spaces is None:
                continue
            if expected is not None and spaces != expected:
                return b""
            expected = spaces
        if expected is None:
            return b""
        if len(following) == 1:
            expected += following
        return expected[len(begun) :]


def _place(before: bytes, after: bytes, container: Container) -> _Place:
    if before in (b"{", b"["):
        # where a container opens it is not known whether it is broken
        return before, after, False
    return _KINDS.get(before, b'"'), after, container.broken
