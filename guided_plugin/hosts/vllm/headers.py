"""Headers of a server's answers: `Retry-After`, keywords that nothing enforces, and
whether the plugin is on.

vLLM's errors carry no headers: each request of a server has a note of those that its
answer will have, and a middleware adds them where the answer leaves. Answers that vLLM
itself gives with status 503 are left as they are. Imports vLLM lazily.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextvars import ContextVar
from math import ceil
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

_note: ContextVar[dict[str, str] | None] = ContextVar("note", default=None)
"""Headers of the answer to the request that is served. Tasks that it starts share
it."""


def _tell(header: str, value: str) -> None:
    note = _note.get()
    if note is not None:
        note.setdefault(header, value)


def tell_wait(seconds: float) -> None:
    """Have the answer to the request that is served say when the same request may be
    served, as far as is known. What is told first stays."""
    _tell("Retry-After", str(ceil(min(max(seconds, LEAST), MOST))))


def tell_unenforced(keywords: Iterable[str]) -> None:
    """Have the answer to the request that is served name these keywords."""
    _tell(UNENFORCED, ", ".join(quote(one, safe="$") for one in keywords))


class Middleware:
    """ASGI middleware that adds the headers. What a request costs: a note, and a call
    for each message. `state`: what to say of the plugin when `/version` is asked for
    it; `measure`: called before `/metrics` answers."""

    def __init__(
        self,
        app: Any,
        state: Callable[[], Awaitable[Mapping[str, Any]]],
        measure: Callable[[], Awaitable[None]],
    ) -> None:
        self._app = app
        self._state = state
        self._measure = measure

    async def __call__(
        self, scope: MutableMapping[str, Any], receive: Any, send: _Send
    ) -> None:
        """Serve a request."""
        if scope["type"] == "lifespan":  # the server starts, or ends
            self._at_start = asyncio.ensure_future(self._state())
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        note: dict[str, str] = {}
        # never reset: a server runs each request in a task, which has a context of its
        # own
        _note.set(note)
        page = scope["path"].rstrip("/").rpartition("/")[2]
        if page == "version" and scope["query_string"] == STATE_QUERY.encode():
            note[STATE] = json.dumps(await self._state())
        elif page == "metrics":
            await self._measure()

        def noted(message: _Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                more = [(name.lower().encode(), note[name].encode()) for name in note]
                message = {**message, "headers": [*message.get("headers", ()), *more]}
            return send(message)

        await self._app(scope, receive, noted)
