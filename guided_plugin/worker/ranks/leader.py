"""Rank 0's side: the offer of its region, and the ranks that may be late. Depends on the layout."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from guided_plugin.config import Mode
from guided_plugin.errors import PipelineError
from guided_plugin.worker.layout import FENCED, RankWord, Region, fence, unwrap
from guided_plugin.worker.ranks.group import Answer, Offer, RankGroup, TensorGroup, new_tag, not_shared
from guided_plugin.worker.ranks.machines import Machines
from guided_plugin.worker.ranks.peers import PATIENCE, AnyPeer, Peer, wait_until
from guided_plugin.worker.ranks.sender import Sender, Sent

_log = logging.getLogger(__name__)


class Followers:
    """The other ranks, as rank 0 sees them in its region."""

    def __init__(self, region: Region, first_step: int, ranks: Sequence[int] | None = None) -> None:
        """`ranks`: those that are waited for; None: all but rank 0."""
        self._region = region
        self._first_step = first_step
        self._ranks = list(range(1, region.shape.followers + 1) if ranks is None else ranks)
        self._peers: list[AnyPeer | None] = []
        """None: it has ended, and masks nothing any more."""
        self._lines = [region.rank_line(rank - 1) for rank in self._ranks]
        for line in self._lines:
            line[RankWord.TAKEN] = first_step & 0xFFFFFFFF
        self.sender: Sender | None = None
        """Where ranks are on other machines."""

    def invite(self, group: RankGroup, machines: Machines, mode: Mode) -> None:
        """Offer the region to the other ranks. Raises PipelineError if one of them can't map it."""
        region = self._region
        tag = new_tag()
        offer = Offer(os.getpid(), region.fd, region.shape, region.identity, self._first_step, mode, tag)
        group.broadcast(offer)
        if machines.others:
            group.gather(None)
        answers: list[Answer] = group.gather(Answer(os.getpid()))
        refusals = (f"rank {rank}: {one.error}" for rank, one in enumerate(answers) if one.error)
        reason = next(refusals, "")
        try:
            if not reason:
                self._reach(group, machines, answers, tag)
        except Exception as error:  # the others wait for the verdict, whatever it is
            reason = f"their processes cannot be watched: {error}"
        group.broadcast(reason)
        if reason:
            raise not_shared(reason)
        if self.sender is not None:
            self.sender.start()

    def watch(self, peers: Sequence[AnyPeer]) -> None:
        """The processes of the ranks, in order: one that ends is not waited for."""
        self._peers = list(peers)

    def wait(self, step: int) -> None:
        """Wait until no rank uses the masks of a step, or of one before it."""
        if not self._lines:
            return
        for index, line in enumerate(self._lines):
            if line[RankWord.TROUBLE]:
                raise PipelineError(
                    f"rank {self._ranks[index]} plans other steps than rank 0",
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
        for peer in self._peers:
            if peer is not None:
                peer.close()
        self._peers = [None] * len(self._lines)

    def _reach(self, group: RankGroup, machines: Machines, answers: list[Answer], tag: int) -> None:
        here = machines.ranks(0)
        if isinstance(group, TensorGroup) and machines.others:
            far = [line for rank, line in zip(self._ranks, self._lines, strict=True) if rank not in here]
            self.sender = Sender(group, tag, machines.others, self._region, far)
        self.watch(
            [
                Sent(self.sender) if self.sender is not None and rank not in here else Peer(answers[rank].pid)
                for rank in self._ranks
            ]
        )

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
        peer = self._peers[index]
        if peer is not None and not peer.alive():
            _log.warning("rank %d has ended; it is not waited for", self._ranks[index])
            peer.close()
            self._peers[index] = None
            return False
        return peer is not None
