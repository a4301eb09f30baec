"""Whether another process of this machine still runs. Depends on the standard library."""

from __future__ import annotations

import contextlib
import os
import select


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
