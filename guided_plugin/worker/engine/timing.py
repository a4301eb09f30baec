"""Figures from the ring of times that both sides write. Read when asked for, never in a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from guided_plugin.metrics import RECENT, WorkerMetrics
from guided_plugin.worker.layout import Counter, Region, Time

if TYPE_CHECKING:
    from guided_plugin.worker.device.buffers import Waits


def step_times(region: Region, newest: int) -> NDArray[np.int64]:
    """The rows of the ring whose step was planned and filled, oldest first; columns as in `Time`."""
    times = np.array(region.times)
    times = times[(times[:, Time.PLANNED] > 0) & (times[:, Time.STEP] <= newest)]
    times = times[times[:, Time.FILLED] >= times[:, Time.PLANNED]]
    return times[np.argsort(times[:, Time.STEP])]


def worker_metrics(region: Region, newest: int, restarts: int, waits: Waits) -> WorkerMetrics:
    """The figures of the newest steps."""
    times = step_times(region, newest)[-RECENT:]
    learnt = 1024 * region.load(Counter.LEARNT)
    if not len(times):
        return WorkerMetrics(restarts=restarts, learnt_bytes=learnt)
    drafts = region.shape.drafts > 0
    inputs = np.maximum(times[:, Time.PLANNED], times[:, Time.ACCEPT]) if drafts else _inputs_there(times)
    to_mask = (times[:, Time.FILLED] - inputs) / 1e9
    fill = (times[:, Time.FILLED] - times[:, Time.FILL]) / 1e9
    accepted = times[times[:, Time.ACCEPTED] >= times[:, Time.PLANNED]]
    accept = (accepted[:, Time.ACCEPTED] - accepted[:, Time.ACCEPT]) / 1e9
    return WorkerMetrics(
        steps=len(times),
        plan_to_mask=float(np.median(to_mask)),
        plan_to_mask_p99=float(np.quantile(to_mask, 0.99)),
        accept=float(np.median(accept)) if len(accept) else 0.0,
        fill=float(np.median(fill)),
        exposed_wait=waits.exposed,
        margin=waits.margin,
        restarts=restarts,
        learnt_bytes=learnt,
    )


def _inputs_there(times: NDArray[np.int64]) -> NDArray[np.int64]:
    """When each step's plan and the tokens before it were both there."""
    inputs = times[:, Time.PLANNED].copy()
    follows = times[1:, Time.STEP] == times[:-1, Time.STEP] + 1
    before = np.where(follows, times[:-1, Time.ACCEPT], 0)
    # Tokens that were accepted after this step was filled belong to an older user of their row.
    before = np.where(before <= times[1:, Time.FILL], before, 0)
    inputs[1:] = np.maximum(inputs[1:], before)
    return inputs
