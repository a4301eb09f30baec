"""`FollowerRuntime`: a rank without grammars, which masks with the memory of the first
rank of its machine. Imports torch.

It makes the same steps as that one, its leader, and waits for the same flag, on CUDA in
a stream. What became of a request, the leader knows: one that failed there has masks
with stop tokens only, here too.
"""

from __future__ import annotations

import logging
import mmap
import os
import threading
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from typing import NamedTuple

import torch
from torch import Tensor

from guided_plugin.config import Mode
from guided_plugin.errors import GuidedError, PipelineError
from guided_plugin.grammar.request_state import RequestState
from guided_plugin.metrics import WorkerMetrics
from guided_plugin.spec import OutputSpec
from guided_plugin.step import UNGUIDED, Admission, StepPlan
from guided_plugin.worker.device import make_buffers
from guided_plugin.worker.layout import FENCED, PLAN_DEPTH, Region, Shape, fence
from guided_plugin.worker.ranks.leader import PATIENCE, Peer, wait_until
from guided_plugin.worker.runtime import GrammarRuntime
from guided_plugin.worker.words import Counter, PlanField, RankWord

_log = logging.getLogger(__name__)

_WATCH_SECONDS = 0.1

_FAR = 2**30
"""Steps by which FILLED is raised for a device that must not wait any more: it compares
by signed difference."""


class RegionOffer(NamedTuple):
    """The shared memory of a leader, and what is in it."""

    fd: int
    shape: Shape
    first_step: int
    mode: Mode


