"""What the plugin gives vLLM's workers: methods that others reach through `collective_rpc`. Each finds the
engine of its worker; where a pipeline has several stages, only workers of the last one have an engine.
Depends on ranks and ready.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

from guided_plugin.hosts.vllm.common import HEALTH, METRICS, PREPARE, RETRY_AFTER
from guided_plugin.hosts.vllm.ranks import samples
from guided_plugin.hosts.vllm.ready import wrap_workers

ENGINES: weakref.WeakSet[Any] = weakref.WeakSet()
"""Each `Engine` of this process."""

_NOT_LOADED = "the engine has not loaded the logits processor"


def offer_methods() -> None:
    """Give vLLM's workers the methods that others reach through `collective_rpc`. Once more where workers may
    have been loaded since."""
    from vllm.v1.worker.worker_base import WorkerBase

    def guided_prepare(self: Any, questions: Iterable[tuple[str, Mapping[str, Any] | None]]) -> list[bool]:
        engines = list(ENGINES)
        answers = [[engine.prepare(key, made) for engine in engines] for key, made in questions]
        return list(map(all, answers))

    def guided_metrics(self: Any, every_rank: bool = False) -> list[dict[str, Any]]:
        return [engine.metrics() for engine in list(ENGINES) if every_rank or engine.leads]

    def guided_health(self: Any) -> str:
        engine = engine_of(self)
        if engine is None:
            return _NOT_LOADED if samples(self.vllm_config) else ""
        return str(engine.health())

    def guided_retry_after(self: Any) -> float:
        engine = engine_of(self)
        if engine is None:
            return math.inf if samples(self.vllm_config) else 0.0
        return float(engine.retry_after())

    wrap_workers(WorkerBase, _wait_ready)
    setattr(WorkerBase, PREPARE, guided_prepare)
    setattr(WorkerBase, HEALTH, guided_health)
    setattr(WorkerBase, RETRY_AFTER, guided_retry_after)
    setattr(WorkerBase, METRICS, guided_metrics)


def engine_of(worker: Any) -> Any:
    """The engine of one of vLLM's workers."""
    engines = list(ENGINES)
    own = next((engine for engine in engines if engine.config is worker.vllm_config), None)
    return engines[0] if own is None and len(engines) == 1 else own


def _wait_ready(worker: Any) -> None:
    engine = engine_of(worker)
    if engine is not None:
        engine.wait_ready()
