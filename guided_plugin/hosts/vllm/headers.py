"""Headers of a server's answers: `Retry-After`, keywords that nothing enforces, and
whether the plugin is on.

vLLM's errors carry no headers: each request of a server has a note, and a middleware
adds what it says where the answer leaves. Answers that vLLM itself gives with status
503 are left as they are. Imports vLLM lazily.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

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


@dataclass(slots=True, eq=False)
class _Note:
    """What a request's answer will say."""

    seconds: int = 0
    """When to come again; 0 where this package has not refused the request."""
    unenforced: tuple[str, ...] = ()
    """Keywords of its spec."""
    state: Mapping[str, Any] | None = None
    """What the server says of the plugin, where it is asked."""


_note: ContextVar[_Note | None] = ContextVar("note", default=None)
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
    if message["type"] != "http.response.start":
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
