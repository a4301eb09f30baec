"""Child processes that measure one file each, killed when one takes too long, replaced when one dies."""

from __future__ import annotations

import contextlib
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping
from multiprocessing.connection import Pipe, wait
from pathlib import Path
from typing import cast

from guided_plugin.bench.maskbench_child import Ready, Settings
from guided_plugin.bench.maskbench_result import FileResult
from guided_plugin.errors import GuidedError

__all__ = ["Pool"]

_START_SECONDS = 300.0
_CODE = """
import pathlib, sys
from guided_plugin.bench.maskbench_child import main
main(int(sys.argv[1]), pathlib.Path(sys.argv[2]))
"""
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
        """What the last child that came up said of itself."""

    def run(self, files: Mapping[str, Path]) -> Generator[FileResult, None, None]:
        """The result of each file, as they come. Close it, and no child is left."""
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
        """The children that have something to say, and those whose time is over."""
        first = min(child.deadline for child in self._children)
        heard = wait([child.connection for child in self._children], max(0.0, first - time.monotonic()))
        now = time.monotonic()
        return [child for child in self._children if child.connection in heard or child.deadline <= now]


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
        self.connection, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _CODE, str(theirs.fileno()), settings_file],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                # Ctrl-C on the terminal is for the parent alone.
                start_new_session=True,
            )

    @property
    def idle(self) -> bool:
        """Whether it waits for a file."""
        return self.ready is not None and self._name is None and not self.dead

    def give(self, name: str, path: Path) -> None:
        """Let it measure a file."""
        self._name, self._stage = name, "reading"
        self._started = time.monotonic()
        self.deadline = self._started + self._settings.limit
        # What it said so far belongs to earlier files.
        self._errors.seek(0)
        self._errors.truncate()
        with contextlib.suppress(OSError):  # it died; that is read as the end of what it says
            self.connection.send(path)

    def news(self) -> FileResult | None:
        """What became of its file, if this is known now."""
        try:
            while self.connection.poll():
                message = self.connection.recv()
                if isinstance(message, str):
                    self._stage = message
                elif isinstance(message, GuidedError):
                    raise message
                elif isinstance(message, Ready):
                    self.ready = message
                    return None
                else:
                    result = cast("FileResult", message)
                    result.name, self._name = cast("str", self._name), None
                    return result
        except (EOFError, OSError):
            return self._died(self._crash())
        late = time.monotonic() - self.deadline >= 0
        return self._died(f"killed after {self._seconds():.0f} s, {self._stage}") if late else None

    def stop(self) -> None:
        """Kill it, whatever it does, and leave nothing behind."""
        self._process.kill()
        self._process.wait()
        self.connection.close()
        self._errors.close()

    def _seconds(self) -> float:
        return time.monotonic() - self._started

    def _died(self, error: str) -> FileResult:
        self.dead = True
        if self._name is None:
            raise GuidedError(
                f"a measuring process died: {error}",
                where=f"backend {self._settings.backend}",
                hint="nothing can be measured without one",
            )
        return FileResult(self._name, "died", error[:_ERROR_CHARACTERS], self._seconds())

    def _crash(self) -> str:
        """What it died of: a signal, or the last line that it wrote."""
        try:
            code = self._process.wait(timeout=_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            return f"stopped answering, {self._stage}"
        cause = _signal_name(-code) if code < 0 else f"exit code {code}"
        self._errors.seek(0)
        said = _last_words(self._errors.read().decode(errors="replace"))
        return f"{cause}, {self._stage}" + (f": {said}" if said else "")


def _last_words(text: str) -> str:
    """The exception of a traceback; without one, the last line. Libraries may add to either when they go."""
    lines = text.strip().splitlines()
    if _TRACEBACK not in lines:
        return lines[-1] if lines else ""
    raised = lines[len(lines) - lines[::-1].index(_TRACEBACK) :]
    return next((line for line in raised if not line.startswith(" ")), "")


def _signal_name(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return f"{name} (out of memory?)" if name == "SIGKILL" else name
