"""Lexers of one llguidance grammar. Touches llguidance's matchers by their methods only.

All copies of a matcher share one lexer, and its lock: threads that fill masks for them take turns. So a
grammar that more than one request uses gets more lexers, each with a share of the requests.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

__all__ = ["Lexers"]


_FINE = 4
"""Lexers for each thread, in the end: threads take rows from one another, and rows with one lexer then wait
for each other. Four keep most of them apart."""


class Lexers:
    """Matchers at the beginning of a grammar, each with a lexer of its own. From any thread."""

    def __init__(self, first: Any, make: Callable[[], Any], threads: int) -> None:
        self._bases = [first]
        self._make = make
        self._threads = threads
        self._lock = threading.Lock()
        self._taken = 0
        self._wanted = 1
        self._growing = False

    def take(self) -> tuple[Any, int]:
        """A matcher of one's own, and the number of its lexer."""
        with self._lock:
            number = self._taken % len(self._bases)
            self._taken += 1
            base = self._bases[number]
            if self._taken > 1 and self._threads > 1:
                many = self._taken > _FINE * self._threads
                self._wanted = max(self._wanted, self._threads * (_FINE if many else 1))
            grow = not self._growing and len(self._bases) < self._wanted
            self._growing |= grow
        if grow:
            # Milliseconds each, and the requests that are here already have one.
            threading.Thread(target=self._grow, name="guided-lexers", daemon=True).start()
        return base.deep_copy(), number

    def __len__(self) -> int:
        return len(self._bases)

    def _grow(self) -> None:
        while True:
            base = self._make()
            with self._lock:
                if base.is_error():
                    self._threads, self._wanted = 1, 0  # fewer do as well
                else:
                    self._bases.append(base)
                self._growing = len(self._bases) < self._wanted
                if not self._growing:
                    return
