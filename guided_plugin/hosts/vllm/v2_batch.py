"""One batch of vLLM's V2 runner, as it is planned. Imports torch."""

from __future__ import annotations

import torch
from torch import Tensor

from guided_plugin.hosts.vllm.rows import ForcedRows


class PlannedBatch:
    """What is planned for a batch, and what follows from that. Under pipeline parallelism as many batches as
    there are stages take turns, each with requests of its own; else there is one."""

    __slots__ = ("forced", "order", "own", "part", "planned", "ran", "running", "seen", "slots", "table")

    def __init__(self, max_requests: int, device: torch.device) -> None:
        self.planned: list[int] = []
        """Indices, in the order of the mask rows."""
        self.slots: tuple[int, ...] = ()
        """The same as slots."""
        self.running: list[int] = []
        """Those of the planned that were there when it ran last."""
        self.ran = False
        """Whether it ran since its last plan."""
        self.seen: bytes | None = None
        """The indices of its requests when it was last looked at; None: look at the next one, whatever it
        is."""
        self.forced = ForcedRows()
        """Which of its rows need more than a mask."""
        self.part: bytes | None = None
        """The indices of the requests that this rank samples, where those are a part of it."""
        self.own = self.forced
        """Which of those need more than a mask."""
        # [max requests] int32, device: index -> mask row, -1 where there is none
        self.table = torch.full((max_requests,), -1, dtype=torch.int32, device=device)
        # [planned] int64, device
        self.order = torch.zeros(0, dtype=torch.int64, device=device)

    def plan(self, planned: list[int], slots: tuple[int, ...], order: Tensor) -> None:
        """Plan these indices, which have these slots; `order` has them on the device."""
        self.planned, self.slots, self.order = planned, slots, order
        self.table.fill_(-1)
        self.table[order] = torch.arange(len(planned), dtype=torch.int32, device=order.device)
        self.look_again()

    def look_again(self) -> None:
        """An index may be another request's now: what was found out about a batch does not hold."""
        self.seen = self.part = None

    def leave(self, index: int) -> None:
        """A request has ended: it is planned no more."""
        if index in self.running:
            self.running.remove(index)
