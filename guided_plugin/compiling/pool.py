"""The helper processes of one compiler: how many there are, which spec gets one, and
its limits there.

Everything that compiles in a helper waits in one queue, first come first served, for at
most as long as its request has. A spec that turns out to be slow gives its helper up as
soon as another one waits, and starts again as one of few: slow specs never have the
last helper. Helpers end when this process does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from guided_plugin.compiling.helper_process import (
    OUT_OF_MEMORY,
    Answer,
    Compile,
    Ready,
    from_helper,
)
from guided_plugin.config import GuidedConfig
from guided_plugin.errors import (
    BusyError,
    CompileLimitError,
    GuidedError,
    PipelineError,
)
from guided_plugin.grammar.base import Prepared
from guided_plugin.ipc import processors
from guided_plugin.ipc.channel import Channel, ChannelClosedError
from guided_plugin.ipc.spawn import LOOK_SECONDS, StopWatch, exit_reason
from guided_plugin.ipc.template import START_SECONDS, Forked, Template, TemplateLost
from guided_plugin.spec import OutputSpec

_ATTEMPTS = 5
"""Idle helpers may have ended, or were stopped: a spec asks so many before it gives
up."""

_QUICK_SECONDS = 1.0
"""The processor time that a spec may take while others wait for its helper."""

_LEAST_SHARE = 4
"""A compile may take so many times its processor time by the clock: else it is given
up."""

_ROLE = "guided_plugin.compiling.helper_process"
_BROKEN = (ChannelClosedError, PipelineError)
_ENDED = (-signal.SIGKILL, -signal.SIGTERM)


class _HelperLost(Exception):
    """A helper ended for a reason that seems to have nothing to do with its spec: ask
    another one."""

    def __init__(self, what: str, *, at_work: bool = False) -> None:
        super().__init__(what)
        self.at_work = at_work


class _Preempted(Exception):
    """A compile was given up because quick ones wait for its helper."""


@dataclass(slots=True)
class Allowance:
    """The time that the backends may use together for one spec."""

    seconds: float
    """Processor time."""
    deadline: float
    """Until when (of `time.monotonic`) the spec waits for a helper."""


@dataclass(slots=True, eq=False)
class _Turn:
    """One spec that wants a helper, or has one."""

    slow: bool = False


class CompilePool:
    """Helpers that a template forks when specs need them, up to `compile_processes`."""

    def __init__(self, template: Template, config: GuidedConfig) -> None:
        self._template = template
        self._config = config
        self._changed = threading.Condition()
        self._waiting: list[_Turn] = []
        self._running: list[_Turn] = []
        """Specs that wait for a helper and specs that have one, each in the order in
        which they came."""
        self._idle: list[Helper] = []
        self._all: set[Helper] = set()
        self._most_slow = max(
            1, min(config.compile_processes - 1, processors.count() // 2)
        )
        self._closed = False
        self._owner = os.getpid()

    def prepare(
        self, backend: str, spec: OutputSpec, allowed: Allowance, share: float
    ) -> Prepared:
        """Return what a helper makes of a spec with one backend, in at most a share of
        the time allowed.

        Raises the backend's error or a limit's, or BusyError where there is no helper
        in time, or helpers end for reasons that have nothing to do with the spec.
        """
        turn = _Turn()
        blame = False
        reason: _HelperLost | None = None
        for _ in range(_ATTEMPTS):
            try:
                with self._helper(turn, allowed.deadline) as helper:
                    return helper.prepare(
                        *(backend, spec, allowed, share),
                        blame=blame,
                        gives_way=lambda used: (
                            used > _QUICK_SECONDS and self._gives_way(turn)
                        ),
                    )
            except _Preempted:
                turn.slow = True
            except _HelperLost as lost:
                reason = lost
                blame |= lost.at_work
        raise BusyError(
            f"compile processes ended before they compiled the spec; the last one: {reason}",
            where="compiling",
            hint="try again; find what kills them on this machine, or set isolate_compiles to false",
        )

    def processes(self) -> list[int]:
        """The helpers' process ids."""
        with self._changed:
            return [helper.process.pid for helper in self._all]

    def close(self) -> None:
        """End all helpers. A compile that is under way fails."""
        if self._owner != os.getpid():
            return
        with self._changed:
            self._closed = True
            idle = self._idle
            self._idle = []
            busy = self._all.difference(idle)
            self._changed.notify_all()
        for helper in busy:
            helper.process.kill()  # the thread that uses its socket closes that
        for helper in idle:
            helper.process.stop()

    @contextlib.contextmanager
    def _helper(self, turn: _Turn, deadline: float) -> Iterator[Helper]:
        """A helper, when it is the turn of a spec."""
        self._check_open()
        with self._changed:
            self._waiting.append(turn)
            seconds = min(deadline - time.monotonic(), threading.TIMEOUT_MAX)
            try:
                in_time = self._changed.wait_for(lambda: self._may_run(turn), seconds)
            finally:
                self._waiting.remove(turn)
                self._changed.notify_all()
            self._check_open()
            if not in_time:
                raise BusyError(
                    f"all {self._config.compile_processes} compile processes are busy, and the request's "
                    "time is up",
                    where="compiling",
                    hint="try again, or raise compile_processes",
                )
            self._running.append(turn)
            helper = self._idle.pop() if self._idle else None
        try:
            if helper is None:
                helper = Helper(self._template, self._config)
                with self._changed:
                    self._all.add(helper)
                self._check_open()
            yield helper
        except GuidedError:
            # The error of a helper that `close` killed would be blamed on the spec.
            self._check_open()
            raise
        finally:
            keep = helper is not None and helper.usable and not self._closed
            if helper is not None and not keep:
                helper.process.stop()
            with self._changed:
                if helper is not None and keep:
                    self._idle.append(helper)
                elif helper is not None:
                    self._all.discard(helper)
                self._running.remove(turn)
                self._changed.notify_all()

    def _may_run(self, turn: _Turn) -> bool:
        if self._closed:
            return True
        if len(self._running) >= self._config.compile_processes:
            return False
        full = sum(one.slow for one in self._running) >= self._most_slow
        return (
            next((one for one in self._waiting if not (one.slow and full)), None)
            is turn
        )

    def _gives_way(self, turn: _Turn) -> bool:
        """True if a spec gives up its helper, which it has had for long: it is the
        first of the quick ones, and another one waits."""
        with self._changed:
            quick = [one for one in self._running if not one.slow]
            waits = any(not one.slow for one in self._waiting)
            return self._config.compile_processes > 1 and waits and quick[0] is turn

    def _check_open(self) -> None:
        if self._owner != os.getpid():
            raise PipelineError(
                "this compiler was made before a fork, and its helpers belong to the parent process",
                hint="make the compiler in the process that uses it",
            )
        if self._closed:
            raise PipelineError(
                "the compiler is closed", hint="make another GrammarCompiler"
            )


