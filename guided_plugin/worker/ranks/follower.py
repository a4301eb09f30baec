"""`FollowerRuntime`: a rank without grammars, which masks with the memory of rank 0. Imports torch.

It makes the same steps as rank 0 and waits for the same flag. What became of a request, rank 0 knows: one
that failed there has masks with stop tokens only, here too.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable
from concurrent.futures import Future

from torch import Tensor

from guided_plugin.errors import GuidedError, PipelineError
from guided_plugin.grammar.request_state import Phase
from guided_plugin.metrics import WorkerMetrics
from guided_plugin.spec import OutputSpec
from guided_plugin.step import UNGUIDED, Admission, Closure, StepPlan, TokenSink
from guided_plugin.worker.device.buffers import host_buffers
from guided_plugin.worker.layout import (
    FENCED,
    PLAN_DEPTH,
    Counter,
    PlanField,
    RankWord,
    Region,
    fence,
    unwrap,
)
from guided_plugin.worker.ranks.group import Answer, Offer, RankGroup, not_shared
from guided_plugin.worker.ranks.peers import PATIENCE, Peer, wait_until


class FollowerRuntime:
    """A `GrammarRuntime` over the region of rank 0."""

    def __init__(self, region: Region, leader: Peer, line: memoryview, offer: Offer) -> None:
        self.mode = offer.mode
        self.ready = threading.Event()
        self.ready.set()
        self._region = region
        self._leader = leader
        self._line = line
        self._buffers = host_buffers(region, self._wait_filled)
        self._plan: StepPlan | None = None
        self._step = offer.first_step
        self._count = 0
        """Masks of the planned step."""
        self._compared = False
        """Whether the newest plan was found to be that of rank 0."""

    # Requests are rank 0's

    def prepare(self, spec: OutputSpec) -> Future[Admission]:
        """Nothing is compiled here."""
        verdict: Future[Admission] = Future()
        verdict.set_result(Admission("", 0.0))
        return verdict

    def add(self, slot: int, request_id: str, spec: OutputSpec, tokens: Iterable[int]) -> None:
        """Its grammar runs at rank 0."""

    def add_failed(self, slot: int, request_id: str, spec: OutputSpec, error: GuidedError) -> None:
        """Its rows are closed at rank 0."""

    def remove(self, slot: int) -> None:
        """Free a slot."""
        self._plan = None

    # A step

    def plan(self, plan: StepPlan) -> None:
        """Go on to the next step: the masks of the one before have been used."""
        if FENCED:
            fence()
        self._line[RankWord.TAKEN] = self._step & 0xFFFFFFFF
        self._step += 1
        if plan is not self._plan:
            self._buffers.tokens.set_rows(self._region.shape.ring_rows(plan.rows))
            self._plan, self._count = plan, len(plan.rows) * self._region.shape.positions
            self._compared = False

    def fill(self) -> None:
        """Rank 0 fills."""
        self._buffers.masks.upload(self._step, self._count)

    def masks(self) -> tuple[Tensor, Tensor]:
        """The step's masks and row numbers."""
        masks = self._buffers.masks.fetch(self._step, self._count)
        if not self._compared:
            self._compare()
        return masks, self._buffers.tokens.rows

    def sampled(self, tokens: Tensor) -> None:
        """Rank 0 has sampled the same."""

    def token_sink(self) -> TokenSink | None:
        """Nothing takes tokens here."""
        return None

    def finish(self) -> None:
        """The step is over."""

    # What only rank 0 knows

    def tokens(self, slot: int) -> tuple[int, ...]:
        """Not known here."""
        raise _not_here("the tokens of a request")

    def phase(self, slot: int) -> Phase:
        """Not known here."""
        raise _not_here("the phase of a request")

    def take_failures(self) -> list[tuple[int, GuidedError]]:
        """Rank 0 reports them."""
        return []

    @property
    def newest(self) -> int:
        """The number of the newest planned step."""
        return self._step

    def take_closed(self) -> list[Closure]:
        """Rank 0 reports them."""
        return []

    def refusal(self) -> GuidedError | None:
        """Whether requests are refused is for rank 0 to say."""
        return None

    def refused_for(self) -> float:
        """Nor for how long."""
        return 0.0

    def metrics(self) -> WorkerMetrics:
        """There is no worker, but its memory."""
        return WorkerMetrics(shared_bytes=self._region.shape.size)

    def close(self) -> None:
        """Let go of the memory."""
        self._leader.close()
        self._region.close()

    def _wait_filled(self, step: int) -> None:
        region = self._region

        def filled() -> bool:
            return unwrap(region.load(Counter.FILLED), step) >= step

        def goes_on(late: bool) -> bool:
            if not self._leader.alive():
                raise _left_alone("has ended")
            if region.load(Counter.ENDED) and not filled():
                raise _left_alone("has closed its pipeline")
            if late:
                raise _left_alone(f"has not filled the masks of step {step} for {PATIENCE:g} s")
            return True

        wait_until(filled, goes_on)

    def _compare(self) -> None:
        """Refuse masks of other rows than this rank has planned."""
        record = self._region.plans[self._step % PLAN_DEPTH]
        own = self._plan.slots if self._plan is not None else ()
        count = int(record[PlanField.COUNT])
        slots = record[PlanField.SLOTS : PlanField.SLOTS + count].view("int32").tolist()
        # A worker that took over is told no slot of a request that has left since.
        same = count == len(own) and all(a in (b, UNGUIDED) for a, b in zip(slots, own, strict=True))
        if int(record[PlanField.STEP]) != self._step & 0xFFFFFFFF or not same:
            self._line[RankWord.TROUBLE] = 1
            raise PipelineError(
                f"step {self._step} has slots {list(own)} here and {slots} at rank 0",
                where="tensor parallelism",
                hint="all ranks must decode the same batches in the same order; report it",
            )
        self._compared = True


def follow(group: RankGroup) -> FollowerRuntime:
    """Map the region that rank 0 offers. Raises PipelineError if a rank can't share."""
    offer: Offer | None = group.broadcast(None)
    runtime, error = None, ""
    if offer is not None:
        try:
            runtime = _accept(offer, group.rank - 1)
        except (OSError, PipelineError) as problem:
            error = f"cannot map the memory of process {offer.pid}: {problem}"
    group.gather(Answer(os.getpid(), error))
    reason: str = group.broadcast(None)
    if runtime is None or reason:
        if runtime is not None:
            runtime.close()
        raise not_shared(reason)
    return runtime


def _accept(offer: Offer, index: int) -> FollowerRuntime:
    with contextlib.ExitStack() as undo:
        leader = Peer(offer.pid)
        undo.callback(leader.close)
        region = _open(offer)
        undo.callback(region.close)
        runtime = FollowerRuntime(region, leader, region.rank_line(index), offer)
        undo.pop_all()
    return runtime


def _open(offer: Offer) -> Region:
    """The memory has no name: it is found through the process that has it open."""
    fd = os.open(f"/proc/{offer.pid}/fd/{offer.fd}", os.O_RDWR | os.O_CLOEXEC)
    try:
        return Region(fd, offer.shape, offer.identity, follows=True)
    except BaseException:
        os.close(fd)
        raise


def _left_alone(what: str) -> PipelineError:
    return PipelineError(
        f"rank 0 {what}, and it has the grammars of all ranks",
        where="tensor parallelism",
        hint="start the engine again",
    )


def _not_here(what: str) -> PipelineError:
    return PipelineError(
        f"{what} is known at rank 0 alone", where="tensor parallelism", hint="ask the pipeline of rank 0"
    )
