"""What headers of a server's answers tell: when a request that was refused with status 503 may come again,
and which keywords nothing enforced. Imports vLLM lazily.

    init_entrypoints_middleware   vLLM's app gets a middleware: each request has a note
    deadline_in                   until when the request waits for its spec, in all stages together
    unavailable                   the error of status 503; writes into the note of the request that gets it
    tell_unenforced               writes into the note what `unenforced_keywords` left out of a request's spec

A refusal has the header `Retry-After`. vLLM's errors carry no headers: it is added where the answer leaves.
Answers that vLLM itself gives with status 503 are left as they are. An answer to a request whose spec has
keywords that nothing enforces names them in `X-Guided-Unenforced`: its client checks the output by those.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from contextvars import ContextVar
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from guided_plugin.hosts.vllm.contract import broken
from guided_plugin.hosts.vllm.parts import Part
from guided_plugin.hosts.vllm.wrapping import wrap

LEAST, MOST = 1, 60
"""Seconds that a client is told at least, where nothing is known, and at most, where only a restart helps.
Clients like `openai` wait no longer than a minute for a server."""

UNENFORCED = "X-Guided-Unenforced"
"""The header that names keywords, separated by commas."""

_APP = "vllm.entrypoints.launchers.app"

_Message = MutableMapping[str, Any]
_Send = Callable[[_Message], Awaitable[None]]


class _Note:
    """What a request's answer will say."""

    __slots__ = ("deadline", "seconds", "unenforced")

    def __init__(self) -> None:
        self.seconds = 0
        """When to come again; 0 where this package has not refused the request."""
        self.unenforced: tuple[str, ...] = ()
        """Keywords of its spec."""
        self.deadline: float | None = None
        """Until when it waits for its spec (of `time.monotonic`); None where it does not."""


_note: ContextVar[_Note | None] = ContextVar("guided_retry_after", default=None)
"""Of the request that is served; tasks that it starts share it."""


def deadline_in(seconds: float) -> float:
    """Until when the request that is served waits for its spec: so many seconds from its first stage on."""
    note = _note.get()
    if note is None:
        return time.monotonic() + seconds
    if note.deadline is None:
        note.deadline = time.monotonic() + seconds
    return note.deadline


def stop_waiting() -> None:
    """The spec of the request that is served is ready. What else it asks of the engine waits by itself."""
    note = _note.get()
    if note is not None:
        note.deadline = None


def unavailable(what: str, seconds: float) -> Exception:
    """vLLM's error of status 503. `seconds`: until the same request may be served, as far as is known."""
    from vllm.exceptions import GracefulHTTPError

    note = _note.get()
    if note is not None:
        note.seconds = max(note.seconds, math.ceil(min(max(seconds, LEAST), MOST)))
    error: Exception = GracefulHTTPError(what, HTTPStatus.SERVICE_UNAVAILABLE)
    return error


def tell_unenforced(keywords: Collection[str]) -> None:
    """Have the answer to the request that is served name these keywords."""
    note = _note.get()
    if note is not None and keywords:
        note.unenforced = tuple(sorted({*note.unenforced, *keywords}))


def install() -> None:
    """Have each app of this process's servers get the middleware. Does nothing the second time, nor without a
    server."""
    app = sys.modules.get(_APP)
    if app is not None and broken(Part.RETRY) is None:
        wrap(app, "init_entrypoints_middleware", _init)


def _init(original: Any) -> Any:
    def init_entrypoints_middleware(args: Any, app: Any, *more: Any, **kwargs: Any) -> None:
        original(args, app, *more, **kwargs)
        app.add_middleware(RetryAfter)

    return init_entrypoints_middleware


class RetryAfter:
    """ASGI middleware that adds the headers. What a request costs: a note, and a call for each message."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: _Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        note = _Note()
        _note.set(note)  # never reset: a server runs each request in a task, which has a context of its own

        def noted(message: _Message) -> Awaitable[None]:
            return send(_with_headers(message, note) if note.seconds or note.unenforced else message)

        await self._app(scope, receive, noted)


def _with_headers(message: _Message, note: _Note) -> _Message:
    """The first message of an answer has what its note says; others are as they were."""
    if message["type"] != "http.response.start":
        return message
    told = []
    if note.seconds and message["status"] == HTTPStatus.SERVICE_UNAVAILABLE:
        told.append((b"retry-after", b"%d" % note.seconds))
    if note.unenforced:
        told.append(
            (UNENFORCED.lower().encode(), ", ".join(quote(one, safe="$") for one in note.unenforced).encode())
        )
    return {**message, "headers": [*message.get("headers", ()), *told]} if told else message
