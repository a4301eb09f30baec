"""What operators and clients are told: the log, metrics where a collector listens, and
headers of a server's answers. What the `Listener` counts, `figures` shows.

vLLM's errors carry no headers: each request of a server has a note, and a middleware
adds what it says where the answer leaves. Answers that vLLM itself gives with status
503 are left as they are. Imports vLLM lazily.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    MutableMapping,
)
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from urllib.parse import quote

from guided_plugin._version import __version__
from guided_plugin.config import GuidedConfig
from guided_plugin.errors import GuidedError, PipelineError, printable
from guided_plugin.hosts.vllm.places import placed

_log = logging.getLogger("guided_plugin.requests")

LEAST = 1
"""Seconds that a client is told where nothing is known."""
MOST = 60
"""Seconds that a client is told where only a restart helps. Clients like `openai` wait
no longer for a server."""

UNENFORCED = "X-Guided-Unenforced"
"""The header that names keywords, separated by commas."""

STATE = "X-Guided-Plugin"
"""The header that says whether the plugin is on."""
STATE_QUERY = "guided"
"""The query of `/version` that asks for it."""

_Message = MutableMapping[str, Any]
_Send = Callable[[_Message], Awaitable[None]]


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


def refusal(error: GuidedError, params: Any = None) -> Exception:
    """The error of a request with these params as vLLM's own, which its server answers
    with status 400, or 503 where there was no room."""
    # nothing is wrong with the request; a place may be free soon
    if isinstance(error, PipelineError):
        return unavailable(str(error), LEAST)
    told, field = placed(error, params)
    translated: Exception = _validation_error()(str(told), parameter=field)
    return translated


@cache
def _validation_error() -> Any:
    """vLLM's class for a message that begins with its place: vLLM's own writes the
    parameter behind it."""
    from vllm.exceptions import VLLMValidationError

    return type(
        "GuidedValidationError",
        (VLLMValidationError,),
        {"__str__": lambda self: self.args[0]},
    )


def refused(error: GuidedError, request_id: Any, params: Any = None) -> Exception:
    """The same for a frontend's request, noted in its log and its metrics."""
    translated = refusal(error, params)
    _log.info(
        "request %s: refused: %s",
        printable(request_id or "without an id", 200),
        translated,
    )
    listener.refused(
        type(error).__name__, "busy" if isinstance(error, PipelineError) else "refused"
    )
    return translated


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
    helpers = f"compiles in at most {options.compile_processes} helper processes"
    if not options.isolate_compiles:
        helpers = "compiles in this process"
    return (
        f"guided_plugin {__version__} is on in this frontend: {take_over}, {helpers}, "
        f"JSON {options.whitespace} and {'strict' if options.strict else 'open'}, "
        f"backend {options.backend}"
        + (f" of {_versions(backends)}" if backends else "")
    )


def engine_line(
    options: GuidedConfig,
    error: GuidedError | None,
    mode: str,
    requests: int,
    shared_bytes: int,
    *,
    serves: bool = True,
    drafts: int = 0,
) -> str:
    """Of a process that runs an engine. `shared_bytes`: of the memory shared with a
    grammar worker or with other ranks. `serves`: whether this rank has grammars.
    `drafts`: so many are verified at a time."""
    if error is not None:
        return f"guided_plugin {__version__} is off in this engine: {error}"
    where = (
        "in a process of their own" if mode == "process" else "in the engine's thread"
    )
    if not serves:
        where = "at another rank of this machine"
    shared = f"{shared_bytes / 2**20:.1f} MiB of" if shared_bytes else "no"
    return (
        f"guided_plugin {__version__} is on in this engine: mode {mode} ({options.mode} is set), "
        f"grammars run {where}, {shared} shared memory, "
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


@dataclass(slots=True, eq=False)
class _Note:
    """What a request's answer will say."""

    seconds: int = 0
    """When to come again; 0 where this package has not refused the request."""
    unenforced: tuple[str, ...] = ()
    """Keywords of its spec."""
    state: Mapping[str, Any] | None = None
    """What the server says of the plugin, where it is asked."""


_note: ContextVar[_Note | None] = ContextVar("guided_retry_after", default=None)
"""Of the request that is served; tasks that it starts share it."""


def unavailable(what: str, seconds: float) -> Exception:
    """vLLM's error of status 503. `seconds`: until the same request may be served, as
    far as is known."""
    from vllm.exceptions import GracefulHTTPError

    note = _note.get()
    if note is not None:
        note.seconds = max(note.seconds, math.ceil(min(max(seconds, LEAST), MOST)))
    error: Exception = GracefulHTTPError(what, HTTPStatus.SERVICE_UNAVAILABLE)
    return error


def tell_unenforced(keywords: Collection[str]) -> None:
    """Have the answer to the request that is served name these keywords."""
    note = _note.get()
    if note is not None:
        note.unenforced = tuple(sorted({*note.unenforced, *keywords}))


class RetryAfter:
    """ASGI middleware that adds the headers. What a request costs: a note, and a call
    for each message. `state`: what to say of the plugin when `/version` is asked for
    it."""

    def __init__(
        self, app: Any, state: Callable[[], Awaitable[Mapping[str, Any]]] | None = None
    ) -> None:
        self._app = app
        self._state = state

    async def __call__(
        self, scope: MutableMapping[str, Any], receive: Any, send: _Send
    ) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        note = _Note()
        # never reset: a server runs each request in a task, which has a context of its
        # own
        _note.set(note)

        def noted(message: _Message) -> Awaitable[None]:
            return send(_with_headers(message, note))

        asked = scope.get("query_string") == STATE_QUERY.encode() and scope[
            "path"
        ].endswith("/version")
        if asked and self._state is not None:
            note.state = await self._state()
        await self._app(scope, receive, noted)


def _with_headers(message: _Message, note: _Note) -> _Message:
    """The first message of an answer has what its note says; others are as they
    were."""
    if message["type"] != "http.response.start" or not (
        note.seconds or note.unenforced or note.state
    ):
        return message
    told = []
    if note.state:
        told.append((STATE.lower().encode(), json.dumps(note.state).encode()))
    if note.seconds and message["status"] == HTTPStatus.SERVICE_UNAVAILABLE:
        told.append((b"retry-after", b"%d" % note.seconds))
    if note.unenforced:
        names = ", ".join(quote(one, safe="$") for one in note.unenforced)
        told.append((UNENFORCED.lower().encode(), names.encode()))
    return (
        {**message, "headers": [*message.get("headers", ()), *told]}
        if told
        else message
    )
