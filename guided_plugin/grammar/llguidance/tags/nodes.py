"""The parts of a structural tag as a tree. Depends on nothing.

Control tokens are leaves of their own, and free text is written out as the texts that end with a stop, and
the text without any.
"""

from __future__ import annotations

from collections.abc import Sequence as Listed
from dataclasses import dataclass
from typing import Any

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Text:
    """A literal text that isn't empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Control:
    """One control token of the vocabulary."""

    token: int


@dataclass(frozen=True, slots=True)
class Free:
    """Any text of at least one character in which no stop occurs."""

    stops: tuple[str, ...]
    suffix: str = ""
    """What it ends with."""


@dataclass(frozen=True, slots=True)
class Until:
    """Any text that ends with `stop`, which is the first of all stops in it."""

    stop: str
    stops: tuple[str, ...]
    barred: tuple[str, ...] = ()
    """Texts that it must not end with: those that end with `stop` and are excluded."""


@dataclass(frozen=True, slots=True)
class Regex:
    """Text that a regular expression matches from its first to its last character; never empty."""

    pattern: str
    alphabet: frozenset[int]
    """Bytes that may occur in it."""


@dataclass(frozen=True, slots=True, eq=False)
class Schema:
    """JSON that satisfies a schema."""

    schema: Any
    path: Path
    any_order: bool = False
    shared: Path | None = None
    """Where its definitions stand, if not in itself."""
    without_strings: bool = False
    """Whether strings would be written otherwise, so that it must have none."""


@dataclass(frozen=True, slots=True, eq=False)
class Sequence:
    """One after the other."""

    parts: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Either:
    """One of them."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Repeat:
    """Between `low` and `high` times; `high` None: without end."""

    part: Node
    low: int
    high: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Dispatch:
    """Free text in which each trigger must be followed by its node. The reader writes it out."""

    rules: tuple[tuple[str | int, Node], ...]
    """Triggers are texts or control tokens."""
    excludes: tuple[str, ...]
    loop: bool = True
    """Whether free text goes on after the first trigger."""

    @property
    def stops(self) -> tuple[str, ...]:
        """Texts at which free text ends, sorted."""
        triggers = {trigger for trigger, _ in self.rules if isinstance(trigger, str)}
        return tuple(sorted(triggers.union(self.excludes)))


Leaf = Text | Control | Free | Until | Regex | Schema
Node = Leaf | Sequence | Either | Repeat | Dispatch

EMPTY = Sequence()


def sequence(parts: Listed[Node]) -> Node:
    """Parts one after the other, as one node."""
    flat: list[Node] = []
    for part in parts:
        flat.extend(part.parts if isinstance(part, Sequence) else (part,))
    return flat[0] if len(flat) == 1 else Sequence(tuple(flat))


def either(options: Listed[Node]) -> Node:
    """One of several nodes, as one node."""
    return options[0] if len(options) == 1 else Either(tuple(options))


def optional(part: Node) -> Node:
    """A part, or nothing."""
    return Repeat(part, 0, 1)
