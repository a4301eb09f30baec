"""What a frontend notes about guided requests: for metrics, where someone listens, and for the log.

Depends on errors. Nothing here knows how the figures are shown (figures.py).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Protocol

from guided_plugin.errors import GuidedError, PipelineError, printable

_log = logging.getLogger("guided_plugin.requests")


class Listener(Protocol):
    """Counts what happens. Called from any thread, but for `on_loop`."""

    def admitted(self, backend: str, unenforced: Iterable[str] = ()) -> None:
        """A request goes to the engine. `unenforced`: keywords in it that nothing enforces."""

    def refused(self, reason: str, outcome: str) -> None:
        """A request got an error instead: `refused`, or `busy` where nothing was wrong with it."""

    def compiled(self, backend: str, seconds: float) -> None:
        """A new spec was admitted."""

    def failed(self) -> None:
        """A request failed while it ran."""

    def on_loop(self, engine: Any) -> None:
        """A guided request comes to an AsyncLLM, on its event loop."""


_listener: Listener | None = None


def listen(listener: Listener) -> None:
    """Have all that is noted from now on counted."""
    global _listener
    _listener = listener


def admitted(backend: str, unenforced: Iterable[str] = ()) -> None:
    """A request goes to the engine. `unenforced`: keywords in it that nothing enforces."""
    if _listener is not None:
        _listener.admitted(backend, unenforced)


def refused(error: GuidedError, request_id: str) -> None:
    """A request got an error instead."""
    _log.info("request %s refused: %s", printable(request_id or "without an id", 200), error)
    if _listener is not None:
        outcome = "busy" if isinstance(error, PipelineError) else "refused"
        _listener.refused(type(error).__name__, outcome)


def compiled(backend: str, seconds: float) -> None:
    """A new spec was admitted."""
    if _listener is not None:
        _listener.compiled(backend, seconds)


def failed() -> None:
    """A request failed while it ran."""
    if _listener is not None:
        _listener.failed()


def on_loop(engine: Any) -> None:
    """A guided request comes to an AsyncLLM, on its event loop."""
    if _listener is not None:
        _listener.on_loop(engine)


def adopt_handlers() -> None:
    """Write log lines as vLLM does, with time and level, where the program has not set up logging itself."""
    ours, theirs = logging.getLogger("guided_plugin"), logging.getLogger("vllm")
    if ours.handlers or logging.getLogger().handlers:
        return
    for handler in theirs.handlers:
        ours.addHandler(handler)
    if theirs.handlers and ours.level == logging.NOTSET:
        ours.setLevel(theirs.level)
