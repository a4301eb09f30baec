"""The helper processes of one compiler: how many there are, and which spec gets one. Depends on helper.

Everything that compiles in a helper waits in one queue, first come first served, for at most as long as its
request has. A spec that turns out to be slow gives its helper up as soon as another one waits, and starts
again as one of few: slow specs never have the last helper. Helpers end when this process does.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from guided_plugin.compiling.chooser import Chooser
from guided_plugin.compiling.helper import Allowance, Helper, HelperLost, Preempted
from guided_plugin.config import GuidedConfig
from guided_plugin.errors import BusyError, GuidedError, PipelineError
from guided_plugin.grammar.base import Prepared
from guided_plugin.ipc import processors
from guided_plugin.ipc.template import Template
from guided_plugin.plugins import Plugins
from guided_plugin.spec import OutputSpec

_ATTEMPTS = 5
"""Idle helpers may have ended, or were stopped: a spec asks so many before it gives up."""

_DEATHS = 2
"""It gives up earlier where so many die while they start, or while they make a backend."""

_QUICK_SECONDS = 1.0
"""The processor time that a spec may take while others wait for its helper."""


@dataclass(slots=True, eq=False)
class _Turn:
    """One spec that wants a helper, or has one."""

    slow: bool = False


class CompilePool:
    """Helpers that a template forks when specs need them, up to `compile_processes`."""

    def __init__(self, template: Template, config: GuidedConfig, plugins: Plugins) -> None:
        self._template = template
        self._config = config
        self._plugins = plugins
        self._changed = threading.Condition()
        self._waiting: list[_Turn] = []
        self._running: list[_Turn] = []
        """Those that wait for a helper and those that have one, each in the order in which they came."""
        self._idle: list[Helper] = []
        self._all: set[Helper] = set()
        self._most_slow = max(1, min(config.compile_processes - 1, processors.count() // 2))
        self._closed = False
        self._owner = os.getpid()

    def prepare(
        self, backend: str, spec: OutputSpec, chooser: Chooser, allowed: Allowance, share: float
    ) -> Prepared | None:
        """What a helper makes of a spec with one backend; None where helpers have no such backend.

        Takes at most a share of the time allowed. Raises the backend's error or a limit's, or BusyError where
        there is no helper in time, or helpers end for reasons that have nothing to do with the spec.
        """
        if backend in self._plugins.local:
            return None
        turn = _Turn()
        deaths: Counter[str] = Counter()
        reason: HelperLost | None = None
        for _ in range(_ATTEMPTS):
            try:
                with self._helper(turn, allowed.deadline) as helper:
                    ready = helper.warm(backend)
                    if backend not in ready.backends:
                        return None
                    lowered = chooser.lowered(spec, backend, but=ready.lowerings - self._plugins.local)
                    return helper.prepare(
                        *(backend, lowered, allowed, share),
                        blame=deaths["compile"] > 0,
                        gives_way=lambda used: used > _QUICK_SECONDS and self._gives_way(turn),
                    )
            except Preempted:
                turn.slow = True
            except HelperLost as lost:
                reason = lost
                deaths[lost.died_in] += 1
                if deaths["start"] >= _DEATHS:
                    break
        raise BusyError(
            f"compile processes end before they have compiled the spec; the last one: {reason}",
            where="compiling",
            hint="try again; find what ends them on this machine, or set isolate_compiles to false",
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
            idle, self._idle = self._idle, []
            busy = self._all.difference(idle)
            self._changed.notify_all()
        for helper in busy:
            helper.process.kill()  # the thread that uses its socket closes that
        for helper in idle:
            helper.process.stop()

    @contextlib.contextmanager
    def _helper(self, turn: _Turn, deadline: float) -> Iterator[Helper]:
        """A helper, when it is the turn of a spec."""
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
                    "time is over",
                    where="compiling",
                    hint="try again, or raise compile_processes",
                )
            self._running.append(turn)
            helper = self._idle.pop() if self._idle else None
        try:
            helper = helper or self._started()
            yield helper
        except GuidedError:
            # The error of a helper that `close` killed would be blamed on the spec.
            self._check_open()
            raise
        except BaseException:
            # Interrupted half-way: the helper's answer would be taken for that of the next spec.
            if helper is not None:
                helper.usable = False
            raise
        finally:
            self._end(turn, helper)

    def _end(self, turn: _Turn, helper: Helper | None) -> None:
        with self._changed:
            keep = helper is not None and helper.usable and not self._closed
            if keep and helper is not None:
                self._idle.append(helper)
        if helper is not None and not keep:
            helper.process.stop()
        with self._changed:
            if not keep:
                self._all.discard(helper)
            self._running.remove(turn)
            self._changed.notify_all()

    def _started(self) -> Helper:
        helper = Helper(self._template, self._config)
        with self._changed:
            self._all.add(helper)
        self._check_open()
        return helper

    def _may_run(self, turn: _Turn) -> bool:
        if self._closed:
            return True
        if len(self._running) >= self._config.compile_processes:
            return False
        full = sum(one.slow for one in self._running) >= self._most_slow
        return next((one for one in self._waiting if not (one.slow and full)), None) is turn

    def _gives_way(self, turn: _Turn) -> bool:
        """Whether a spec gives up its helper, which it has had for long: it is the first of the quick ones,
        and another one waits."""
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
            raise PipelineError("the compiler is closed", hint="make another GrammarCompiler")
