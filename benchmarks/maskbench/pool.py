"""Child processes that measure one file each, killed when one takes too long, replaced
when one dies."""

from __future__ import annotations

import pickle
import signal
import tempfile
import time
from collections.abc import Generator, Mapping
from multiprocessing.connection import wait
from pathlib import Path
from typing import cast

from benchmarks.maskbench.child import Ready, Settings
from benchmarks.maskbench.result import FileResult
from guided_plugin.errors import GuidedError, PipelineError
from guided_plugin.ipc.channel import Channel, ChannelClosedError
from guided_plugin.ipc.spawn import Child, exit_reason

_START_SECONDS = 300.0
_TRACEBACK = "Traceback (most recent call last):"
_EXIT_SECONDS = 10.0
_ERROR_CHARACTERS = 300


class Pool:
    """Measures files in up to `jobs` children."""

    def __init__(self, settings: Settings, jobs: int) -> None:
        self._settings = settings
        self._jobs = jobs
        self._children: list[_Child] = []
        self.ready: Ready | None = None
        """The first message of the last child that started."""

    def run(self, files: Mapping[str, Path]) -> Generator[FileResult, None, None]:
        """The result of each file, as they come. Closing the generator ends the
        children."""
        waiting = list(files.items())[::-1]
        with tempfile.NamedTemporaryFile(prefix="maskbench-") as settings:
            settings.write(pickle.dumps(self._settings))
            settings.flush()
            try:
                while waiting or self._children:
                    while waiting and len(self._children) < self._jobs:
                        self._children.append(_Child(self._settings, settings.name))
                    for child in self._heard_or_late():
                        result = child.news()
                        self.ready = child.ready or self.ready
                        if child.idle and waiting:
                            child.give(*waiting.pop())
                        elif child.idle or child.dead:
                            self._children.remove(child)
                            child.stop()
                        if result is not None:
                            yield result
            finally:
                while self._children:
                    self._children.pop().stop()

    def _heard_or_late(self) -> list[_Child]:
        """The children that have sent something or ended, and those whose time is
        over."""
        first = min(child.deadline for child in self._children)
        heard = wait(
            [child.channel.sock for child in self._children],
            max(0.0, first - time.monotonic()),
        )
        now = time.monotonic()
        return [
            child
            for child in self._children
            if child.channel.sock in heard or child.deadline <= now
        ]


class _Child:
    """One child process and the file that it has."""

    def __init__(self, settings: Settings, settings_file: str) -> None:
        self.ready: Ready | None = None
        self.dead = False
        self._name: str | None = None
        self.deadline = time.monotonic() + _START_SECONDS
        self._settings = settings
        self._stage = "starting"
        self._started = time.monotonic()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self._child = Child(
                "benchmarks.maskbench.child", settings_file, stderr=self._errors
            )
        except OSError as error:
            self._errors.close()
            raise _cannot_measure(
                settings, f"cannot start a measuring process: {error}"
            ) from error
        self.channel = Channel(self._child.sock)

    @property
    def idle(self) -> bool:
        """Whether it waits for a file."""
        return self.ready is not None and self._name is None and not self.dead

    def give(self, name: str, path: Path) -> None:
        """Let it measure a file."""
        self._name = name
        self._stage = "reading"
        self._started = time.monotonic()
        self.deadline = self._started + self._settings.limit
        # What it wrote so far belongs to earlier files.
        self._errors.seek(0)
        self._errors.truncate()
        self.channel.send(path)

    def news(self) -> FileResult | None:
        """The result of its file, if there is one now."""
        try:
            messages = self.channel.receive()
        except (ChannelClosedError, PipelineError):
            return self._died(self._crash())
        for message in messages:
            if isinstance(message, str):
                self._stage = message
            elif isinstance(message, GuidedError):
                raise message
            elif isinstance(message, Ready):
                self.ready = message
                return None
            else:
                result = cast("FileResult", message)
                result.name = cast("str", self._name)
                self._name = None
                return result
        late = time.monotonic() >= self.deadline
        return (
            self._died(f"killed after {self._seconds():.0f} s, {self._stage}")
            if late
            else None
        )

    def stop(self) -> None:
        """Kill it, whatever it does, and leave nothing behind."""
        self._child.stop()
        self._errors.close()

    def _seconds(self) -> float:
        return time.monotonic() - self._started

    def _died(self, error: str) -> FileResult:
        self.dead = True
        if self._name is None:
            raise _cannot_measure(self._settings, f"a measuring process died: {error}")
        return FileResult(
            self._name, "died", error[:_ERROR_CHARACTERS], self._seconds()
        )

    def _crash(self) -> str:
        """What it died of: a signal, or the last line that it wrote."""
        code = self._child.exit_code(_EXIT_SECONDS)
        if code is None:
            return f"stopped answering, {self._stage}"
        cause = exit_reason(code) + (
            " (out of memory?)" if code == -signal.SIGKILL else ""
        )
        self._errors.seek(0)
        said = _last_words(self._errors.read().decode(errors="replace"))
        return f"{cause}, {self._stage}" + (f": {said}" if said else "")


def _cannot_measure(settings: Settings, what: str) -> GuidedError:
    return GuidedError(
        what,
        where=f"backend {settings.backend}",
        hint="nothing can be measured without such a process",
    )


def _last_words(text: str) -> str:
    """The exception of a traceback; without one, the last line. Libraries may add to
    either when they go."""
    lines = text.strip().splitlines()
    if _TRACEBACK not in lines:
        return lines[-1] if lines else ""
    raised = lines[len(lines) - lines[::-1].index(_TRACEBACK) :]
    return next((line for line in raised if not line.startswith(" ")), "")
