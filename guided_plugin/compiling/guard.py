"""Compiles specs in helper processes, under limits that hold for any compiler. Depends on helpers.

A helper that goes over its time or its memory, or that crashes, is ended; its spec is refused, and the
next one gets a new helper. Slow specs leave helpers for quick ones (lanes.py). Helpers end when this process
does, however it ends.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from guided_plugin.compiling.chooser import Chooser
from guided_plugin.compiling.guard_process import Greeting, Ready
from guided_plugin.compiling.helper import Helper, HelperLost
from guided_plugin.compiling.lanes import Lanes, Turn
from guided_plugin.compiling.limits import is_heavy
from guided_plugin.config import GuidedConfig
from guided_plugin.errors import BusyError, CompileLimitError, GuidedError, PipelineError
from guided_plugin.grammar.base import Prepared
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.ipc import processors
from guided_plugin.plugins import Plugins
from guided_plugin.spec import OutputSpec

_ATTEMPTS = 5
"""Idle helpers may have ended, or were stopped: a request asks so many before it gives up."""

_DEATHS = 2
"""It gives up earlier where so many die while they start, or while they make a backend."""

_LOOK_SECONDS = 0.1
"""How often a spec that waits looks whether it keeps waiting for a slow one."""


_BURST_SECONDS = 0.25
"""A spec waits this long for a helper that is busy before another one is started: most specs take less time
than that start."""


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
        self._lanes = Lanes(config.compile_processes, processors.count())
        self._busy: dict[Turn, Helper] = {}
        self._all: set[Helper] = set()
        self._count = 0
        """Helpers that run or are being started."""
        self._starting = self._waiting = 0
        """Helpers being started in the background; requests that wait for any helper."""
        self._ready: Ready | None = None
        self._closed = False
        self._owner = os.getpid()
        _guards.add(self)

    def start(self, backends: Sequence[str], helpers: int = 1) -> None:
        """Start helpers in the background until there are so many, and make backends in each of them."""
        with self._changed:
            missing = 0 if self._closed else max(0, helpers - self._count)
            self._count += missing
            self._starting += missing
        for _ in range(missing):
            threading.Thread(
                target=self._start_early, args=(backends,), name="guided-compile-start", daemon=True
            ).start()

    @property
    def starts_first(self) -> bool:
        """Whether the first helper is being started: until then no spec can compile in one."""
        return self._ready is None and self._count > 0

    def wait_started(self) -> None:
        """Wait until no helper is being started in the background."""
        with self._changed:
            self._changed.wait_for(lambda: not self._starting)

    def prepare(
        self, backend: str, spec: OutputSpec, chooser: Chooser, allowed: Allowance, share: float
    ) -> Prepared | None:
        """What a helper makes of a spec with one backend; None where helpers have no such backend.

        Takes at most a share of the time allowed. Raises the backend's error or a limit's, or BusyError where
        helpers end for reasons that have nothing to do with the spec.
        """
        if backend in self._plugins.local:
            return None
        turn = Turn(is_heavy(spec, backend))
        deaths: Counter[str] = Counter()
        reason: HelperLost | None = None
        for _ in range(_ATTEMPTS):
            try:
                with self._borrowed(turn) as helper:
                    ready = self._ready
                    if ready is None or backend not in ready.backends:
                        return None
                    lowered = chooser.lowered(spec, backend, but=ready.lowerings - self._plugins.local)
                    helper.warm(backend)
                    with _timed(turn, allowed):
                        seconds, blame = allowed.seconds * share, deaths["compile"] > 0
                        return helper.prepare(backend, lowered, seconds, blame=blame)
            except HelperLost as lost:
                reason = lost
            if turn.preempted:
                turn = Turn(heavy=True)
                continue
            deaths[reason.died_in] += 1
            if max(deaths["start"], deaths["warm"]) >= _DEATHS:
                break
        raise BusyError(
            f"compile processes end before they have compiled the spec; the last one: {reason}",
            where="compiling",
            hint="try again; find what ends them on this machine, or set isolate_compiles to false",
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
    def _borrowed(self, turn: Turn) -> Iterator[Helper]:
        helper = self._take(turn)
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
            with self._changed:
                self._busy.pop(turn, None)
                self._lanes.end(turn)
            if turn.preempted:
                helper.usable = False
            self._give_back(helper)

    def _take(self, turn: Turn) -> Helper:
        """An idle helper, a new one, or the first that becomes idle, when it is the turn of a spec."""
        with self._changed:
            try:
                with self._lanes.queued(turn):
                    helper = self._idle_or_none(turn)
            finally:
                self._changed.notify_all()
        if helper is None:
            try:
                helper = self._started()
            except BaseException:
                with self._changed:
                    self._lanes.end(turn)
                raise
        with self._changed:
            self._busy[turn] = helper
        return helper

    def _idle_or_none(self, turn: Turn) -> Helper | None:
        """Wait for an idle helper, or until another one may be started: None, and it is counted."""
        start = time.monotonic()
        deadline, patient = start + self._config.compile_seconds, start + _BURST_SECONDS
        while True:
            self._check_open()
            # Each helper that is being started in the background serves one request that waits.
            room = self._count < self._config.compile_processes and self._starting <= self._waiting
            room = room and (self._count == 0 or time.monotonic() >= patient)
            if self._lanes.may_run(turn) and (self._idle or room):
                self._lanes.begin(turn)
                if self._idle:
                    return self._idle.pop()
                self._count += 1
                return None
            self._wait(deadline)

    def _wait(self, deadline: float) -> None:
        self._waiting += 1
        try:
            self._changed.wait(_LOOK_SECONDS)
        finally:
            self._waiting -= 1
        if not self._starting and time.monotonic() >= deadline:
            raise BusyError(
                f"all {self._config.compile_processes} compile processes were busy for "
                f"{self._config.compile_seconds:.2g} s",
                where="compiling",
                hint="try again, or raise compile_processes",
            )
        late = self._lanes.overdue()
        if late is not None and not late.preempted and late in self._busy:
            late.preempted = True
            self._busy[late].child.kill()

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

    def _start_early(self, backends: Sequence[str]) -> None:
        helper = None
        try:
            helper = self._started()
            for backend in backends:
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
                self._changed.notify_all()
                return
        self._drop(helper)

    def _drop(self, helper: Helper | None) -> None:
        if helper is not None:
            helper.child.stop()
        with self._changed:
            self._all.discard(helper)
            self._count -= 1
            self._changed.notify_all()

    def _check_open(self) -> None:
        if self._owner != os.getpid():
            raise PipelineError(
                "this compiler was made before a fork, and its helpers belong to the parent process",
                hint="make the compiler in the process that uses it",
            )
        if self._closed:
            raise PipelineError("the compiler is closed", hint="make another GrammarCompiler")


@contextlib.contextmanager
def _timed(turn: Turn, allowed: Allowance) -> Iterator[None]:
    """One compile: what it took is no longer allowed if it fails."""
    turn.since = start = time.monotonic()
    try:
        yield
    except GuidedError as error:
        if turn.preempted and isinstance(error, CompileLimitError):
            raise HelperLost("quick specs waited for it") from None
        allowed.seconds -= time.monotonic() - start
        raise


_guards: weakref.WeakSet[CompileGuard] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for guard in list(_guards):
        guard.close()
