"""Compiles specs in helper processes, under limits that hold whatever a compiler does. Touches frames.

A helper that goes over its time or its memory, or that crashes, is killed; its spec is refused, and the
next one gets a new helper. Helpers are started with a command line of their own, not forked: an engine
may hold threads and devices. They end when this process does, however it ends.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
import time
import weakref

from guided_plugin.config import GuidedConfig
from guided_plugin.errors import CompileLimitError, GuidedError, PipelineError
from guided_plugin.grammar.base import Prepared
from guided_plugin.grammar.chooser import Candidate, Chooser
from guided_plugin.grammar.frames import PeerGone, receive, send
from guided_plugin.grammar.guard_process import WARMING
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.spec import OutputSpec

__all__ = ["CompileGuard"]

# A helper imports torch through xgrammar, which takes seconds on a busy machine.
_START_SECONDS = 120.0


class CompileGuard:
    """A few helper processes for one vocabulary, started as they are needed."""

    def __init__(self, vocabulary: Vocabulary, config: GuidedConfig) -> None:
        self._vocabulary = vocabulary
        self._config = config
        self._changed = threading.Condition()
        self._idle: list[_Helper] = []
        self._all: set[_Helper] = set()
        self._starting = self._waiting = 0
        self._closed = False
        self._owner = os.getpid()
        _guards.add(self)

    def start(self) -> None:
        """Start the first helper in the background, so that it is there when it is needed."""
        threading.Thread(target=self._start_one, name="guided-compile-start", daemon=True).start()

    def prepare(
        self, candidate: Candidate, spec: OutputSpec, chooser: Chooser, seconds: float
    ) -> Prepared | None:
        """What a helper makes of a spec with one backend; None where it has no such backend.

        Raises the compiler's error or a limit's.
        """
        helper = self._take(seconds)
        try:
            if candidate.backend not in helper.backends:
                found = None
            else:
                spec = chooser.lowered(spec, candidate.backend, but=helper.lowerings)
                found = helper.ask(candidate, spec, seconds)
        except TimeoutError:
            self._drop(helper)
            raise CompileLimitError(
                f"compiling with {candidate.backend} took longer than {seconds:.2g} s and was stopped",
                where=spec.kind,
                hint="simplify the spec, or raise compile_seconds",
            ) from None
        except PeerGone:
            self._drop(helper)
            raise CompileLimitError(
                f"compiling with {candidate.backend} needed more than "
                f"{self._config.compile_bytes / 2**30:g} GiB of memory, or crashed",
                where=spec.kind,
                hint="simplify the spec, or raise compile_bytes",
            ) from None
        except BaseException:
            # Interrupted half-way: what the helper answers next would be taken for something else's.
            self._drop(helper)
            raise
        with self._changed:
            self._idle.append(helper)
            self._changed.notify()
        if isinstance(found, GuidedError):
            raise found
        return found

    def processes(self) -> list[int]:
        """The helpers' process ids."""
        with self._changed:
            return [helper.process.pid for helper in self._all]

    def close(self) -> None:
        """End all helpers."""
        if self._owner != os.getpid():
            return
        with self._changed:
            self._closed = True
            helpers, self._all, self._idle = self._all, set(), []
            self._changed.notify_all()
        for helper in helpers:
            helper.stop()

    # Inside

    def _take(self, seconds: float) -> _Helper:
        """An idle helper, or a new one, or the first that gets idle."""
        if self._owner != os.getpid():
            raise PipelineError(
                "this compiler was made before a fork, and its helpers belong to the other process",
                hint="make the compiler in the process that uses it",
            )
        deadline = time.monotonic() + seconds
        with self._changed:
            while True:
                if self._closed:
                    raise PipelineError("the compiler is closed")
                while self._idle:
                    helper = self._idle.pop()
                    if helper.process.poll() is None:
                        return helper
                    self._all.discard(helper)
                    helper.stop()
                # One that is being started in the background will do for one request.
                if self._starting < self._waiting + 1 and len(self._all) < self._config.compile_processes:
                    helper = _Helper()
                    self._all.add(helper)
                    break
                self._waiting += 1
                changed = self._changed.wait(deadline - time.monotonic())
                self._waiting -= 1
                if not changed:
                    raise PipelineError(
                        f"all {self._config.compile_processes} helpers were busy for {seconds:.2g} s",
                        hint="try again, or raise compile_processes",
                    )
        try:
            helper.greet(self._vocabulary, self._config)
        except BaseException:
            self._drop(helper)
            raise
        return helper

    def _start_one(self) -> None:
        with self._changed:
            if self._closed or self._all:
                return
            helper = _Helper()
            self._all.add(helper)
            self._starting += 1
        ready = True
        try:
            helper.greet(self._vocabulary, self._config)
        except GuidedError:
            # Told to the first request, which tries for itself.
            ready = False
            self._drop(helper)
        with self._changed:
            self._starting -= 1
            if ready:
                self._idle.append(helper)
            self._changed.notify_all()

    def _drop(self, helper: _Helper) -> None:
        helper.stop()
        with self._changed:
            self._all.discard(helper)
            self._changed.notify()


class _Helper:
    """One process."""

    def __init__(self) -> None:
        # A path of ours first: the child must import this very package, wherever it was found.
        package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "guided_plugin.grammar.guard_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""},
            bufsize=0,
        )
        if self.process.stdin is None or self.process.stdout is None:
            raise PipelineError("a compile process without pipes")
        self.backends: frozenset[str] = frozenset()
        self.lowerings: frozenset[str] = frozenset()
        """What it has registered: all but plugins that were registered as objects in this process."""
        self._to, self._from = self.process.stdin.fileno(), self.process.stdout.fileno()

    def greet(self, vocabulary: Vocabulary, config: GuidedConfig) -> None:
        """Send what all its compiles share, and wait until it is ready."""
        try:
            send(self._to, (vocabulary, config))
            names = receive(self._from, time.monotonic() + _START_SECONDS)
        except (PeerGone, TimeoutError) as error:
            raise PipelineError(
                f"a compile process can't be started: {error or 'it did not answer'}",
                hint="set isolate_compiles to false to compile in this process",
            ) from error
        self.backends, self.lowerings = map(frozenset, names)

    def ask(self, candidate: Candidate, spec: OutputSpec, seconds: float) -> Prepared | GuidedError:
        """One compile. Raises TimeoutError or PeerGone."""
        deadline = time.monotonic() + seconds
        send(self._to, (candidate, spec))
        answer = receive(self._from, deadline)
        if answer == WARMING:
            receive(self._from, time.monotonic() + _START_SECONDS)
            answer = receive(self._from, time.monotonic() + seconds)
        if not isinstance(answer, Prepared | GuidedError):
            raise PeerGone("no answer")
        return answer

    def stop(self) -> None:
        """Kill and forget."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


_guards: weakref.WeakSet[CompileGuard] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for guard in list(_guards):
        guard.close()
