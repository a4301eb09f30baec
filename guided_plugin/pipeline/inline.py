"""`InlineRuntime`: the grammars of a pipeline work in the calling thread. Depends on the table and the
buffers.

On CUDA nothing but the wait for a step's own token copy blocks the host: `finish` accepts at once what
has landed and leaves the rest to the next `fill`, which a host calls when its next forward pass is
already launched.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import replace

import torch
from torch import Tensor

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import Mode
from guided_plugin.errors import GuidedError
from guided_plugin.grammar.base import Grammar
from guided_plugin.grammar.drafts import fill_with_drafts
from guided_plugin.grammar.request_state import Phase
from guided_plugin.grammar.table import GrammarTable
from guided_plugin.metrics import WorkerMetrics
from guided_plugin.pipeline.buffers import RING_DEPTH, HostBuffers, make_buffers
from guided_plugin.spec import OutputSpec
from guided_plugin.step import Admission, Closure, StepPlan
from guided_plugin.worker.layout import End, Region, Shape
from guided_plugin.worker.ranks.leader import Followers
from guided_plugin.worker.runtime import GrammarRuntime


class InlineRuntime(GrammarRuntime):
    """A `GrammarRuntime` without a process: a table of grammars and its buffers."""

    mode: Mode = "inline"

    def __init__(
        self, compiler: GrammarCompiler, max_slots: int, device: torch.device, *, drafts: int = 0
    ) -> None:
        self._compiler = compiler
        self.ready = threading.Event()
        self.ready.set()  # each compile makes what it needs
        self._table = GrammarTable(
            compiler.vocabulary,
            compiler.config.row_ms / 1e3,
            compiler.config.row_ms / 2e2,
            compiler.quarantine,
        )
        self._shape = Shape(max_slots, compiler.vocabulary.words, drafts)
        masks, values = max_slots * self._shape.positions, max_slots * self._shape.values
        self.buffers = make_buffers(device, masks, compiler.vocabulary.words, values)
        self._drafts: list[list[int]] = []
        self._plan = StepPlan((), ())
        self._step = -1
        self._unaccepted: tuple[StepPlan, int] | None = None
        # Bounded: not every host takes them.
        self._closed: deque[Closure] = deque(maxlen=4 * max_slots)

    def prepare(self, spec: OutputSpec) -> Future[Admission]:
        """Compile a spec in the background."""
        verdict: Future[Admission] = Future()
        verdict.set_running_or_notify_cancel()

        def judge(done: Future[Grammar]) -> None:
            error = done.exception()
            if error is None:
                verdict.set_result(done.result().admission())
            else:
                verdict.set_exception(error)

        self._compiler.compile_async(spec).add_done_callback(judge)
        return verdict

    def add(self, slot: int, request_id: str, spec: OutputSpec, tokens: Iterable[int]) -> None:
        """Start a request in a slot."""
        grammar = self._compiler.compile(spec)
        self._table.add(slot, request_id, spec, grammar, self._compiler.backend(grammar.backend), tokens)

    def add_failed(self, slot: int, request_id: str, spec: OutputSpec, error: GuidedError) -> None:
        """Close a request that can't begin."""
        self._table.add_failed(slot, request_id, spec, error)

    def remove(self, slot: int) -> None:
        """Free a slot."""
        # Its tokens may still be on their way: they count, and must not reach the slot's next user.
        self._accept()
        self._table.remove(slot)

    def plan(self, plan: StepPlan) -> None:
        """Take the step's rows."""
        self._step += 1
        if plan is not self._plan:
            self._accept()
            self._plan = plan
            self.buffers.set_rows(self._shape.ring_rows(plan.rows))

    def fill(self) -> None:
        """Accept what is left of the last step, then fill this step's masks and send them up."""
        self._accept()
        entry = self._step % RING_DEPTH
        count = len(self._plan.rows) * self._shape.positions
        fill_with_drafts(self._table, self._plan.slots, self.buffers.mask_np(entry)[:count], self._drafts)
        self.buffers.upload(entry, count)

    def masks(self) -> tuple[Tensor, Tensor]:
        """The step's masks and row numbers."""
        return self.buffers.mask_dev(self._step % RING_DEPTH, len(self._plan.rows) * self._shape.positions)

    def sampled(self, tokens: Tensor) -> None:
        """Start copying the step's tokens to the host."""
        entry = self._step % RING_DEPTH
        self.buffers.download(entry, tokens)
        self._unaccepted = self._plan, entry

    def finish(self) -> None:
        """Accept the tokens if they have landed."""
        if self._unaccepted is not None and self.buffers.landed(self._unaccepted[1]):
            self._accept()

    def tokens(self, slot: int) -> tuple[int, ...]:
        """What the request in a slot has produced."""
        self._accept()
        return self._table.tokens(slot)

    def phase(self, slot: int) -> Phase:
        """Where it is."""
        self._accept()
        return self._table.phase(slot)

    def take_failures(self) -> list[tuple[int, GuidedError]]:
        """Slots that failed since the last call."""
        if not self._table.failures:
            return []
        failures, self._table.failures = self._table.failures, []
        self._closed += [Closure(error.request_id or "", self._step, error.reason) for _, error in failures]
        return failures

    @property
    def newest(self) -> int:
        """The number of the newest planned step."""
        return self._step

    def take_closed(self) -> list[Closure]:
        """Requests that were closed since the last call. From any thread."""
        taken = []
        while self._closed:
            taken.append(self._closed.popleft())
        return taken

    def metrics(self) -> WorkerMetrics:
        """There is no worker: only what this process has learnt."""
        return WorkerMetrics(learnt_bytes=self._compiler.learnt_bytes())

    def close(self) -> None:
        """Nothing runs."""

    def _accept(self) -> None:
        """Accept the tokens of the last sampled step, waiting for them if they are still on their way."""
        if self._unaccepted is None:
            return
        (plan, entry), self._unaccepted = self._unaccepted, None
        blocks, self._drafts = self._shape.split(self.buffers.tokens(entry), len(plan.slots))
        for tokens in blocks:
            self._table.accept(plan.slots, tokens)


class LeadingInlineRuntime(InlineRuntime):
    """Rank 0 of several, on the CPU: fills masks into memory that it shares with the other ranks, and raises
    FILLED as a worker does."""

    def __init__(
        self, compiler: GrammarCompiler, max_slots: int, device: torch.device, followers: int
    ) -> None:
        super().__init__(compiler, max_slots, device)
        self._step = 0  # FILLED is 0 in new memory: the first step is 1
        self._region = Region.create(Shape(max_slots, compiler.vocabulary.words, followers=followers))
        self.buffers = HostBuffers(torch.from_numpy(self._region.masks))
        self.followers = Followers(self._region, self._step)

    def fill(self) -> None:
        """Fill this step's masks where all ranks see them."""
        self.followers.begin(self._step, self._plan.slots)
        super().fill()
        self.followers.filled(self._step)

    def metrics(self) -> WorkerMetrics:
        """There is no worker, but memory that is shared."""
        return replace(super().metrics(), shared_bytes=self._region.shape.size)

    def close(self) -> None:
        """Tell the other ranks that no more steps come."""
        self.followers.end(End.CLOSED)
