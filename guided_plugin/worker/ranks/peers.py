"""Another process of this machine: whether it still runs, and waiting for what it does. Depends on the
standard library."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable
from typing import Protocol

PATIENCE = 300.0
"""Seconds that one rank waits for another which runs; as long as vLLM waits for a step."""

_SPINS = 50
"""Tries before the first pause: mostly the other process is about to be done."""

_PAUSE = 5e-5

_LOOK_EVERY = 2000
"""Pauses between two looks at whether the other process runs."""


def wait_until(done: Callable[[], bool], goes_on: Callable[[bool], bool]) -> None:
    """Wait for what another process does. `goes_on` is asked now and then whether to wait any longer, and is
    told whether the time is up; it may raise."""
    end = time.monotonic() + PATIENCE
    tries = 0
    while not done():
        tries += 1
        if (tries == _SPINS or tries % _LOOK_EVERY == 0) and not goes_on(time.monotonic() > end):
            return
        if tries > _SPINS:
            time.sleep(_PAUSE)


class AnyPeer(Protocol):
    """Who uses memory of this process."""

    def alive(self) -> bool:
        """Whether it is waited for."""

    def close(self) -> None:
        """Forget it."""


class Peer:
    """A process that was not started from here."""

    def __init__(self, pid: int) -> None:
        """Raises OSError if there is none."""
        self.pid = pid
        self._handle: int | None = None
        with contextlib.suppress(AttributeError):  # Pythons that were built without it
            self._handle = os.pidfd_open(pid)
        os.kill(pid, 0)

    def alive(self) -> bool:
        """Whether it runs. One that has ended, and that its parent has not reaped, does not."""
        if self._handle is None:
            with contextlib.suppress(PermissionError):
                try:
                    os.kill(self.pid, 0)
                except ProcessLookupError:
                    return False
            return True
        poll = select.poll()
        poll.register(self._handle, select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        """Forget it."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
