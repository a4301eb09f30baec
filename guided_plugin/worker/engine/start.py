"""Starts grammar workers: two fork servers for all pipelines of a process. Depends on ipc.

What a fork server imports takes seconds. A pipeline's worker is a child of one of them, and its spare worker
of the other one, so that no single death takes both.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

from guided_plugin.errors import PipelineError
from guided_plugin.ipc.channel import poll_until
from guided_plugin.ipc.spawn import Child
from guided_plugin.ipc.stopped import StopWatch

_ENVIRONMENT = {
    # No threads before a fork. What xgrammar imports asks torch for GPUs, and torch asks the driver, which
    # starts a thread, unless this says NVML.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


ANSWER_SECONDS = 1.0
"""How long a server that has forked before may take for a worker. Half of `worker_step_ms`, so that another
one can take its place before steps fail closed."""


class WorkerProcess:
    """A running worker: its id, a handle (the id may come to mean another process), its channel's socket."""

    def __init__(self, pid: int, handle: int | None, sock: socket.socket) -> None:
        self.pid = pid
        self._handle = handle
        self.sock = sock

    def kill(self) -> None:
        """End it, also if it hangs, and wait until it has ended: it writes nothing afterwards."""
        with contextlib.suppress(ProcessLookupError):
            if self._handle is not None:
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            else:
                os.kill(self.pid, signal.SIGKILL)
        # Its end of the socket closes when it ends: a sign that needs no handle.
        self.sock.setblocking(False)
        end = time.monotonic() + 2.0
        while poll_until(self.sock, select.POLLIN, end):
            try:
                if not self.sock.recv(1 << 16):
                    return
            except BlockingIOError:
                continue
            except ConnectionError:
                return

    def release(self) -> None:
        """Forget the handle."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


class ForkServer:
    """The host's end of `worker.child.forkserver`.

    Several supervisors' threads use one server: each method may be called at any time, also during `close` in
    another thread and after it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Held by the thread that uses the control socket, or closes it."""
        self._closed = False
        self._number = 0
        self._has_forked = False
        self.hung = False
        """Whether it stopped answering, or was stopped from outside, and was ended."""
        self._exits: dict[int, int] = {}
        try:
            self._child = Child(
                "guided_plugin.worker.child.forkserver",
                kind=socket.SOCK_SEQPACKET,
                stderr=None,  # errors of workers show where the host's do
                environment=_ENVIRONMENT,
            )
        except OSError as error:
            raise _cannot_start(f"cannot start its fork server: {error}") from error
        self.pid = self._child.pid
        self._control = self._child.sock
        self._stop_watch = StopWatch(self.pid)

    @property
    def alive(self) -> bool:
        """Whether it runs and can be asked for workers."""
        return not self._closed and self._child.exit_code() is None

    def fork(
        self, region_fd: int, timeout: float, cancelled: Callable[[], bool] = lambda: False
    ) -> WorkerProcess:
        """A new worker for a region. Waits for the server's imports, the first time."""
        ours, theirs = socket.socketpair()
        try:
            with theirs, self._turn(timeout, cancelled):
                self._number += 1
                command = str(self._number).encode()
                socket.send_fds(self._control, [command], [theirs.fileno(), region_fd])
                pid, handle = self._answer(timeout, cancelled)
        except OSError as error:
            ours.close()
            raise _cannot_start(f"cannot be started: its fork server has ended ({error})") from error
        except PipelineError:
            # Should the worker come after all, it finds its channel closed and ends.
            ours.close()
            raise
        return WorkerProcess(pid, handle, ours)

    def exit_code(self, pid: int, wait: float = 0.5) -> int | None:
        """How a worker ended (a negative signal number, as subprocess has it), or None if not known."""
        end = time.monotonic() + wait
        # OSError: the server has ended as well. PipelineError: it was closed, or another thread uses it.
        with contextlib.suppress(OSError, PipelineError):
            while pid not in self._exits and (left := end - time.monotonic()) > 0:
                with self._turn(left, lambda: pid in self._exits):
                    if self._stop_watch.stays_stopped():
                        break
                    _, handle = self._read(0.02)
                if handle is not None:  # a worker that came too late: its channel is closed
                    os.close(handle)
        return self._exits.pop(pid, None)

    def close(self) -> None:
        """End it; its workers end with it."""
        self._closed = True  # a thread inside `fork` or `exit_code` leaves, and releases the lock
        with self._lock:
            self._control.close()
        # It reaps its workers before it ends. While it still imports it has none, and reads no socket.
        if self._has_forked:
            self._child.exit_code(2.0)
        self._child.stop()

    def abandon(self) -> None:
        """In a forked child of the host: the server belongs to the parent."""
        self._closed = True
        self._lock = threading.Lock()  # a thread of the parent may hold the old one
        self._child.disown()

    @contextlib.contextmanager
    def _turn(self, timeout: float, cancelled: Callable[[], bool]) -> Iterator[None]:
        """Exclusive use of the open control socket: another pipeline may be waiting for the imports."""
        end = time.monotonic() + timeout
        while not self._lock.acquire(timeout=min(0.05, timeout)):
            if self._closed or cancelled() or time.monotonic() > end:
                raise self._late(timeout)
        try:
            if self._closed:
                raise self._late(timeout)
            yield
        finally:
            self._lock.release()

    def _late(self, seconds: float) -> PipelineError:
        if self._closed:
            return _cannot_start("cannot be started: its fork server was closed")
        return _cannot_start(f"did not start within {seconds:g} s")

    def _answer(self, timeout: float, cancelled: Callable[[], bool]) -> tuple[int, int | None]:
        """The process id of the worker that was asked for last, and its handle."""
        seconds = min(timeout, ANSWER_SECONDS) if self._has_forked else timeout
        end = time.monotonic() + seconds
        stopped = False
        while not self._closed and not cancelled():
            stopped = self._stop_watch.stays_stopped()
            if stopped or time.monotonic() > end:
                self.hung = stopped or self._has_forked
                break
            message, handle = self._read(0.05)
            self._has_forked |= "number" in message
            if message.get("number") == self._number:
                return message["pid"], handle
            if handle is not None:
                os.close(handle)
        if self.hung:
            self._child.kill()
            self._child.exit_code(2.0)
        if stopped:
            raise _cannot_start("cannot be started: its fork server was stopped from outside, and ended")
        raise self._late(seconds)

    def _read(self, seconds: float) -> tuple[dict[str, int], int | None]:
        """One message of the server, or nothing; how workers ended is kept."""
        if not poll_until(self._control, select.POLLIN, time.monotonic() + seconds):
            return {}, None
        data, descriptors, _, _ = socket.recv_fds(self._control, 1024, 1)
        if not data:
            raise ConnectionResetError(f"exit code {self._child.exit_code(2.0)}")
        message: dict[str, int] = json.loads(data)
        if "exited" in message:
            self._exits[message["exited"]] = message["code"]
        return message, descriptors[0] if descriptors else None


