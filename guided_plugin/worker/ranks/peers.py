"""Other processes of this machine: whether they run, and waiting for what they do.
Depends on the layout."""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable

from guided_plugin.errors import PipelineError
from guided_plugin.worker.layout import Region
from guided_plugin.worker.words import Counter, End

_log = logging.getLogger(__name__)

PATIENCE = 300.0
"""Seconds that one rank waits for another which runs; as long as vLLM waits for a
step."""

_SPINS = 50
"""Tries before the first pause: mostly the other process is about to be done."""

_PAUSE = 5e-5

_LOOK_EVERY = 2000
"""Pauses between two looks at whether the other process runs."""

_WATCH_SECONDS = 0.1

_FAR = 2**30
"""Steps by which FILLED is raised for a device that must not wait any more: it compares
by signed difference."""


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
    """A process that was not started from here."""

    _handle = -1

    def __init__(self, pid: int) -> None:
        """Raises OSError if there is none."""
        self._handle = os.pidfd_open(pid)

    def alive(self) -> bool:
        """Whether it runs. One that has ended, and that its parent has not reaped, does
        not."""
        poll = select.poll()
        poll.register(self._handle, select.POLLIN)
        return not poll.poll(0)

    def __del__(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)


def why_gone(region: Region, leader: Peer, step: int) -> str:
    """Why the masks of a step will never be filled; empty if they are, or still may
    be."""
    if not leader.alive():
        return "has ended"
    # ENDED is raised after FILLED of the last step: in this order no filled step is
    # missed.
    end = region.load(Counter.ENDED)
    if end and not region.filled(step):
        return (
            "has closed its pipeline"
            if end == End.CLOSED
            else "has ended, or cannot be reached any more"
        )
    return ""


def left_alone(what: str) -> PipelineError:
    """The error of a rank that has no masks because of rank 0."""
    return PipelineError(
        f"rank 0 {what}, and it has the grammars of all ranks",
        where="tensor parallelism",
        hint="start the engine again",
    )


class LeaderWatch:
    """A thread that watches rank 0 for a rank whose device waits for its masks.

    A host that waits can look at the other process now and then; a stream of a device
    cannot. So a thread does, and if rank 0 has gone it lets the stream go on: what is
    sampled then is published by nothing, as rank 0 alone publishes, and the next plan
    of this rank raises an error.
    """

    def __init__(self, region: Region, leader: Peer, first_step: int) -> None:
        self.wanted = first_step
        """The newest step whose masks a stream may wait for."""
        self.gone = ""
        """What became of rank 0, if that ends this rank's steps."""
        self._region = region
        self._leader = leader
        self._closing = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="guided-leader-watch", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Watch no longer."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        late_at = time.monotonic() + PATIENCE
        while not self._closing.wait(_WATCH_SECONDS):
            wanted = self.wanted
            now = time.monotonic()
            waits = not self._region.filled(wanted)
            if not waits:
                late_at = now + PATIENCE
            if not self.gone:
                self.gone = why_gone(self._region, self._leader, wanted)
                if self.gone and waits:
                    _log.error("%s", left_alone(self.gone))
            if self.gone and waits:
                # Again and again: a worker that outlives rank 0 for a moment may still
                # raise FILLED.
                self._region.force_filled(wanted + _FAR)
            elif now > late_at:
                # The other ranks may be served yet, so nothing is let go: the host's
                # own limits end this.
                _log.error(
                    "rank 0 has not filled the masks of step %d for %g s",
                    wanted,
                    PATIENCE,
                )
                late_at = now + PATIENCE
