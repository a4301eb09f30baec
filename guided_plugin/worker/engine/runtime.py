"""`WorkerRuntime`: the grammars of a pipeline work in a process of their own. A client, and the device.

Nothing that a step calls here waits for the worker on CUDA. `tokens` and `phase` do: they answer as of all
steps that were enqueued before.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import Mode
from guided_plugin.errors import GuidedError
from guided_plugin.ipc.spawn import resident_bytes
from guided_plugin.metrics import RECENT, WorkerMetrics
from guided_plugin.step import Closure, OfferedDrafts, StepPlan, TokenSink
from guided_plugin.worker.device import make_buffers
from guided_plugin.worker.device.buffers import Waits
from guided_plugin.worker.engine.client import WorkerClient
from guided_plugin.worker.engine.supervisor import Supervisor
from guided_plugin.worker.layout import Region
from guided_plugin.worker.ranks.leader import Followers
from guided_plugin.worker.runtime import GrammarRuntime
from guided_plugin.worker.words import Counter, Time


class WorkerRuntime(WorkerClient, GrammarRuntime):
    """A `GrammarRuntime` over one worker at a time. A step goes from here straight to the rings and the
    device."""

    mode: Mode = "process"

    def __init__(
        self,
        compiler: GrammarCompiler,
        max_slots: int,
        device: torch.device,
        *,
        drafts: int = 0,
        first_step: int = 0,
        followers: int = 0,
    ) -> None:
        """`followers`: how many other ranks mask with the same memory. They are invited before the first
        step."""
        super().__init__(compiler, max_slots, drafts=drafts, first_step=first_step, followers=followers)
        self.followers = Followers(self.region, first_step)
        try:
            self.buffers = make_buffers(self.region, device, self.followers.wait, self.steps.wait_filled)
        except BaseException:
            self.end()
            raise
        self._masks, self._tokens = self.buffers.masks, self.buffers.tokens
        self.supervisor = Supervisor(self)
        self._plan: StepPlan | None = None
        self._rows: tuple[int, ...] = ()
        self._step = first_step
        self._count = 0
        """Masks of the planned step."""

    def remove(self, slot: int) -> None:
        """Free a slot. Tokens on their way count for the request that leaves: plans name requests."""
        self._plan = None
        super().remove(slot)

    def plan(self, plan: StepPlan, *, offers: int = 0) -> None:
        """Announce the step to the worker."""
        if plan is not self._plan:
            if plan.rows != self._rows:
                self._tokens.set_rows(self.region.shape.ring_rows(plan.rows))
                self._rows = plan.rows
            self.publish(plan)
            self._plan, self._count = plan, len(plan.rows) * self.region.shape.positions
        self._masks.claim(self._step + 1)
        self._step = self.steps.announce(offers=offers)
        if self.followers.sender is not None:
            self.followers.sender.planned(self._step)

    def fill(self) -> None:
        """The worker fills; the device fetches when it has."""
        self._masks.upload(self._step, self._count)

    def masks(self, step: int, count: int) -> tuple[Tensor, Tensor]:
        """A step's masks, and row numbers."""
        return self._masks.fetch(step, count), self._tokens.rows

    def offered(self) -> OfferedDrafts:
        """What is verified."""
        return self._tokens.offered(self._step, self._count // self.region.shape.positions)

    def sampled(self, tokens: Tensor) -> None:
        """Send the step's tokens to the worker."""
        self.steps.scheduled(self._step)
        try:
            self._tokens.write(self._step, tokens)
        except BaseException:
            self.steps.retract(self._step)
            raise

    def token_sink(self) -> TokenSink | None:
        """Where a kernel may write the step's tokens, for the worker to see."""
        sink = self._tokens.sink(self._step)
        if sink is not None:
            self.steps.scheduled(self._step)
        return sink

    def finish(self) -> None:
        """Nothing is left to do: the worker has the tokens."""

    def take_failures(self) -> list[tuple[int, GuidedError]]:
        """Slots that failed since the last call."""
        return self.requests.take_failures() if self.requests.failures else []

    @property
    def newest(self) -> int:
        """The number of the newest planned step."""
        return self._step

    def take_closed(self) -> list[Closure]:
        """Requests that were closed since the last call. From any thread."""
        return self.requests.take_closed()

    def metrics(self) -> WorkerMetrics:
        """What the worker did lately."""
        lately = worker_metrics(self.region, self._step, self.supervisor.restarts, self._masks.waits)
        memory = resident_bytes(self.supervisor.worker_pid)
        return replace(lately, memory_bytes=memory, shared_bytes=self.region.shape.size)

    def close(self) -> None:
        """End the worker."""
        if self.supervisor.close():
            self.buffers.close()
            self.followers.close()


def step_times(region: Region, newest: int) -> NDArray[np.int64]:
    """The rows of the ring whose step was planned and filled, oldest first; columns as in `Time`."""
    times = np.array(region.times)
    times = times[(times[:, Time.PLANNED] > 0) & (times[:, Time.STEP] <= newest)]
    times = times[times[:, Time.FILLED] >= times[:, Time.PLANNED]]
    return times[np.argsort(times[:, Time.STEP])]


def worker_metrics(region: Region, newest: int, restarts: int, waits: Waits) -> WorkerMetrics:
    """The figures of the newest steps."""
    times = step_times(region, newest)[-RECENT:]
    learnt = 1024 * region.load(Counter.LEARNT)
    if not len(times):
        return WorkerMetrics(restarts=restarts, learnt_bytes=learnt)
    drafts = region.shape.drafts > 0
    inputs = np.maximum(times[:, Time.PLANNED], times[:, Time.ACCEPT]) if drafts else _inputs_there(times)
    to_mask = (times[:, Time.FILLED] - inputs) / 1e9
    fill = (times[:, Time.FILLED] - times[:, Time.FILL]) / 1e9
    accepted = times[times[:, Time.ACCEPTED] >= times[:, Time.PLANNED]]
    accept = (accepted[:, Time.ACCEPTED] - accepted[:, Time.ACCEPT]) / 1e9
    return WorkerMetrics(
        steps=len(times),
        plan_to_mask=float(np.median(to_mask)),
        plan_to_mask_p99=float(np.quantile(to_mask, 0.99)),
        accept=float(np.median(accept)) if len(accept) else 0.0,
        fill=float(np.median(fill)),
        exposed_wait=waits.exposed,
        margin=waits.margin,
        restarts=restarts,
        **_offers(region, times),
        led_outputs=region.load(Counter.LED),
        led_tokens=region.load(Counter.LED_TOKENS),
        learnt_bytes=learnt,
    )


def _offers(region: Region, times: NDArray[np.int64]) -> dict[str, Any]:
    """What the worker offered, and how soon."""
    offered = times[times[:, Time.OFFERED] >= times[:, Time.PLANNED]]
    if not len(offered):
        return {}
    answers = (offered[:, Time.OFFERED] - np.maximum(offered[:, Time.ACCEPT], offered[:, Time.PLANNED])) / 1e9
    forwards = region.load(Counter.FORWARDS)
    return {
        "answer": float(np.median(answers)),
        "answer_p95": float(np.quantile(answers, 0.95)),
        "offered": region.load(Counter.DRAFTS),
        "taken": region.load(Counter.TOKENS) - forwards,
        "offered_earlier": region.load(Counter.EARLIER),
        "taken_earlier": region.load(Counter.EARLIER_TAKEN),
        "forwards": forwards,
        "without_drafts": region.load(Counter.WITHOUT),
    }


def _inputs_there(times: NDArray[np.int64]) -> NDArray[np.int64]:
    """When each step's plan and the tokens before it were both there."""
    inputs = times[:, Time.PLANNED].copy()
    follows = times[1:, Time.STEP] == times[:-1, Time.STEP] + 1
    before = np.where(follows, times[:-1, Time.ACCEPT], 0)
    # Tokens that were accepted after this step was filled belong to an older user of their row.
    before = np.where(before <= times[1:, Time.FILL], before, 0)
    inputs[1:] = np.maximum(inputs[1:], before)
    return inputs
