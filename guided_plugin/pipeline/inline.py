"""`InlineRuntime`: the grammars of a pipeline work in the calling thread. Depends on
the table, and on the ways between a region and the device.

On CUDA nothing but the wait for a step's own tokens blocks the host: `finish` accepts
at once what has landed and leaves the rest to the next `fill`, which a host calls when
its next forward pass is already launched.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future

import torch
from torch import Tensor

from guided_plugin.compiling.background import Background
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import Mode
from guided_plugin.errors import GuidedError, PipelineError
from guided_plugin.grammar.drafts import fill_with_drafts
from guided_plugin.grammar.request_state import RequestState
from guided_plugin.grammar.table import GrammarTable
from guided_plugin.metrics import Times, WorkerMetrics
from guided_plugin.spec import OutputSpec
from guided_plugin.step import Admission, Closure, OfferedDrafts, StepPlan, TokenSink
from guided_plugin.worker.device import make_buffers
from guided_plugin.worker.layout import PLAN_DEPTH, TOKEN_DEPTH, Region, Shape
from guided_plugin.worker.ranks.leader import Followers, Peer, wait_until
from guided_plugin.worker.runtime import GrammarRuntime
from guided_plugin.worker.words import Counter


class InlineRuntime(GrammarRuntime):
    """A `GrammarRuntime` without a process: a table of grammars that fills the masks of
    a region, as a worker does."""

    mode: Mode = "inline"

    def __init__(
        self,
        compiler: GrammarCompiler,
        max_slots: int,
        device: torch.device,
        drafts: int = 0,
        followers: Sequence[Peer] = (),
    ) -> None:
        """`followers`: the other ranks that mask with the same memory."""
        self._compiler = compiler
        self._compiles = Background(gives_way=True)
        self.ready = threading.Event()
        self.ready.set()  # each compile makes what it needs
        self.table = GrammarTable(
            compiler.vocabulary,
            compiler.config.row_ms / 1e3,
            compiler.config.row_ms / 2e2,
            compiler.quarantine,
            answer_room=compiler.config.answer_room,
        )
        self._device = device
        self._shape = Shape(
            max_slots, compiler.vocabulary.words, drafts, len(followers)
        )
        self.region = Region.create(self._shape, shared=bool(followers))
        self.table.slow = self.region.slow
        self.followers = Followers(self.region, 0, followers)
        self.buffers = make_buffers(self.region, device, self.followers.wait, None)
        self._masks = self.buffers.masks
        self._tokens = self.buffers.tokens
        self._drafts: list[list[int]] = []
        self._plan = StepPlan((), ())
        # _closing: the first step for which a request that fails now is closed
        self.newest = self._closing = 0
        self._unaccepted: tuple[StepPlan, int] | None = None
        # Bounded: not every host takes them.
        self._closed: deque[Closure] = deque(maxlen=4 * max_slots)
        self._waits = Times()
        """Seconds that the host's thread filled masks in each step: nothing else goes
        on meanwhile."""

    def prepare(self, spec: OutputSpec) -> Future[Admission]:
        """Compile a spec in the background."""
        return self._compiles.submit(lambda: self._compiler.compile(spec).admission())

    def add(
        self, slot: int, request_id: str, spec: OutputSpec, tokens: Iterable[int]
    ) -> None:
        grammar = self._compiler.compile(spec)
        self.table.add(
            slot,
            request_id,
            spec,
            grammar,
            self._compiler.backend(grammar.backend),
            tokens,
        )

    def add_failed(
        self, slot: int, request_id: str, spec: OutputSpec, error: GuidedError
    ) -> None:
        self.table.add_failed(slot, request_id, spec, error)

    def remove(self, slot: int) -> None:
        # Its tokens may still be on their way: they count, and must not reach the
        # slot's next user.
        self._accept()
        self.table.remove(slot)

    def plan(self, plan: StepPlan, *, offers: bool | None = None) -> None:
        self.newest += 1
        if plan is not self._plan:
            self._accept()
            self._plan = plan
            self.masks_planned = len(plan.rows) * self._shape.positions
            self._tokens.set_rows(self._shape.ring_rows(plan.rows))

    def fill(self) -> None:
        """Accept what is left of the last step, then fill this step's masks and send
        them up."""
        self._accept()
        start = time.perf_counter()
        step = self._closing = self.newest
        slots = self._plan.slots
        self._masks.claim(step)
        self.followers.plan(step, slots)
        fill_with_drafts(
            self.table,
            slots,
            self.region.masks[step % PLAN_DEPTH, : self.masks_planned],
            self._drafts,
        )
        self.region.store(Counter.FILLED, step)
        for slot, place in self.table.led.items():
            one = self.table.requests[slot]
            self._closed.append(Closure(one.request_id, step, "", one.state.led, place))
        self.table.led = {}
        self._masks.upload(step, self.masks_planned)
        self._waits.add(time.perf_counter() - start)

    def offered(self) -> OfferedDrafts:
        raise PipelineError(
            "no drafts are offered here", where="drafts", hint="use mode='process'"
        )

    def sampled(self, tokens: Tensor) -> None:
        self._tokens.write(self.newest, tokens)
        self._unaccepted = self._plan, self.newest

    def token_sink(self) -> TokenSink | None:
        sink = self._tokens.sink(self.newest)
        if sink is not None:
            self._unaccepted = self._plan, self.newest
        return sink

    def finish(self) -> None:
        """Accept the tokens if they have landed."""
        if self._unaccepted is not None and self.region.reached(
            Counter.SAMPLED, self._unaccepted[1]
        ):
            self._take_tokens(*self._unaccepted)

    def state(self, slot: int) -> RequestState:
        self._accept()
        return self.table.requests[slot].state

    def take_failures(self) -> list[tuple[int, GuidedError]]:
        if not self.table.failures:
            return []
        failures = self.table.failures
        self.table.failures = []
        self._closed += [
            Closure(error.request_id or "", self._closing, error.reason)
            for _, error in failures
        ]
        return failures

    def take_closed(self) -> list[Closure]:
        taken = []
        while self._closed:
            taken.append(self._closed.popleft())
        return taken

    def slow(self) -> dict[str, float]:
        return self.region.slow_requests(self.table.requests)

    def metrics(self) -> WorkerMetrics:
        """There is no worker, but what it would do is done in this process."""
        return WorkerMetrics(
            shared_bytes=self._shape.size if self._shape.followers else 0,
            learnt_bytes=self._compiler.chooser.learnt_bytes(),
            **self.table.counts,
            exposed_wait=self._waits.median(),
            times={"exposed_wait": self._waits.counts()},
        )

    def close(self) -> None:
        """Tell the other ranks that no more steps come."""
        self.followers.end()
        self.buffers.close()

    def _accept(self) -> None:
        """Accept the tokens of the last sampled step, waiting for them if they are
        still on their way."""

        def device_runs(late: bool) -> bool:
            # raises what keeps it from writing tokens
            torch.cuda.current_stream(self._device).query()
            return True

        if self._unaccepted is not None:
            plan, step = self._unaccepted
            wait_until(lambda: self.region.reached(Counter.SAMPLED, step), device_runs)
            self._take_tokens(plan, step)

    def _take_tokens(self, plan: StepPlan, step: int) -> None:
        self._unaccepted = None
        self._closing = step + 1
        count = len(plan.slots)
        values = self.region.tokens[
            step % TOKEN_DEPTH, : count * self._shape.values
        ].tolist()
        blocks = [values[at : at + count] for at in range(0, len(values), count)]
        positions = self._shape.positions
        self._drafts = blocks[positions:]
        for tokens in blocks[:positions]:
            self.table.accept(plan.slots, tokens)
