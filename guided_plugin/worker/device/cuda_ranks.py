"""Masks of several ranks on CUDA: when a place in the rings may be used again. No host waits for a step that
runs.

    rank 0    plan(n + 4): looks at TAKEN of the others, and waits only for one that is 4 steps behind
    others    plan(m): the newest n before m - 1 whose copy has left the ring is TAKEN; see `ranks/follower`
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from guided_plugin.worker.device.cuda_masks import CudaMasks, MaskCopies
from guided_plugin.worker.layout import PLAN_DEPTH, Region


class LeadingMasks(CudaMasks):
    """Rank 0: the worker may fill a place when no rank reads it any more."""

    def __init__(
        self,
        region: Region,
        device: torch.device,
        base: int,
        current: Callable[[], Any],
        wait: Callable[[int], None] | None,
        free: Callable[[int], None],
    ) -> None:
        super().__init__(region, device, base, current, wait)
        self._free = free

    def claim(self, step: int) -> None:
        """Make sure that all ranks have copied what is in a step's place."""
        self._free(step - PLAN_DEPTH)
        super().claim(step)


class FollowedMasks(MaskCopies):
    """Another rank. The tokens of its device are written nowhere, so its own events tell what it has used."""

    def __init__(
        self,
        region: Region,
        device: torch.device,
        base: int,
        current: Callable[[], Any],
        wait: Callable[[int], None] | None,
    ) -> None:
        super().__init__(region, device, base, current, wait)
        self._launched = torch.cuda.Event()
        """Of the main stream, at the plan of every step in whose place the rings begin again."""
        self._read = -1
        """The newest step whose copy was seen to be done."""

    def claim(self, step: int) -> None:
        """Make sure that the last copy out of a step's place in the ring is done, and that no copy to the
        device comes before the kernels that use what is there."""
        entry = step % PLAN_DEPTH
        if entry == 0:
            # All that used what the next PLAN_DEPTH copies replace was launched before this step.
            self._launched.record(self._current())
            self.side_stream.wait_event(self._launched)
        if self._read < step - PLAN_DEPTH and not self._uploaded[entry].query():
            self._uploaded[entry].synchronize()

    def read(self, step: int) -> bool:
        """Whether a copy is done. It began when the masks were filled."""
        done = bool(self._uploaded[step % PLAN_DEPTH].query())
        if done:
            self._read = step
        return done

    def upload(self, step: int, count: int) -> None:
        """Let the side stream wait for the masks and copy them."""
        if self._wait is None:
            self._wait_filled(step)
            self._enqueue_copy(step, count)

    def settle(self, seconds: float) -> bool:
        """Wait until the device has read all that was asked for; whether it has."""
        end = time.monotonic() + seconds
        while not all(event.query() for event in self._uploaded):
            if time.monotonic() > end:
                return False
            time.sleep(0.01)
        return True
