"""The way between the shared memory and the logits, by step number. Imports torch.

`HostWorkerBuffers` is the CPU twin of `worker.cuda`: the same calls on the same rings, with the host
itself waiting for a mask and raising the flag of its tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from guided_plugin.metrics import Recent
from guided_plugin.step import TokenSink
from guided_plugin.worker.layout import PLAN_DEPTH, TOKEN_DEPTH, Counter, Region

__all__ = ["HostWorkerBuffers", "Waits", "WorkerBuffers"]


class Waits:
    """What steps waited for their masks, of those that were looked at. Seconds."""

    def __init__(self) -> None:
        self.steps = 0
        self._margins = Recent(16)

    def add(self, margin: float) -> None:
        """In one step the masks had been there for so long before the logits; negative: they were late."""
        self.steps += 1
        self._margins.add(margin)

    @property
    def margin(self) -> float:
        """The median of the last ones."""
        return self._margins.median()

    @property
    def exposed(self) -> float:
        """How long the logits waited, in the median."""
        return max(0.0, -self.margin)


class WorkerBuffers(Protocol):
    """What a pipeline calls in a step. Nothing here waits for the worker on CUDA."""

    waits: Waits

    def set_rows(self, rows: Sequence[int]) -> None:
        """The logits rows that are guided from this step on."""
        ...

    def claim(self, step: int) -> None:
        """Make sure that the worker may fill a step's place in the ring."""
        ...

    def upload(self, step: int, count: int) -> None:
        """Bring the first `count` masks of a step to the device once they are filled."""
        ...

    def mask_dev(self, step: int, count: int) -> tuple[Tensor, Tensor]:
        """The masks and row numbers; what is launched next sees them complete."""
        ...

    def download(self, step: int, tokens: Tensor) -> None:
        """Bring the guided rows' sampled tokens to the ring, then say that they are there."""
        ...

    def token_sink(self, step: int) -> TokenSink | None:
        """Where a kernel may write the tokens itself."""
        ...

    def close(self) -> None:
        """Let go of the shared memory; every flag that is waited for has been raised."""
        ...


class HostWorkerBuffers:
    """See `WorkerBuffers`."""

    def __init__(self, region: Region, wait: Callable[[int], None]) -> None:
        self.waits = Waits()
        self._region = region
        self._wait = wait
        # [PLAN_DEPTH, max_rows, words] int32, the shared memory itself
        self._masks = torch.from_numpy(region.masks)
        self._tokens = torch.from_numpy(region.tokens)
        self._rows = torch.zeros(0, dtype=torch.int32)

    def set_rows(self, rows: Sequence[int]) -> None:
        """The logits rows that are guided from this step on."""
        self._rows = torch.tensor(list(rows), dtype=torch.int32)

    def claim(self, step: int) -> None:
        """What was there has been used."""

    def upload(self, step: int, count: int) -> None:
        """Nothing to copy."""

    def mask_dev(self, step: int, count: int) -> tuple[Tensor, Tensor]:
        """The masks and row numbers."""
        start = time.perf_counter()
        self._wait(step)
        self.waits.add(start - time.perf_counter())
        return self._masks[step % PLAN_DEPTH, :count], self._rows

    def download(self, step: int, tokens: Tensor) -> None:
        """Write the tokens and raise the flag."""
        chosen = tokens.index_select(0, self._rows.long())
        self._tokens[step % TOKEN_DEPTH, : len(self._rows)] = chosen
        self._region.store(Counter.SAMPLED, step)

    def token_sink(self, step: int) -> TokenSink | None:
        """There are no kernels here."""
        return None

    def close(self) -> None:
        """Nothing is registered."""
