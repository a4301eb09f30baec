"""The items of one array so far, and the texts from which only these can come.

A text is *dead* when all that can become of it is there already: the whole text of an
item, and every beginning of it from which nothing else can come. Equal items have the
same text, which the grammar and the track see to. Depends on the emitter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from guided_plugin.grammar.llguidance.lark.emitter import PLAIN


class Seen:
    """Items in their order, which may be cut off again from the end."""

    def __init__(self, marks: int = 0, values: Iterable[bytes] = ()) -> None:
        self.marks = marks
        """The marks where the next item begins: what it may be is the same wherever
        these are the same."""
        self.values = dict.fromkeys(values)
        """The texts of the items, in their order."""
        self._explored: list[list[bytes]] = []
        """The dead beginnings of each item for which they are known."""
        self.dead: set[bytes] = set()

    @property
    def steady(self) -> bool:
        """True if the next item may be what this one may."""
        return self.marks > PLAIN and not self.marks & (self.marks - 1)

    def copy(self) -> Seen:
        """Return these items, to which others may be added."""
        other = Seen(self.marks, self.values)
        # Each list of beginnings is complete once the next item is there.
        other._explored = [*self._explored]
        other.dead = {*self.dead}
        return other

    def add(self, count: int, value: bytes) -> bool:
        """Add an item behind the first `count`; False if it is among those."""
        self.cut(count)
        if value in self.values:
            return False
        self.values[value] = None
        return True

    def cut(self, count: int) -> None:
        """Keep the first items only."""
        while len(self.values) > count:
            self.values.popitem()
        while len(self._explored) > len(self.values):
            self.dead.difference_update(self._explored.pop())

    def unexplored(self) -> Iterator[bytes]:
        """The items whose dead beginnings are not known; `kill` adds them to the last
        one's."""
        for value in islice(self.values, len(self._explored), None):
            self._explored.append([])
            yield value

    def kill(self, text: bytes) -> None:
        """A text is dead."""
        if text not in self.dead:
            self.dead.add(text)
            self._explored[-1].append(text)

    def beyond(self, text: bytes) -> Iterator[bytes]:
        """Yield the texts that lead from a text to a dead one, but none that leads past
        another one."""
        last = None
        for dead in sorted(dead for dead in self.dead if dead.startswith(text)):
            if last is None or not dead.startswith(last):
                last = dead
                yield dead[len(text) :]
