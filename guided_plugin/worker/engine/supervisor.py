"""Watches over the worker of one client: starts it, reads from it, replaces it. A
thread of the engine.

A dead worker is noticed at once, by its channel. A hung one is noticed by its
heartbeat: without a beat for `worker_step_ms` it is killed, which makes sure that it
writes no more, the rows it owed fail closed, and the device goes on. One that was
stopped from outside is noticed by its state, within a third of a second, and killed
too. The next worker, forked from the compiler's template, takes over the steps of one
that died. Where the template has ended too, the next one takes a second: the requests
that run fail at once, so that no row waits for it, and new ones are refused until it is
there.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from guided_plugin.errors import GuidedError, PluginError, RequestError
from guided_plugin.ipc.channel import Channel, ChannelClosedError
from guided_plugin.ipc.spawn import LOOK_SECONDS, StopWatch, exit_reason
from guided_plugin.ipc.template import Forked, TemplateLost
from guided_plugin.worker.engine.client import WorkerClient
from guided_plugin.worker.engine.session import Session
from guided_plugin.worker.messages import Ends, from_worker
from guided_plugin.worker.words import Counter

_log = logging.getLogger(__name__)

DEATHS = 3
WINDOW_SECONDS = 60.0
"""So many deaths within this time, and guided requests are refused until it is over."""

_AGAIN_SECONDS = 2.0
"""The seconds after which a request that is refused meanwhile may come again: a
template starts within this time."""

_ROLE = "guided_plugin.worker.child.loop"

_PAUSE = 0.5
"""Seconds after a start that failed, and after a failure of the supervisor while
requests are refused."""


class Pulse:
    """Tells if a worker makes progress: it is looked at every `tick` seconds while
    anything waits.

    A worker that shows no heartbeat for `worker_step_ms` hangs. One that was stopped
    from outside is found long before that, by its state."""

    def __init__(self, client: WorkerClient) -> None:
        self.limit = client.compiler.config.worker_step_ms / 1e3
        self.tick = min(LOOK_SECONDS, self.limit / 8)
        self._client = client
        self.begin(0)

    def begin(self, pid: int) -> None:
        """A worker starts."""
        self._beat = -1
        self._stop_watch = StopWatch(pid)
        self._alive_at = self._looked_at = time.monotonic()

    def due(self) -> bool:
        """True if the last look is long enough ago."""
        return time.monotonic() - self._looked_at >= self.tick

    def stopped(self) -> bool:
        """True if the worker was stopped from outside, and stays so. Ask before
        `hangs`."""
        if self._client.region.load(Counter.HEARTBEAT) != self._beat:
            self._stop_watch.runs()
        return self._stop_watch.stays_stopped()

    def hangs(self) -> bool:
        """True if the worker has made no progress for too long."""
        now = time.monotonic()
        late = now - self._looked_at > 5 * self.tick
        self._looked_at = now
        beat = self._client.region.load(Counter.HEARTBEAT)
        if beat != self._beat or late:
            # Late: this thread did not run either. Both were stopped, or nothing waited
            # for the worker.
            self._beat = beat
            self._alive_at = now
        return now - self._alive_at >= self.limit


class Supervisor:
    """The life of workers, one after the other."""

    def __init__(self, client: WorkerClient) -> None:
        self._client = client
        self._session = Session(client)
        self._pulse = Pulse(client)
        self._template = client.compiler.template
        self._worker: Forked | None = None
        self._last_words: Ends | None = None
        self._deaths: deque[float] = deque()
        self.restarts = 0
        """Workers started after the first."""
        self._closing = False
        self._pid = os.getpid()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._wake_lock = threading.RLock()
        client.wake = self.wake
        self.thread = threading.Thread(
            target=self._run, name="guided-supervisor", daemon=True
        )
        self.thread.start()

    @property
    def worker_pid(self) -> int | None:
        """The process id of the worker that runs now."""
        worker = self._worker
        return None if worker is None else worker.pid

    def wake(self) -> None:
        """Make the thread look again."""
        with self._wake_lock:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def close(self) -> bool:
        """End the worker, and what still waits for it. False in a fork of the process
        it belongs to."""
        if os.getpid() != self._pid:
            return False
        self._closing = True
        self.wake()
        self.thread.join()
        # no circle keeps the compiler, and with it the template
        self._client.wake = lambda: None
        return True

    def _run(self) -> None:
        step = self._begin
        # each of these runs, whatever the others raise
        with contextlib.ExitStack() as end:
            end.callback(self._close_wake)
            end.callback(self._client.end)
            end.callback(self._end_worker)
            while not self._closing:
                try:
                    step()
                    step = self._watch
                except BaseException as error:
                    # A defect of ours: requests and devices must not wait for ever.
                    _log.exception("the supervisor of the grammar worker failed")
                    step = partial(self._recover, error)

    def _begin(self) -> None:
        """Start the first worker when something waits for it."""
        while not self._closing and not self._client.busy:
            self._poll(None)
        self._start(isolate=False)

    def _recover(self, error: BaseException) -> None:
        """Replace the worker after a step of this thread raised `error`. A step that
        keeps failing counts as deaths do, so that requests are refused."""
        if self._client.refusing:
            time.sleep(_PAUSE)  # a step that fails at once must not fill the log
        reason = f"was ended, because its supervisor failed: {error!r}"
        self._replace(partial(self._count_death, reason), isolate=True)

    def _close_wake(self) -> None:
        with self._wake_lock:
            os.close(self._wake)
            self._wake = -1

    def _start(self, *, isolate: bool) -> None:
        local = self._client.compiler.plugins.local
        if local:
            what = f"the grammar worker can't load {', '.join(sorted(local))}"
            hint = "offer it through the entry-point group guided_plugin, or use mode='inline'"
            self._client.refuse(PluginError(what, hint=hint), math.inf)
            self._client.ready.set()
        while not self._closing and not self._client.refusing:
            try:
                self._worker = self._template.fork(
                    _ROLE, self._client.region.fd, given_up=self._no_longer
                )
                self._last_words = None
                self._pulse.begin(self._worker.pid)
                channel = Channel(self._worker.sock, from_worker)
                self._session.begin(channel, isolate=isolate)
                self._client.resume()
                return
            except TemplateLost as lost:
                self._count_death(f"could not be started: its template ended ({lost})")
            except (GuidedError, OSError) as error:
                self._end_worker()
                if self._template.closed and isinstance(error, GuidedError):
                    self._client.refuse(error, math.inf)  # its compiler was closed
                elif not self._closing:
                    self._count_death(f"could not be started: {error}")
                    # what lacks, like descriptors, may be there again
                    time.sleep(_PAUSE)

    def _no_longer(self) -> bool:
        """Asked while a worker starts: whether it is not needed any more. What waits
        for one whose template has to start first is let go."""
        if self.restarts and not self._template.alive:
            self._client.refuse(
                RequestError(
                    "the grammar worker and its template have ended, and are being started",
                    hint="send the request again",
                ),
                _AGAIN_SECONDS,
                suspended=True,
            )
        return self._closing

    def _watch(self) -> None:
        """Wait for something to happen, and act on it."""
        channel = self._client.channel
        if channel is None:
            # Refusing. A request that comes when this is over needs a new worker.
            self._poll(None)
            if not self._client.refusing and not self._closing:
                self._replace(self._deaths.clear, isolate=True)
            return
        self._poll(self._pulse.tick if self._client.busy else None)
        try:
            channel.flush()
            for message in channel.receive():
                if isinstance(message, Ends):
                    self._last_words = message
                self._session.received(message)
        except ChannelClosedError:
            words = self._last_words
            if words is not None and words.blameless:
                tell = partial(
                    _log.warning, "the grammar worker is replaced: %s", words.reason
                )
                self._replace(tell, isolate=False)
            else:
                self._died(self._reason())
            return
        except GuidedError as error:
            self._died(f"sent an invalid message: {error}")
            return
        # Not with each message: this has the GIL for 0.2 ms, and vLLM's thread waits.
        if not self._pulse.due():
            return
        self._client.steps.harvest()
        if self._pulse.stopped():
            reason = "was stopped from outside (SIGSTOP or a debugger), and was ended"
            # no request is to blame
            self._replace(partial(self._count_death, reason), isolate=False)
        elif self._pulse.hangs():
            # The next worker fills the rows one by one, and shows which of them hangs.
            self._died(f"made no progress for {self._pulse.limit:g} s", hung=True)

    def _poll(self, timeout: float | None) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        channel = self._client.channel
        if channel is not None:
            poll.register(
                channel, select.POLLIN | (select.POLLOUT if channel.pending else 0)
            )
        poll.poll(None if timeout is None else timeout * 1e3)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    def _replace(self, settle: Callable[[], None], *, isolate: bool) -> None:
        """Start another worker in place of this one. `settle`, called between the two,
        says what the end of this one means."""
        try:
            self._end_worker()  # no worker may write while rows are closed
        finally:
            settle()
        if not self._client.refusing:
            self.restarts += 1
            self._start(isolate=isolate)

    def _died(self, reason: str, *, hung: bool = False) -> None:
        """Attribute the death to a request or a spec, if that is possible, and start
        another worker."""

        def blame() -> None:
            doing = self._client.region.load(Counter.DOING)
            if cause := self._session.blame(
                doing - 1 if doing else None, reason, hung=hung
            ):
                # That explains the earlier deaths too: they say nothing about the next
                # worker.
                self._deaths.clear()
                _log.warning("%s: ended the grammar worker, which %s", cause, reason)
            else:
                self._count_death(reason)

        self._replace(blame, isolate=True)

    def _count_death(self, reason: str) -> None:
        now = time.monotonic()
        self._deaths.append(now)
        while now - self._deaths[0] > WINDOW_SECONDS:
            self._deaths.popleft()
        _log.warning("the grammar worker %s", reason)
        if len(self._deaths) >= DEATHS:
            self._client.refuse(
                RequestError(
                    f"guided requests are refused: the grammar worker ended {DEATHS} times within "
                    f"{WINDOW_SECONDS:.0f} s; the last one {reason}",
                    hint="unguided requests go on; try again in a minute",
                ),
                WINDOW_SECONDS,
            )

    def _reason(self) -> str:
        if self._last_words is not None:
            return f"gave up: {self._last_words.reason}"
        code = None if self._worker is None else self._worker.exit_code(0.5)
        return "ended" if code is None else f"ended: {exit_reason(code)}"

    def _end_worker(self) -> None:
        """End the worker, if there is one; afterwards it writes nothing more."""
        worker = self._worker
        self._worker = None
        channel = self._client.channel
        # each of these runs, whatever the others raise
        with contextlib.ExitStack() as end:
            if channel is not None:
                end.callback(channel.close)
            if worker is not None:
                end.callback(worker.stop)
            self._session.end()
