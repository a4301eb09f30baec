"""A helper of the compile guard: one process, one request at a time. Started by helper.py.

Whatever happens here is an answer: an error, or the way in which this process ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import signal
import sys
import threading
from dataclasses import dataclass
from typing import Any

from guided_plugin import errors
from guided_plugin.compiling.chooser import Candidate, Chooser
from guided_plugin.config import GuidedConfig
from guided_plugin.errors import CompileLimitError, GuidedError, PluginError
from guided_plugin.grammar.base import Prepared
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.ipc.frames import PeerGone, pack, receive, send
from guided_plugin.plugins import Plugins
from guided_plugin.spec import OutputSpec

__all__ = ["OUT_OF_MEMORY", "Answer", "Compile", "Greeting", "Ready", "Warm", "main"]

OUT_OF_MEMORY = 75
"""The exit code that says so."""

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Greeting:
    """Guard: what all compiles share."""

    vocabulary: Vocabulary
    config: GuidedConfig
    disabled_plugins: frozenset[str]
    entry_points: bool


@dataclass(frozen=True, slots=True)
class Ready:
    """Helper: what is registered here."""

    backends: frozenset[str]
    lowerings: frozenset[str]


@dataclass(frozen=True, slots=True)
class Warm:
    """Guard: get a backend ready. No spec's fault if that fails, and not under the limits of one."""

    backend: str


@dataclass(frozen=True, slots=True)
class Compile:
    """Guard: prepare a spec."""

    candidate: Candidate
    spec: OutputSpec


@dataclass(frozen=True, slots=True)
class Answer:
    """Helper: what became of it."""

    result: Prepared | GuidedError | None
    needs_restart: bool = False
    """Much memory was not given back: the next spec should get a fresh process."""


def main() -> None:
    """Serve until the other end of standard input closes."""
    with contextlib.suppress(PeerGone):
        _serve(int(sys.argv[1]))


def _serve(parent: int) -> None:
    _end_with(parent)
    # What libraries print must not get between the frames.
    answers = os.dup(1)
    os.dup2(2, 1)
    messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(messages,), daemon=True).start()
    try:
        helper = _Helper(messages.get())
    except GuidedError as error:
        send(answers, pack(Answer(_plain(error))))
        return
    send(answers, pack(helper.ready()))
    while True:
        send(answers, helper.answer(messages.get()))


def _end_with(parent: int) -> None:
    """Have the kernel end this process when the parent does, even while a library holds the GIL."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the kernel was told
        os._exit(0)
    # Should the machine run out of memory all the same: this one first, not the engine.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:
        score.write("1000")


def _listen(messages: queue.SimpleQueue[Any]) -> None:
    """Hand on what arrives, and end with the parent where the kernel can't be told to."""
    while True:
        try:
            messages.put(receive(0))
        except PeerGone:
            os._exit(0)


class _Helper:
    """The backends of this process, and its memory limit."""

    def __init__(self, greeting: Greeting) -> None:
        plugins = Plugins(disabled=greeting.disabled_plugins, entry_points=greeting.entry_points)
        self._chooser = Chooser(greeting.vocabulary, greeting.config, plugins)
        self._memory = _Memory(greeting.config.compile_bytes)

    def ready(self) -> Ready:
        plugins = self._chooser.plugins
        return Ready(frozenset(plugins.backends), frozenset(plugins.lowerings))

    def answer(self, message: Warm | Compile) -> bytes:
        """The frame to send back."""
        if isinstance(message, Warm):
            # A first compile makes what later ones share; importing xgrammar alone takes seconds.
            with contextlib.suppress(GuidedError):
                self._chooser.compile(Candidate(message.backend, ""), OutputSpec.choice(["a"]))
            self._memory.settle()
            return pack(Answer(None))
        self._memory.limit()
        result = self._prepared(message.candidate, message.spec)
        try:
            return pack(Answer(result, self._memory.needs_restart()))
        except Exception as error:
            what = f"its answer can't be sent to another process: {error!r}"
            return pack(Answer(PluginError(what, where=f"backend {message.candidate.backend!r}")))

    def _prepared(self, candidate: Candidate, spec: OutputSpec) -> Prepared | GuidedError:
        where = f"backend {candidate.backend!r}"
        try:
            made = self._chooser.prepare(candidate, spec)
        except GuidedError as error:
            return _plain(error)
        except MemoryError:
            os._exit(OUT_OF_MEMORY)
        except RecursionError:
            return CompileLimitError(
                f"is nested too deep for {candidate.backend}",
                where=spec.kind,
                hint="flatten it",
            )
        except Exception as error:
            return PluginError(f"failed: {error!r}", where=where)
        if not isinstance(made, Prepared):
            return PluginError(f"prepare() returned {type(made).__name__}, not Prepared", where=where)
        return made


def _plain(error: GuidedError) -> GuidedError:
    """The error as one of the package's own: a plugin's subclass may not survive being sent."""
    ours = (kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
    kind: type[GuidedError] = next(ours)
    return kind(error.what, where=error.where, hint=error.hint)


class _Memory:
    """The limit of what this process may write to, beyond what its libraries and vocabulary take."""

    def __init__(self, allowed: int) -> None:
        self._allowed = allowed
        self._settled = _data_bytes()

    def settle(self) -> None:
        """What is in use now is no compile's."""
        self._settled = _data_bytes()

    def limit(self) -> None:
        """For one compile. Reserved addresses don't count, so threads and arenas cost nothing."""
        if not sys.platform.startswith("linux"):
            return
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = _data_bytes() + self._allowed
        resource.setrlimit(
            resource.RLIMIT_DATA, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard)
        )
        # A crash is an answer here; nobody wants its core.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def needs_restart(self) -> bool:
        """Whether compiles have left so much behind that limits would drift."""
        return _data_bytes() - self._settled > self._allowed // 2


def _data_bytes() -> int:
    """Writable private memory, as the kernel counts it against RLIMIT_DATA; 0 where it doesn't say."""
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("VmData:"):
                return int(line.split()[1]) * 1024
    return 0
