"""The lexers of one llguidance grammar. Depends on llguidance's matchers by their
methods only.

All copies of a matcher share one lexer, and its lock: threads that fill masks for them
take turns. A lexer also learns: the first mask in each of its states costs several
times the later ones. So a grammar has as many lexers as the requests that use it at the
same time need, and a request gets the first of those with the fewest users: alone it
gets the one that has learned most. What a lexer learns takes some MiB, so all grammars
together have a bounded number of them besides the first of each.
"""

from __future__ import annotations

import re
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from guided_plugin.grammar.native import native
from guided_plugin.ipc import processors

_MOST = 4
"""Lexers for each thread, at most: threads take rows from one another, and rows with
one lexer then wait for each other. Four keep most of them apart."""

_FUEL = re.compile(r'"lexer_cost": (\d+)')
_TOO_MANY = 1 << 30
"""More tokens than any matcher has to take back."""

_RENEWAL_SECONDS = 5.0
"""What requests have to get matchers with new lexers, before these are given up in
turn."""

_PAUSE = 0.25
"""Seconds until a grammar that found no room for another lexer tries again."""

_FEW = 4
"""So many requests on one lexer are never too many."""


class LexerPool:
    """Bounds the lexers of all grammars of a backend, without the first of each."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.most = 2 * _MOST * threads
        self.growing = threading.Lock()
        """Held while a grammar gets more lexers: one grammar at a time, so that they
        can be counted."""
        self._lock = threading.Lock()
        self._members: weakref.WeakSet[Lexers] = weakref.WeakSet()

    def join(self, lexers: Lexers) -> None:
        """Count a grammar's lexers from now on."""
        with self._lock:
            self._members.add(lexers)

    def members(self) -> list[Lexers]:
        """Of each grammar that is there."""
        with self._lock:
            return list(self._members)

    def has_room(self) -> bool:
        """Whether there may be one more; if necessary another grammar drops one that it
        doesn't need."""
        members = self.members()
        count = sum(len(member) - 1 for member in members)
        return count < self.most or any(member.drop_spare() for member in members)


@dataclass(slots=True, eq=False)
class Lexer:
    """A matcher at the beginning of a grammar, whose copies share one lexer."""

    base: Any
    users: int = 0
    """How many requests share it."""
    outdated: bool = False
    """Whether the grammar has other lexers by now."""


@dataclass(slots=True, eq=False)
class Share:
    """The use of a lexer, for as long as this object lives."""

    lexers: Lexers
    lexer: Lexer

    @property
    def crowded(self) -> bool:
        """Whether the grammar has a lexer that far fewer requests use."""
        return self.lexers.crowded(self.lexer)

    def rebuild_shared(self) -> bool:
        """Whether the lexer is full; then the grammar gets new ones. No message tells,
        so it is tried."""
        copy = self.lexer.base.deep_copy()
        copy.compute_bitmask()
        if not copy.is_error():
            return False
        self.lexers.rebuild(self.lexer)
        return True

    def __del__(self) -> None:
        self.lexers._give_back(self.lexer)


