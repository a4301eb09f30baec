"""The plugin's metrics in vLLM's `/metrics`. Imports prometheus_client lazily: vLLM's
servers say first whether several processes add up.

What happens in a frontend is counted as it happens. What engines know is asked for when
`/metrics` is read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cache
from typing import Any

from guided_plugin.metrics import BUCKETS, COUNTERS, HELP, TIMES

_log = logging.getLogger(__name__)

_SECONDS = 2.0
"""Seconds that `/metrics` waits for the engines, which answer between two steps.
Chosen, not measured."""

_BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)

_TOLD: Mapping[str, str] = {
    "steps": "engine_steps",
    "rows": "engine_rows",
    "running": "engine_running",
    "added": "engine_requests",
    "failed": "engine_failed",
    "main_thread": "engine_pipeline_seconds",
    "host_thread": "engine_thread_seconds",
    "exposed_wait": "mask_wait_seconds",
    "plan_to_mask": "mask_seconds",
    "answer": "drafts_seconds",
    "offered": "drafts_offered",
    "taken": "drafts_taken",
    "forwards": "drafts_forwards",
    "led_outputs": "outputs_led",
    "led_reasoning": "reasoning_led",
    "led_tokens": "tokens_led",
    "unprotected_outputs": "outputs_unprotected",
    "restarts": "worker_restarts",
    "memory_bytes": "worker_memory_bytes",
    "shared_bytes": "shared_memory_bytes",
    "learnt_bytes": "worker_learnt_bytes",
    "learnt_limit_bytes": "worker_learnt_limit_bytes",
}
"""Figures of an engine and of its worker, with the names of their metrics."""


class Metrics:
    """All metrics of a frontend's process."""

    def __init__(self) -> None:
        from prometheus_client import Counter, Gauge, Histogram

        self.failures = 0
        """Requests that failed while they ran, other than by options of their own."""
        name = "guided_plugin"
        self._requests = Counter(
            f"{name}_requests", "guided requests", ["backend", "outcome"]
        )
        # 0 from the start: the first is a growth too
        for outcome in ("refused", "busy", "left", "failed"):
            self._requests.labels("none", outcome)
        self._refusals = Counter(
            f"{name}_refusals", "guided requests that were refused", ["reason"]
        )
        self.compiles = Histogram(
            f"{name}_compile_seconds",
            "seconds until a new spec was admitted",
            ["backend"],
            buckets=_BUCKETS,
        )
        self._told: dict[str, Any] = {}
        """The metrics that engines are asked for."""
        for key, title in _TOLD.items():
            given = f"{name}_{title}", HELP[key], ["engine"]
            if key in COUNTERS:
                self._told[key] = Counter(*given)
            elif key in TIMES:
                self._told[key] = Histogram(*given, buckets=BUCKETS)
            else:
                self._told[key] = Gauge(*given, multiprocess_mode="mostrecent")
        self._asking: asyncio.Future[None] | None = None

    def count(self, outcome: str, backend: str = "none") -> None:
        """A request is admitted, left to vLLM's own structured output, or failed while
        it ran."""
        self._requests.labels(backend, outcome).inc()

    def refused(self, reason: str, outcome: str = "refused") -> None:
        """A request got an error instead: `refused`, or `busy` where nothing was wrong
        with it."""
        self.count(outcome)
        self._refusals.labels(reason).inc()

    def tell(self, engines: Iterable[Mapping[str, Any]]) -> None:
        """Record the engines' answers. A server's frontends add up what each was told
        that grew."""
        for index, found in enumerate(engines):
            grown = found.get("growth", {})
            now = {**found.get("worker", {}), **found}
            for key, metric in self._told.items():
                one = metric.labels(str(index))
                if key in TIMES and key in grown:
                    _add_times(one, grown[key])
                elif key in grown:
                    one.inc(*grown[key])
                elif key not in COUNTERS | TIMES and now.get(key) is not None:
                    one.set(now[key])

    async def ask(self, ask: Callable[[], Awaitable[list[Any]]]) -> None:
        """Have the engines asked, and wait for their answers for a bounded time. What
        comes later is counted then."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(self._ask(ask))
        await asyncio.wait([self._asking], timeout=_SECONDS)

    async def _ask(self, ask: Callable[[], Awaitable[list[Any]]]) -> None:
        try:
            answers = await ask()
        except Exception as error:  # an engine that ends
            _log.debug("no metrics from the engine: %s", error)
            return
        self.tell(found for of_worker in answers for found in of_worker)


def _add_times(histogram: Any, grown: tuple[float, ...]) -> None:
    """Times that an engine has counted by bucket, their sum behind them.
    prometheus_client itself has only a call for each time."""
    for bucket, count in zip(histogram._buckets, grown[:-1], strict=True):
        if count:  # where several processes add up, each is a write to a file
            bucket.inc(count)
    histogram._sum.inc(grown[-1])


@cache
def metrics() -> Metrics:
    """Return the metrics of this process. A registry takes no name twice."""
    return Metrics()
