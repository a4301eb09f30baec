"""Whether a worker makes progress, and how long steps have waited for one. Depends on ipc and on the client's
counters.

A worker that shows no heartbeat for `worker_step_ms` hangs; one that is still starting gets `START_SECONDS`,
until a step waits for it. One that was stopped from outside is found long before that, by its state.
"""

from __future__ import annotations

import time

from guided_plugin.ipc.observed import LOOK_SECONDS, StopWatch
from guided_plugin.ipc.template import START_SECONDS
from guided_plugin.worker.engine.client import WorkerClient
from guided_plugin.worker.layout import Counter


class Pulse:
    """The heartbeat of the workers of one client, looked at every `tick` seconds while anything waits for
    them."""

    def __init__(self, client: WorkerClient) -> None:
        self.limit = client.compiler.config.worker_step_ms / 1e3
        self.tick = min(LOOK_SECONDS, self.limit / 8)
        self.warm = False
        """Whether the worker has started completely."""
        self._client = client
        self._beat = -1
        self._stop_watch: StopWatch | None = None
        self._alive_at = self._owed_at = self._looked_at = 0.0

    def begin(self, pid: int) -> None:
        """A worker starts."""
        self.warm, self._beat = False, -1
        self._stop_watch = StopWatch(pid)
        self._alive_at = self._looked_at = time.monotonic()

    def owed_from_now(self) -> None:
        """What the steps have waited so far does not count against the next worker."""
        self._owed_at = time.monotonic()

    def owes_too_long(self) -> bool:
        """Whether a step has waited for its masks for longer than the limit."""
        now = time.monotonic()
        if self._client.steps.owed is None:
            self._owed_at = now
        return now - self._owed_at >= self.limit

    def stopped(self) -> bool:
        """Whether the worker was stopped from outside, and stays so. Ask before `hangs`."""
        if self._stop_watch is None:
            return False
        if self._client.region.load(Counter.HEARTBEAT) != self._beat:
            self._stop_watch.runs()
        return self._stop_watch.stays_stopped()

    def hangs(self) -> bool:
        """Whether the worker has made no progress for too long."""
        now = time.monotonic()
        late = now - self._looked_at > 5 * self.tick
        self._looked_at = now
        beat = self._client.region.load(Counter.HEARTBEAT)
        if beat != self._beat or late:
            # Late: this thread did not run either. Both were stopped, or nothing waited for the worker.
            self._beat, self._alive_at = beat, now
        limit = self.limit if self.owes_too_long() or self.warm else START_SECONDS
        return now - self._alive_at >= limit
