"""The guided requests of one engine: which run, which failed, and from which step on
they are closed. Not locked: the client is.

A host reports a failure together with the output of the first closed step, so it must
know of the failure as soon as the masks of that step are there. A worker therefore
writes its failures into the shared memory before it raises FILLED; the engine's own
failures are added before FILLED is raised for them.
"""

from __future__ import annotations

from collections import deque

from guided_plugin.errors import GuidedError
from guided_plugin.step import Closure
from guided_plugin.worker.engine.steps import StepRing
from guided_plugin.worker.layout import FENCED, Region, fence
from guided_plugin.worker.messages import LiveRequest
from guided_plugin.worker.words import Counter


class LiveRequests(dict[int, LiveRequest]):
    """The running requests, by slot."""

    def __init__(self, region: Region, steps: StepRing) -> None:
        super().__init__()
        self.failures: deque[LiveRequest] = deque()
        """Requests that failed since the host last looked."""
        self._region = region
        self._steps = steps
        self._word = region.word(Counter.CLOSED)
        """[1]: how many closures the worker wrote."""
        self._seen = self._word[0]
        """The number of them that were read."""
        self._left: deque[LiveRequest] = deque()
        """Requests that have left, of which a step in flight may yet close the row."""
        # Bounded: not every host takes them.
        self._untold: deque[Closure] = deque(maxlen=4 * region.shape.max_slots)

    def remove(self, slot: int) -> None:
        """The request in a slot has left. A host may yet take its tokens of the steps in
        flight, as vLLM does of one that it preempts."""
        filled = self._steps.filled
        self.read_closures()
        while self._left and self._left[0].last <= filled:
            self._left.popleft()
        request = self.pop(slot)
        request.last = self._steps.planned
        if filled < request.last:
            self._left.append(request)

    def runs(self, request: LiveRequest) -> bool:
        """True if a request still has its slot."""
        return self.get(request.slot) is request

    def fail(
        self, request: LiveRequest, error: GuidedError, count: int | None = None
    ) -> None:
        """A request fails closed, after `count` tokens or after all that are known. The
        first error stays."""
        if request.error is None:
            request.state.fail(count)
            request.error = error.for_request(request.request_id)
            self.read_closures()  # what a worker wrote has the exact step
            step = self._steps.filled + 1
            self._close(request, Closure(request.request_id, step, error.reason))
            self.failures.append(request)

    def fail_all(self, error: GuidedError) -> None:
        """Every running request fails closed."""
        for request in self.values():
            self.fail(request, error)

    def take_failures(self) -> list[tuple[int, GuidedError]]:
        """Slots of the requests that failed since the last call, without those that
        have left."""
        found = []
        while self.failures:
            request = self.failures.popleft()
            if self.runs(request) and request.error is not None:
                found.append((request.slot, request.error))
        return found

    def take_closed(self) -> list[Closure]:
        """The requests that were closed since the last call, those that have left
        included. From any thread. Complete for every step whose masks are there."""
        if self._word[0] != self._seen:
            with self._steps.lock:
                self.read_closures()
        taken = []
        while self._untold:
            taken.append(self._untold.popleft())
        return taken

    def read_closures(self) -> None:
        """See what the worker wrote."""
        if self._word[0] == self._seen:
            return
        self._seen = self._region.load(Counter.CLOSED)
        for request in [*self.values(), *self._left]:
            closure = self.closure(request)
            if closure is not None:
                self._close(request, closure)

    def closure(self, request: LiveRequest) -> Closure | None:
        """From which step on the worker closed a request, and why; None if it has
        not."""
        entry = self._region.closures[request.slot]
        if entry["serial"] != request.serial:
            return None
        if FENCED:
            fence()
        reason = bytes(entry["reason"]).decode(errors="ignore")
        step, led, place = (int(entry[name]) for name in ("step", "led", "place"))
        return Closure(request.request_id, step, reason, led, place)

    def _close(self, request: LiveRequest, closure: Closure) -> None:
        if closure.reason:
            told = request.closed
            request.closed = True
        else:  # again in a later step, if its drafts were not taken
            told = request.led_in == closure.step
            request.led_in = closure.step
            request.state.led |= closure.led
        if not told:
            self._untold.append(closure)
