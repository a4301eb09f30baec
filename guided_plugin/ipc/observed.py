"""What the kernel tells of a process: its memory, and whether it was stopped (SIGSTOP, a debugger). Depends
on nothing.

A look is one small read of /proc, some 20 microseconds. Without /proc no process counts as stopped.
"""

from __future__ import annotations

import mmap
import time

LOOK_SECONDS = 0.1
"""How often to ask whether a process is stopped."""

STOPPED_SECONDS = 0.2
"""For how long a process is stopped before that counts. Profilers stop a process for a few milliseconds."""

_LATE_SECONDS = 1.0
"""After so long without a look this process may have been stopped too, and continued first."""


def resident_bytes(pid: int | str | None = "self") -> int:
    """The memory of a process that is not swapped out; 0 where that is unknown."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as statistics:
            return int(statistics.read().split()[1]) * mmap.PAGESIZE
    except (OSError, IndexError):
        return 0


class StopWatch:
    """Watches one process. Not thread-safe."""

    def __init__(self, pid: int) -> None:
        self._path = f"/proc/{pid}/stat"
        self._since: float | None = None
        """When a look first found it stopped."""
        self._looked_at = 0.0

    def runs(self) -> None:
        """It did something since the last look."""
        self._since = None

    def stays_stopped(self) -> bool:
        """Whether each look of the last `STOPPED_SECONDS` found the process stopped. Looks twice in
        `LOOK_SECONDS` at most, however often it is asked."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_SECONDS / 2:
            return False
        late = now - self._looked_at > _LATE_SECONDS
        self._looked_at = now
        if not self._is_stopped():
            self._since = None
        elif self._since is None or late:
            self._since = now
        return self._since is not None and now - self._since >= STOPPED_SECONDS

    def _is_stopped(self) -> bool:
        try:
            with open(self._path, "rb", buffering=0) as stat:
                # The state follows the name, of which the kernel keeps 15 bytes.
                return stat.read(128).rpartition(b") ")[2][:1] in (b"T", b"t")
        except OSError:  # it has ended, or may not be looked at
            return False
