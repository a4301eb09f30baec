"""Lexers of one llguidance grammar. Touches llguidance's matchers by their methods only.

All copies of a matcher share one lexer, and its lock: threads that fill masks for them take turns. A lexer
also learns: the first mask in each of its states costs several times the later ones. So a grammar has as many
lexers as the requests that use it at the same time call for, and a request gets the first of those that
fewest others use: alone it finds the one that has learned most. What a lexer learns is some MiB, so all
grammars together have a bounded number of them beside each one's first.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from guided_plugin.grammar.native import native

__all__ = ["LexerPool", "Lexers", "Share"]

_MOST = 4
"""Lexers for each thread, at most: threads take rows from one another, and rows with one lexer then wait for
each other. Four keep most of them apart."""


_PAUSE = 1.0
"""Seconds until a grammar that found no room for another lexer looks again."""


class LexerPool:
    """All grammars of a backend, as far as their lexers beside the first go."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.most = 2 * _MOST * threads
        self._lock = threading.Lock()
        self._members: weakref.WeakSet[Lexers] = weakref.WeakSet()
        self._making = 0
        """Lexers that have a place and are not there yet."""

    def join(self, lexers: Lexers) -> None:
        """Count a grammar's lexers from now on."""
        with self._lock:
            self._members.add(lexers)

    def take_place(self) -> bool:
        """Whether there may be one more; takes one from a grammar that has more than it needs if it must."""
        with self._lock:
            members = list(self._members)
            there = self._making + sum(len(member) - 1 for member in members)
            found = there < self.most or any(member.drop_spare() for member in members)
            self._making += found
            return found

    def give_place_back(self) -> None:
        """The lexer for a place is there now and counts itself, or will not come."""
        with self._lock:
            self._making -= 1


class Share:
    """The use of a lexer, as long as anybody holds this object."""

    __slots__ = ("_base", "_lexers", "_life", "number")

    def __init__(self, lexers: Lexers, base: Any, life: int, number: int) -> None:
        self._lexers = lexers
        self._base = base
        self._life = life
        self.number = number

    @property
    def place(self) -> tuple[int, int, int]:
        """Equal for those that share a lexer."""
        return id(self._lexers), self._life, self.number

    def rebuild_shared(self) -> bool:
        """Whether the lexer is full; then the grammar begins anew. No message tells: it is tried."""
        copy = self._base.deep_copy()
        copy.compute_bitmask()
        if not copy.is_error():
            return False
        self._lexers.rebuild(self._life)
        return True

    def __del__(self) -> None:
        self._lexers._give_back(self._life, self.number)


class Lexers:
    """Matchers at the beginning of a grammar, each with a lexer of its own. From any thread."""

    def __init__(self, first: Any, make: Callable[[], Any], pool: LexerPool, *, quick: bool = True) -> None:
        """`quick`: another one is made in some milliseconds, while a step waits if need be."""
        self._bases = [first]
        self._users = [0]
        """How many share each of them."""
        self._life = 0
        """How often they began anew."""
        self._renewing = False
        self._make = make
        self._quick = quick
        self._pool = pool
        self._alone = pool.threads == 1
        self._paused_until = 0.0
        # Reentrant: a garbage collection may give a share back while this thread takes one.
        self._lock = threading.RLock()
        self._growing = False
        pool.join(self)

    def take(self) -> tuple[Any, Share]:
        """A matcher of one's own, and its share of a lexer."""
        with self._lock:
            number = self._users.index(min(self._users))
            self._users[number] += 1
            grow = not self._growing and len(self._bases) < self._wanted()
            grow = grow and time.monotonic() >= self._paused_until
            self._growing |= grow
            base, life = self._bases[number], self._life
        if grow:
            # Milliseconds each, and the requests that are here already have one.
            threading.Thread(target=self._grow, name="guided-lexers", daemon=True).start()
        return base.deep_copy(), Share(self, base, life, number)

    def __len__(self) -> int:
        return len(self._bases)

    def rebuild(self, life: int) -> None:
        """Give new lexers to whoever comes now. Once in each `life`."""
        with self._lock:
            if life != self._life or self._renewing:
                return
            self._renewing = True
        if self._quick:
            self._renew()
        else:
            # Others wait for their masks: better to fail those that need it before it is there.
            threading.Thread(target=self._renew, name="guided-lexers", daemon=True).start()

    def drop_spare(self) -> bool:
        """Let go of lexers that nobody uses and nobody asks for. The last ones are idle first."""
        with self._lock:
            before, needed = len(self._bases), max(1, self._wanted())
            # One that was just made is idle too, and dropped for another grammar's it would be made again.
            while len(self._bases) > needed and self._users[-1] == 0:
                self._bases.pop()
                self._users.pop()
            return len(self._bases) < before

    def _wanted(self) -> int:
        """One for two users."""
        users = sum(self._users)
        return 1 if self._alone else min((users + 1) // 2, _MOST * self._pool.threads)

    def _give_back(self, life: int, number: int) -> None:
        with self._lock:
            if life == self._life:
                self._users[number] -= 1

    def _made(self) -> Any:
        with native():
            return self._make()

    def _renew(self) -> None:
        try:
            base = self._made()
            with self._lock:
                if not base.is_error():
                    self._life += 1
                    self._bases, self._users = [base], [0]
        finally:
            self._renewing = False

    def _grow(self) -> None:
        try:
            while self._grow_by_one():
                pass
        except BaseException:
            self._growing = False
            raise

    def _grow_by_one(self) -> bool:
        """Make one more, if there may be one; whether more are wanted. That is decided under the lock, as is
        whether another thread begins to grow."""
        if not self._pool.take_place():
            with self._lock:
                self._paused_until = time.monotonic() + _PAUSE
                self._growing = False
                return False
        try:
            base = self._made()
            with self._lock:
                if base.is_error():
                    self._alone = True  # fewer do as well
                else:
                    self._bases.append(base)
                    self._users.append(0)
                self._growing = len(self._bases) < self._wanted()
                return self._growing
        finally:
            self._pool.give_place_back()
