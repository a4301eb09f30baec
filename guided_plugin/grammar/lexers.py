"""Lexers of one llguidance grammar. Touches llguidance's matchers by their methods only.

All copies of a matcher share one lexer, and its lock: threads that fill masks for them take turns. So a
grammar that more than one request uses gets more lexers, each with a share of the requests.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

__all__ = ["Lexers"]


class Lexers:
    """Matchers at the beginning of a grammar, each with a lexer of its own. From any thread."""

    def __init__(self, first: Any, make: Callable[[], Any], most: int) -> None:
        self._bases = [first]
        self._make = make
        self._most = most
        self._lock = threading.Lock()
        self._taken = 0
        self._growing = False

    def take(self) -> tuple[Any, int]:
        """A matcher of one's own, and the number of its lexer."""
        with self._lock:
            number = self._taken % len(self._bases)
            self._taken += 1
            base = self._bases[number]
            grow = self._taken > 1 and not self._growing and len(self._bases) < self._most
            self._growing |= grow
        if grow:
            # Milliseconds each, and the requests that are here already have one.
            threading.Thread(target=self._grow, name="guided-lexers", daemon=True).start()
        return base.deep_copy(), number

    def __len__(self) -> int:
        return len(self._bases)

    def _grow(self) -> None:
        while len(self._bases) < self._most:
            base = self._make()
            if base.is_error():
                return  # fewer do as well
            with self._lock:
                self._bases.append(base)
