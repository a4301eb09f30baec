"""`WorkerRuntime`: the grammars of a pipeline work in a process of their own. A client,
and the device.

Nothing that a step calls here waits for the worker on CUDA. `tokens` and `phase` do:
they answer as of all steps that were enqueued before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import Mode
from guided_plugin.errors import GuidedError
from guided_plugin.ipc.spawn import resident_bytes
from guided_plugin.metrics import WorkerMetrics
from guided_plugin.step import Closure, StepPlan, TokenSink
from guided_plugin.worker.device import make_buffers
from guided_plugin.worker.engine.client import WorkerClient
from guided_plugin.worker.engine.supervisor import Supervisor
from guided_plugin.worker.layout import FIGURES
from guided_plugin.worker.ranks.leader import Followers, Peer
from guided_plugin.worker.runtime import GrammarRuntime


class WorkerRuntime(WorkerClient, GrammarRuntime):
    """A `GrammarRuntime` over one worker at a time. A step goes from here straight to
    the rings and the device."""

    mode: Mode = "process"

    def __init__(
        self,
        compiler: GrammarCompiler,
        max_slots: int,
        device: torch.device,
        drafts: int = 0,
        followers: Sequence[Peer] = (),
        first_step: int = 0,
    ) -> None:
        """`followers`: the other ranks that mask with the same memory."""
        super().__init__(
            compiler,
            max_slots,
            drafts=drafts,
            first_step=first_step,
            followers=len(followers),
        )
        self.followers = Followers(self.region, first_step, followers)
        try:
            self.buffers = make_buffers(
                self.region, device, self.followers.wait, self.steps.wait_filled
            )
        except BaseException:
            self.end()
            raise
        self._masks = self.buffers.masks
        self._tokens = self.buffers.tokens
        self.supervisor = Supervisor(self)
        self._plan: StepPlan | None = None
        self._rows: tuple[int, ...] = ()
        self.newest = first_step

    def remove(self, slot: int) -> None:
        """Free a slot. Tokens on their way count for the request that leaves: plans
        name requests."""
        self._plan = None
        super().remove(slot)

    def plan(self, plan: StepPlan, *, offers: bool | None = None) -> None:
        if plan is not self._plan:
            if plan.rows != self._rows:
                self._tokens.set_rows(self.region.shape.ring_rows(plan.rows))
                self._rows = plan.rows
            self.publish(plan)
            self._plan = plan
            self.masks_planned = len(plan.rows) * self.region.shape.positions
        if self.undelivered:
            self.deliver()
        self._masks.claim(self.newest + 1)
        self.newest = self.steps.announce(offers=offers)

    def fill(self) -> None:
        """The worker fills; the device fetches when it has."""
        self._masks.upload(self.newest, self.masks_planned)

    def sampled(self, tokens: Tensor) -> None:
        self.steps.scheduled(self.newest)
        try:
            self._tokens.write(self.newest, tokens)
        except BaseException:
            self.steps.retract(self.newest)
            raise

    def token_sink(self) -> TokenSink | None:
        sink = self._tokens.sink(self.newest)
        if sink is not None:
            self.steps.scheduled(self.newest)
        return sink

    def take_failures(self) -> list[tuple[int, GuidedError]]:
        return self.requests.take_failures() if self.requests.failures else []

    def take_closed(self) -> list[Closure]:
        return self.requests.take_closed()

    def slow(self) -> dict[str, float]:
        return self.region.slow_requests(self.requests)

    def metrics(self) -> WorkerMetrics:
        region = self.region
        taken = {**region.times, "exposed_wait": self._masks.waits}
        figures: dict[str, Any] = dict(zip(FIGURES, region.figures.item(), strict=True))
        figures |= {name: times.median() for name, times in taken.items()}
        return WorkerMetrics(
            steps=len(taken["plan_to_mask"]),
            **figures,
            restarts=self.supervisor.restarts,
            memory_bytes=resident_bytes(self.supervisor.worker_pid),
            shared_bytes=region.shape.size,
            times={name: times.counts() for name, times in taken.items()},
        )

    def close(self) -> None:
        if self.supervisor.close():
            self.buffers.close()
            self.followers.close()
