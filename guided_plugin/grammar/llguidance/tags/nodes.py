"""The parts of a structural tag as a tree, and free text written out: up to a trigger,
an end, or the end of the output.

Control tokens are leaves of their own. A lexer reads the longest text that fits, so
free text and the text that ends it are one lexeme: free text is the texts that end with
a stop, and the text without any.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from collections.abc import Sequence as Listed
from dataclasses import dataclass
from typing import Any

from guided_plugin.errors import UnsupportedSpecError, shown

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
    """Free text in which each trigger must be followed by its node. The reader writes
    it out."""

    rules: tuple[Rule, ...]
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
Start = str | tuple[str, int]
"""What ends free text: a text, or a control token with the characters before it that
belong to it."""
Rule = tuple[Start, Node]
"""A trigger, and what must follow it."""

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


class Names:
    """Control tokens by the names that a tag may write."""

    def __init__(self, names: Mapping[str, int]) -> None:
        # Shorter names would be found in texts that mean something else.
        longest_first = sorted(names, key=len, reverse=True)
        self._names = {name: names[name] for name in longest_first if len(name) >= 3}

    def _any_in(self, text: str) -> re.Pattern[str]:
        """A pattern of the names in a text: one of all names takes long to compile."""
        return re.compile(
            "|".join(re.escape(name) for name in self._names if name in text) or "(?!)"
        )

    def spelled(self, text: str) -> Node:
        """A text in which each name is a control token, or written as text."""
        parts: list[Node] = []
        plain = 0
        for found in self._any_in(text).finditer(text):
            parts += (
                [Text(text[plain : found.start()])] if plain < found.start() else []
            )
            parts.append(Either((Control(self._names[found[0]]), Text(found[0]))))
            plain = found.end()
        return sequence([*parts, Text(text[plain:])] if plain < len(text) else parts)

    def ways(self, text: str, stop: str) -> list[Rule]:
        """How free text may end with a text that begins with one of its stops: with
        this stop, or with the control token whose name is in it; and the rest of the
        text."""
        ways: list[Rule] = [(stop, self.spelled(text[len(stop) :]))]
        found = self._any_in(text).search(text)
        if found is not None and found.start() < len(stop):
            start = text[: found.start()], self._names[found[0]]
            ways.append((start, self.spelled(text[found.end() :])))
        return ways


def written_out(node: Node) -> Node:
    """A node without `Dispatch`: free text may go on up to the end of the output."""
    match node:
        case Dispatch():
            tail = optional(Free(node.stops))
            return (
                sequence([_calls(node), tail])
                if node.loop
                else Either((_calls(node), tail))
            )
        case Sequence(parts):
            return sequence([written_out(part) for part in parts])
        case Either(options):
            return either([written_out(option) for option in options])
        case Repeat(part, low, high):
            return Repeat(written_out(part), low, high)
        case _:
            return node


def closed(node: Node, ends: Listed[Node], names: Names) -> Node:
    """A node and one of the ends behind it; free text at the node's end becomes one
    with them."""
    if not _is_open(node):
        return sequence([node, _either_end(ends, names)])
    match node:
        case Dispatch():
            return _closed_dispatch(node, ends, names)
        case Sequence(parts):
            return sequence([*parts[:-1], closed(parts[-1], ends, names)])
        case Either(options):
            return either([closed(option, ends, names) for option in options])
        case Repeat(part, 0, 1):
            return Either((closed(part, ends, names), _either_end(ends, names)))
        case _:
            raise UnsupportedSpecError(
                "repeated free text is ambiguous", where="structural_tag"
            )


def _is_open(node: Node) -> bool:
    """Whether free text may be last in a node."""
    match node:
        case Dispatch():
            return True
        case Sequence(parts):
            return bool(parts) and _is_open(parts[-1])
        case Either(options):
            return any(map(_is_open, options))
        case Repeat(part, _, high):
            return high != 0 and _is_open(part)
        case _:
            return False


def _either_end(ends: Listed[Node], names: Names) -> Node:
    return either(
        [names.spelled(end.text) if isinstance(end, Text) else end for end in ends]
    )


def _closed_dispatch(node: Dispatch, ends: Listed[Node], names: Names) -> Node:
    endings: list[Node] = []
    for end in ends:
        if isinstance(end, Control):
            endings.append(_reached(("", end.token), node.stops))
        elif not isinstance(end, Text):
            raise UnsupportedSpecError(
                "free text without an end", where="structural_tag"
            )
        else:
            stop = min(
                (x for x in node.excludes if end.text.startswith(x)),
                key=len,
                default=None,
            )
            if stop is None:
                raise UnsupportedSpecError(
                    "free text before a text that may occur in it",
                    where="structural_tag",
                    hint="add that text to `excludes`",
                )
            ways = names.ways(end.text, stop)
            endings += [
                sequence([_reached(start, node.stops), rest]) for start, rest in ways
            ]
    if node.loop:
        return sequence([_calls(node), either(endings)])
    if node.rules:
        endings.append(sequence([_calls(node), _either_end(ends, names)]))
    return either(endings)


def _calls(node: Dispatch) -> Node:
    """Free text and a trigger with what must follow: any number of times, or once where
    it doesn't loop."""
    if not node.rules:
        return EMPTY
    by_start: dict[Start, list[Node]] = {}
    for start, rest in node.rules:
        by_start.setdefault(start, []).append(written_out(rest))
    options = either(
        [
            sequence([_reached(start, node.stops, node.excludes), either(rests)])
            for start, rests in by_start.items()
        ]
    )
    return Repeat(options, 0, None) if node.loop else options


def _reached(start: Start, stops: tuple[str, ...], excludes: Listed[str] = ()) -> Node:
    """Free text up to what ends it."""
    if isinstance(start, str):
        return _until(start, stops, excludes)
    before, token = start
    free = Free(stops, before)
    return sequence([free if before else optional(free), Control(token)])


def _until(stop: str, stops: tuple[str, ...], excludes: Listed[str]) -> Until:
    """Text up to a stop, unless that is excluded. Raises where another stop always
    comes first."""
    if any(other in stop[:-1] for other in stops) or any(map(stop.endswith, excludes)):
        raise UnsupportedSpecError(
            f"{shown(stop)} is never reached: it contains another trigger, end or excluded text",
            where="structural_tag",
        )
    return Until(
        stop, stops, tuple(sorted({each for each in excludes if each.endswith(stop)}))
    )
