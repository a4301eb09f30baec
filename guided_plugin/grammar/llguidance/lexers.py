"""The lexers of one llguidance grammar. Depends on llguidance's matchers by their methods only.

All copies of a matcher share one lexer, and its lock: threads that fill masks for them take turns. A lexer
also learns: the first mask in each of its states costs several times the later ones. So a grammar has as many
lexers as the requests that use it at the same time need, and a request gets the first of those with the
fewest users: alone it gets the one that has learned most. What a lexer learns takes some MiB, so all
grammars together have a bounded number of them besides the first of each.
"""

from __future__ import annotations

import re
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from guided_plugin.grammar.native import native
from guided_plugin.ipc import processors

_MOST = 4
"""Lexers for each thread, at most: threads take rows from one another, and rows with one lexer then wait for
each other. Four keep most of them apart."""

_FUEL = re.compile(r'"lexer_cost": (\d+)')
_TOO_MANY = 1 << 30
"""More tokens than any matcher has to take back."""

_RENEWAL_SECONDS = 5.0
"""What requests have to get matchers with new lexers, before these are given up in turn."""

_PAUSE = 0.25
"""Seconds until a grammar that found no room for another lexer tries again."""

_FEW = 4
"""So many requests on one lexer are never too many."""


class LexerPool:
    """Bounds the lexers of all grammars of a backend, without the first of each."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.most = 2 * _MOST * threads
        self._lock = threading.Lock()
        self._members: weakref.WeakSet[Lexers] = weakref.WeakSet()
        self._reserved = 0
        """Lexers that are being made."""

    def join(self, lexers: Lexers) -> None:
        """Count a grammar's lexers from now on."""
        with self._lock:
            self._members.add(lexers)

    def members(self) -> list[Lexers]:
        """Of each grammar that is there."""
        with self._lock:
            return list(self._members)

    def reserve(self) -> bool:
        """Whether there may be one more; if necessary another grammar drops one that it doesn't need."""
        with self._lock:
            members = list(self._members)
            count = self._reserved + sum(len(member) - 1 for member in members)
            granted = count < self.most or any(member.drop_spare() for member in members)
            self._reserved += granted
            return granted

    def release(self) -> None:
        """The reserved lexer is made, and its grammar counts it, or it can't be made."""
        with self._lock:
            self._reserved -= 1


class Share:
    """The use of a lexer, for as long as this object lives."""

    __slots__ = ("_base", "_generation", "_lexers", "number")

    def __init__(self, lexers: Lexers, base: Any, generation: int, number: int) -> None:
        self._lexers = lexers
        self._base = base
        self._generation = generation
        self.number = number

    @property
    def place(self) -> tuple[int, int, int]:
        """Equal for those that share a lexer."""
        return id(self._lexers), self._generation, self.number

    @property
    def outdated(self) -> bool:
        """Whether the grammar has other lexers by now."""
        return self._generation != self._lexers._generation

    @property
    def crowded(self) -> bool:
        """Whether the grammar has a lexer that far fewer requests use."""
        return self._lexers.crowded(self._generation, self.number)

    def rebuild_shared(self) -> bool:
        """Whether the lexer is full; then the grammar gets new ones. No message tells, so it is tried."""
        copy = self._base.deep_copy()
        copy.compute_bitmask()
        if not copy.is_error():
            return False
        self._lexers.rebuild(self._generation)
        return True

    def __del__(self) -> None:
        self._lexers._give_back(self._generation, self.number)


