"""The guard's side of one helper process: starting it, asking it, ending it. Depends on ipc.

Not thread-safe: only the thread that took a helper out of the guard's list uses it. `child.kill` alone may be
called from any thread.
"""

from __future__ import annotations

import signal
import time
from typing import Any

from guided_plugin.compiling.guard_process import (
    OUT_OF_MEMORY,
    Answer,
    Compile,
    Greeting,
    Ready,
    Warm,
    from_helper,
)
from guided_plugin.errors import CompileLimitError, GuidedError, PipelineError
from guided_plugin.grammar.base import Prepared
from guided_plugin.ipc.channel import Channel, ChannelClosedError
from guided_plugin.ipc.spawn import Child, exit_reason
from guided_plugin.ipc.stopped import LOOK_SECONDS, StopWatch
from guided_plugin.spec import OutputSpec

START_SECONDS = 120.0
"""Time limit for the start of a process, or of a backend in it: xgrammar imports torch, which takes long on
a busy machine."""

_NO_HELPER = "set isolate_compiles to false to compile in this process"
_BROKEN = (ChannelClosedError, PipelineError)
_ENDED = (-signal.SIGKILL, -signal.SIGTERM)


class HelperLost(Exception):
    """A helper ended for a reason that seems to have nothing to do with its spec: ask another one."""

    def __init__(self, what: str, *, died_in: str = "") -> None:
        """`died_in`: `start`, `warm` or `compile`, where it died at work."""
        super().__init__(what)
        self.died_in = died_in


class Helper:
    """One helper process. It compiles after `greet`."""

    def __init__(self, greeting: Greeting) -> None:
        self._greeting = greeting
        self._warm: set[str] = set()
        self.usable = True
        """Whether it may be asked again: not after it went over a limit, died, or grew too large."""
        try:
            self.child = Child("guided_plugin.compiling.guard_process")
        except OSError as error:
            raise _cannot_start(str(error)) from error
        self._channel = Channel(self.child.sock, from_helper)
        self._stop_watch = StopWatch(self.child.pid)

    def greet(self) -> Ready:
        """Send what all compiles share; returns what is registered in the process. May raise HelperLost."""
        try:
            ready = self._ask(self._greeting, START_SECONDS)
        except TimeoutError as error:
            raise _cannot_start(str(error)) from error
        except _BROKEN as error:
            raise HelperLost(f"it ended while it started: {error}", died_in="start") from error
        if isinstance(ready, Answer) and isinstance(ready.result, GuidedError):
            raise ready.result
        if not isinstance(ready, Ready):
            raise _cannot_start("it sent something else than its greeting")
        return ready

    def warm(self, backend: str) -> None:
        """Make a backend there, unless done before. Its time and memory count for no spec. May raise
        HelperLost."""
        if backend in self._warm:
            return
        try:
            self._ask(Warm(backend), START_SECONDS)
        except TimeoutError as error:
            raise PipelineError(
                f"cannot be made in a compile process: {error}",
                where=f"backend {backend!r}",
                hint=_NO_HELPER,
            ) from error
        except _BROKEN as error:
            raise HelperLost(
                f"it ended while it made backend {backend!r}: {error}", died_in="warm"
            ) from error
        self._warm.add(backend)

    def prepare(self, backend: str, spec: OutputSpec, seconds: float, *, blame: bool = True) -> Prepared:
        """One compile. Raises its error, a limit's, or HelperLost; without `blame` that also where the
        process was ended from outside, which says nothing of the spec."""
        try:
            answer = self._ask(Compile(backend, spec), seconds)
        except TimeoutError:
            raise CompileLimitError(
                f"compiling with {backend} took longer than {seconds:.2g} s and was stopped",
                where=spec.kind,
                hint="simplify the spec, or raise compile_seconds",
            ) from None
        except _BROKEN as error:
            if not blame and self.child.exit_code(1.0) in _ENDED:
                raise HelperLost("it was ended from outside", died_in="compile") from None
            raise self._died(backend, spec, str(error)) from None
        if not isinstance(answer, Answer) or answer.result is None:
            self.usable = False
            raise self._died(backend, spec, "it sent no answer")
        self.usable = not answer.needs_restart
        if isinstance(answer.result, GuidedError):
            raise answer.result
        return answer.result

    def _ask(self, message: object, seconds: float) -> Any:
        """Send and wait. Raises HelperLost, TimeoutError or one of _BROKEN; the helper is unusable then."""
        deadline = time.monotonic() + seconds
        self.usable = False
        self._channel.send(message)
        while True:
            soon = min(deadline, time.monotonic() + LOOK_SECONDS)
            if not self._channel.drain(soon) and not self._channel.pending:
                raise HelperLost("it has ended")
            try:
                answer = self._channel.wait(soon)[0]
            except TimeoutError:
                if soon == deadline:
                    raise
                self._check_runs()
                continue
            self.usable = True
            return answer

    def _check_runs(self) -> None:
        """End a helper that something outside stopped: nothing is known to continue it."""
        if self._stop_watch.stays_stopped():
            self.child.kill()
            raise HelperLost("it was stopped from outside")

    def _died(self, backend: str, spec: OutputSpec, reason: str) -> CompileLimitError:
        """The error of a spec in whose compile the process ended, as far as the exit code tells."""
        code = self.child.exit_code(1.0)
        if code is None:
            what = f"broke its process: {reason}"
            hint = "simplify the spec, and report it to the authors of the backend"
        elif code == OUT_OF_MEMORY:
            limit = self._greeting.config.compile_bytes / 2**30
            what = f"needed more than {limit:.3g} GiB of memory"
            hint = "simplify the spec, or raise compile_bytes"
        else:
            what = f"crashed its process ({exit_reason(code)})"
            hint = "simplify the spec; if it only lacked memory, raise compile_bytes"
        return CompileLimitError(f"compiling with {backend} {what}", where=spec.kind, hint=hint)


def _cannot_start(why: str) -> PipelineError:
    return PipelineError(f"cannot start a compile process: {why}", hint=_NO_HELPER)
