"""The plugin's figures in vLLM's `/metrics`. Imports vLLM and prometheus_client, which
vLLM needs itself.

vLLM makes `GuidedStatLogger` in each API server (entry point
`vllm.stat_logger_plugins`). What happens there is counted as it happens (`telling`).
What engines know is asked for every few seconds while guided requests come, in one call
between two steps.
"""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import Counter, Gauge, Histogram
from vllm.v1.metrics.loggers import AggregateStatLoggerBase

from guided_plugin.hosts.vllm import telling
from guided_plugin.hosts.vllm.common import METRICS
from guided_plugin.hosts.vllm.health import ask_all
from guided_plugin.metrics import BUCKETS, COUNTERS, HELP, TIMES

_log = logging.getLogger(__name__)

SECONDS = 5.0
"""Between two questions to the engine."""

_IDLE = 3
"""After so many questions without a new guided request no more are asked."""

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


class _Times(Histogram):
    """Times that engines have counted by bucket."""

    def inc(self, *grown: float) -> None:
        """By so many in each bucket; their sum comes last. prometheus_client itself has
        only a call for each time."""
        for bucket, count in zip(self._buckets, grown[:-1], strict=True):
            if count:  # where several processes add up, each is a write to a file
                bucket.inc(count)
        self._sum.inc(grown[-1])


class _Metrics(telling.Listener):
    """All metrics of this process; asks engines while guided requests come. A registry
    takes no name twice, so it is made once."""

    def __init__(self) -> None:
        name = "guided_plugin"
        self.requests = Counter(
            f"{name}_requests", "guided requests", ["backend", "outcome"]
        )
        # 0 from the start: the first is a growth too
        for outcome in ("refused", "busy", "left", "failed"):
            self.requests.labels("none", outcome)
        self.refusals = Counter(
            f"{name}_refusals", "guided requests that were refused", ["reason"]
        )
        self.unenforced = Counter(
            f"{name}_unenforced", "guided requests by unenforced keyword", ["keyword"]
        )
        self.compiles = Histogram(
            f"{name}_compile_seconds",
            "seconds until a new spec was admitted",
            ["backend"],
            buckets=_BUCKETS,
        )
        self.told: dict[str, Any] = {}
        """What engines are asked for."""
        for key, title in _TOLD.items():
            given = f"{name}_{title}", HELP[key], ["engine"]
            if key in COUNTERS:
                self.told[key] = Counter(*given)
            elif key in TIMES:
                self.told[key] = _Times(*given, buckets=BUCKETS)
            else:
                self.told[key] = Gauge(*given, multiprocess_mode="mostrecent")
        self._newest = 0.0
        self._task: asyncio.Task[None] | None = None

    def admitted(self, backend: str, unenforced: Iterable[str] = ()) -> None:
        self._newest = time.monotonic()
        for keyword in unenforced:
            self.unenforced.labels(keyword).inc()
        self.requests.labels(backend or "unknown", "admitted").inc()

    def refused(self, reason: str, outcome: str) -> None:
        self.requests.labels("none", outcome).inc()
        self.refusals.labels(reason).inc()

    def compiled(self, backend: str, seconds: float) -> None:
        self.compiles.labels(backend or "unknown").observe(seconds)

    def left(self) -> None:
        self.requests.labels("none", "left").inc()

    def failed(self) -> None:
        super().failed()
        self.requests.labels("none", "failed").inc()

    def tell(self, engines: Iterable[Mapping[str, Any]]) -> None:
        """What the engines answered. A server's frontends add up what each was told
        that grew."""
        for index, found in enumerate(engines):
            grown = found.get("growth", {})
            now = {**found.get("worker", {}), **found}
            for key, metric in self.told.items():
                if key in grown:
                    metric.labels(str(index)).inc(*grown[key])
                elif isinstance(metric, Gauge) and now.get(key) is not None:
                    metric.labels(str(index)).set(now[key])

    def on_loop(self, engine: Any) -> None:
        if self._task is None or self._task.done():
            self._newest = time.monotonic()
            self._task = asyncio.get_running_loop().create_task(
                self._ask(weakref.ref(engine))
            )

    async def _ask(self, engine: weakref.ref[Any]) -> None:
        while time.monotonic() - self._newest < _IDLE * SECONDS:
            await asyncio.sleep(SECONDS)
            asked = engine()
            if asked is None:
                return
            try:
                answers = await ask_all(asked, METRICS, (True,))
            # an engine that ends; the next request asks again
            except Exception as error:
                _log.debug("no metrics from the engine: %s", error)
                return
            self.tell(found for of_worker in answers for found in of_worker)
            del asked


_metrics: _Metrics | None = None


class GuidedStatLogger(AggregateStatLoggerBase):
    """Puts the metrics into vLLM's registry. What vLLM records in each step is no
    concern of it."""

    def __init__(self, vllm_config: Any, engine_indexes: list[int]) -> None:
        global _metrics
        if _metrics is None:
            _metrics = _Metrics()
        telling.listener = _metrics

    def record(self, *args: Any, **kwargs: Any) -> None:
        """vLLM's own figures of a step."""

    def log_engine_initialized(self) -> None:
        """vLLM's engine has started."""
