"""Chooses how many threads fill a batch of masks: as few as are done in time. Depends
on nothing.

Processors that fill masks are not available to the host. Masks are filled while a
forward pass runs, so there is time, and the host's own thread runs faster next to fewer
others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

_log = logging.getLogger(__name__)

_SHARE = 0.3
"""The part of a step that a batch may take, tokens and masks, before it gets more
threads."""

_FAST = 0.7
"""A batch is fast if it takes no more than this part of what is allowed."""

_FAST_FILLS = 32
"""After so many fast fills in a row, fewer threads are tried."""

_EXPOSED = 3.0
"""A fill that takes so many times what is allowed may have delayed a step."""

_MOST_FAST_FILLS = 8192
"""The limit of the wait for a trial. It is four times as long after a bad trial, and
after a delay."""


class AdaptiveThreads:
    """Executors with 1, 2, 4, ... threads up to `most`, made when they are needed, and
    the one in use.

    All threads are used until `pace` is called: a host that does not call it waits for
    masks. The time of a fill does not show how long it would take with fewer threads
    (small ones gain little from many), so that is tried.
    """

    def __init__(self, make: Callable[[int], Any], most: int) -> None:
        self._make = make
        self._sizes = [
            *(1 << i for i in range(most.bit_length()) if 1 << i < most),
            most,
        ]
        self._executors: dict[int, Any] = {}
        self._allowed: float | None = None
        self._at = len(self._sizes) - 1
        self._fast = self._since = 0
        """Fast fills in a row; fills since the last change."""
        self._needed = _FAST_FILLS
        """Fast fills before the next trial."""
        self._tried = False
        """True if the last change was a trial."""
        self._accept_seconds = 0.0

    @property
    def executor(self) -> Any:
        """To be used for the next batch. The first one is made then: a process that
        forks has no threads."""
        size = self.threads
        if size not in self._executors:
            self._executors[size] = self._make(size)
        return self._executors[size]

    @property
    def threads(self) -> int:
        """The number of threads of the executor."""
        return self._sizes[self._at]

    def pace(self, seconds: float) -> None:
        """Steps come this far apart, and fills are hidden behind them."""
        self._allowed = _SHARE * seconds

    def accepted(self, seconds: float) -> None:
        """A batch's tokens have taken so long; its masks are next."""
        self._accept_seconds = seconds

    def took(self, seconds: float) -> None:
        """A fill has taken so long."""
        if self._allowed is None:
            return
        seconds = seconds + self._accept_seconds
        self._accept_seconds = 0.0
        self._since += 1
        if seconds > self._allowed:
            self._late(seconds / self._allowed)
        elif seconds > _FAST * self._allowed:
            self._fast = 0
        else:
            self._fast += 1
            if self._fast >= self._needed and self._at:
                if self._tried:  # the last trial was good
                    self._needed = max(self._needed // 2, _FAST_FILLS)
                self._tried = True
                self._use(self._at - 1)

    def _late(self, times: float) -> None:
        """The last fill took so many times what is allowed."""
        most = len(self._sizes) - 1
        if self._at < most and (
            times > _EXPOSED or (self._tried and self._since <= _FAST_FILLS)
        ):
            self._needed = min(4 * self._needed, _MOST_FAST_FILLS)
        self._tried = False
        enough = (
            at for at, size in enumerate(self._sizes) if size >= self.threads * times
        )
        self._use(next(enough, most))

    def _use(self, at: int) -> None:
        size = self._sizes[at]
        if size not in self._executors:
            try:
                self._executors[size] = self._make(size)
            # no more threads are available: keep the executor in use
            except Exception as error:
                _log.warning("cannot start %d threads: %s", size, error)
                self._fast = 0
                self._needed = _MOST_FAST_FILLS
                return
        self._at = at
        self._fast = 0
        self._since = 0