class Lexers:
    """Matchers at the beginning of a grammar, each with a lexer of its own. From any
    thread."""

    def __init__(
        self,
        first: Any,
        make: Callable[[], Any],
        pool: LexerPool,
        *,
        quick: bool = True,
        forces: bool = True,
    ) -> None:
        """`quick`: another one is made in some milliseconds, so that a step may wait
        for it."""
        self._lexers = [Lexer(first)]
        self._old_users = 0
        """Requests with lexers that are outdated."""
        self._forgot = 0.0
        """When `forget` was last called."""
        self.used = 0.0
        """When one was last taken, or given back."""
        self.forces = forces
        """Whether what must follow is looked for, while others wait."""
        self.looked_long = False
        """Whether the last look for that took long."""
        self._make = make
        self._quick = quick
        self._pool = pool
        self._only_one = pool.threads == 1
        self._growing = self._rebuilding = False
        self._paused_until = 0.0
        # Reentrant: a garbage collection may give a share back while this thread takes
        # one.
        self._lock = threading.RLock()
        pool.join(self)

    def take(self) -> tuple[Any, Share]:
        """A new matcher, and its share of a lexer."""
        with self._lock:
            lexer = min(self._lexers, key=_users)
            lexer.users += 1
            self.used = time.monotonic()
        self._grow_if_wanted()
        return lexer.base.deep_copy(), Share(self, lexer)

    def crowded(self, lexer: Lexer) -> bool:
        """Whether a request that has this lexer should take another one. Requests that
        came while there was no room for more lexers all have the same, and would wait
        for each other to their end."""
        if lexer.outdated or lexer.users <= _FEW or self.renewing:
            return False
        with self._lock:
            crowded = lexer.users > 2 * (min(map(_users, self._lexers)) + 1)
        self._grow_if_wanted()
        return crowded

    def __len__(self) -> int:
        return len(self._lexers)

    @property
    def users(self) -> int:
        """Requests with one of these lexers, or with an earlier one."""
        return sum(map(_users, self._lexers)) + self._old_users

    @property
    def renewing(self) -> bool:
        """Whether requests that have outdated lexers may soon have others."""
        return (
            self._old_users > 0 and time.monotonic() - self._forgot < _RENEWAL_SECONDS
        )

    def cost(self) -> int:
        """The fuel that these lexers have spent."""
        return sum(fuel_spent(lexer.base) for lexer in list(self._lexers))

    def forget(self) -> bool:
        """Put a new lexer in place of all that have learnt; whether that was possible.
        What the old ones learnt is freed with the last request that has one."""
        self._forgot = time.monotonic()
        return self._begin_rebuilding() and self._rebuild()

    def rebuild(self, full: Lexer) -> None:
        """Give new lexers to the requests that come from now on, in place of one that
        is full."""
        if not self._begin_rebuilding(full):
            return
        if self._quick:
            self._rebuild()
        else:
            # Other requests wait for their masks: better fail those that need the new
            # one before it is made.
            threading.Thread(
                target=self._rebuild, name="guided-lexers", daemon=True
            ).start()

    def drop_spare(self) -> bool:
        """Drop lexers that no request uses or calls for. The last ones are idle
        first."""
        with self._lock:
            before = len(self._lexers)
            needed = max(1, self._wanted())
            # One that was just made is idle too, and dropped for another grammar's it
            # would be made again.
            while len(self._lexers) > needed and self._lexers[-1].users == 0:
                self._lexers.pop()
            return len(self._lexers) < before

    def _wanted(self) -> int:
        """One for two users."""
        users = sum(map(_users, self._lexers))
        return (
            1 if self._only_one else min((users + 1) // 2, _MOST * self._pool.threads)
        )

    def _give_back(self, lexer: Lexer) -> None:
        with self._lock:
            self.used = time.monotonic()
            lexer.users -= 1
            self._old_users -= lexer.outdated

    def _made(self) -> Any:
        with native():
            return self._make()

    def _begin_rebuilding(self, full: Lexer | None = None) -> bool:
        with self._lock:
            if self._rebuilding or (full is not None and full.outdated):
                return False
            self._rebuilding = True
            return True

    def _rebuild(self) -> bool:
        """Put one new lexer in place of all; whether it could be made."""
        try:
            new = self._made()
            with self._lock:
                if new.is_error():
                    return False
                for lexer in self._lexers:
                    lexer.outdated = True
                    self._old_users += lexer.users
                self._lexers = [Lexer(new)]
                return True
        finally:
            self._rebuilding = False

    def _grow_if_wanted(self) -> None:
        """Have more lexers made, in a thread: each takes milliseconds, and the requests
        that are here already have one. The lock is not held: a thread that starts may
        collect garbage, and give a share back."""
        with self._lock:
            if (
                self._growing
                or len(self) >= self._wanted()
                or time.monotonic() < self._paused_until
            ):
                return
            self._growing = True
        try:
            threading.Thread(
                target=self._grow, name="guided-lexers", daemon=True
            ).start()
        except RuntimeError:  # the system has no thread left; those that are there do
            self._pause()

    def _grow(self) -> None:
        processors.give_way()
        try:
            with self._pool.growing:
                while self._wants_more():
                    if not self._pool.has_room():
                        return self._pause()
                    base = self._made()
                    with self._lock:
                        self._only_one |= base.is_error()
                        self._lexers += [] if self._only_one else [Lexer(base)]
        except BaseException:
            self._growing = False
            raise

    def _wants_more(self) -> bool:
        """Whether the thread that makes lexers goes on. That is decided under the lock,
        as is whether another one begins."""
        with self._lock:
            self._growing = len(self) < self._wanted()
            return self._growing

    def _pause(self) -> None:
        with self._lock:
            self._paused_until = time.monotonic() + _PAUSE
            self._growing = False


def _users(lexer: Lexer) -> int:
    return lexer.users


def fuel_spent(base: Any) -> int:
    """The fuel that a lexer has spent; 0 where llguidance does not tell. Only the text
    of an error tells, as of the matcher's last new mask. So a copy moves on by a token,
    fills a mask and fails."""
    copy = base.deep_copy()
    allowed = np.flatnonzero(np.frombuffer(copy.compute_bitmask(), np.uint8))
    if len(allowed):
        byte = copy.compute_bitmask()[allowed[0]]
        copy.consume_token(8 * int(allowed[0]) + (byte & -byte).bit_length() - 1)
        copy.compute_bitmask()
    copy.rollback(_TOO_MANY)
    found = _FUEL.search(copy.get_error())
    return int(found[1]) if found else 0
