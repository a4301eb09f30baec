"""A template: one process that has imported and built what its children need, and forks
them in milliseconds. This is the side of the process that uses it. Depends on spawn.

A request for a child is one message with descriptors, so any thread may ask at any
time. What becomes of the child comes back on a socket of its own: its process id, and
later its exit code.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable

from guided_plugin.errors import PipelineError
from guided_plugin.ipc.channel import poll_until
from guided_plugin.ipc.spawn import Child, StopWatch, exit_reason, unforked

START_SECONDS = 120.0
"""Until a child must be there, on a cold and busy machine."""

_ENVIRONMENT = {
    # No threads before a fork.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # xgrammar's imports ask torch for GPUs, and torch asks the driver, which starts a
    # thread, but for this.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}

_LOOK_SECONDS = 0.05


class TemplateLost(Exception):
    """The template ended before it had forked anything."""


class Forked:
    """A child of a template: its id, and the socket of its channel."""

    def __init__(self, pid: int, sock: socket.socket, status: socket.socket) -> None:
        self.pid = pid
        self.sock = sock
        self._status = status
        self._ended = False
        """True if it has ended: its template told so, or ended itself, and the kernel
        ends its children with it."""
        self._code: int | None = None

    def exit_code(self, seconds: float = 0.0) -> int | None:
        """Return its exit code (a negative signal number, as subprocess has it); None
        if it runs, or its template has ended with it."""
        if not self._ended and poll_until(
            self._status, select.POLLIN, time.monotonic() + seconds
        ):
            text = self._status.recv(32)
            self._ended, self._code = True, int(text) if text else None
        return self._code

    def kill(self) -> None:
        """End it, also if it hangs or is stopped. May be called from any thread."""
        self.exit_code()
        if not self._ended:  # else its number may be another process's
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)

    def stop(self) -> None:
        """End it and wait until it has ended: it writes nothing afterwards."""
        self.kill()
        # Its end of the socket closes when it ends: a sign that needs no handle.
        self.sock.setblocking(False)
        end = time.monotonic() + 2.0
        while poll_until(self.sock, select.POLLIN, end):
            try:
                if not self.sock.recv(1 << 16):
                    break
            except BlockingIOError:
                continue
            except ConnectionError:
                break
        self.exit_code()
        self._ended = True
        self.sock.close()
        self._status.close()


class Template:
    """Forks children of one kind of process; starts that process when the first one is
    asked for, and another one when it has ended. Thread-safe."""

    def __init__(
        self, module: str, greeting: object, control: socket.socket | None = None
    ) -> None:
        """`module` runs in the process and is sent `greeting`. `control`: the socket of
        a template that another process started, in a child of it, which may ask it for
        others."""
        self._module = module
        self._greeting = greeting
        self._control = control
        self._lock = threading.Lock()
        self._process: _Process | None = None
        self.closed = False
        """True if it forks no more."""
        _templates.add(self)

    @property
    def pid(self) -> int | None:
        """The process id, if this process has started it."""
        process = self._process
        return None if process is None else process.child.pid

    @property
    def alive(self) -> bool:
        """True if the next child is there in milliseconds."""
        process = self._process
        return (
            process is not None
            and process.has_forked
            and process.child.exit_code() is None
        )

    def start(self) -> None:
        """Start it now, without waiting for it. Why it can't start is told to who asks
        for a child."""
        with contextlib.suppress(PipelineError):
            self._running()

    def fork(
        self, role: str, *descriptors: int, given_up: Callable[[], bool] = lambda: False
    ) -> Forked:
        """A child that runs `role`, a module with `main(what is built, control,
        channel, *descriptors)`; its channel is the socket here, and `control` the one
        by which this template is asked.

        Starts the template if there is none; `given_up` is asked before and meanwhile.
        Raises PipelineError, and TemplateLost where the template ends while it starts.
        """
        end = time.monotonic() + START_SECONDS
        while True:
            if given_up():
                raise _cannot_start("it is not needed any more")
            process = self._running()
            control = self._control if process is None else process.child.sock
            try:
                if control is None:
                    raise ConnectionError
                return self._forked(process, control, role, descriptors, end, given_up)
            except ConnectionError:
                if self.closed:
                    raise _cannot_start("it was closed") from None
                if process is None:
                    raise _cannot_start(
                        "the template of this process has ended"
                    ) from None
                code = process.child.exit_code(2.0)
                if not (process.has_forked or process.stopped):
                    raise TemplateLost(
                        "unknown" if code is None else exit_reason(code)
                    ) from None

    def close(self) -> None:
        """End it; its children end with it."""
        self.closed = True  # a thread inside `fork` leaves
        with self._lock:
            process = self._process
            self._process = None
        if process is not None:
            process.end()

    def _running(self) -> _Process | None:
        with self._lock:
            if self.closed:
                raise _cannot_start("it was closed")
            if self._control is not None:
                return None
            if (
                self._process is not None
                and self._process.child.exit_code() is not None
            ):
                self._process.end()
                self._process = None
            if self._process is None:
                try:
                    self._process = _Process(self._module, self._greeting)
                except OSError as error:
                    raise _cannot_start(str(error)) from error
            return self._process

    def _forked(
        self,
        process: _Process | None,
        control: socket.socket,
        role: str,
        descriptors: tuple[int, ...],
        end: float,
        given_up: Callable[[], bool],
    ) -> Forked:
        with contextlib.ExitStack() as undo:
            with unforked:
                ours, theirs = socket.socketpair()
                status, told = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                undo.callback(ours.close)
                undo.callback(status.close)
                with theirs, told:
                    passed = [
                        told.fileno(),
                        control.fileno(),
                        theirs.fileno(),
                        *descriptors,
                    ]
                    try:
                        socket.send_fds(control, [role.encode()], passed)
                    except OSError as error:
                        raise ConnectionError(str(error)) from error
            while not poll_until(
                status, select.POLLIN, min(end, time.monotonic() + _LOOK_SECONDS)
            ):
                if self.closed or given_up():
                    raise _cannot_start("it is not needed any more")
                if time.monotonic() >= end:
                    raise _cannot_start(f"it was not ready within {START_SECONDS:g} s")
                if process is not None and process.watch.stays_stopped():
                    process.stopped = True
                    process.child.kill()
            pid = int(status.recv(32) or 0)
            if not pid:
                raise ConnectionError("it has ended")
            if process is not None:
                process.has_forked = True
            undo.pop_all()
            return Forked(pid, ours, status)

    def _abandon(self) -> None:
        """In a forked child of this process: the template belongs to the parent."""
        self._lock = threading.Lock()
        self.closed = True
        if self._process is not None:
            self._process.child.disown()


class _Process:
    """A template that this process has started."""

    def __init__(self, module: str, greeting: object) -> None:
        self.child = Child(
            module, kind=socket.SOCK_SEQPACKET, stderr=None, environment=_ENVIRONMENT
        )
        self.watch = StopWatch(self.child.pid)
        self.has_forked = self.stopped = False
        # larger than a message may be
        with open(os.memfd_create("guided-greeting"), "w+b") as file:
            pickle.dump(greeting, file, pickle.HIGHEST_PROTOCOL)
            file.flush()
            with contextlib.suppress(OSError):  # it has ended: `fork` finds that
                socket.send_fds(self.child.sock, [b"greeting"], [file.fileno()])

    def end(self) -> None:
        """End it. One that has children reaps them first; one that still imports reads
        no socket."""
        with contextlib.suppress(OSError):
            self.child.sock.shutdown(socket.SHUT_RDWR)
        if self.has_forked:
            self.child.exit_code(2.0)
        self.child.stop()


def _cannot_start(why: str) -> PipelineError:
    return PipelineError(
        f"cannot start a process: {why}",
        where="grammar processes",
        hint="mode='inline' needs no worker, isolate_compiles=False no helpers",
    )


_templates: weakref.WeakSet[Template] = weakref.WeakSet()


def _after_fork() -> None:
    for template in list(_templates):
        template._abandon()


os.register_at_fork(after_in_child=_after_fork)
