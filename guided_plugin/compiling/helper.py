"""The guard's side of one helper process: starting it, asking it, ending it. Touches frames and messages.

Not thread-safe: whoever took a helper out of the guard's list is the only one to use it. `kill` alone may
come from any thread.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future

from guided_plugin.compiling.chooser import Candidate
from guided_plugin.compiling.guard_process import OUT_OF_MEMORY, Answer, Compile, Greeting, Ready, Warm
from guided_plugin.errors import CompileLimitError, GuidedError, PipelineError, PluginError
from guided_plugin.grammar.base import Prepared
from guided_plugin.ipc import processors
from guided_plugin.ipc.frames import PeerGone, pack, receive, send
from guided_plugin.spec import OutputSpec

__all__ = ["Helper", "HelperLost", "Starter"]

START_SECONDS = 120.0
"""To start a process, or a backend in it: xgrammar imports torch, which takes long on a busy machine."""

# By name, not with -m: what it sends must belong to a module that both sides import.
_CODE = "from guided_plugin.compiling.guard_process import main; main()"
_NO_HELPER = "set isolate_compiles to false to compile in this process"


class HelperLost(Exception):
    """A helper was gone before it got to see the spec: ask another one."""


class Helper:
    """One process that is up and has its vocabulary."""

    def __init__(self, process: subprocess.Popen[bytes], greeting: Greeting) -> None:
        if process.stdin is None or process.stdout is None:
            raise PipelineError("a compile process without pipes")
        self._process = process
        self._to, self._from = process.stdin.fileno(), process.stdout.fileno()
        self._warm: set[str] = set()
        self._limits = greeting.config
        self.usable = True
        """Whether it may be asked again: not after it went over a limit, died, or grew too large."""
        self.pid = process.pid
        os.set_blocking(self._to, False)

    def greet(self, greeting: Greeting) -> Ready:
        """Send what all compiles share; what the process says it has."""
        try:
            ready = self._ask(pack(greeting), time.monotonic() + START_SECONDS)
        except HelperLost as lost:
            raise _cannot_start(str(lost)) from lost
        except (PeerGone, TimeoutError) as error:
            raise _cannot_start(str(error) or "it did not answer") from error
        if isinstance(ready, Answer) and isinstance(ready.result, GuidedError):
            raise ready.result
        if not isinstance(ready, Ready):
            raise _cannot_start("it did not greet back")
        return ready

    def warm(self, backend: str) -> None:
        """Have a backend made, if it isn't yet. Neither its time nor its memory is a spec's."""
        if backend in self._warm:
            return
        try:
            self._ask(pack(Warm(backend)), time.monotonic() + START_SECONDS)
        except (PeerGone, TimeoutError) as error:
            raise PluginError(
                f"can't be made in a compile process: {str(error) or 'it took too long'}",
                where=f"backend {backend!r}",
                hint=_NO_HELPER,
            ) from error
        self._warm.add(backend)

    def prepare(self, candidate: Candidate, spec: OutputSpec, seconds: float) -> Prepared:
        """One compile. Raises its error, or a limit's, or HelperLost."""
        try:
            answer = self._ask(pack(Compile(candidate, spec)), time.monotonic() + seconds)
        except TimeoutError:
            raise CompileLimitError(
                f"compiling with {candidate.backend} took longer than {seconds:.2g} s and was stopped",
                where=spec.kind,
                hint="simplify the spec, or raise compile_seconds",
            ) from None
        except PeerGone as error:
            raise self._died(candidate, spec, str(error)) from None
        if not isinstance(answer, Answer) or answer.result is None:
            self.usable = False
            raise self._died(candidate, spec, "no answer")
        self.usable = not answer.needs_restart
        if isinstance(answer.result, GuidedError):
            raise answer.result
        return answer.result

    def _ask(self, frame: bytes, deadline: float) -> object:
        """Send and wait. Raises HelperLost, PeerGone or TimeoutError; the helper is of no use then."""
        self.usable = False
        try:
            send(self._to, frame, deadline)
        except PeerGone as error:
            raise HelperLost(str(error)) from error
        answer = receive(self._from, deadline)
        self.usable = True
        return answer

    def _died(self, candidate: Candidate, spec: OutputSpec, reason: str) -> CompileLimitError:
        """The error of a spec in whose compile the process ended, as far as its end tells."""
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            # It closed its pipe, or wrote what no answer is, and runs on.
            return CompileLimitError(
                f"compiling with {candidate.backend} broke its process: {reason}",
                where=spec.kind,
                hint="simplify the spec, and report it to the authors of the backend",
            )
        if code == OUT_OF_MEMORY:
            return CompileLimitError(
                f"compiling with {candidate.backend} needed more than "
                f"{self._limits.compile_bytes / 2**30:.3g} GiB of memory",
                where=spec.kind,
                hint="simplify the spec, or raise compile_bytes",
            )
        return CompileLimitError(
            f"compiling with {candidate.backend} crashed its process ({_how(code)})",
            where=spec.kind,
            hint="simplify the spec; if it only lacked memory, raise compile_bytes",
        )

    def kill(self) -> None:
        """End the process, now; who waits for its answer hears of it."""
        self._process.kill()

    def stop(self) -> None:
        """End the process and give everything back."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class Starter:
    """Starts processes, all from one thread that lasts: the kernel ends each with the thread it came from."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: queue.SimpleQueue[Future[subprocess.Popen[bytes]] | None] = queue.SimpleQueue()
        self._running = self._closed = False

    def start(self) -> subprocess.Popen[bytes]:
        """A new process."""
        process: Future[subprocess.Popen[bytes]] = Future()
        try:
            self._ask(process)
            return process.result(START_SECONDS)
        except (OSError, RuntimeError, TimeoutError) as error:
            raise _cannot_start(repr(error)) from error

    def _ask(self, process: Future[subprocess.Popen[bytes]]) -> None:
        with self._lock:
            if self._closed:
                raise RuntimeError("the compiler is closed")
            if not self._running:
                threading.Thread(
                    target=_start_as_asked, args=(self._asked,), name="guided-helpers", daemon=True
                ).start()
                self._running = True
            self._asked.put(process)

    def close(self) -> None:
        """Start no more, and end those that are left."""
        with self._lock:
            self._closed = True
            self._asked.put(None)


def _start_as_asked(asked: queue.SimpleQueue[Future[subprocess.Popen[bytes]] | None]) -> None:
    while (process := asked.get()) is not None:
        try:
            process.set_result(_popen())
        except Exception as error:
            process.set_exception(error)


def _popen() -> subprocess.Popen[bytes]:
    if not sys.executable:
        raise OSError("sys.executable doesn't say where the Python interpreter is")
    # The same modules as here, in the same order, and none from a working directory.
    path = [entry or os.getcwd() for entry in sys.path if isinstance(entry, str) and os.pathsep not in entry]
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _CODE, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "CUDA_VISIBLE_DEVICES": ""},
        bufsize=0,
        # A key pressed in the host's terminal is no crash of a compile.
        start_new_session=True,
    )
    processors.release(process.pid)
    return process


def _cannot_start(why: str) -> PipelineError:
    return PipelineError(f"a compile process can't be started: {why}", hint=_NO_HELPER)


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"
