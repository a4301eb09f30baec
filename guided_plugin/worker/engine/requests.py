"""The guided requests of one engine: which run, which failed, which are closed from which step on. Not
locked: the client is.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence

from guided_plugin.errors import GuidedError
from guided_plugin.step import Closure, StepPlan
from guided_plugin.worker.engine.closures import Closures
from guided_plugin.worker.engine.journal import LiveRequest
from guided_plugin.worker.engine.steps import StepRing
from guided_plugin.worker.layout import Region


class LiveRequests:
    """Requests by slot."""

    def __init__(self, region: Region, steps: StepRing) -> None:
        self.closures = Closures(region)
        self.failures: deque[LiveRequest] = deque()
        """Requests that failed since the host last looked."""
        self._steps = steps
        self._by_slot: dict[int, LiveRequest] = {}

    def __len__(self) -> int:
        return len(self._by_slot)

    def __getitem__(self, slot: int) -> LiveRequest:
        return self._by_slot[slot]

    def all(self) -> Sequence[LiveRequest]:
        """The running requests."""
        return tuple(self._by_slot.values())

    def add(self, request: LiveRequest) -> None:
        """A request starts in its slot."""
        self._by_slot[request.slot] = request

    def remove(self, slot: int) -> None:
        """The request in a slot has left."""
        self.closures.read(self._by_slot.values())
        self.closures.forget(self._by_slot.pop(slot))

    def runs(self, request: LiveRequest) -> bool:
        """Whether a request still has its slot."""
        return self._by_slot.get(request.slot) is request

    def get(self, slot: int) -> LiveRequest | None:
        """The request in a slot, if there is one."""
        return self._by_slot.get(slot)

    def by_serial(self, serial: int) -> LiveRequest | None:
        """A running request by its number."""
        return next((one for one in self._by_slot.values() if one.serial == serial), None)

    def publish(self, plan: StepPlan, plan_id: int) -> None:
        """Have the steps from now on announce a plan."""
        self._steps.publish(
            plan_id, array("i", plan.slots), tuple(map(self._by_slot.__getitem__, plan.slots))
        )

    def fail(self, request: LiveRequest, error: GuidedError, count: int | None = None) -> None:
        """A request fails closed, after `count` tokens or after all that are known. The first error stays."""
        if request.error is None:
            request.fail(error, count)
            self.closures.read(self._by_slot.values())  # what a worker wrote has the exact step
            self.closures.add(request, self._steps.filled + 1, error.reason)
            self.failures.append(request)

    def fail_all(self, error: GuidedError) -> None:
        """Every running request fails closed."""
        for request in self._by_slot.values():
            self.fail(request, error)

    def take_failures(self) -> list[tuple[int, GuidedError]]:
        """Slots of the requests that failed since the last call, without those that have left."""
        found = []
        while self.failures:
            request = self.failures.popleft()
            if self.runs(request) and request.error is not None:
                found.append((request.slot, request.error))
        return found

    def take_closed(self) -> list[Closure]:
        """The requests that were closed since the last call, those that have left included. From any thread.
        Complete for every step whose masks are there."""
        if self.closures.changed:
            with self._steps.lock:
                self.closures.read(self._by_slot.values())
        return self.closures.take()
