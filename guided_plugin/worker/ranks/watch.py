"""Watches rank 0 for a rank whose device waits for its masks. Depends on the layout.

A host that waits can look at the other process now and then; a stream of a device cannot. So a thread does,
and if rank 0 has gone it lets the stream go on: what is sampled then is published by nothing, as rank 0 alone
publishes, and the next plan of this rank raises an error.
"""

from __future__ import annotations

import logging
import threading
import time

from guided_plugin.errors import PipelineError
from guided_plugin.worker.layout import Counter, End, Region, unwrap
from guided_plugin.worker.ranks import peers
from guided_plugin.worker.ranks.peers import Peer

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.1

_FAR = 2**30
"""Steps by which FILLED is raised for a device that must not wait any more: it compares by signed
difference."""


def why_gone(region: Region, leader: Peer, step: int) -> str:
    """Why the masks of a step will never be filled; empty if they are, or still may be."""
    if not leader.alive():
        return "has ended"
    # ENDED is raised after FILLED of the last step: in this order no filled step is missed.
    end = region.load(Counter.ENDED)
    if end and unwrap(region.load(Counter.FILLED), step) < step:
        return "has closed its pipeline" if end == End.CLOSED else "has ended, or cannot be reached any more"
    return ""


def left_alone(what: str) -> PipelineError:
    """The error of a rank that has no masks because of rank 0."""
    return PipelineError(
        f"rank 0 {what}, and it has the grammars of all ranks",
        where="tensor parallelism",
        hint="start the engine again",
    )


class LeaderWatch:
    """A thread that lasts as long as the runtime of a rank."""

    def __init__(self, region: Region, leader: Peer, first_step: int) -> None:
        self.wanted = first_step
        """The newest step whose masks a stream may wait for."""
        self.gone = ""
        """What became of rank 0, if that ends this rank's steps."""
        self._region, self._leader = region, leader
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="guided-leader-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Watch no longer."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        late_at = time.monotonic() + peers.PATIENCE
        while not self._closing.wait(_LOOK_SECONDS):
            wanted, now = self.wanted, time.monotonic()
            waits = unwrap(self._region.load(Counter.FILLED), wanted) < wanted
            if not waits:
                late_at = now + peers.PATIENCE
            if not self.gone:
                self.gone = why_gone(self._region, self._leader, wanted)
                if self.gone and waits:
                    _log.error("%s", left_alone(self.gone))
            if self.gone and waits:
                # Again and again: a worker that outlives rank 0 for a moment may still raise FILLED.
                self._region.force_filled(wanted + _FAR)
            elif now > late_at:
                # The other ranks may be served yet, so nothing is let go: the host's own limits end this.
                _log.error("rank 0 has not filled the masks of step %d for %g s", wanted, peers.PATIENCE)
                late_at = now + peers.PATIENCE
