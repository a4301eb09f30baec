"""The parts of a structural tag as a tree.

Control tokens are leaves of their own. A lexer reads the longest text that fits, so
free text and the text that ends it are one leaf.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from guided_plugin.spec.references import Path


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
    """Any text of at least one character that has none of the stops before its
    ending."""

    stops: tuple[str, ...]
    ending: str = ""
    """A stop, or the characters before a control token that belong to it."""

    @property
    def reaches_stop(self) -> bool:
        """It ends with a stop, so it can't go on."""
        return self.ending in self.stops


@dataclass(frozen=True, slots=True)
class Regex:
    """Text that a regular expression matches from its first to its last character;
    never empty."""

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
    """The place of the definitions in it, where it is not its own."""
    without_strings: bool = False
    """It is refused if it allows strings, since those would be written otherwise."""


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
    """`low` times or more; at most once unless it is a loop."""

    part: Node
    low: int
    loop: bool


Leaf = Text | Control | Free | Regex | Schema
Node = Leaf | Sequence | Either | Repeat

EMPTY = Sequence()


def parts_of(node: Node) -> tuple[Node, ...]:
    """The nodes that a node consists of, one after the other."""
    return node.parts if isinstance(node, Sequence) else (node,)


def sequence(parts: Iterable[Node]) -> Node:
    """Parts one after the other, as one node."""
    flat = tuple(inner for part in parts for inner in parts_of(part))
    return flat[0] if len(flat) == 1 else Sequence(flat)


def either(options: Iterable[Node]) -> Node:
    """One of several nodes, as one node."""
    listed = tuple(options)
    return listed[0] if len(listed) == 1 else Either(listed)


def optional(part: Node) -> Node:
    """A part, or nothing."""
    return Repeat(part, 0, loop=False)
