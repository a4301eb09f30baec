"""Whether an engine can guide, as its frontend knows it. Imports vLLM lazily.

The frontend asks the engine before it sends a guided request, at most a few times a second. While nothing can
be guided, new requests are answered with status 503 instead of being cut off.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from guided_plugin.hosts.vllm.common import HEALTH

_SECONDS = 0.25
"""How long an answer holds."""


class Health:
    """The last answers of one engine's workers. `check` is for a caller that may block, `check_async` for an
    event loop, where concurrent callers share one question."""

    def __init__(self) -> None:
        self._refusal = ""
        """Why nothing can be guided; empty while guided requests are served."""
        self._asked = float("-inf")
        self._asking: asyncio.Task[None] | None = None

    def check(self, collective_rpc: Callable[[str], list[str]]) -> None:
        """Raise the error of a new request, if the engine can guide none now."""
        if not self._is_fresh():
            try:
                self._note(collective_rpc(HEALTH))
            except Exception as error:
                self._note_failure(error)
        self._raise()

    async def check_async(self, collective_rpc: Callable[[str], Awaitable[list[str]]]) -> None:
        """The same on an event loop."""
        if not self._is_fresh():
            asking = self._asking
            if asking is None or asking.done() or asking.get_loop() is not asyncio.get_running_loop():
                asking = self._asking = asyncio.ensure_future(self._ask(collective_rpc))
            await asyncio.shield(asking)  # a client that hangs up ends its own wait only
        self._raise()

    async def _ask(self, collective_rpc: Callable[[str], Awaitable[list[str]]]) -> None:
        try:
            self._note(await collective_rpc(HEALTH))
        except Exception as error:
            self._note_failure(error)

    def _is_fresh(self) -> bool:
        return time.monotonic() - self._asked < _SECONDS

    def _note(self, answers: list[str]) -> None:
        self._refusal = next(filter(None, answers), "")
        self._asked = time.monotonic()

    def _note_failure(self, error: Exception) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError

        if isinstance(error, EngineDeadError):
            raise error
        self._note([f"the engine could not be asked ({error}); it may not have loaded the logits processor"])

    def _raise(self) -> None:
        if self._refusal:
            from vllm.exceptions import GracefulHTTPError

            what = f"guided requests cannot be served now: {self._refusal}"
            raise GracefulHTTPError(what, HTTPStatus.SERVICE_UNAVAILABLE)
