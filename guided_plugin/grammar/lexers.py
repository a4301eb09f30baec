"""Lexers of one llguidance grammar. Touches llguidance's matchers by their methods only.

All copies of a matcher share one lexer, and its lock: threads that fill masks for them take turns. A lexer
also learns: the first mask in each of its states costs several times the later ones. So a grammar has as many
lexers as the requests that use it at the same time call for, and a request gets the first of those that
fewest others use: alone it finds the one that has learned most.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

__all__ = ["Lexers", "Share"]

_MOST = 4
"""Lexers for each thread, at most: threads take rows from one another, and rows with one lexer then wait for
each other. Four keep most of them apart."""


class Share:
    """The use of a lexer, as long as anybody holds this object."""

    __slots__ = ("_lexers", "number")

    def __init__(self, lexers: Lexers, number: int) -> None:
        self._lexers = lexers
        self.number = number

    @property
    def place(self) -> tuple[int, int]:
        """Equal for those that share a lexer."""
        return id(self._lexers), self.number

    def __del__(self) -> None:
        self._lexers._give_back(self.number)


class Lexers:
    """Matchers at the beginning of a grammar, each with a lexer of its own. From any thread."""

    def __init__(self, first: Any, make: Callable[[], Any], threads: int) -> None:
        self._bases = [first]
        self._users = [0]
        """How many share each of them."""
        self._make = make
        self._threads = threads
        # Reentrant: a garbage collection may give a share back while this thread takes one.
        self._lock = threading.RLock()
        self._growing = False

    def take(self) -> tuple[Any, Share]:
        """A matcher of one's own, and its share of a lexer."""
        with self._lock:
            number = self._users.index(min(self._users))
            self._users[number] += 1
            grow = not self._growing and len(self._bases) < self._wanted()
            self._growing |= grow
            base = self._bases[number]
        if grow:
            # Milliseconds each, and the requests that are here already have one.
            threading.Thread(target=self._grow, name="guided-lexers", daemon=True).start()
        return base.deep_copy(), Share(self, number)

    def __len__(self) -> int:
        return len(self._bases)

    def _wanted(self) -> int:
        """One for two users."""
        users = sum(self._users)
        if self._threads == 1:
            return 1
        return min((users + 1) // 2, _MOST * self._threads)

    def _give_back(self, number: int) -> None:
        with self._lock:
            self._users[number] -= 1

    def _grow(self) -> None:
        while True:
            base = self._make()
            with self._lock:
                if base.is_error():
                    self._threads = 1  # fewer do as well
                else:
                    self._bases.append(base)
                    self._users.append(0)
                self._growing = len(self._bases) < self._wanted()
                if not self._growing:
                    return
