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
from operator import attrgetter
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
"""Seconds that requests have to get matchers with new lexers, before these are given up
in turn."""

_PAUSE = 0.25
"""Seconds until a grammar that found no room for another lexer tries again."""

_FEW = 4
"""So many requests on one lexer are never too many."""


class LexerPool:
    """Bounds the lexers of all grammars of a backend, without the first of each."""

    def __init__(self, threads: int) -> None:
        self.most = 2 * _MOST * threads
        self.most_each = 1 if threads == 1 else _MOST * threads
        """Lexers of one grammar: threads share them, one thread needs no other."""
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
        """The lexers of each grammar that is there."""
        with self._lock:
            return list(self._members)

    def has_room(self) -> bool:
        """Tell whether there may be one more; if necessary another grammar drops one
        that it doesn't need."""
        members = self.members()
        count = sum(len(member) - 1 for member in members)
        return count < self.most or any(member.drop_spare() for member in members)


@dataclass(slots=True, eq=False)
class Lexer:
    """A matcher at the beginning of a grammar, whose copies share one lexer."""

    base: Any
    users: int = 0
    """The number of requests that share it."""
    outdated: bool = False
    """True if the grammar has other lexers by now."""


@dataclass(slots=True, eq=False)
class Share:
    """The use of a lexer, for as long as this object lives."""

    lexers: Lexers
    lexer: Lexer

    @property
    def crowded(self) -> bool:
        """True if the grammar has a lexer that far fewer requests use."""
        return self.lexers.crowded(self.lexer)

    def rebuild_shared(self) -> bool:
        """Tell whether the lexer is full; then the grammar gets new ones. No message
        says so, so it is tried."""
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
        forces: bool = True,
    ) -> None:
        """`make` returns another matcher like the `first`."""
        self.users = 0
        """Requests with one of these lexers, or with an outdated one."""
        self.forces = forces
        """True if what must follow is looked for, while others wait."""
        self.looked_long = False
        """True if the last look for that took long."""
        self._lexers = [Lexer(first)]
        self._make = make
        self._pool = pool
        self._forgot = 0.0
        """When `forget` was last called."""
        self._growing = False
        self._paused_until = 0.0
        # Reentrant: a garbage collection may give a share back while this thread takes
        # one.
        self._lock = threading.RLock()
        pool.join(self)

    def __len__(self) -> int:
        return len(self._lexers)

    def take(self) -> tuple[Any, Share]:
        """A new matcher, and its share of a lexer."""
        with self._lock:
            lexer = min(self._lexers, key=attrgetter("users"))
            lexer.users += 1
            self.users += 1
        self._grow_if_wanted()
        return lexer.base.deep_copy(), Share(self, lexer)

    def _give_back(self, lexer: Lexer) -> None:
        with self._lock:
            lexer.users -= 1
            self.users -= 1

    def crowded(self, lexer: Lexer) -> bool:
        """Tell whether a request that has this lexer should take another one. Requests
        that came while there was no room for more lexers all have the same, and would
        wait for each other to their end."""
        if lexer.outdated or lexer.users <= _FEW or self.renewing:
            return False
        with self._lock:
            fewest = min(one.users for one in self._lexers)
        self._grow_if_wanted()
        return lexer.users > 2 * (fewest + 1)

    @property
    def renewing(self) -> bool:
        """True if requests that have outdated lexers may soon have others."""
        waited = time.monotonic() - self._forgot
        return waited < _RENEWAL_SECONDS and self.users > self._current_users()

    def cost(self) -> int:
        """The fuel that these lexers have spent."""
        return sum(fuel_spent(lexer.base) for lexer in list(self._lexers))

    def forget(self) -> None:
        """Put a new lexer in place of all that have learnt. What the old ones learnt is
        freed with the last request that has one."""
        self._forgot = time.monotonic()
        self._replace_all()

    def rebuild(self, full: Lexer) -> None:
        """Give new lexers to the requests that come from now on, in place of one that
        is full."""
        if not full.outdated:
            self._replace_all()

    def _replace_all(self) -> None:
        new = self._made()
        if new.is_error():
            return
        with self._lock:
            for lexer in self._lexers:
                lexer.outdated = True
            self._lexers = [Lexer(new)]

    def drop_spare(self) -> bool:
        """Drop lexers that no request uses or calls for, and tell whether there were
        any. The last ones are idle first."""
        with self._lock:
            before = len(self._lexers)
            needed = self._wanted()
            # One that was just made is idle too, and dropped for another grammar's it
            # would be made again.
            while len(self._lexers) > needed and self._lexers[-1].users == 0:
                self._lexers.pop()
            return len(self._lexers) < before

    def _wanted(self) -> int:
        """One for two users."""
        pairs = (self._current_users() + 1) // 2
        return max(1, min(pairs, self._pool.most_each))

    def _current_users(self) -> int:
        return sum(lexer.users for lexer in self._lexers)

    def _made(self) -> Any:
        with native():
            return self._make()

    def _grow_if_wanted(self) -> None:
        """Have more lexers made, in a thread: each takes milliseconds, and the requests
        that are here already have one. The lock is not held: a thread that starts may
        collect garbage, and give a share back."""
        with self._lock:
            paused = time.monotonic() < self._paused_until
            if self._growing or paused or len(self) >= self._wanted():
                return
            self._growing = True
        thread = threading.Thread(target=self._grow, name="guided-lexers", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no thread left; those that are there do
            self._stop_growing()

    def _grow(self) -> None:
        processors.give_way()
        try:
            with self._pool.growing:
                while len(self) < self._wanted() and self._pool.has_room():
                    base = self._made()
                    if base.is_error():
                        break
                    with self._lock:
                        self._lexers.append(Lexer(base))
        finally:
            self._stop_growing()

    def _stop_growing(self) -> None:
        with self._lock:
            if len(self) < self._wanted():
                self._paused_until = time.monotonic() + _PAUSE
            self._growing = False


def fuel_spent(base: Any) -> int:
    """The fuel that a lexer has spent; 0 where llguidance does not tell. Only the text
    of an error tells, as of the matcher's last new mask. So a copy moves on by a token,
    fills a mask and fails."""
    copy = base.deep_copy()
    mask = np.frombuffer(copy.compute_bitmask(), np.uint8)
    allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little"))
    for token in allowed[:1].tolist():
        copy.consume_token(token)
        copy.compute_bitmask()
    copy.rollback(_TOO_MANY)
    found = _FUEL.search(copy.get_error())
    return int(found[1]) if found else 0
