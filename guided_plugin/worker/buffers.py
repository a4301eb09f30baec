"""The way between the shared memory and the logits, by step number: masks up, tokens
down.

The classes here work on the CPU: the host itself waits for a mask and raises the flag
of its tokens. The classes of `device` override all of it.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from guided_plugin.metrics import Times
from guided_plugin.step import OfferedDrafts, TokenSink
from guided_plugin.worker.layout import PLAN_DEPTH, TOKEN_DEPTH, Region
from guided_plugin.worker.words import Counter


@dataclass(frozen=True, slots=True)
class Buffers:
    """Both ways of one pipeline. A rank that follows may not write the region, and
    writes no tokens."""

    masks: HostMasks
    tokens: HostTokens
    close: Callable[[], None]
    """Lets go of the shared memory, unless the device still waits for some of it."""


class HostMasks:
    """Masks, from the ring to the device, here the CPU. Nothing waits on CUDA."""

    def __init__(
        self,
        region: Region,
        wait: Callable[[int], None] | None,
        free: Callable[[int], None] | None = None,
    ) -> None:
        self.waits = Times()
        """Seconds that steps waited for their masks, of those that were looked at."""
        self._wait = wait
        self._free = free
        # [PLAN_DEPTH, max_rows, words] int32, the shared memory itself
        self._masks = _tensor(region.masks)
        self._claimed = 0

    def claim(self, step: int) -> None:
        """Make sure that a step's place in the ring may be filled: what was there has
        been used here, but other ranks may be late."""
        self._claimed = step
        if self._free is not None:
            self._free(step - PLAN_DEPTH)

    def upload(self, step: int, count: int) -> None:
        """Bring the first `count` masks of a step to the device once they are filled;
        here there is nothing to copy."""

    def fetch(self, step: int, count: int) -> Tensor:
        """[count, words] int32: the masks; what is launched next sees them complete.
        Here they are those of the ring, when they are filled."""
        if self._wait is not None:
            start = time.perf_counter()
            self._wait(step)
            self.waits.add(time.perf_counter() - start)
        return self._masks[step % PLAN_DEPTH, :count]

    def read(self, step: int) -> bool:
        """True if the masks of one of the last PLAN_DEPTH steps have been read from the
        ring, not only asked for. Here, if they are not of the newest three steps, which
        drafts need at the same time."""
        return step <= self._claimed - 3


def _tensor(array: NDArray[Any]) -> Tensor:
    with warnings.catch_warnings():
        # Of ranks that may not write it: they only read.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(array)


class HostTokens:
    """Which logits rows are guided; their sampled tokens, from the device to the ring,
    on the CPU."""

    def __init__(self, region: Region) -> None:
        self._region = region
        self.set_rows(())

    def set_rows(self, rows: Sequence[int]) -> None:
        """The logits rows that are guided from this step on."""
        self._index: NDArray[np.int64] = np.array(rows, np.int64)
        self.rows = torch.from_numpy(self._index.astype(np.int32))
        """[guided rows] int32, device."""

    def write(self, step: int, tokens: Tensor) -> None:
        """Bring the guided rows' sampled tokens to the ring, then say that they are
        there."""
        self._region.tokens[step % TOKEN_DEPTH, : len(self._index)] = tokens.numpy()[
            self._index
        ]
        self._region.store(Counter.SAMPLED, step)

    def sink(self, step: int) -> TokenSink | None:
        """Return the place where a kernel may write the tokens itself; none here."""
        return None

    def offered(self, step: int, count: int) -> OfferedDrafts:
        """The drafts of a step's `count` requests, once they are final: what is
        launched next sees them."""
        # the supervisor sees to it that this ends
        while not self._region.reached(Counter.OFFERED, step):
            time.sleep(2e-5)
        return torch.from_numpy(self._region.drafts(step, count))
