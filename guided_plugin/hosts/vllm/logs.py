"""Lines in the log for operators: what is on at a start, and requests that are left to
vLLM."""

from __future__ import annotations

import logging
from typing import Any

from guided_plugin._version import __version__
from guided_plugin.config import GuidedConfig
from guided_plugin.errors import GuidedError, printable
from guided_plugin.hosts.vllm.metrics import metrics

_log = logging.getLogger("guided_plugin.requests")


def left(request_id: Any) -> None:
    """A request is left to vLLM's own structured output: a line in the log, and
    counted."""
    _log.info(
        "request %s: left to vLLM's own structured output", printable(request_id, 200)
    )
    metrics().count("left")


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


def start_line(
    place: str, options: GuidedConfig, error: GuidedError | None, more: str = ""
) -> str:
    """The line of a process at its start. `place`: what it is; `error`: why nothing is
    guided in it, if nothing is; `more`: what is said of one that guides."""
    state = f"on in this {place}{more}"
    if error is not None:
        state = f"off in this {place}: {error}"
    take_over = "on" if options.take_over else "off"
    return f"guided_plugin {__version__} is {state}; take_over {take_over}"


def engine_line(
    options: GuidedConfig,
    error: GuidedError | None,
    mode: str,
    requests: int,
    drafts: int = 0,
) -> str:
    """Return the line that tells how a process runs an engine. `drafts`: so many are
    verified at a time."""
    jump = ""
    if options.jump_forward:
        jump = f", jump_forward with up to {drafts} tokens at a time"
        if not drafts or mode != "process":
            jump = f", jump_forward without effect in mode {mode} with {drafts} drafts"
    more = (
        f": mode {mode} ({options.mode} is set), at most {options.thread_count()} "
        f"threads, {requests} requests{jump}"
    )
    return start_line("engine", options, error, more)
