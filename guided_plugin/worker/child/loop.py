"""The grammar worker: its process, and its loop, tokens in and masks out, in shared
memory. Depends on the grammar layer; no CUDA.

It never waits for one request on behalf of another: specs compile in threads, and a
plan waits for a grammar only when that request is in it. What one request does wrong
fails that request; what this process does wrong ends it, and the engine starts another.
"""

from __future__ import annotations

import ctypes
import select
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import closing
from typing import NoReturn

from guided_plugin._version import __version__
from guided_plugin.compiling.chooser import Chooser
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.compiling.template_process import MODULE
from guided_plugin.errors import GuidedError, PipelineError
from guided_plugin.grammar.forced import ForcedTokens
from guided_plugin.grammar.learnt_drafts import LearntDrafts
from guided_plugin.ipc.channel import Channel, ChannelClosedError
from guided_plugin.ipc.spawn import resident_bytes
from guided_plugin.ipc.template import Template
from guided_plugin.worker.child.offers import Offers
from guided_plugin.worker.child.requests import WorkerRequests
from guided_plugin.worker.child.rings import WorkerRings
from guided_plugin.worker.child.steps import DraftSteps, PlainSteps, StepPace
from guided_plugin.worker.layout import Region
from guided_plugin.worker.messages import (
    Compile,
    Ends,
    Hello,
    LiveRequest,
    Ready,
    Remove,
    Sync,
    Synced,
)

_PAUSES = ((0.005, 20e-6), (1.0, 500e-6), (float("inf"), 5e-3))
"""The length of a pause (second), by how long there was nothing to do (first)."""

_OFFER_PAUSES = ((0.1, 20e-6), *_PAUSES[1:])
"""These pauses where the device waits for this worker in each step, however long one
takes."""

_IDLE = 0.1
"""The pause while there is no request at all; a message ends it."""

_ISOLATION_SECONDS = 1.0
"""The most seconds compiles wait for requests that may have ended the worker before."""


_OVERDUE_SECONDS = 60.0
"""Seconds that an abandoned call may run before its worker is replaced. The call uses a
processor; but a new worker takes a second to read a large vocabulary, and all rows wait
for it."""

_OVERDUE_BYTES = 1 << 30
"""The most memory that the worker may gain meanwhile."""

_OVERDUE_CHECK = 0.25
"""Seconds between two checks."""

_PR_SET_NAME = 15
_PR_SET_TIMERSLACK = 29


class WorkerRetires(Exception):
    """The worker ends itself and asks to be replaced."""


class GrammarWorker:
    """One session: from a `Hello` to the end of the channel."""

    def __init__(
        self,
        channel: Channel,
        region: Region,
        hello: Hello,
        compiler: GrammarCompiler,
        received: list[object],
    ) -> None:
        """`received`: messages that came with the `Hello`."""
        config = compiler.config
        self._channel = channel
        self._inbox: deque[object] = deque(received)
        self._syncs: list[Sync] = []
        self._deferred: deque[Compile] = deque()
        """Compiles that wait until slots are no longer worked on one by one."""
        self._rings = WorkerRings(
            region, hello.filled, hello.accepted, hello.isolate_until
        )
        self._requests = WorkerRequests(compiler, channel, self._rings)
        parts = self._rings, self._requests, StepPace(compiler.chooser.pace)
        self._steps = PlainSteps(*parts)
        if region.shape.drafts:
            forced = ForcedTokens(compiler.vocabulary)
            learnt = LearntDrafts(compiler.vocabulary, forced, region.shape.drafts)
            offers = (
                Offers(self._rings, self._requests.table, learnt)
                if config.jump_forward
                else None
            )
            self._steps = DraftSteps(*parts, offers)
        self._pauses = (
            _OFFER_PAUSES if region.shape.drafts and config.jump_forward else _PAUSES
        )
        self._overdue = _OverdueWatch(self._requests.table.overdue)
        self._compiler = compiler
        self._spin = config.worker_spin_us / 1e6
        self._longest_pause = min(_IDLE, config.worker_step_ms / 4e3)
        self._begun = self._last_work = time.monotonic()

    def run(self) -> NoReturn:
        """Serve until the engine hangs up, which raises ChannelClosedError."""
        while True:
            received = self._receive()
            accepted = self._steps.accept()
            filled = self._steps.fill()
            self._report()
            self._rest(worked=received or accepted or filled or self._steps.learn())

    def _receive(self) -> bool:
        """Receive the messages that are there; apply those that precede the next plan,
        or all without one.

        The plan counter is read after the channel: a message sent after a plan can't be
        taken for one sent before it.
        """
        self._inbox.extend(self._channel.receive())
        rings = self._rings
        before = rings.applied
        limit = None
        if rings.planned > rings.filled:
            limit = rings.plan(rings.filled + 1).messages
        while self._inbox and (limit is None or rings.applied < limit):
            rings.applied += 1
            self._apply(self._inbox.popleft())
        started = bool(self._requests.starting) and self._requests.start_compiled()
        resumed = bool(self._deferred) and self._end_isolation()
        return started or resumed or rings.applied > before

    def _apply(self, message: object) -> None:
        if isinstance(message, LiveRequest):
            self._requests.add(message)
        elif isinstance(message, Remove):
            self._requests.remove(message.slot)
        elif isinstance(message, Compile):
            if self._rings.filled < self._rings.isolate_until:
                self._deferred.append(message)
            else:
                self._requests.compile(message)
        elif isinstance(message, Sync):
            self._syncs.append(message)

    def _end_isolation(self) -> bool:
        """Start the deferred compiles, once the requests that may have ended a worker
        had their turn: while a spec compiles, the end of a worker can't be attributed
        to one request."""
        rings = self._rings
        had_their_turn = rings.planned <= rings.filled and not self._requests.starting
        late = time.monotonic() - self._begun > _ISOLATION_SECONDS
        if not (had_their_turn or late or rings.filled >= rings.isolate_until):
            return False
        rings.isolate_until = rings.filled
        while self._deferred:
            self._requests.compile(self._deferred.popleft())
        return True

    def _report(self) -> None:
        """Tell the engine what happened, and that the worker makes progress. May raise
        WorkerRetires."""
        if self._requests.table.failures or self._requests.table.unprotected:
            self._requests.report_failures()
        for sync in list(self._syncs):
            if sync.after <= self._rings.accepted and sync.filled <= self._rings.filled:
                self._syncs.remove(sync)
                self._channel.send(Synced(sync.ticket))
        if self._channel.pending:
            self._channel.flush()
        if self._overdue.check(idle=not self._requests):
            learnt = self._compiler.chooser.learnt_bytes()
            self._rings.region.figures["learnt_bytes"] = learnt
        self._rings.beat()

    def _rest(self, *, worked: bool) -> None:
        """Poll without a pause after work, later with longer and longer ones; a message
        ends each pause."""
        now = time.monotonic()
        if worked:
            self._last_work = now
            return
        quiet = now - self._last_work
        if quiet < self._spin:
            return
        pause = self._longest_pause
        if self._requests or self._syncs:
            pause = next(pause for until, pause in self._pauses if quiet < until)
        select.select([self._channel], [], [], pause)


