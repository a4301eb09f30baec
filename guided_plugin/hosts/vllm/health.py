"""Whether an engine can guide, as its frontend knows it. Imports vLLM lazily.

The frontend asks the engine before it sends a guided request, at most a few times a second. While nothing can
be guided, new requests are answered with status 503 instead of being cut off.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from guided_plugin.hosts.vllm.common import HEALTH, RETRY_AFTER
from guided_plugin.hosts.vllm.retry import unavailable

_SECONDS = 0.25
"""How long an answer holds."""


class Health:
    """The last answers of one engine's workers. `check` is for a caller that may block, `check_async` for an
    event loop, where concurrent callers share one question."""

    def __init__(self) -> None:
        self._refusal = ""
        """Why nothing can be guided; empty while guided requests are served."""
        self._until = float("-inf")
        """When that may be over, as far as the engine knows."""
        self._asked = float("-inf")
        self._asking: asyncio.Task[None] | None = None

    def check(self, collective_rpc: Callable[[str], list[Any]]) -> None:
        """Raise the error of a new request, if the engine can guide none now."""
        if not self._is_fresh():
            try:
                answers = collective_rpc(HEALTH)
                self._note(answers, collective_rpc(RETRY_AFTER) if any(answers) else [])
            except Exception as error:
                self._note_failure(error)
        self._raise()

    async def check_async(self, collective_rpc: Callable[[str], Awaitable[list[Any]]]) -> None:
        """The same on an event loop."""
        if not self._is_fresh():
            asking = self._asking
            if asking is None or asking.done() or asking.get_loop() is not asyncio.get_running_loop():
                asking = self._asking = asyncio.ensure_future(self._ask(collective_rpc))
            await asyncio.shield(asking)  # a client that hangs up ends its own wait only
        self._raise()

    async def _ask(self, collective_rpc: Callable[[str], Awaitable[list[Any]]]) -> None:
        try:
            answers = await collective_rpc(HEALTH)
            self._note(answers, await collective_rpc(RETRY_AFTER) if any(answers) else [])
        except Exception as error:
            self._note_failure(error)

    def _is_fresh(self) -> bool:
        return time.monotonic() - self._asked < _SECONDS

    def _note(self, answers: list[str], seconds: list[float]) -> None:
        self._refusal = next(filter(None, answers), "")
        self._asked = time.monotonic()
        self._until = self._asked + max(seconds, default=0.0)

    def _note_failure(self, error: Exception) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError

        if isinstance(error, EngineDeadError):
            raise error
        what = f"the engine could not be asked ({error}); it may not have loaded the logits processor"
        self._note([what], [])

    def _raise(self) -> None:
        if self._refusal:
            what = f"guided requests cannot be served now: {self._refusal}"
            raise unavailable(what, self._until - time.monotonic())
