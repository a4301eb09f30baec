"""Frontends ask engines if they can guide, and engines wait for that at their start.
Both sides; imports vLLM lazily.

`offer_methods` gives vLLM's workers the methods that others reach through
`collective_rpc`: `ask_all` asks every engine behind a frontend, `Health` remembers that
all was well.

vLLM's workers wait at the end of an engine's start for the grammar worker, which began
before the model was loaded. The wait is bounded, and a line in the log says how long it
took. An engine that is not ready refuses guided requests (`Engine.health`).
"""

from __future__ import annotations

import asyncio
import logging
import math
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from guided_plugin.errors import PipelineError
from guided_plugin.hosts.vllm.common import HEALTH, samples
from guided_plugin.hosts.vllm.headers import tell_wait
from guided_plugin.hosts.vllm.metrics import metrics

_log = logging.getLogger(__name__)

ENGINES: weakref.WeakSet[Any] = weakref.WeakSet()
"""Each `Engine` of this process."""


async def ask_all(llm: Any, method: str, args: tuple[Any, ...] = ()) -> list[Any]:
    """Return the answers of the workers of all engines to one of the plugin's methods,
    engine by engine."""
    client = getattr(llm, "engine_core", None)
    engines = getattr(client, "core_engines", ())
    if client is None or len(engines) < 2:
        return list(await llm.collective_rpc(method, args=args))
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
    """Tells if the workers of one engine can guide. `check` is for a caller that may
    block, `check_async` for an event loop, where concurrent callers share one question.

    Callers wait until all was well once. Later failures may have changed that: behind
    one the engine is asked again on an event loop, but no caller waits for the answer.
    Until it is there, the engine itself fails what it cannot guide."""

    def __init__(self) -> None:
        self._well: int | None = None
        """The number of requests that had failed when all was well; None until it was,
        and where it no longer is."""
        self._asking: asyncio.Future[list[Any]] | None = None

    def check(self, collective_rpc: Callable[[str], list[Any]]) -> None:
        """Raise a PipelineError if the engine can guide no new request now."""
        if self._well is None:
            with _unasked():
                answers = collective_rpc(HEALTH)
            _check(answers)
            self._well = metrics().failures

    async def check_async(
        self, collective_rpc: Callable[[str], Awaitable[list[Any]]]
    ) -> None:
        """Check on an event loop."""
        failures = metrics().failures
        if self._well == failures:
            return
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(collective_rpc(HEALTH))
            self._asking.add_done_callback(partial(self._learn, failures))
        if self._well is None:
            with _unasked():
                # a client that hangs up ends its own wait only
                answers = await asyncio.shield(self._asking)
            _check(answers)

    def _learn(self, failures: int, asked: asyncio.Future[list[Any]]) -> None:
        """Note the answer of an engine that had so many failures."""
        self._well = None
        with suppress(Exception, asyncio.CancelledError):
            if not any(reason for reason, _ in asked.result()):
                self._well = failures


def _check(answers: list[tuple[str, float]]) -> None:
    """Raise what the workers of an engine say against guided requests."""
    refusals = [(seconds, reason) for reason, seconds in answers if reason]
    if refusals:
        seconds, reason = max(refusals)
        tell_wait(seconds)
        raise PipelineError(f"{_REFUSED}: {reason}")


@contextmanager
def _unasked() -> Iterator[None]:
    """An engine that cannot be asked cannot guide."""
    try:
        yield
    except Exception as error:
        raise PipelineError(
            f"{_REFUSED}: the engine could not be asked ({error}); it may not have loaded the logits processor"
        ) from error


_REFUSED = "guided requests cannot be served now"


def offer_methods() -> None:
    """Give vLLM's workers the methods that others reach through `collective_rpc`."""
    from vllm.v1.worker.worker_base import WorkerBase

    def guided_metrics(self: Any, growth: bool = False) -> list[dict[str, Any]]:
        engine = engine_of(self)
        return (
            [engine.metrics(growth)]
            if engine is not None and engine.failed.tells
            else []
        )

    def guided_health(self: Any, wait: bool = False) -> tuple[str, float]:
        engine = engine_of(self)
        if engine is not None:
            if wait:
                engine.wait_ready()
            health: tuple[str, float] = engine.health()
            return health
        if samples(self.vllm_config):
            return "the engine has not loaded the logits processor", math.inf
        return "", 0.0

    for method in (guided_health, guided_metrics):
        setattr(WorkerBase, method.__name__, method)


def engine_of(worker: Any) -> Any:
    """The engine of one of vLLM's workers."""
    engines = list(ENGINES)
    own = next(
        (engine for engine in engines if engine.config is worker.vllm_config), None
    )
    return engines[0] if own is None and len(engines) == 1 else own


def wait_ready(self: Any, *args: Any, original: Any, **kwargs: Any) -> None:
    """`EngineCore.__init__`: its end, before an engine says that it is ready."""
    original(self, *args, **kwargs)
    try:
        self.collective_rpc(HEALTH, args=(True,))
    except Exception as error:  # frontends are told, too
        _log.warning("the engine's workers do not wait: %s", error)
