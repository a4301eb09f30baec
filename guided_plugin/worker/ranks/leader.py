"""Rank 0's side: the offer of its region, and the ranks that may be late. Depends on the layout."""

from __future__ import annotations

import logging
import os

from guided_plugin.config import Mode
from guided_plugin.errors import PipelineError
from guided_plugin.worker.layout import FENCED, RankWord, Region, fence, unwrap
from guided_plugin.worker.ranks.group import Answer, Offer, RankGroup, not_shared
from guided_plugin.worker.ranks.peers import PATIENCE, Peer, wait_until

_log = logging.getLogger(__name__)


class Followers:
    """The other ranks, as rank 0 sees them in its region."""

    def __init__(self, region: Region, first_step: int) -> None:
        self._region = region
        self._first_step = first_step
        self._peers: list[Peer | None] = []
        """None: it has ended, and masks nothing any more."""
        self._lines = [region.rank_line(index) for index in range(region.shape.followers)]
        for line in self._lines:
            line[RankWord.TAKEN] = first_step & 0xFFFFFFFF

    def invite(self, group: RankGroup, mode: Mode) -> None:
        """Offer the region to the other ranks. Raises PipelineError if one of them can't map it."""
        region = self._region
        offer = Offer(os.getpid(), region.fd, region.shape, region.identity, self._first_step, mode)
        group.broadcast(offer)
        answers: list[Answer] = group.gather(Answer(os.getpid()))
        refusals = (f"rank {rank}: {one.error}" for rank, one in enumerate(answers) if one.error)
        reason = next(refusals, "")
        try:
            if not reason:
                self._peers = [Peer(answer.pid) for answer in answers[1:]]
        except OSError as error:
            reason = f"a process of theirs cannot be watched: {error}"
        group.broadcast(reason)
        if reason:
            raise not_shared(reason)

    def wait(self, step: int) -> None:
        """Wait until no rank uses the masks of a step, or of one before it."""
        if not self._lines:
            return
        for index, line in enumerate(self._lines):
            if line[RankWord.TROUBLE]:
                raise PipelineError(
                    f"rank {index + 1} plans other steps than rank 0",
                    where="tensor parallelism",
                    hint="all ranks must decode the same batches in the same order; report it",
                )
            if unwrap(line[RankWord.TAKEN], step) < step:
                self._wait_for(index, line, step)
        if FENCED:
            fence()

    def close(self) -> None:
        """Watch them no longer."""
        for peer in filter(None, self._peers):
            peer.close()
        self._peers = [None] * len(self._lines)

    def _wait_for(self, index: int, line: memoryview, step: int) -> None:
        def goes_on(late: bool) -> bool:
            runs = self._runs(index)
            if runs and late:
                raise PipelineError(
                    f"rank {index + 1} has not used the masks of step {step} for {PATIENCE:g} s",
                    where="tensor parallelism",
                    hint="its log says what it waits for",
                )
            return runs

        wait_until(lambda: unwrap(line[RankWord.TAKEN], step) >= step, goes_on)

    def _runs(self, index: int) -> bool:
        peer = self._peers[index]
        if peer is not None and not peer.alive():
            _log.warning("rank %d has ended; it is not waited for", index + 1)
            peer.close()
            peer = self._peers[index] = None
        return peer is not None
