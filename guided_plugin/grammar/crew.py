"""How many threads fill a batch of masks: as few as are done in time. Touches nothing of the package.

Processors that fill are processors that the host doesn't have. Where masks are filled while a forward pass
runs there is time, and with fewer threads than could be had the host's own is faster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Crew"]

_SHARE = 0.2
"""What part of a step a fill may take before it gets more threads."""

_CALM = 32
"""So many fills in a row that fewer threads could have done in time, and it gets fewer."""

_SPARE = 0.7
"""In time means within this part of what is allowed: a little more work must not call them back."""

T = TypeVar("T")


class Crew(Generic[T]):
    """Executors with 1, 2, 4, ... threads up to `most`, made when they are needed, and the one in use.

    All threads work until `pace` is called: who doesn't call it waits for masks.
    """

    def __init__(self, make: Callable[[int], T], most: int) -> None:
        self._make = make
        self._sizes = [*(1 << i for i in range(most.bit_length()) if 1 << i < most), most]
        self._executors: dict[int, T] = {}
        self._allowed: float | None = None
        self._calm = 0
        self._at = len(self._sizes) - 1
        self.executor = self._executors[most] = make(most)
        """To be used for the next batch."""

    @property
    def threads(self) -> int:
        """How many threads it has."""
        return self._sizes[self._at]

    def pace(self, seconds: float) -> None:
        """Steps come this far apart, and fills are hidden behind them."""
        self._allowed = _SHARE * seconds

    def took(self, seconds: float) -> None:
        """A fill has taken so long."""
        if self._allowed is None:
            return
        if seconds > self._allowed:
            needed = self.threads * seconds / self._allowed
            enough = (at for at, size in enumerate(self._sizes) if size >= needed)
            self._take(next(enough, len(self._sizes) - 1))
        elif self._at and seconds * self.threads < _SPARE * self._allowed * self._sizes[self._at - 1]:
            self._calm += 1
            if self._calm == _CALM:
                self._take(self._at - 1)
        else:
            self._calm = 0

    def _take(self, at: int) -> None:
        size = self._sizes[at]
        if size not in self._executors:
            self._executors[size] = self._make(size)
        self._at, self._calm, self.executor = at, 0, self._executors[size]