class FollowerRuntime(GrammarRuntime):
    """A `GrammarRuntime` over the region of its leader."""

    follows = True

    def __init__(
        self,
        region: Region,
        leader: Peer,
        line: memoryview,
        offer: RegionOffer,
        device: torch.device,
    ) -> None:
        self.mode = offer.mode
        self.ready = threading.Event()
        self.ready.set()
        self.region = region
        self._leader = leader
        self._line = line
        self.buffers = make_buffers(
            region, device, None, self._wait_filled, follows=True
        )
        self._masks = self.buffers.masks
        self._tokens = self.buffers.tokens
        self._gone = ""
        """The leader's fate, if that ends this rank's steps."""
        self._closing = threading.Event()
        self._watch: threading.Thread | None = None
        """The thread that watches the leader, where streams wait for it."""
        self._plan: StepPlan | None = None
        self.newest = self._taken = offer.first_step
        self._new_slots: tuple[int, ...] | None = None
        """The slots of a plan that is not filled yet."""
        self._uncompared: deque[tuple[int, tuple[int, ...]]] = deque()
        """Steps that will be, and their slots."""
        if device.type != "cpu":
            self._watch = threading.Thread(
                target=self._watch_leader, name="guided-leader-watch", daemon=True
            )
            self._watch.start()

    # Requests are the leader's

    def prepare(self, spec: OutputSpec) -> Future[Admission]:
        """Nothing is compiled here."""
        verdict: Future[Admission] = Future()
        verdict.set_result(Admission(""))
        return verdict

    def add(
        self, slot: int, request_id: str, spec: OutputSpec, tokens: Iterable[int]
    ) -> None:
        """Its grammar runs at the leader."""

    def add_failed(
        self, slot: int, request_id: str, spec: OutputSpec, error: GuidedError
    ) -> None:
        """Its rows are closed at the leader."""

    def remove(self, slot: int) -> None:
        self._plan = None

    # A step

    def plan(self, plan: StepPlan, *, offers: bool | None = None) -> None:
        """Go on to the next step, and tell the leader which masks have been used."""
        step = self.newest + 1
        self._masks.claim(step)
        self._tell_taken(step)
        self.newest = step
        if plan is not self._plan:
            self._tokens.set_rows(self.region.shape.ring_rows(plan.rows))
            self._plan = plan
            self.masks_planned = len(plan.rows) * self.region.shape.positions
            self._new_slots = plan.slots

    def fill(self) -> None:
        """The leader fills. It writes down no plan that it does not fill."""
        if self._new_slots is not None:
            self._uncompared.append((self.newest, self._new_slots))
            self._new_slots = None
        self._masks.upload(self.newest, self.masks_planned)

    def masks(self, step: int, count: int) -> tuple[Tensor, Tensor]:
        found = super().masks(step, count)
        if self._uncompared and self.region.reached(Counter.FILLED, step):
            self._compare(step)
        return found

    def sampled(self, tokens: Tensor) -> None:
        """The leader has sampled the same."""

    # What only the leader knows

    def state(self, slot: int) -> RequestState:
        raise PipelineError(
            f"the outcome of a request is known only at rank {self._leader.rank}",
            where="tensor parallelism",
            hint="ask the pipeline of that rank",
        )

    def metrics(self) -> WorkerMetrics:
        """There is no worker, but its memory."""
        return WorkerMetrics(shared_bytes=self.region.shape.size)

    def close(self) -> None:
        """Let go of the memory."""
        self.buffers.close()  # first: streams that still wait may need the watch
        self._closing.set()
        if self._watch is not None:
            self._watch.join()
        self.region.close()

    def _tell_taken(self, step: int) -> None:
        """Before a step is planned: all that this rank will ever read of the steps
        before it is asked for. The last of them is not looked at, as its masks are
        hardly there yet: that is one look a step."""
        taken = self._taken
        while taken < step - 2 and self._masks.read(taken + 1):
            taken += 1
        if self._gone:
            raise left_alone(self._leader, self._gone)
        if self._uncompared:
            self._compare(taken)
        if FENCED:
            fence()
        self._line[RankWord.TAKEN] = taken & 0xFFFFFFFF
        self._taken = taken

    def _wait_filled(self, step: int) -> None:
        def goes_on(late: bool) -> bool:
            gone = why_gone(self.region, self._leader, step)
            if gone or late:
                raise left_alone(
                    self._leader,
                    gone
                    or f"has not filled the masks of step {step} for {PATIENCE:g} s",
                )
            return True

        wait_until(lambda: self.region.reached(Counter.FILLED, step), goes_on)

    def _watch_leader(self) -> None:
        """For a device that waits for masks. A host that waits can look at the other
        process now and then; a stream cannot. So a thread does, and if the leader has
        gone it lets the stream go on: rank 0, whose tokens are published, cannot go on
        without this rank, and the next plan of this rank raises an error."""
        while not self._closing.wait(_WATCH_SECONDS):
            step = self.newest
            waits = not self.region.reached(Counter.FILLED, step)
            if not self._gone:
                self._gone = why_gone(self.region, self._leader, step)
                if self._gone and waits:
                    _log.error("%s", left_alone(self._leader, self._gone))
            if self._gone and waits:
                # Again and again: a worker that outlives its leader for a moment may
                # still raise FILLED.
                self._force(step + _FAR)

    def _force(self, step: int) -> None:
        """Let what waits for a step go on without its drafts and masks. Nothing else of
        a follower writes outside its own line."""
        # the counters come before all else
        with (
            mmap.mmap(self.region.fd, self.region.shape.places.ranks) as page,
            memoryview(page) as raw,
            raw.cast("I") as words,
        ):
            for counter in (Counter.OFFERED, Counter.FILLED):
                words[self.region.counter_offset(counter) // 4] = step & 0xFFFFFFFF

    def _compare(self, newest: int) -> None:
        """Refuse masks of other rows than this rank has planned, in the steps up to one
        that is filled. Where the host has waited for the masks that is before they are
        used. Where a stream waits for them it is before the leader may go on by
        PLAN_DEPTH steps."""
        while self._uncompared and self._uncompared[0][0] <= newest:
            step, own = self._uncompared.popleft()
            record = self.region.plans[step % PLAN_DEPTH]
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
                    f"step {step} has slots {list(own)} here and {slots} at rank {self._leader.rank}",
                    where="tensor parallelism",
                    hint="all ranks must decode the same batches in the same order; report it",
                )


def follow(
    offer: RegionOffer, leader: Peer, index: int, device: torch.device
) -> FollowerRuntime:
    """Map the region that a leader offers. `index`: this one's number among those that
    map it. The memory has no name: it is found through the process that has it open."""
    fd = os.open(f"/proc/{leader.pid}/fd/{offer.fd}", os.O_RDWR | os.O_CLOEXEC)
    try:
        region = Region(fd, offer.shape, follows=True)
        return FollowerRuntime(region, leader, region.rank_line(index), offer, device)
    except BaseException:
        os.close(fd)
        raise


def why_gone(region: Region, leader: Peer, step: int) -> str:
    """Why the masks of a step will never be filled; empty if they are, or still may
    be."""
    if not leader.alive():
        return "has ended"
    # ENDED is raised after FILLED of the last step: in this order no filled step is
    # missed.
    if region.load(Counter.ENDED) and not region.reached(Counter.FILLED, step):
        return "has closed its pipeline"
    return ""


def left_alone(leader: Peer, what: str) -> PipelineError:
    """The error of a rank that has no masks because of its leader."""
    return PipelineError(
        f"rank {leader.rank} {what}, and it has the grammars of this machine's ranks",
        where="tensor parallelism",
        hint="start the engine again",
    )