class Helper:
    """One helper process. Not thread-safe: only the thread that took it from the pool
    uses it. `process.kill` alone may be called from any thread."""

    def __init__(self, template: Template, config: GuidedConfig) -> None:
        """Raises _HelperLost where it, or its template, ends while it starts."""
        self._config = config
        self.usable = True
        """True if it may be asked again: not after it went over a limit, died, or grew
        too large."""
        try:
            self.process: Forked = template.fork(_ROLE)
        except TemplateLost as lost:
            raise _HelperLost(f"its template ended while it started: {lost}") from lost
        self._channel = Channel(self.process.sock, from_helper)
        self._arrived: deque[Any] = deque()
        self._stop_watch = StopWatch(self.process.pid)

    def prepare(
        self,
        backend: str,
        spec: OutputSpec,
        allowed: Allowance,
        share: float,
        *,
        blame: bool,
        gives_way: Callable[[float], bool],
    ) -> Prepared:
        """One compile, in a share of the processor time that is allowed; what it took
        is taken off that if it fails. To make the backend counts for no spec.

        Raises its error, a limit's, BusyError where the processors have no time for it,
        _Preempted where `gives_way(seconds used)` says so, or _HelperLost; without
        `blame` that also where the process was ended from outside, which says nothing
        of the spec.
        """
        self.usable = False  # until it has answered
        self._channel.send(Compile(backend, spec))
        self._wait_ready(backend)
        start = time.monotonic()
        clock = self.seconds_used()
        used = 0.0
        seconds = allowed.seconds * share

        def look() -> None:
            nonlocal used
            used = max(used, self.seconds_used() - clock)
            if used > seconds:
                raise CompileLimitError(
                    f"compiling with {backend} took more than {seconds:.2g} s of processor time, and was "
                    "stopped",
                    where=spec.kind,
                    hint="simplify the spec, or raise compile_seconds",
                )
            late = time.monotonic() - start
            if late > _LEAST_SHARE * seconds:
                raise BusyError(
                    f"a compile got {used:.2g} s of processor time in {late:.2g} s",
                    where="compiling",
                    hint="try again when the machine is less busy; nothing is wrong with the spec",
                )
            if gives_way(used):
                raise _Preempted

        try:
            answer = self._wait(look)
        except (BusyError, CompileLimitError):
            allowed.seconds -= used
            raise
        except _BROKEN as error:
            allowed.seconds -= used
            if not blame and self.process.exit_code(1.0) in (None, *_ENDED):
                raise _HelperLost("it was killed from outside", at_work=True) from None
            raise self._died(backend, spec, str(error)) from None
        if not isinstance(answer, Answer):
            raise self._died(backend, spec, "it sent no answer")
        self.usable = not answer.needs_restart
        if isinstance(answer.result, GuidedError):
            allowed.seconds -= max(0.0, self.seconds_used() - clock)
            raise answer.result
        return answer.result

    def seconds_used(self) -> float:
        """The processor time of the process so far."""
        with contextlib.suppress(OSError):
            # The kernel's number for the clock of another process
            # (`clock_getcpuclockid`).
            return time.clock_gettime(~self.process.pid << 3 | 2)
        return 0.0

    def _wait_ready(self, backend: str) -> None:
        """Until it has the backend. Raises _HelperLost, or why the template has built
        no backends."""
        what = f"it ended while it made backend {backend!r}"
        deadline = time.monotonic() + START_SECONDS

        def look() -> None:
            if time.monotonic() > deadline:
                raise BusyError(
                    f"backend {backend!r} was not ready in a compile process within {START_SECONDS:g} s",
                    where="compiling",
                    hint="set isolate_compiles to false to compile in this process",
                )

        try:
            ready = self._wait(look)
        except _BROKEN as error:
            raise _HelperLost(f"{what}: {error}") from error
        if isinstance(ready, Answer) and isinstance(ready.result, GuidedError):
            raise ready.result
        if not isinstance(ready, Ready):
            raise _HelperLost(f"{what}: its first message was not the expected one")

    def _wait(self, look: Callable[[], None]) -> Any:
        """The next message; `look` is called meanwhile. Raises _HelperLost, one of
        _BROKEN or what `look` raises."""
        while not self._arrived:
            soon = time.monotonic() + LOOK_SECONDS
            if not self._channel.drain(soon) and not self._channel.pending:
                raise _HelperLost("it has ended")
            try:
                self._arrived += self._channel.wait(soon)
            except TimeoutError:
                look()
                if self._stop_watch.stays_stopped():  # nothing is known to continue it
                    self.process.kill()
                    raise _HelperLost("it was stopped from outside") from None
        return self._arrived.popleft()

    def _died(self, backend: str, spec: OutputSpec, reason: str) -> CompileLimitError:
        """The error of a spec in whose compile the process ended, as far as the exit
        code tells."""
        code = self.process.exit_code(1.0)
        if code is None:
            what = f"broke its compile process: {reason}"
            hint = "simplify the spec, and report it to the authors of the backend"
        elif code == OUT_OF_MEMORY:
            limit = self._config.compile_bytes / 2**30
            what = f"needed more than {limit:.3g} GiB of memory"
            hint = "simplify the spec, or raise compile_bytes"
        elif code == -signal.SIGSEGV:
            what = "crashed its compile process (SIGSEGV)"
            hint = "simplify the spec: SIGSEGV may mean that it is nested too deep for the backend's stack"
        else:
            what = f"crashed its compile process ({exit_reason(code)})"
            hint = "simplify the spec; if it only lacked memory, raise compile_bytes"
        return CompileLimitError(
            f"compiling with {backend} {what}", where=spec.kind, hint=hint
        )
