"""The items of one array so far, or names of one object, and the texts from which only these can come.

A text is *dead* when all that can become of it is there already: the whole text of an item, and every
beginning of it from which nothing else can come. Depends on spellings.
"""

from __future__ import annotations

import json
from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Any

from guided_plugin.grammar.llguidance.distinct.spellings import only_opens
from guided_plugin.grammar.llguidance.lark.emitter import PLAIN


class Seen:
    """Items in their order, which may be cut off again from the end."""

    __slots__ = ("_explored", "_keys", "_sorted", "dead", "marks", "openings", "prints", "values")

    def __init__(self, marks: int = 0, values: list[bytes] | None = None) -> None:
        self.marks = marks
        """The marks where the next item begins: what it may be is the same wherever these are the same."""
        self.values = values or []
        self._keys = {value_key(value): value for value in self.values}
        self._explored: list[list[bytes]] = []
        """Of each item whose dead beginnings are known: these."""
        self.dead: set[bytes] = set()
        self._sorted: list[bytes] = []
        self.openings: set[bytes] = set()
        """Dead texts with which values of many kinds begin."""
        self.prints = {fingerprint(value) for value in self.values}
        """Lengths and sums of bytes of the items: those of an object are the same in any order."""

    @property
    def steady(self) -> bool:
        """Whether the next item may be what this one may."""
        return self.marks > PLAIN and not self.marks & (self.marks - 1)

    def add(self, count: int, value: bytes) -> bool:
        """Add an item behind the first `count`; False if it is among those."""
        self.cut(count)
        key = value_key(value)
        if key in self._keys:
            return False
        self._keys[key] = value
        self.values.append(value)
        self.prints.add(fingerprint(value))
        return True

    def all_new(self, values: list[bytes]) -> bool:
        """Whether these are not there, and differ."""
        keys = {value_key(value) for value in values}
        return len(keys) == len(values) and keys.isdisjoint(self._keys)

    def cut(self, count: int) -> None:
        """Keep the first items only."""
        while len(self.values) > count:
            value = self.values.pop()
            del self._keys[value_key(value)]
            # Another item may have the same fingerprint: then one more token is looked at closely.
        while len(self._explored) > len(self.values):
            for text in self._explored.pop():
                self.dead.discard(text)
                self.openings.discard(text)
                del self._sorted[bisect_left(self._sorted, text)]

    def unexplored(self) -> Iterator[bytes]:
        """The items whose dead beginnings are not known; `kill` adds them to the last one's."""
        while len(self._explored) < len(self.values):
            self._explored.append([])
            yield self.values[len(self._explored) - 1]

    def kill(self, text: bytes) -> None:
        """A text is dead."""
        if text not in self.dead:
            self.dead.add(text)
            self._explored[-1].append(text)
            insort(self._sorted, text)
            if only_opens(text):
                self.openings.add(text)

    def beyond(self, text: bytes) -> Iterator[bytes]:
        """What leads from a text to a dead one, each without those that it leads to first."""
        last = None
        for at in range(bisect_left(self._sorted, text), len(self._sorted)):
            dead = self._sorted[at]
            if not dead.startswith(text):
                break
            if last is None or not dead.startswith(last):
                last = dead
                yield dead[len(text) :]


def fingerprint(text: bytes) -> tuple[int, int]:
    """The same for an object's text in any order."""
    return len(text), sum(text)


def value_key(text: bytes) -> bytes | str:
    """Equal for texts of equal values: objects in any order."""
    if text[:1] not in b"[{":
        return text
    try:
        return repr(json.loads(text, parse_float=_number, parse_int=_number, object_pairs_hook=_members))
    except (ValueError, RecursionError):
        return text


def _number(text: str) -> tuple[str]:
    return (text,)


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return dict(sorted(dict(pairs).items()))
