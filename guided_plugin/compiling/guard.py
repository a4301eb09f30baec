"""Compiles specs in helper processes, under limits that hold for any compiler. Depends on helpers.

A helper that goes over its time or its memory, or that crashes, is ended; its spec is refused, and the
next one gets a new helper. Helpers end when this process does, however it ends.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass

from guided_plugin.compiling.chooser import Chooser
from guided_plugin.compiling.guard_process import Greeting, Ready
from guided_plugin.compiling.helper import Helper, HelperLost
from guided_plugin.config import GuidedConfig
from guided_plugin.errors import GuidedError, PipelineError
from guided_plugin.grammar.base import Prepared
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.plugins import Plugins
from guided_plugin.spec import OutputSpec

_ATTEMPTS = 5
"""Idle helpers may have ended: a request asks so many before it gives up."""


@dataclass(slots=True)
class Allowance:
    """The seconds that all backends may take together for one spec."""

    seconds: float


class CompileGuard:
    """The helper processes of one vocabulary, started as they are needed."""

    def __init__(self, vocabulary: Vocabulary, config: GuidedConfig, plugins: Plugins) -> None:
        self._config = config
        self._plugins = plugins
        self._greeting = Greeting(vocabulary, config, plugins.disabled, plugins.entry_points)
        self._changed = threading.Condition()
        self._idle: list[Helper] = []
        self._all: set[Helper] = set()
        self._count = 0
        """Helpers that run or are being started."""
        self._starting = self._waiting = 0
        """Helpers being started in the background; requests that wait for any helper."""
        self._ready: Ready | None = None
        self._closed = False
        self._owner = os.getpid()
        _guards.add(self)

    def start(self, backend: str) -> None:
        """Start the first helper in the background, and make a backend in it."""
        with self._changed:
            if self._closed or self._count:
                return
            self._count += 1
            self._starting += 1
        threading.Thread(
            target=self._start_early, args=(backend,), name="guided-compile-start", daemon=True
        ).start()

    def prepare(
        self, backend: str, spec: OutputSpec, chooser: Chooser, allowed: Allowance, share: float
    ) -> Prepared | None:
        """What a helper makes of a spec with one backend; None where helpers have no such backend.

        Takes at most a share of the time allowed. Raises the backend's error or a limit's.
        """
        if backend in self._plugins.local:
            return None
        for _ in range(_ATTEMPTS):
            with contextlib.suppress(HelperLost), self._borrowed() as helper:
                ready = self._ready
                if ready is None or backend not in ready.backends:
                    return None
                lowered = chooser.lowered(spec, backend, but=ready.lowerings - self._plugins.local)
                helper.warm(backend)
                start = time.monotonic()
                try:
                    return helper.prepare(backend, lowered, allowed.seconds * share)
                finally:
                    allowed.seconds -= time.monotonic() - start
        raise PipelineError(
            f"{_ATTEMPTS} compile processes ended before they got the spec",
            hint="find what ends them on this machine, or set isolate_compiles to false",
        )

    def processes(self) -> list[int]:
        """The helpers' process ids."""
        with self._changed:
            return [helper.child.pid for helper in self._all]

    def close(self) -> None:
        """End all helpers. A compile that is under way fails."""
        if self._owner != os.getpid():
            return
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = self._all.difference(idle)
            self._changed.notify_all()
        for helper in busy:
            helper.child.kill()  # the thread that uses its socket closes that
        for helper in idle:
            self._drop(helper)

    @contextlib.contextmanager
    def _borrowed(self) -> Iterator[Helper]:
        helper = self._take()
        try:
            yield helper
        except GuidedError:
            # The error of a helper that `close` killed would be blamed on the spec.
            self._check_open()
            raise
        except BaseException:
            # Interrupted half-way: the helper's answer would be taken for that of the next spec.
            helper.usable = False
            raise
        finally:
            self._give_back(helper)

    def _take(self) -> Helper:
        """An idle helper, a new one, or the first that becomes idle."""
        deadline = time.monotonic() + self._config.compile_seconds
        with self._changed:
            while True:
                self._check_open()
                if self._idle:
                    return self._idle.pop()
                # Each helper that is being started in the background serves one request that waits.
                if self._count < self._config.compile_processes and self._starting <= self._waiting:
                    self._count += 1
                    break
                self._wait(None if self._starting else deadline - time.monotonic())
        return self._started()

    def _wait(self, seconds: float | None) -> None:
        self._waiting += 1
        try:
            changed = self._changed.wait(seconds)
        finally:
            self._waiting -= 1
        if not changed:
            raise PipelineError(
                f"all {self._config.compile_processes} compile processes were busy for "
                f"{self._config.compile_seconds:.2g} s",
                hint="try again, or raise compile_processes",
            )

    def _started(self) -> Helper:
        """A new helper; `_count` includes it already."""
        helper = None
        try:
            helper = Helper(self._greeting)
            with self._changed:
                self._all.add(helper)
                self._check_open()
            ready = helper.greet()
        except BaseException:
            self._drop(helper)
            raise
        self._ready = ready
        return helper

    def _start_early(self, backend: str) -> None:
        helper = None
        try:
            helper = self._started()
            helper.warm(backend)
        except (GuidedError, HelperLost):
            # The first request tries again, and gets the error.
            if helper is not None:
                helper.usable = False
        finally:
            with self._changed:
                self._starting -= 1
                self._changed.notify_all()
            if helper is not None:
                self._give_back(helper)

    def _give_back(self, helper: Helper) -> None:
        with self._changed:
            if helper.usable and not self._closed:
                self._idle.append(helper)
                self._changed.notify()
                return
        self._drop(helper)

    def _drop(self, helper: Helper | None) -> None:
        if helper is not None:
            helper.child.stop()
        with self._changed:
            self._all.discard(helper)
            self._count -= 1
            self._changed.notify()

    def _check_open(self) -> None:
        if self._owner != os.getpid():
            raise PipelineError(
                "this compiler was made before a fork, and its helpers belong to the parent process",
                hint="make the compiler in the process that uses it",
            )
        if self._closed:
            raise PipelineError("the compiler is closed", hint="make another GrammarCompiler")


_guards: weakref.WeakSet[CompileGuard] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for guard in list(_guards):
        guard.close()
