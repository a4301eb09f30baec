"""Python processes that run a module of this package: how they start and how they end,
and what the kernel tells of them: memory, and whether they are stopped (SIGSTOP, a
debugger). Depends on processors.

The parent makes a `Child`; in the new process `run` calls `main(socket, parent's
process id, *arguments)` of the module. `subprocess` and not `multiprocessing`: hosts
may be daemonic, hold threads and devices, and own a `__main__` that must not run twice.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import mmap
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import IO

from guided_plugin.ipc import processors

_START_SECONDS = 120.0
_PR_SET_PDEATHSIG = 1

LOOK_SECONDS = 0.1
"""Seconds between two checks of whether a process is stopped."""

STOPPED_SECONDS = 0.2
"""For how long a process is stopped before that counts. Profilers stop a process for a
few milliseconds."""

_LATE_SECONDS = 1.0
"""After so long without a look this process may have been stopped too, and continued
first."""

# With -c, not with -m: what a child sends must belong to a module that both sides can
# import.
_CODE = "from guided_plugin.ipc.spawn import run; run()"

_Started = tuple[subprocess.Popen[bytes], socket.socket]

unforked = threading.RLock()
"""Held while this process has ends of sockets and pipes that are another one's. A child
of the host's that is forked then would keep them open: `Popen` waits, and no end is
noticed, for as long as that child lives."""


class Child:
    """A process, and this end of the socket to it."""

    def __init__(
        self,
        module: str,
        *arguments: str,
        kind: socket.SocketKind = socket.SOCK_STREAM,
        stderr: IO[bytes] | int | None = subprocess.DEVNULL,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start it, with `environment` on top of this process's own. Raises OSError
        when that fails."""

        def start() -> _Started:
            ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
            with theirs:
                command = [
                    sys.executable,
                    "-P",
                    "-c",
                    _CODE,
                    module,
                    str(theirs.fileno()),
                    str(os.getpid()),
                ]
                try:
                    process = subprocess.Popen(
                        [*command, *arguments],
                        pass_fds=[theirs.fileno()],
                        stdin=subprocess.DEVNULL,
                        # what libraries print is no output of the host
                        stdout=subprocess.DEVNULL,
                        stderr=stderr,
                        env=variables,
                        # Ctrl-C is for the host to handle. Not a new session: the
                        # kernel shares out busy processors by session (autogroup), and
                        # lets new ones wait for seconds.
                        process_group=0,
                    )
                except BaseException:
                    ours.close()
                    raise
            return process, ours

        if not sys.executable:
            raise OSError(
                "sys.executable is not set: the Python interpreter is unknown"
            )
        # The same modules as here, in the same order; no device.
        path = [
            os.path.abspath(p)
            for p in sys.path
            if isinstance(p, str) and os.pathsep not in p
        ]
        variables = {
            name: value
            for name, value in os.environ.items()
            if name not in processors.BINDING
        }
        variables |= {"PYTHONPATH": os.pathsep.join(path), "CUDA_VISIBLE_DEVICES": ""}
        variables.update(environment or {})
        self._process, self.sock = _starter.run(start)
        self.pid = self._process.pid

    def exit_code(self, seconds: float = 0.0) -> int | None:
        """Return its exit code (a negative signal number, as subprocess has it); None
        if it still runs by then."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def kill(self) -> None:
        """End it now. May be called from any thread."""
        self._process.kill()

    def stop(self) -> None:
        """End it now, and leave neither a zombie nor a socket."""
        self._process.kill()
        self._process.wait()
        self.sock.close()

    def disown(self) -> None:
        """In a forked child of the host: the process belongs to the parent."""
        self.sock.close()
        self._process.returncode = 0


class _Starter:
    """One thread that starts all processes and never ends: the kernel ends a process
    that has called `die_with` when the thread that started it ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: queue.SimpleQueue[
            tuple[Future[_Started], Callable[[], _Started]]
        ] = queue.SimpleQueue()
        self._running = False

    def run(self, start: Callable[[], _Started]) -> _Started:
        started: Future[_Started] = Future()
        with self._lock:
            if not self._running:
                try:
                    threading.Thread(
                        target=self._work, name="guided-spawn", daemon=True
                    ).start()
                except RuntimeError as error:
                    raise OSError(str(error)) from error
                self._running = True
        self._calls.put((started, start))
        return started.result(_START_SECONDS)

    def _work(self) -> None:
        processors.release()  # children inherit what this thread may use
        while True:
            started, start = self._calls.get()
            try:
                with unforked:
                    started.set_result(start())
            except BaseException as error:
                started.set_exception(error)
            # an answer that came too late is closed now, which ends the process
            del started, start


def _after_fork() -> None:
    global _starter
    _starter = _Starter()
    unforked.release()


_starter = _Starter()
os.register_at_fork(
    before=unforked.acquire,
    after_in_parent=unforked.release,
    after_in_child=_after_fork,
)


def run() -> None:
    """Start a child's work: call `main` of its module."""
    module, descriptor, parent, *arguments = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGTTOU):  # of a terminal, which is the host's
        signal.signal(number, signal.SIG_IGN)
    importlib.import_module(module).main(
        socket.socket(fileno=int(descriptor)), int(parent), *arguments
    )


def die_with(parent: int) -> None:
    """Have the kernel end this process when its parent ends, even while a library holds
    the GIL."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the kernel was told
        os._exit(1)


def die_first() -> None:
    """Should the machine run out of memory, the kernel ends this process, and not the
    host."""
    with (
        contextlib.suppress(OSError),
        open("/proc/self/oom_score_adj", "w", encoding="ascii") as score,
    ):
        score.write("1000")


def exit_reason(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"


def resident_bytes(pid: int | str | None = "self") -> int:
    """The memory of a process that is not swapped out; 0 where that is unknown."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as statistics:
            return int(statistics.read().split()[1]) * mmap.PAGESIZE
    except (OSError, IndexError):
        return 0


class StopWatch:
    """Watches one process, with small reads of /proc, some 20 microseconds each.
    Without /proc no process counts as stopped. Not thread-safe."""

    def __init__(self, pid: int) -> None:
        self._path = f"/proc/{pid}/stat"
        self._since: float | None = None
        """When a look first found it stopped."""
        self._looked_at = 0.0

    def runs(self) -> None:
        """It did something since the last look."""
        self._since = None

    def stays_stopped(self) -> bool:
        """True if each look of the last `STOPPED_SECONDS` found the process stopped.
        Looks twice in `LOOK_SECONDS` at most, however often it is asked."""
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
