"""The pool's side of one helper process: asking it, within limits, and ending it. Depends on ipc.

Not thread-safe: only the thread that took a helper from the pool uses it. `process.kill` alone may be called
from any thread.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from guided_plugin.compiling.helper_process import OUT_OF_MEMORY, Answer, Compile, Ready, Warm, from_helper
from guided_plugin.config import GuidedConfig
from guided_plugin.errors import BusyError, CompileLimitError, GuidedError, PipelineError
from guided_plugin.grammar.base import Prepared
from guided_plugin.ipc.channel import Channel, ChannelClosedError
from guided_plugin.ipc.spawn import LOOK_SECONDS, StopWatch, exit_reason
from guided_plugin.ipc.template import START_SECONDS, Forked, Template, TemplateLost
from guided_plugin.spec import OutputSpec

_LEAST_SHARE = 4
"""A compile may take so many times its processor time by the clock: else it is given up."""

_ROLE = "guided_plugin.compiling.helper_process"
_NO_HELPER = "set isolate_compiles to false to compile in this process"
_BROKEN = (ChannelClosedError, PipelineError)
_ENDED = (-signal.SIGKILL, -signal.SIGTERM)


class HelperLost(Exception):
    """A helper ended for a reason that seems to have nothing to do with its spec: ask another one."""

    def __init__(self, what: str, *, died_in: str = "") -> None:
        """`died_in`: `start` or `compile`, where it died at work."""
        super().__init__(what)
        self.died_in = died_in


class Preempted(Exception):
    """A compile was given up because quick ones wait for its helper."""


@dataclass(slots=True)
class Allowance:
    """What the backends may use together for one spec."""

    seconds: float
    """Processor time."""
    deadline: float
    """Until when (of `time.monotonic`) the spec waits for a helper."""


class Helper:
    """One helper process."""

    def __init__(self, template: Template, config: GuidedConfig) -> None:
        """Raises HelperLost where it, or its template, ends while it starts."""
        self._config = config
        self._warm: dict[str, Ready] = {}
        self.usable = True
        """Whether it may be asked again: not after it went over a limit, died, or grew too large."""
        try:
            self.process: Forked = template.fork(_ROLE)
        except TemplateLost as lost:
            raise HelperLost(f"its template ended while it started: {lost}", died_in="start") from lost
        self._channel = Channel(self.process.sock, from_helper)
        self._stop_watch = StopWatch(self.process.pid)

    def warm(self, backend: str) -> Ready:
        """What is registered there. Makes a backend, unless done before; its time and memory count for no
        spec. Raises HelperLost, or why the template has built no backends."""
        if backend in self._warm:
            return self._warm[backend]
        try:
            ready = self._ask(Warm(backend))
        except TimeoutError as error:
            raise PipelineError(
                f"cannot be made in a compile process: {error}",
                where=f"backend {backend!r}",
                hint=_NO_HELPER,
            ) from error
        except _BROKEN as error:
            raise HelperLost(
                f"it ended while it made backend {backend!r}: {error}", died_in="start"
            ) from error
        if isinstance(ready, Answer) and isinstance(ready.result, GuidedError):
            raise ready.result
        if not isinstance(ready, Ready):
            raise PipelineError("a compile process sent something else than its greeting", hint=_NO_HELPER)
        self._warm[backend] = ready
        return ready

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
        """One compile, in a share of the processor time that is allowed; what it took is taken off that if it
        fails.

        Raises its error, a limit's, BusyError where the processors have no time for it, Preempted where
        `gives_way(seconds used)` says so, or HelperLost; without `blame` that also where the process was
        ended from outside, which says nothing of the spec.
        """
        start, clock, used = time.monotonic(), self.seconds_used(), 0.0
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
                    hint="try again when the machine has less to do; nothing is wrong with the spec",
                )
            if gives_way(used):
                raise Preempted

        try:
            answer = self._ask(Compile(backend, spec), look)
        except (BusyError, CompileLimitError):
            allowed.seconds -= used
            raise
        except _BROKEN as error:
            allowed.seconds -= used
            if not blame and self.process.exit_code(1.0) in (None, *_ENDED):
                raise HelperLost("it was ended from outside", died_in="compile") from None
            raise self._died(backend, spec, str(error)) from None
        if not isinstance(answer, Answer):
            self.usable = False
            raise self._died(backend, spec, "it sent no answer")
        self.usable = not answer.needs_restart
        if isinstance(answer.result, GuidedError):
            allowed.seconds -= max(0.0, self.seconds_used() - clock)
            raise answer.result
        return answer.result

    def seconds_used(self) -> float:
        """The processor time of the process so far."""
        with contextlib.suppress(OSError):
            # The kernel's number for the clock of another process (`clock_getcpuclockid`).
            return time.clock_gettime(~self.process.pid << 3 | 2)
        return 0.0

    def _ask(self, message: object, look: Callable[[], None] = lambda: None) -> Any:
        """Send and wait; `look` is called meanwhile. Raises HelperLost, TimeoutError, one of _BROKEN or what
        `look` raises; the helper is unusable then."""
        deadline = time.monotonic() + START_SECONDS
        self.usable = False
        self._channel.send(message)
        while True:
            soon = time.monotonic() + LOOK_SECONDS
            if not self._channel.drain(soon) and not self._channel.pending:
                raise HelperLost("it has ended")
            try:
                answer = self._channel.wait(soon)[0]
            except TimeoutError:
                look()
                if soon > deadline:
                    raise
                if self._stop_watch.stays_stopped():  # nothing is known to continue it
                    self.process.kill()
                    raise HelperLost("it was stopped from outside") from None
                continue
            self.usable = True
            return answer

    def _died(self, backend: str, spec: OutputSpec, reason: str) -> CompileLimitError:
        """The error of a spec in whose compile the process ended, as far as the exit code tells."""
        code = self.process.exit_code(1.0)
        if code is None:
            what = f"broke its process: {reason}"
            hint = "simplify the spec, and report it to the authors of the backend"
        elif code == OUT_OF_MEMORY:
            limit = self._config.compile_bytes / 2**30
            what = f"needed more than {limit:.3g} GiB of memory"
            hint = "simplify the spec, or raise compile_bytes"
        elif code == -signal.SIGSEGV:
            what = "crashed its process (SIGSEGV)"
            hint = "simplify the spec: SIGSEGV may mean that it is nested too deep for the backend's stack"
        else:
            what = f"crashed its process ({exit_reason(code)})"
            hint = "simplify the spec; if it only lacked memory, raise compile_bytes"
        return CompileLimitError(f"compiling with {backend} {what}", where=spec.kind, hint=hint)
