"""The other ranks of this machine, as the process that has its grammars sees them, and
waiting for what another process does. Depends on the layout."""

from __future__ import annotations

import logging
import os
import select
import time
from collections.abc import Callable, Sequence

from guided_plugin.errors import PipelineError
from guided_plugin.worker.layout import FENCED, PLAN_DEPTH, Region, fence, unwrap
from guided_plugin.worker.ranks.group import different_steps
from guided_plugin.worker.words import Counter, PlanField, RankWord

_log = logging.getLogger(__name__)

PATIENCE = 300.0
"""Seconds that one rank waits for another which runs; as long as vLLM waits for a
step."""

_SPINS = 50
"""Tries before the first pause: mostly the other process is about to be done."""

_PAUSE = 5e-5

_LOOK_EVERY = 2000
"""Pauses between two looks at whether the other process runs."""


def wait_until(done: Callable[[], bool], goes_on: Callable[[bool], bool]) -> None:
    """Wait for what another process does. `goes_on` is asked now and then whether to
    wait any longer, and is told whether the time is up; it may raise."""
    end = time.monotonic() + PATIENCE
    tries = 0
    while not done():
        tries += 1
        if (tries == _SPINS or tries % _LOOK_EVERY == 0) and not goes_on(
            time.monotonic() > end
        ):
            return
        if tries > _SPINS:
            time.sleep(_PAUSE)


class Peer:
    """The process of another rank of this machine."""

    _handle = -1

    def __init__(self, pid: int, rank: int) -> None:
        """Raises OSError if there is none."""
        self.pid = pid
        self.rank = rank
        self.awaited = True
        """True if it may mask with the memory of this process yet."""
        self._handle = os.pidfd_open(pid)

    def alive(self) -> bool:
        """True if the process runs. One that has ended, and that its parent has not
        reaped, does not."""
        poll = select.poll()
        poll.register(self._handle, select.POLLIN)
        return not poll.poll(0)

    def __del__(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)


class Followers:
    """The ranks that mask with a region, as the process that has it sees them."""

    def __init__(
        self, region: Region, first_step: int, peers: Sequence[Peer] = ()
    ) -> None:
        self._region = region
        self._peers = [(peer, region.rank_line(at)) for at, peer in enumerate(peers)]
        for _, line in self._peers:
            line[RankWord.TAKEN] = first_step & 0xFFFFFFFF

    def plan(self, step: int, slots: tuple[int, ...]) -> None:
        """Write what is planned, once its place is free, where this process fills the
        masks."""
        if not self._peers:
            return
        record = self._region.plans[step % PLAN_DEPTH]
        record[PlanField.STEP], record[PlanField.COUNT] = step & 0xFFFFFFFF, len(slots)
        record[PlanField.SLOTS : PlanField.SLOTS + len(slots)] = slots

    def wait(self, step: int) -> None:
        """Wait until no rank uses the masks of a step, or of one before it."""
        for peer, line in self._peers:
            if line[RankWord.TROUBLE]:
                raise different_steps(peer.rank)
            if peer.awaited and unwrap(line[RankWord.TAKEN], step) < step:
                _wait_for(peer, line, step)
        if FENCED:
            fence()

    def close(self) -> None:
        """Wait for them no longer."""
        for peer, _ in self._peers:
            peer.awaited = False

    def end(self) -> None:
        """Announce that no more steps come, where this process fills the masks."""
        self._region.store(Counter.ENDED, 1)
        self.close()
        self._region.close()


def _wait_for(peer: Peer, line: memoryview, step: int) -> None:
    def goes_on(late: bool) -> bool:
        if peer.awaited and not peer.alive():
            peer.awaited = False
            _log.warning("rank %d has ended; this rank waits no longer", peer.rank)
        if peer.awaited and late:
            raise PipelineError(
                f"rank {peer.rank} has not used the masks of step {step} for {PATIENCE:g} s",
                where="tensor parallelism",
                hint="its log says what it waits for",
            )
        return peer.awaited

    wait_until(lambda: unwrap(line[RankWord.TAKEN], step) >= step, goes_on)
