"""`WorkerRuntime`: the grammars of a pipeline work in a process of their own. Client, supervisor and buffers.

Nothing that a step calls here waits for the worker on CUDA. `tokens` and `phase` do: they answer as of
everything that was enqueued before.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import replace

import torch
from torch import Tensor

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import Mode
from guided_plugin.errors import GuidedError
from guided_plugin.grammar.request_state import Phase
from guided_plugin.ipc.observed import resident_bytes
from guided_plugin.metrics import WorkerMetrics
from guided_plugin.spec import OutputSpec
from guided_plugin.step import Admission, Closure, StepPlan, TokenSink
from guided_plugin.worker.device import make_buffers
from guided_plugin.worker.engine.client import WorkerClient
from guided_plugin.worker.engine.supervisor import Supervisor
from guided_plugin.worker.engine.timing import worker_metrics
from guided_plugin.worker.ranks.leader import Followers
from guided_plugin.worker.runtime import GrammarRuntime


class WorkerRuntime(GrammarRuntime):
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
        self.client = WorkerClient(
            compiler, max_slots, drafts=drafts, first_step=first_step, followers=followers
        )
        self.followers = Followers(self.client.region, first_step)
        self._steps, self._requests = self.client.steps, self.client.requests
        self._shape = self.client.region.shape
        try:
            self.buffers = make_buffers(
                self.client.region, device, self.followers.wait, self._steps.wait_filled
            )
        except BaseException:
            self.client.close()
            raise
        self._masks, self._tokens = self.buffers.masks, self.buffers.tokens
        self.supervisor = Supervisor(self.client)
        self.ready = self.client.ready
        self._plan: StepPlan | None = None
        self._rows: tuple[int, ...] = ()
        self._step = first_step
        self._count = 0
        """Masks of the planned step."""

    def prepare(self, spec: OutputSpec) -> Future[Admission]:
        """Compile a spec in the worker; one that was admitted before is not compiled again."""
        return self.client.prepare(spec)

    def add(self, slot: int, request_id: str, spec: OutputSpec, tokens: Iterable[int]) -> None:
        """Start a request in a slot."""
        self.client.add(slot, request_id, spec, tokens)

    def add_failed(self, slot: int, request_id: str, spec: OutputSpec, error: GuidedError) -> None:
        """Close a request that can't begin."""
        self.client.add_failed(slot, request_id, spec, error)

    def remove(self, slot: int) -> None:
        """Free a slot. Tokens on their way count for the request that leaves: plans name requests."""
        self._plan = None
        self.client.remove(slot)

    def plan(self, plan: StepPlan) -> None:
        """Announce the step to the worker."""
        if plan is not self._plan:
            if plan.rows != self._rows:
                self._tokens.set_rows(self._shape.ring_rows(plan.rows))
                self._rows = plan.rows
            self.client.publish(plan)
            self._plan, self._count = plan, len(plan.rows) * self._shape.positions
        self._masks.claim(self._step + 1)
        self._step = self._steps.announce()
        if self.followers.sender is not None:
            self.followers.sender.planned(self._step)

    def fill(self) -> None:
        """The worker fills; the device fetches when it has."""
        self._masks.upload(self._step, self._count)

    def masks(self) -> tuple[Tensor, Tensor]:
        """The step's masks and row numbers."""
        return self._masks.fetch(self._step, self._count), self._tokens.rows

    def sampled(self, tokens: Tensor) -> None:
        """Send the step's tokens to the worker."""
        self._steps.scheduled(self._step)
        try:
            self._tokens.write(self._step, tokens)
        except BaseException:
            self._steps.retract(self._step)
            raise

    def token_sink(self) -> TokenSink | None:
        """Where a kernel may write the step's tokens, for the worker to see."""
        sink = self._tokens.sink(self._step)
        if sink is not None:
            self._steps.scheduled(self._step)
        return sink

    def finish(self) -> None:
        """Nothing is left to do: the worker has the tokens."""

    def tokens(self, slot: int) -> tuple[int, ...]:
        """What the request in a slot has produced."""
        return self.client.request(slot).counted()

    def phase(self, slot: int) -> Phase:
        """The phase of the request in a slot."""
        return self.client.request(slot).state.phase

    def take_failures(self) -> list[tuple[int, GuidedError]]:
        """Slots that failed since the last call."""
        return self._requests.take_failures() if self._requests.failures else []

    @property
    def newest(self) -> int:
        """The number of the newest planned step."""
        return self._step

    def take_closed(self) -> list[Closure]:
        """Requests that were closed since the last call. From any thread."""
        return self._requests.take_closed()

    def refusal(self) -> GuidedError | None:
        """Why a new request would be refused now. From any thread."""
        return self.client.refusal()

    def refused_for(self) -> float:
        """For how many more seconds, at least; infinite where it is for good. From any thread."""
        return self.client.refused_for()

    def metrics(self) -> WorkerMetrics:
        """What the worker did lately."""
        lately = worker_metrics(self.client.region, self._step, self.supervisor.restarts, self._masks.waits)
        memory = resident_bytes(self.supervisor.worker_pid)
        return replace(lately, memory_bytes=memory, shared_bytes=self._shape.size)

    def close(self) -> None:
        """End the worker."""
        if self.supervisor.close():
            self.buffers.close()
            self.followers.close()
