"""Memory that the ranks of a machine mask with: rank 0's own, and its copy on another
machine. Depends on the layout."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from guided_plugin.config import Mode
from guided_plugin.errors import PipelineError
from guided_plugin.worker.layout import FENCED, PLAN_DEPTH, Region, fence, unwrap
from guided_plugin.worker.ranks.group import (
    Machines,
    RankAnswer,
    RankGroup,
    RegionOffer,
    not_shared,
)
from guided_plugin.worker.ranks.peers import PATIENCE, Peer, wait_until
from guided_plugin.worker.ranks.sender import (
    CLOSE_SECONDS,
    ENDED,
    IDLE,
    Head,
    Incoming,
    Sender,
)
from guided_plugin.worker.words import Counter, End, PlanField, RankWord

_log = logging.getLogger(__name__)

_TAGS = itertools.count()


class Followers:
    """The ranks that mask with a region, as the process that has it sees them."""

    def __init__(
        self, region: Region, first_step: int, ranks: Sequence[int] | None = None
    ) -> None:
        """`ranks`: those that are waited for; None: all but rank 0."""
        self._region = region
        self._first_step = first_step
        self._ranks = list(
            range(1, region.shape.followers + 1) if ranks is None else ranks
        )
        self._alive: list[Callable[[], bool] | None] = []
        """None: it has ended, and masks nothing any more."""
        self._lines = [region.rank_line(rank - 1) for rank in self._ranks]
        for line in self._lines:
            line[RankWord.TAKEN] = first_step & 0xFFFFFFFF
        self.sender: Sender | None = None
        """Where ranks are on other machines."""

    def invite(self, group: RankGroup, machines: Machines, mode: Mode) -> None:
        """Offer the region of rank 0 to the other ranks. Raises PipelineError if one of
        them can't map it."""
        region = self._region
        # not that of another pipeline or of the host
        tag = 0x67750000 + next(_TAGS) % 2**16
        offer = RegionOffer(
            os.getpid(),
            region.fd,
            region.shape,
            region.identity,
            self._first_step,
            mode,
            tag,
        )
        group.gather(offer)
        group.gather(offer)  # again, as the first rank of its machine
        answers: list[RankAnswer] = group.gather(RankAnswer(os.getpid()))
        reason = next(
            (
                f"rank {rank}: {one.error}"
                for rank, one in enumerate(answers)
                if one.error
            ),
            "",
        )
        try:
            if not reason:
                self._reach(group, machines, answers, tag)
        except Exception as error:  # the others wait for the verdict, whatever it is
            reason = f"their processes cannot be watched: {error}"
        group.gather(reason)
        if reason:
            raise not_shared(reason)
        if self.sender is not None:
            self.sender.start()

    def watch(self, alive: Sequence[Callable[[], bool]]) -> None:
        """Whether each rank's process runs, in order: one that has ended is not waited
        for."""
        self._alive = list(alive)

    def plan(self, step: int, slots: tuple[int, ...] | NDArray[np.int64]) -> None:
        """Where this process fills the masks: write what is planned, once its place is
        free."""
        if not self._lines:
            return
        record = self._region.plans[step % PLAN_DEPTH]
        record[PlanField.STEP], record[PlanField.COUNT] = step & 0xFFFFFFFF, len(slots)
        record[PlanField.SLOTS : PlanField.SLOTS + len(slots)] = slots

    def filled(self, step: int) -> None:
        """They are filled."""
        self._region.store(Counter.FILLED, step)
        if self.sender is not None:
            self.sender.planned(step)

    def wait(self, step: int) -> None:
        """Wait until no rank uses the masks of a step, or of one before it."""
        if not self._lines:
            return
        for index, line in enumerate(self._lines):
            if line[RankWord.TROUBLE]:
                raise PipelineError(
                    f"rank {self._ranks[index]} plans different steps from rank 0",
                    where="tensor parallelism",
                    hint="all ranks must decode the same batches in the same order; report it",
                )
            if unwrap(line[RankWord.TAKEN], step) < step:
                self._wait_for(index, line, step)
        if FENCED:
            fence()

    def close(self) -> None:
        """Watch them no longer."""
        if self.sender is not None:
            self.sender.close()
        self._alive = [None] * len(self._lines)

    def end(self, end: End) -> None:
        """Where this process fills the masks: no more steps come."""
        self._region.store(Counter.ENDED, end)
        self.close()
        self._region.close()

    def _reach(
        self, group: RankGroup, machines: Machines, answers: list[RankAnswer], tag: int
    ) -> None:
        here = machines.ranks(0)
        alive = {rank: Peer(answers[rank].pid).alive for rank in here[1:]}
        if machines.others:
            far = [
                line
                for rank, line in zip(self._ranks, self._lines, strict=True)
                if rank not in here
            ]
            self.sender = Sender(group, tag, machines.others, self._region, far)
            alive = dict.fromkeys(self._ranks, self.sender.alive) | alive
        self.watch([alive[rank] for rank in self._ranks])

    def _wait_for(self, index: int, line: memoryview, step: int) -> None:
        def goes_on(late: bool) -> bool:
            runs = self._runs(index)
            if runs and late:
                raise PipelineError(
                    f"rank {self._ranks[index]} has not used the masks of step {step} for {PATIENCE:g} s",
                    where="tensor parallelism",
                    hint="its log says what it waits for",
                )
            return runs

        wait_until(lambda: unwrap(line[RankWord.TAKEN], step) >= step, goes_on)

    def _runs(self, index: int) -> bool:
        alive = self._alive[index]
        if alive is not None and not alive():
            _log.warning(
                "rank %d has ended; rank 0 stops waiting for it", self._ranks[index]
            )
            self._alive[index] = alive = None
        return alive is not None


