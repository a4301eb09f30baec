"""`FollowerRuntime`: a rank without grammars, which masks with the memory of rank 0.
Imports torch.

It makes the same steps as rank 0 and waits for the same flag, on CUDA in a stream. What
became of a request, rank 0 knows: one that failed there has masks with stop tokens
only, here too.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future

import torch
from torch import Tensor

from guided_plugin.errors import GuidedError, PipelineError
from guided_plugin.metrics import WorkerMetrics
from guided_plugin.spec import OutputSpec
from guided_plugin.step import UNGUIDED, Admission, OfferedDrafts, StepPlan
from guided_plugin.worker.device import make_buffers
from guided_plugin.worker.layout import FENCED, PLAN_DEPTH, Region, fence
from guided_plugin.worker.ranks.group import (
    Machines,
    RankAnswer,
    RankGroup,
    RegionOffer,
    not_shared,
)
from guided_plugin.worker.ranks.leader import Mirror
from guided_plugin.worker.ranks.peers import (
    PATIENCE,
    LeaderWatch,
    Peer,
    left_alone,
    wait_until,
    why_gone,
)
from guided_plugin.worker.runtime import GrammarRuntime, RequestSoFar
from guided_plugin.worker.words import PlanField, RankWord


class FollowerRuntime(GrammarRuntime):
    """A `GrammarRuntime` over the region of rank 0."""

    def __init__(
        self,
        region: Region,
        leader: Peer,
        line: memoryview,
        offer: RegionOffer,
        device: torch.device,
        mirror: Mirror | None = None,
    ) -> None:
        """`mirror`: the one that this rank has for its machine."""
        self.mode = offer.mode
        self.ready = threading.Event()
        self.ready.set()
        self._region = region
        self._leader = leader
        self._line = line
        self._mirror = mirror
        self._buffers = make_buffers(
            region, device, None, self._wait_filled, follows=True
        )
        self._masks = self._buffers.masks
        self._tokens = self._buffers.tokens
        self._watch: LeaderWatch | None = None
        """Where streams wait for rank 0."""
        if device.type != "cpu":
            self._watch = LeaderWatch(region, leader, offer.first_step)
        self._plan: StepPlan | None = None
        self._step = self._taken = offer.first_step
        self._count = 0
        """Masks of the planned step."""
        self._new_slots: tuple[int, ...] | None = None
        """Those of a plan that is not filled yet."""
        self._uncompared: deque[tuple[int, tuple[int, ...]]] = deque()
        """Steps that will be, and their slots."""

    # Requests are rank 0's

    def prepare(self, spec: OutputSpec) -> Future[Admission]:
        """Nothing is compiled here."""
        verdict: Future[Admission] = Future()
        verdict.set_result(Admission(""))
        return verdict

    def add(
        self, slot: int, request_id: str, spec: OutputSpec, tokens: Iterable[int]
    ) -> None:
        """Its grammar runs at rank 0."""

    def add_failed(
        self, slot: int, request_id: str, spec: OutputSpec, error: GuidedError
    ) -> None:
        """Its rows are closed at rank 0."""

    def remove(self, slot: int) -> None:
        self._plan = None

    # A step

    def plan(self, plan: StepPlan, *, offers: bool | None = None) -> None:
        """Go on to the next step, and tell rank 0 which masks have been used."""
        step = self._step + 1
        if self._watch is not None:
            self._watch.wanted = step
        self._masks.claim(step)
        self._tell_taken(step)
        self._step = step
        if plan is not self._plan:
            self._tokens.set_rows(self._region.shape.ring_rows(plan.rows))
            self._plan, self._count = (
                plan,
                len(plan.rows) * self._region.shape.positions,
            )
            self._new_slots = plan.slots

    def fill(self) -> None:
        """Rank 0 fills. It writes down no plan that it does not fill."""
        if self._new_slots is not None:
            self._uncompared.append((self._step, self._new_slots))
            self._new_slots = None
        self._masks.upload(self._step, self._count)

    def masks(self, step: int, count: int) -> tuple[Tensor, Tensor]:
        masks = self._masks.fetch(step, count)
        if self._uncompared and self._region.filled(step):
            self._compare(step)
        return masks, self._tokens.rows

    def offered(self) -> OfferedDrafts:
        return self._tokens.offered(
            self._step, self._count // self._region.shape.positions
        )

    def sampled(self, tokens: Tensor) -> None:
        """Rank 0 has sampled the same."""

    # What only rank 0 knows

    def request(self, slot: int) -> RequestSoFar:
        raise PipelineError(
            "the outcome of a request is known only at rank 0",
            where="tensor parallelism",
            hint="ask the pipeline of rank 0",
        )

    @property
    def newest(self) -> int:
        return self._step

    def metrics(self) -> WorkerMetrics:
        """There is no worker, but its memory."""
        return WorkerMetrics(shared_bytes=self._region.shape.size)

    def close(self) -> None:
        """Let go of the memory."""
        self._buffers.close()  # first: streams that still wait may need the watch
        if self._watch is not None:
            self._watch.close()
        self._region.close()
        if self._mirror is not None:
            self._mirror.close()

    def _tell_taken(self, step: int) -> None:
        """Before a step is planned: all that this rank will ever read of the steps
        before it is asked for. The last of them is not looked at, as its masks are
        hardly there yet: that is one look a step."""
        taken = self._taken
        while taken < step - 2 and self._masks.read(taken + 1):
            taken += 1
        if self._watch is not None and self._watch.gone:
            raise left_alone(self._watch.gone)
        if self._uncompared:
            self._compare(taken)
        if FENCED:
            fence()
        self._line[RankWord.TAKEN] = taken & 0xFFFFFFFF
        self._taken = taken

    def _wait_filled(self, step: int) -> None:
        def goes_on(late: bool) -> bool:
            gone = why_gone(self._region, self._leader, step)
            if gone or late:
                raise left_alone(
                    gone
                    or f"has not filled the masks of step {step} for {PATIENCE:g} s"
                )
            return True

        wait_until(lambda: self._region.filled(step), goes_on)

    def _compare(self, newest: int) -> None:
        """Refuse masks of other rows than this rank has planned, in the steps up to one
        that is filled. Where the host has waited for the masks that is before they are
        used. Where a stream waits for them it is before rank 0 may go on by PLAN_DEPTH
        steps."""
        while self._uncompared and self._uncompared[0][0] <= newest:
            step, own = self._uncompared.popleft()
            record = self._region.plans[step % PLAN_DEPTH]
            count = int(record[PlanField.COUNT])
            slots = (
                record[PlanField.SLOTS : PlanField.SLOTS + count].view("int32").tolist()
            )
            # A worker that took over is told no slot of a request that has left since.
            same = count == len(own) and all(
                a in (b, UNGUIDED) for a, b in zip(slots, own, strict=True)
            )
            if int(record[PlanField.STEP]) != step & 0xFFFFFFFF or not same:
                self._line[RankWord.TROUBLE] = 1
                raise PipelineError(
                    f"step {step} has slots {list(own)} here and {slots} at rank 0",
                    where="tensor parallelism",
                    hint="all ranks must decode the same batches in the same order; report it",
                )


def follow(
    group: RankGroup, machines: Machines, device: torch.device
) -> FollowerRuntime:
    """Map the region that rank 0 offers, or the copy of it on this machine. Raises
    PipelineError if a rank can't share."""
    offer: RegionOffer | str = group.gather(None)[0]
    if isinstance(offer, str):
        raise not_shared(offer)
    first = machines.first(group.rank)
    with contextlib.ExitStack() as undo:
        mirror = None
        runtime = None
        error = ""
        if first == group.rank:
            try:
                mirror = Mirror(offer, machines.ranks(first))
                undo.callback(mirror.close)
            # the others wait for the answer, whatever it is
            except Exception as problem:
                error = f"cannot copy the memory of rank 0: {problem}"
        here: RegionOffer | None = group.gather(mirror and mirror.offer)[first]
        if here is not None:
            try:
                runtime = _accept(here, group.rank - 1, device, mirror)
                undo.callback(runtime.close)
            except Exception as problem:  # of the device too
                error = f"cannot map the memory of process {here.pid}: {problem}"
        answers: list[RankAnswer] = group.gather(RankAnswer(os.getpid(), error))
        reason: str = group.gather(None)[0]
        if reason or runtime is None:
            raise not_shared(reason)
        if mirror is not None:
            mirror.start(group, [answers[rank].pid for rank in machines.ranks(first)])
        undo.pop_all()
    return runtime


def _accept(
    offer: RegionOffer, index: int, device: torch.device, mirror: Mirror | None
) -> FollowerRuntime:
    leader = Peer(offer.pid)
    region = _open(offer)
    try:
        return FollowerRuntime(
            region, leader, region.rank_line(index), offer, device, mirror
        )
    except BaseException:
        region.close()
        raise


def _open(offer: RegionOffer) -> Region:
    """The memory has no name: it is found through the process that has it open."""
    fd = os.open(f"/proc/{offer.pid}/fd/{offer.fd}", os.O_RDWR | os.O_CLOEXEC)
    try:
        return Region(fd, offer.shape, offer.identity, follows=True)
    except BaseException:
        os.close(fd)
        raise