def _cannot_start(what: str) -> PipelineError:
    return PipelineError(what, where="grammar worker", hint="mode='inline' needs no process")


_running: list[ForkServer] = []
"""The servers that new loans are of: one, and a second one for spare workers."""

_loans: dict[ForkServer, int] = {}
"""How many users each server has. One that has ended is replaced while its users still hold it."""

_shared_lock = threading.Lock()


def borrow_server(apart_from: ForkServer | None = None) -> ForkServer:
    """A fork server of this process; a new one, if none runs `apart_from` that one. Return each loan with
    `return_server`."""
    with _shared_lock:
        for server in [one for one in _running if not one.alive]:
            _running.remove(server)
            if server not in _loans:
                server.close()
        found = next((one for one in _running if one is not apart_from), None)
        if found is None:
            found = ForkServer()
            _running.append(found)
        _loans[found] = _loans.get(found, 0) + 1
        return found


def return_server(server: ForkServer) -> None:
    """End a loan. The last user of all that run closes them: one without a user is kept till then, for
    what it imported."""
    with _shared_lock:
        if server not in _loans:  # it belongs to the process that this one was forked from
            return
        _loans[server] -= 1
        if _loans[server] > 0:
            return
        del _loans[server]
        unused = [] if server in _running else [server]
        if not any(one in _loans for one in _running):
            unused += _running
            _running.clear()
    for one in unused:
        one.close()


def _after_fork() -> None:
    global _shared_lock
    _shared_lock = threading.Lock()
    for server in {*_loans, *_running}:
        server.abandon()
    _loans.clear()
    _running.clear()


os.register_at_fork(after_in_child=_after_fork)