class _OverdueWatch:
    """Looks for abandoned calls that still run, a few times a second."""

    def __init__(self, overdue: Callable[[], float]) -> None:
        """`overdue` says for how many seconds the longest abandoned call has run."""
        self._overdue = overdue
        self._next = 0.0
        self._resident: int | None = None
        """The worker's memory when the watch first saw the call that runs now."""

    def check(self, *, idle: bool) -> bool:
        """Raise WorkerRetires if a call costs too much, or if no request would notice.
        Returns whether it looked."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + _OVERDUE_CHECK
        seconds = self._overdue()
        if not seconds:
            self._resident = None
            return True
        resident = resident_bytes()
        if self._resident is None:
            self._resident = resident
        gained = resident - self._resident
        if seconds > _OVERDUE_SECONDS or gained > _OVERDUE_BYTES or idle:
            raise WorkerRetires(
                f"an abandoned call of a backend still runs after {seconds:.1f} s, and its worker has gained "
                f"{gained / 2**20:.0f} MiB"
            )
        return True


def main(
    built: Chooser | GuidedError, control_fd: int, channel_fd: int, region_fd: int
) -> int:
    """Serve an engine until it hangs up; the exit code."""
    with closing(Channel(socket.socket(fileno=channel_fd))) as channel:
        try:
            if isinstance(built, GuidedError):
                raise built
            _serve(channel, region_fd, built, control_fd)
        except ChannelClosedError:
            return 0
        except WorkerRetires as wish:
            channel.send(Ends(str(wish), blameless=True))
            channel.drain(time.monotonic() + 1.0)
            return 0
        except BaseException as error:
            if not isinstance(error, GuidedError):
                traceback.print_exc()
            channel.send(
                Ends(str(error) if isinstance(error, GuidedError) else repr(error))
            )
            channel.drain(time.monotonic() + 1.0)
    return 1


def _serve(
    channel: Channel, region_fd: int, chooser: Chooser, control_fd: int
) -> NoReturn:
    # what `ps` and `top` show
    ctypes.CDLL(None).prctl(_PR_SET_NAME, b"guided-worker", 0, 0, 0)
    # compile threads give way to the step in half a millisecond
    sys.setswitchinterval(5e-4)
    # Let short sleeps be short: by default the kernel rounds them up by 50
    # microseconds.
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1000, 0, 0, 0)
    channel.send(Ready())
    hello, *received = channel.wait()
    if hello.version != __version__:  # it was installed while the engine runs
        raise PipelineError(
            f"its package is {__version__}, the engine's is {hello.version}",
            where="grammar worker",
            hint="start the engine again",
        )
    with socket.socket(fileno=control_fd) as control:
        built = chooser, Template(MODULE, None, control)
        compiler = GrammarCompiler(
            chooser.vocabulary,
            config=chooser.config,
            plugins=chooser.plugins,
            built=built,
        )
        with closing(Region(region_fd, hello.shape)) as region:
            GrammarWorker(channel, region, hello, compiler, received).run()
