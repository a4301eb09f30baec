"""A compile helper: a process that a template forks, for one spec at a time.

Everything that happens here is an answer: an error, or the way in which this process
ends.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import resource
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from guided_plugin.compiling.chooser import Chooser
from guided_plugin.errors import (
    ERRORS,
    CompileLimitError,
    GuidedError,
    PluginError,
    rebuild,
)
from guided_plugin.grammar.base import Prepared
from guided_plugin.ipc import processors
from guided_plugin.ipc.channel import Channel, ChannelClosedError, plain_decoder
from guided_plugin.ipc.spawn import die_first
from guided_plugin.spec import OutputSpec, unpacked

OUT_OF_MEMORY = 75
"""The exit code of a helper whose compile reached the memory limit."""


@dataclass(frozen=True, slots=True)
class Compile:
    """Pool: prepare a spec."""

    backend: str
    spec: OutputSpec


@dataclass(frozen=True, slots=True)
class Ready:
    """Helper, first: it has made the backend. What follows is under the limits of the
    spec."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Helper, last: the result of a `Compile`; or why it serves none."""

    result: Prepared | GuidedError
    needs_restart: bool = False
    """Much memory was not given back: the next spec should get a fresh process."""


from_helper = plain_decoder((Ready, Answer, Prepared, *ERRORS), (rebuild, unpacked))
"""Reads a message of a helper, which may be broken."""


def main(built: Chooser | GuidedError, control: int, descriptor: int) -> int:
    """Serve the pool at the other end of a socket until it hangs up."""
    os.close(control)
    die_first()
    processors.give_way()
    channel = Channel(socket.socket(fileno=descriptor))
    if isinstance(built, GuidedError):
        channel.send(Answer(built))
        channel.drain()
        return 1
    helper = _Helper(built)
    while channel.drain():
        try:
            (message,) = channel.wait()
        except ChannelClosedError:
            break
        helper.warm(message.backend)
        channel.send(Ready())
        answer = helper.compile(message)
        try:
            channel.send(answer)
        except Exception as error:  # whatever pickling raises for what a backend made
            what = f"its answer cannot be sent to another process: {error!r}"
            channel.send(
                Answer(PluginError(what, where=f"backend {message.backend!r}"))
            )
    return 0


class _Helper:
    """The backends of this process, and its memory limit: on what it may write to,
    beyond what its libraries and vocabulary take."""

    def __init__(self, chooser: Chooser) -> None:
        self._chooser = chooser
        self._allowed = chooser.config.compile_bytes
        self._warm: set[str] = set()
        """Backends that are there."""
        self._settled = 0
        """In use before any compile."""

    def warm(self, backend: str) -> None:
        """Make a backend, with a first compile: it makes what later ones share."""
        if backend in self._warm:
            return
        with contextlib.suppress(GuidedError):
            self._chooser.compile(backend, OutputSpec.choice(["a"]))
        self._warm.add(backend)
        self._settled = _data_bytes()

    def compile(self, message: Compile) -> Answer:
        """Prepare a spec within the memory limit."""
        _limit(self._allowed, self._chooser.config.compile_seconds)
        result = self._prepared(message.backend, message.spec)
        # Compiles may have left so much behind that the limit of the next ones would
        # drift.
        return Answer(result, _data_bytes() - self._settled > self._allowed // 2)

    def _prepared(self, backend: str, spec: OutputSpec) -> Prepared | GuidedError:
        try:
            return self._chooser.prepare(backend, spec)
        except GuidedError as error:
            return error
        except MemoryError:
            os._exit(OUT_OF_MEMORY)
        except RecursionError:
            return CompileLimitError(
                f"is nested too deep for {backend}", where=spec.kind, hint="flatten it"
            )


def _limit(allowed: int, seconds: float) -> None:
    """For one compile. Reserved addresses don't count, so threads and arenas use
    nothing of it. The pool sees to the time; the kernel does where the process of the
    pool has ended."""
    ends = math.ceil(time.process_time() + seconds) + 1
    for kind, limit in (
        (resource.RLIMIT_DATA, _data_bytes() + allowed),
        (resource.RLIMIT_CPU, ends),
    ):
        _, hard = resource.getrlimit(kind)
        least = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (least, hard))
    # a crash is an answer here: no core file
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _data_bytes() -> int:
    """Writable private memory, as the kernel counts it against RLIMIT_DATA."""
    [line] = re.findall(r"VmData:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(line) * 1024
