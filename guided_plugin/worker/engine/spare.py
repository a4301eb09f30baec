"""A spare worker: it has read the vocabulary, which takes a second where that is large, and waits for its
turn. Depends on start.

It is a child of another fork server than the worker beside it, so that it outlives that server, too.
"""

from __future__ import annotations

import contextlib
import logging
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from guided_plugin.errors import GuidedError, PipelineError
from guided_plugin.ipc.channel import Channel, ChannelClosedError, poll_until
from guided_plugin.ipc.stopped import StopWatch
from guided_plugin.worker.engine.pulse import START_SECONDS
from guided_plugin.worker.engine.start import ForkServer, WorkerProcess, borrow_server, return_server
from guided_plugin.worker.messages import Crashed, Prepare, Ready, Warm, from_worker

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.05
"""How often the thread that waits for it looks whether it is still wanted."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A worker that is ready, with the loan of its server: both go to the one that takes it."""

    server: ForkServer
    process: WorkerProcess
    channel: Channel
    ready: Ready
    undo: contextlib.ExitStack

    def end(self) -> None:
        """It is not needed."""
        self.undo.close()


class Spare:
    """One spare worker, from its start in a thread to the moment that it is taken or closed."""

    def __init__(
        self, region_fd: int, prepare: Prepare, apart_from: ForkServer | None, told: Callable[[], None]
    ) -> None:
        """`told` is called in another thread when it is ready, or has failed."""
        self._region_fd = region_fd
        self._prepare = prepare
        self._apart_from = apart_from
        self._told = told
        self._lock = threading.Lock()
        self._prepared: Prepared | None = None
        self._closed = self._over = False
        self.failed = False
        """Whether it could not be started."""
        self._thread = threading.Thread(target=self._run, name="guided-spare", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """The process id, once it is ready."""
        prepared = self._prepared
        return None if prepared is None else prepared.process.pid

    @property
    def channel(self) -> Channel | None:
        """For poll: a spare says nothing while it waits; when there is something to read, it has ended."""
        prepared = self._prepared
        return None if prepared is None else prepared.channel

    def take(self) -> Prepared | None:
        """The worker, if it is there and runs. One that is not ready yet goes on."""
        with self._lock:
            prepared, self._prepared = self._prepared, None
        if prepared is None:
            return None
        if _has_ended(prepared) or StopWatch(prepared.process.pid).is_stopped():
            prepared.end()
            return None
        return prepared

    def of_use(self, worker_server: ForkServer | None) -> bool:
        """Whether to keep it beside a worker of that server: not if it has ended, or would end with it."""
        if not self._over:
            return True
        prepared = self._prepared
        return prepared is not None and prepared.server is not worker_server and not _has_ended(prepared)

    def close(self) -> None:
        """End it, and wait until it has ended."""
        with self._lock:
            self._closed = True
            prepared, self._prepared = self._prepared, None
        if prepared is not None:
            prepared.end()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._start()
        except (GuidedError, OSError, ChannelClosedError) as error:
            self.failed = True
            if not self._closed:
                _log.warning(
                    "there is no spare grammar worker: %s; should the worker end, the next one reads the "
                    "vocabulary while its steps wait",
                    error,
                )
        finally:
            self._over = True
            self._told()

    def _start(self) -> None:
        with contextlib.ExitStack() as undo:
            server, process = self._fork(undo)
            undo.callback(process.release)
            channel = Channel(process.sock, from_worker)
            undo.callback(channel.close)
            undo.callback(process.kill)
            ready = self._wait(channel)
            with self._lock:
                if not self._closed:
                    self._prepared = Prepared(server, process, channel, ready, undo.pop_all())

    def _fork(self, undo: contextlib.ExitStack) -> tuple[ForkServer, WorkerProcess]:
        while True:
            server = borrow_server(self._apart_from)
            loan = contextlib.ExitStack()
            loan.callback(return_server, server)
            try:
                process = server.fork(self._region_fd, START_SECONDS, lambda: self._closed)
            except GuidedError:
                loan.close()
                if server.hung and not self._closed:
                    continue  # it was stopped from outside, and has been ended: another one takes its place
                raise
            undo.push(loan)
            return server, process

    def _wait(self, channel: Channel) -> Ready:
        """Tell it the vocabulary, and wait until it has read it."""
        channel.send(self._prepare)
        ready: Ready | None = None
        end = time.monotonic() + START_SECONDS
        while not self._closed:
            if time.monotonic() > end:
                raise _error(f"it was not ready within {START_SECONDS:g} s")
            channel.flush()
            wanted = select.POLLIN | (select.POLLOUT if channel.pending else 0)
            if not poll_until(channel, wanted, time.monotonic() + _LOOK_SECONDS):
                continue
            for message in channel.receive():
                if isinstance(message, Ready):
                    ready = message
                elif isinstance(message, Crashed):
                    raise _error(f"it gave up: {message.reason}")
                elif isinstance(message, Warm) and ready is not None:
                    return ready
        raise _error("it is not needed any more")


def _has_ended(prepared: Prepared) -> bool:
    return poll_until(prepared.channel, select.POLLIN, time.monotonic())


def _error(what: str) -> PipelineError:
    return PipelineError(what, where="spare grammar worker", hint="worker_spare=False does without")
