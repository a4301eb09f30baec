"""How many threads fill a batch of masks: as few as are done in time. Touches nothing of the package.

Processors that fill are processors that the host doesn't have. Where masks are filled while a forward pass
runs there is time, and with fewer threads than could be had the host's own is faster.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["AdaptiveThreads"]

_log = logging.getLogger(__name__)

_SHARE = 0.3
"""What part of a step a batch may take, tokens and masks, before it gets more threads."""

_CALM = 32
"""So many fills in a row with time to spare, and it is tried with fewer threads."""

_SPARE = 0.7
"""What part of what is allowed leaves time to spare."""

_EXPOSED = 3.0
"""How many times longer than allowed a fill is that somebody may have waited for."""

_MOST_CALM = 8192
"""As far as the wait for the next trial grows: four times as long after one that came out badly, and after a
fill that somebody may have waited for."""

T = TypeVar("T")


class AdaptiveThreads(Generic[T]):
    """Executors with 1, 2, 4, ... threads up to `most`, made when they are needed, and the one in use.

    All threads work until `pace` is called: who doesn't call it waits for masks. How long a fill would take
    with fewer can't be told from how long it took, since small ones gain little from many: so it is tried.
    """

    def __init__(self, make: Callable[[int], T], most: int) -> None:
        self._make = make
        self._sizes = [*(1 << i for i in range(most.bit_length()) if 1 << i < most), most]
        self._executors: dict[int, T] = {}
        self._allowed: float | None = None
        self._at = len(self._sizes) - 1
        self._calm = self._since = 0
        """Fills in a row that had time to spare; fills since it was last changed."""
        self._trial = _CALM
        """So many calm ones are needed for the next trial."""
        self._tried = False
        """Whether the last change was a trial."""
        self._before = 0.0
        """Seconds that this step's tokens took."""
        self.executor = self._executors[most] = make(most)
        """To be used for the next batch."""

    @property
    def threads(self) -> int:
        """How many threads it has."""
        return self._sizes[self._at]

    def pace(self, seconds: float) -> None:
        """Steps come this far apart, and fills are hidden behind them."""
        self._allowed = _SHARE * seconds

    def accepted(self, seconds: float) -> None:
        """A batch's tokens have taken so long; its masks are next."""
        self._before = seconds

    def took(self, seconds: float) -> None:
        """A fill has taken so long."""
        if self._allowed is None:
            return
        seconds, self._before = seconds + self._before, 0.0
        self._since += 1
        if seconds > self._allowed:
            self._late(seconds / self._allowed)
        elif seconds > _SPARE * self._allowed:
            self._calm = 0
        else:
            self._calm += 1
            if self._calm >= self._trial and self._at:
                if self._tried:  # the last one came out well
                    self._trial = max(self._trial // 2, _CALM)
                self._tried = True
                self._take(self._at - 1)

    def _late(self, times: float) -> None:
        """The last fill took so many times what is allowed."""
        few = self._at < len(self._sizes) - 1
        if few and (times > _EXPOSED or (self._tried and self._since <= _CALM)):
            self._trial = min(4 * self._trial, _MOST_CALM)
        self._tried = False
        enough = (at for at, size in enumerate(self._sizes) if size >= self.threads * times)
        self._take(next(enough, len(self._sizes) - 1))

    def _take(self, at: int) -> None:
        size = self._sizes[at]
        if size not in self._executors:
            try:
                self._executors[size] = self._make(size)
            except Exception as error:  # no more threads to be had: the ones there are will do
                _log.warning("no executor with %d threads: %s", size, error)
                self._calm, self._trial = 0, _MOST_CALM
                return
        self._at, self._calm, self._since, self.executor = at, 0, 0, self._executors[size]
