"""`LeadingInlineRuntime`: rank 0 of several, whose grammars work in its own thread. On the CPU."""

from __future__ import annotations

import os
from dataclasses import replace

import torch
from torch import Tensor

from guided_plugin.compiling.background import outside_own_threads
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.grammar.base import MaskArray
from guided_plugin.metrics import WorkerMetrics
from guided_plugin.pipeline.buffers import HostBuffers
from guided_plugin.pipeline.inline import InlineRuntime
from guided_plugin.worker.layout import PLAN_DEPTH, Counter, End, PlanField, Region, Shape
from guided_plugin.worker.ranks.leader import Followers


class LeadingInlineRuntime(InlineRuntime):
    """Fills masks into memory that it shares with the other ranks, and raises FILLED as a worker does."""

    def __init__(
        self, compiler: GrammarCompiler, max_slots: int, device: torch.device, followers: int
    ) -> None:
        super().__init__(compiler, max_slots, device)
        self._step = 0  # FILLED is 0 in new memory: the first step is 1
        self._region = Region.create(Shape(max_slots, compiler.vocabulary.words, followers=followers))
        self.buffers = _SharedBuffers(self._region)
        self.followers = Followers(self._region, self._step)
        self._pid = os.getpid()

    def fill(self) -> None:
        """Fill this step's masks where all ranks see them."""
        self.followers.wait(self._step - PLAN_DEPTH)
        record, slots = self._region.plans[self._step % PLAN_DEPTH], self._plan.slots
        record[PlanField.STEP], record[PlanField.COUNT] = self._step & 0xFFFFFFFF, len(slots)
        record[PlanField.SLOTS : PlanField.SLOTS + len(slots)] = slots
        super().fill()
        self._region.store(Counter.FILLED, self._step)
        if self.followers.sender is not None:
            self.followers.sender.planned(self._step)

    def metrics(self) -> WorkerMetrics:
        """There is no worker, but memory that is shared."""
        return replace(super().metrics(), shared_bytes=self._region.shape.size)

    def close(self) -> None:
        """Tell the other ranks that no more steps come."""
        if os.getpid() == self._pid:  # else a fork of the process it belongs to
            outside_own_threads(self._close)

    def _close(self) -> None:
        self._region.store(Counter.ENDED, End.CLOSED)
        self.followers.close()
        self._region.close()


class _SharedBuffers(HostBuffers):
    """The masks of `HostBuffers`, in shared memory. Its entries are places of the rings: both are as deep."""

    def __init__(self, region: Region) -> None:
        super().__init__(0, region.shape.words)
        self._shared_np = region.masks
        self._shared = torch.from_numpy(region.masks)

    def mask_np(self, entry: int) -> MaskArray:
        """Shared memory to fill the masks of a step into."""
        mask: MaskArray = self._shared_np[entry]
        return mask

    def mask_dev(self, entry: int, count: int) -> tuple[Tensor, Tensor]:
        """The masks and row numbers."""
        return self._shared[entry, :count], self._rows