class Mirror:
    """The memory of rank 0 on another machine: written from its messages, in a thread.

    It belongs to the first rank there. All ranks there map it, as those of rank 0's
    machine map that of rank 0.
    """

    def __init__(self, offer: RegionOffer, ranks: list[int]) -> None:
        """`ranks`: those of this machine, which map it."""
        self._region = Region.create(offer.shape)
        self._region.store(Counter.FILLED, offer.first_step)
        self._followers = Followers(self._region, offer.first_step, ranks)
        self._in = Incoming(offer.shape)
        self._thread: threading.Thread | None = None
        self._here = True
        """Whether this rank uses the memory."""
        self.offer = replace(
            offer, pid=os.getpid(), fd=self._region.fd, identity=self._region.identity
        )
        """For the ranks of this machine."""

    def start(self, group: RankGroup, pids: list[int]) -> None:
        """Write what comes. `pids` are the processes of the ranks, that of this one
        first."""
        self._followers.watch(
            [lambda: self._here, *(Peer(pid).alive for pid in pids[1:])]
        )
        self._thread = threading.Thread(
            target=self._run, args=(group,), name="guided-mirror", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """This rank uses the memory no more. The others of its machine do, as long as
        rank 0 sends."""
        self._here = False
        if self._thread is None:
            self._followers.end(End.LOST)
        else:
            self._thread.join(CLOSE_SECONDS)

    def _run(self, group: RankGroup) -> None:
        end = End.LOST
        try:
            while self._take(group):
                pass
            end = End.CLOSED
        except Exception as error:  # of the group's backend, or of a rank that is late
            if self._here:
                _log.error("rank 0 sends no more masks: %s", error)
        finally:
            self._followers.end(end)
        # Rank 0 waits until each message is taken.
        with contextlib.suppress(Exception):
            while end == End.LOST and self._hear(group) != ENDED:
                pass

    def _hear(self, group: RankGroup) -> int:
        message = self._in
        group.receive(message.head_tensor, 0, self.offer.tag)
        step = int(message.head[Head.STEP])
        if step not in (ENDED, IDLE) and message.head[Head.NEW]:
            group.receive(message.new(), 0, self.offer.tag)
        return step

    def _take(self, group: RankGroup) -> bool:
        """Write a step, when no rank uses the masks in its place any more. False after
        the last one."""
        step = self._hear(group)
        if step in (ENDED, IDLE):
            return step == IDLE
        self._followers.wait(step - PLAN_DEPTH)
        self._followers.plan(step, self._in.slots())
        self._in.read(self._region.masks[step % PLAN_DEPTH])
        self._followers.filled(step)
        return True
