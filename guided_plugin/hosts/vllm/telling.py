"""What operators are told: the log, and metrics where a collector listens. What the
`Listener` counts, `figures` shows."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from guided_plugin._version import __version__
from guided_plugin.config import GuidedConfig
from guided_plugin.errors import GuidedError, printable

_log = logging.getLogger("guided_plugin.requests")


class Listener:
    """Counts what happens; this one counts failures alone. Called from any thread, but
    for `on_loop`."""

    failures = 0
    """Requests that failed while they ran."""

    def admitted(self, backend: str, unenforced: Iterable[str] = ()) -> None:
        """A request goes to the engine. `unenforced`: keywords in it that nothing
        enforces."""

    def refused(self, reason: str, outcome: str) -> None:
        """A request got an error instead: `refused`, or `busy` where nothing was wrong
        with it."""

    def left(self) -> None:
        """A request is left to vLLM's own structured output."""

    def compiled(self, backend: str, seconds: float) -> None:
        """A new spec was admitted."""

    def failed(self) -> None:
        """A request failed while it ran."""
        self.failures += 1

    def on_loop(self, engine: Any) -> None:
        """A guided request comes to an AsyncLLM, on its event loop."""


listener = Listener()
"""Of this process: vLLM's metrics where it has some (`figures`)."""


def left(request_id: Any) -> None:
    """A request is left to vLLM's own structured output: a line in the log, and
    counted."""
    _log.info(
        "request %s: left to vLLM's own structured output", printable(request_id, 200)
    )
    listener.left()


def adopt_handlers() -> None:
    """Write log lines as vLLM does, with time and level, where the program has not set
    up logging itself."""
    ours = logging.getLogger("guided_plugin")
    theirs = logging.getLogger("vllm")
    if ours.handlers or logging.getLogger().handlers:
        return
    for handler in theirs.handlers:
        ours.addHandler(handler)
    if theirs.handlers and ours.level == logging.NOTSET:
        ours.setLevel(theirs.level)


def frontend_line(
    options: GuidedConfig, error: GuidedError | None, backends: Collection[str]
) -> str:
    """Of a process that takes requests. `error`: why nothing is guided, if nothing
    is."""
    take_over = f"take_over {'on' if options.take_over else 'off'}"
    if error is not None:
        return (
            f"guided_plugin {__version__} is off in this frontend: {error}; {take_over}"
        )
    return (
        f"guided_plugin {__version__} is on in this frontend: {take_over}, "
        f"JSON {options.whitespace} and {'strict' if options.strict else 'open'}, "
        f"backend {options.backend}"
        + (f" of {_versions(backends)}" if backends else "")
    )


def engine_line(
    options: GuidedConfig,
    error: GuidedError | None,
    mode: str,
    requests: int,
    drafts: int = 0,
) -> str:
    """Of a process that runs an engine. `drafts`: so many are verified at a time."""
    if error is not None:
        return f"guided_plugin {__version__} is off in this engine: {error}"
    return (
        f"guided_plugin {__version__} is on in this engine: mode {mode} ({options.mode} is set), "
        f"at most {options.thread_count()} threads, {requests} requests{_jump(options, mode, drafts)}"
    )


def _jump(options: GuidedConfig, mode: str, drafts: int) -> str:
    if not options.jump_forward:
        return ""
    if not drafts:
        return ", jump_forward without effect: vLLM verifies no drafts, its startup log says why"
    if mode != "process":
        return f", jump_forward without effect in mode {mode}"
    return f", jump_forward with up to {drafts} tokens at a time"


def _versions(backends: Collection[str]) -> str:
    found = []
    for name in backends:
        with contextlib.suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
            continue
        found.append(name)
    return ", ".join(found) or "none"
