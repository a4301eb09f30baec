"""Bounds what the lexers of all grammars of a backend have learnt, in bytes. Depends on
lexers.

llguidance tells neither its lexers' states nor their bytes. What can be known:

- How far the process has grown since the first mask: all lexers together have learnt
  that at most.
- The fuel that a lexer has spent (`lexer_cost`). Measured in a process that fills
  random masks of one grammar
  (a vocabulary of 32,000 tokens), its memory grows by 1.3 to 3 bytes a unit where a pattern has exponentially
  many states, by 15 to 25 where strings have length bounds or patterns, by 150 with 150 such strings. That is
  no size, but it tells which lexers have learnt: one that meets nothing new spends nothing.

So the process is looked at now and then. When it has grown by three fifths of the
bound, grammars without users give up what they have learnt; then those in use do, and
their requests get new matchers as time allows (see grammar/renewal.py). The largest are
first. If lexers can't be what has grown, the measure starts again from there.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import threading
import time
from typing import TYPE_CHECKING

from guided_plugin.grammar.native import native
from guided_plugin.ipc.spawn import resident_bytes

if TYPE_CHECKING:
    from guided_plugin.grammar.llguidance.lexers import LexerPool

_log = logging.getLogger(__name__)

_PAUSE = 0.1
"""Seconds between two looks, at least."""

_BEGIN = 0.6
"""The part of the bound at which lexers begin to give up what they have learnt."""
_END = 0.3
"""The part at which they may stop."""

_MOST_A_UNIT = 1000
"""More bytes than any lexer took for a unit of its fuel. If lexers can't have come near
the bound even so, something else has grown."""


_LEAST_PART = 1 / 256
"""A grammar whose lexers have spent less than this part of all fuel is left alone: it
frees next to nothing."""


class Learnt:
    """Counts what the lexers of one pool have learnt. `filled` is called in each step,
    the rest is in a thread."""

    def __init__(self, pool: LexerPool, limit_bytes: int) -> None:
        self._pool = pool
        self._limit = limit_bytes
        self._base: int | None = None
        """Memory of the process, before lexers had learnt anything."""
        self._next = 0.0
        self._working = False

    @property
    def size_bytes(self) -> int:
        """Bytes that lexers have learnt, at most."""
        return 0 if self._base is None else max(0, resident_bytes() - self._base)

    def filled(self) -> None:
        """Masks were filled: look at the process now and then."""
        if self._base is None:
            self._base = resident_bytes()
        now = time.monotonic()
        if self._working or now < self._next:
            return
        self._next = now + _PAUSE
        if self.size_bytes > _BEGIN * self._limit:
            self._working = True
            work = threading.Thread(
                target=self._work, name="guided-learnt", daemon=True
            )
            work.start()

    def _work(self) -> None:
        try:
            with native():
                self._reduce()
        except Exception:
            _log.exception("could not clear the cached states of lexers")
            self._next = time.monotonic() + 10 * _PAUSE
        finally:
            self._working = False

    def _reduce(self) -> None:
        _trim()
        members = self._pool.members()
        costs = {lexers: lexers.cost() for lexers in members}
        total = sum(costs.values())
        renewing = any(lexers.renewing for lexers in members)
        most = _MOST_A_UNIT * total
        if most < _BEGIN * self._limit and not renewing:
            self._base = resident_bytes() - min(self.size_bytes, most)
            return
        # What lexers in use have learnt is freed when their requests have new matchers.
        members.sort(key=lambda lexers: (lexers.users > 0, -costs[lexers]))
        excess = self.size_bytes - _END * self._limit
        for lexers in members:
            large = costs[lexers] > _LEAST_PART * total
            if excess > 0 and large and not lexers.renewing:
                lexers.forget()
                excess -= self._limit * costs[lexers] / total
        _trim()
        _log.info("cleared lexer states; %d MiB are left", self.size_bytes >> 20)


def _trim() -> None:
    """Give freed memory back to the system, where the C library can."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
