"""Whether engines can guide, as frontends ask them, and waits at a start. Both sides; imports vLLM lazily.

`offer_methods` gives vLLM's workers the methods that others reach through
`collective_rpc`: `ask_all` asks every engine behind a frontend, `Health` remembers what
they say of themselves for a moment.

A worker of vLLM's waits at the end of its start for the grammar worker, which began
before the model was loaded. The wait is bounded, and a line in the log says how long it
took. An engine that is not ready refuses guided requests (`Engine.health`).
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

from guided_plugin.grammar.native import native
from guided_plugin.hosts.vllm import telling
from guided_plugin.hosts.vllm.common import HEALTH, samples
from guided_plugin.hosts.vllm.headers import unavailable
from guided_plugin.hosts.vllm.names import Part, When
from guided_plugin.hosts.vllm.patches import broken, patch

_log = logging.getLogger(__name__)

ENGINES: weakref.WeakSet[Any] = weakref.WeakSet()
"""Each `Engine` of this process."""

_SECONDS = 60.0
"""How long the start of a server waits at most, in each of its processes."""

_FRESH_SECONDS = 0.25
"""How long an engine's answer holds that it can guide nothing."""


async def ask_all(llm: Any, method: str, args: tuple[Any, ...] = ()) -> list[Any]:
    """What the workers of all engines answer to one of the plugin's methods, engine by
    engine."""
    client = getattr(llm, "engine_core", None)
    engines = getattr(client, "core_engines", ())
    if client is None or len(engines) < 2:
        return list(await llm.collective_rpc(method, args=args))
    if (changed := broken(Part.ENGINES)) is not None:
        raise changed
    ask = client._call_utility_async
    # The order of `AsyncMPClient.collective_rpc_async`: method, timeout, arguments.
    answers = await asyncio.gather(
        *(
            ask("collective_rpc", method, None, args, None, engine=engine)
            for engine in engines
        )
    )
    return [answer for workers in answers for answer in workers]


class Health:
    """The last answers of one engine's workers. `check` is for a caller that may block,
    `check_async` for an event loop, where concurrent callers share one question."""

    def __init__(self) -> None:
        self._refusal = ""
        """Why nothing can be guided; empty while guided requests are served."""
        self._until = float("-inf")
        """When that may be over, as far as the engine knows."""
        self._asked = float("-inf")
        self._failures = 0
        """Requests that had failed by then."""
        self._asking: asyncio.Task[None] | None = None

    def check(self, collective_rpc: Callable[[str], list[Any]]) -> None:
        """Raise the error of a new request, if the engine can guide none now."""
        if not self._is_fresh():
            self._failures = telling.listener.failures
            try:
                self._note(collective_rpc(HEALTH))
            except Exception as error:
                self._note_failure(error)
        self._raise()

    async def check_async(
        self, collective_rpc: Callable[[str], Awaitable[list[Any]]]
    ) -> None:
        """The same on an event loop."""
        if not self._is_fresh():
            asking = self._asking
            if (
                asking is None
                or asking.done()
                or asking.get_loop() is not asyncio.get_running_loop()
            ):
                asking = self._asking = asyncio.ensure_future(self._ask(collective_rpc))
            # a client that hangs up ends its own wait only
            await asyncio.shield(asking)
        self._raise()

    async def _ask(self, collective_rpc: Callable[[str], Awaitable[list[Any]]]) -> None:
        self._failures = telling.listener.failures
        try:
            self._note(await collective_rpc(HEALTH))
        except Exception as error:
            self._note_failure(error)

    def _is_fresh(self) -> bool:
        """Whether nothing can have changed: an engine that is well stays so until a
        request fails."""
        if telling.listener.failures != self._failures:
            return False
        seconds = _FRESH_SECONDS if self._refusal else math.inf
        return time.monotonic() - self._asked < seconds

    def _note(self, answers: list[tuple[str, float]]) -> None:
        self._asked = self._until = time.monotonic()
        self._refusal = ""
        for reason, seconds in answers:
            self._refusal = self._refusal or reason
            self._until = max(self._until, self._asked + seconds)

    def _note_failure(self, error: Exception) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError

        if isinstance(error, EngineDeadError):
            raise error
        what = f"the engine could not be asked ({error}); it may not have loaded the logits processor"
        self._note([(what, 0.0)])

    def _raise(self) -> None:
        if not self._refusal:
            return
        what = f"guided requests cannot be served now: {self._refusal}"
        raise unavailable(what, self._until - time.monotonic())


def offer_methods() -> None:
    """Give vLLM's workers the methods that others reach through `collective_rpc`. Once
    more where workers may have been loaded since."""
    from vllm.v1.worker.worker_base import WorkerBase

    def guided_metrics(self: Any, growth: bool = False) -> list[dict[str, Any]]:
        engine = engine_of(self)
        return (
            [engine.metrics(growth)]
            if engine is not None and engine.failed.tells
            else []
        )

    def guided_health(self: Any) -> tuple[str, float]:
        engine = engine_of(self)
        if engine is not None:
            return engine.health(), engine.retry_after()
        if samples(self.vllm_config):
            return "the engine has not loaded the logits processor", math.inf
        return "", 0.0

    patch(When.WORKERS)
    for method in (guided_health, guided_metrics):
        setattr(WorkerBase, method.__name__, method)


def engine_of(worker: Any) -> Any:
    """The engine of one of vLLM's workers."""
    engines = list(ENGINES)
    own = next(
        (engine for engine in engines if engine.config is worker.vllm_config), None
    )
    return engines[0] if own is None and len(engines) == 1 else own


def wait_ready(original: Any) -> Any:
    """`compile_or_warm_up_model`: the last method of a worker that vLLM calls before an
    engine says it is ready."""

    def replaced(self: Any) -> Any:
        times = original(self)
        engine = engine_of(self)
        if engine is not None:
            engine.wait_ready()
        return times

    return replaced


def wait_for(ready: threading.Event, what: str, late: str) -> bool:
    """Wait until something is ready, for a bounded time; whether it is. `late`: what
    follows if not."""
    start = time.monotonic()
    if ready.wait(_SECONDS):
        _log.info("%s is ready after %.2f s", what, time.monotonic() - start)
        return True
    _log.warning("%s is not ready after %g s: %s", what, _SECONDS, late)
    return False


def in_background(work: Callable[[], object], name: str) -> threading.Event:
    """Do some work in a thread; the event says that it is over. A fork waits until
    then, as vLLM forks its engine meanwhile, and so does the end of the interpreter."""
    over = threading.Event()

    def run() -> None:
        with native():
            try:
                work()
            except Exception:
                _log.exception(
                    "%s failed; the first request that needs it gets the error", name
                )
            finally:
                over.set()

    threading.Thread(target=run, name=name, daemon=True).start()
    return over