class Lexers:
    """Matchers at the beginning of a grammar, each with a lexer of its own. From any thread."""

    def __init__(self, first: Any, make: Callable[[], Any], pool: LexerPool, *, quick: bool = True) -> None:
        """`quick`: another one is made in some milliseconds, so that a step may wait for it."""
        self._bases = [first]
        self._users = [0]
        """How many requests share each of them."""
        self._generation = 0
        """How often they were rebuilt."""
        self._rebuilding = False
        self._forgot = 0.0
        """When `forget` was last called."""
        self._old_users = 0
        """Requests with lexers of earlier generations."""
        self.used = 0.0
        """When it was last taken, or given back."""
        self._make = make
        self._quick = quick
        self._pool = pool
        self._only_one = pool.threads == 1
        self._paused_until = 0.0
        # Reentrant: a garbage collection may give a share back while this thread takes one.
        self._lock = threading.RLock()
        self._growing = False
        pool.join(self)

    def take(self) -> tuple[Any, Share]:
        """A new matcher, and its share of a lexer."""
        with self._lock:
            number = self._users.index(min(self._users))
            self._users[number] += 1
            self.used = time.monotonic()
            grow = self._shall_grow()
            base, generation = self._bases[number], self._generation
        if grow:
            self._start_growing()
        return base.deep_copy(), Share(self, base, generation, number)

    def crowded(self, generation: int, number: int) -> bool:
        """Whether a request that has this lexer should take another one. Requests that came while there was
        no room for more lexers all have the same, and would wait for each other to their end."""
        with self._lock:
            if generation != self._generation or self._users[number] <= _FEW or self.renewing:
                return False
            grow = self._shall_grow()
            crowded = self._users[number] > 2 * (min(self._users) + 1)
        if grow:
            self._start_growing()
        return crowded

    def __len__(self) -> int:
        return len(self._bases)

    @property
    def users(self) -> int:
        """Requests with one of these lexers, or with an earlier one."""
        return sum(self._users) + self._old_users

    @property
    def renewing(self) -> bool:
        """Whether requests that have lexers of an earlier generation may soon have others."""
        return self._old_users > 0 and time.monotonic() - self._forgot < _RENEWAL_SECONDS

    def cost(self) -> int:
        """The fuel that these lexers have spent."""
        return sum(map(fuel_spent, list(self._bases)))

    def forget(self) -> bool:
        """Put a new lexer in place of all that have learnt; whether that was possible. What the old ones
        learnt is freed with the last request that has one."""
        with self._lock:
            if self._rebuilding:
                return False
            self._rebuilding, generation = True, self._generation
            self._forgot = time.monotonic()
        self._rebuild()
        return generation != self._generation

    def rebuild(self, generation: int) -> None:
        """Give new lexers to the requests that come from now on. Once in each generation."""
        with self._lock:
            if generation != self._generation or self._rebuilding:
                return
            self._rebuilding = True
        if self._quick:
            self._rebuild()
        else:
            # Other requests wait for their masks: better fail those that need the new one before it is made.
            threading.Thread(target=self._rebuild, name="guided-lexers", daemon=True).start()

    def drop_spare(self) -> bool:
        """Drop lexers that no request uses or calls for. The last ones are idle first."""
        with self._lock:
            before, needed = len(self._bases), max(1, self._wanted())
            # One that was just made is idle too, and dropped for another grammar's it would be made again.
            while len(self._bases) > needed and self._users[-1] == 0:
                self._bases.pop()
                self._users.pop()
            return len(self._bases) < before

    def _shall_grow(self) -> bool:
        """Whether the caller is to have more lexers made. The lock is held."""
        if self._growing or len(self._bases) >= self._wanted() or time.monotonic() < self._paused_until:
            return False
        self._growing = True
        return True

    def _start_growing(self) -> None:
        """Milliseconds for each lexer, and the requests that are here already have one. The lock is not held:
        a thread that starts may collect garbage, and give a share back."""
        try:
            threading.Thread(target=self._grow, name="guided-lexers", daemon=True).start()
        except RuntimeError:  # the system has no thread left; those that are there do
            self._paused_until = time.monotonic() + _PAUSE
            self._growing = False

    def _wanted(self) -> int:
        """One for two users."""
        users = sum(self._users)
        return 1 if self._only_one else min((users + 1) // 2, _MOST * self._pool.threads)

    def _give_back(self, generation: int, number: int) -> None:
        with self._lock:
            self.used = time.monotonic()
            if generation == self._generation:
                self._users[number] -= 1
            else:
                self._old_users -= 1

    def _made(self) -> Any:
        with native():
            return self._make()

    def _rebuild(self) -> None:
        try:
            base = self._made()
            with self._lock:
                if not base.is_error():
                    self._generation += 1
                    self._old_users += sum(self._users)
                    self._bases, self._users = [base], [0]
        finally:
            self._rebuilding = False

    def _grow(self) -> None:
        processors.give_way()
        try:
            while self._grow_by_one():
                pass
        except BaseException:
            self._growing = False
            raise

    def _grow_by_one(self) -> bool:
        """Make one more, if there may be one; whether more are wanted. That is decided under the lock, as is
        whether another thread begins to grow."""
        if not self._pool.reserve():
            with self._lock:
                self._paused_until = time.monotonic() + _PAUSE
                self._growing = False
                return False
        try:
            base = self._made()
            with self._lock:
                if base.is_error():
                    self._only_one = True
                else:
                    self._bases.append(base)
                    self._users.append(0)
                self._growing = len(self._bases) < self._wanted()
                return self._growing
        finally:
            self._pool.release()


def fuel_spent(base: Any) -> int:
    """The fuel that a lexer has spent; 0 where llguidance does not tell. Only the text of an error tells, as
    of the matcher's last new mask. So a copy moves on by a token, fills a mask and fails."""
    copy = base.deep_copy()
    allowed = np.flatnonzero(np.frombuffer(copy.compute_bitmask(), np.uint8))
    if len(allowed):
        byte = copy.compute_bitmask()[allowed[0]]
        copy.consume_token(8 * int(allowed[0]) + (byte & -byte).bit_length() - 1)
        copy.compute_bitmask()
    copy.rollback(_TOO_MANY)
    found = _FUEL.search(copy.get_error())
    return int(found[1]) if found else 0
