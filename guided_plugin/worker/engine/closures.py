"""Which requests fail closed, and from which step on. Depends on the shared memory; its client locks.

A host reports a failure together with the output of the first closed step, so it must know of the failure as
soon as the masks of that step are there. A worker therefore writes its failures into the shared memory before
it raises FILLED; the engine's own failures are added before FILLED is raised for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from guided_plugin.step import Closure
from guided_plugin.worker.engine.journal import LiveRequest
from guided_plugin.worker.layout import Counter, Region


class Closures:
    """The closed requests of one engine, each told once."""

    def __init__(self, region: Region) -> None:
        self._region = region
        self.word = region.word(Counter.CLOSED)
        """[1]: how many entries the worker wrote."""
        self.seen = self.word[0]
        """How many of them were read."""
        self._known: set[int] = set()
        """Serials of running requests that were told."""
        # Bounded: not every host takes them.
        self.untold: deque[Closure] = deque(maxlen=4 * region.shape.max_slots)

    @property
    def changed(self) -> bool:
        """Whether the worker wrote entries that were not read."""
        return self.word[0] != self.seen

    def add(self, request: LiveRequest, step: int, reason: str) -> None:
        """A request is closed from a step on."""
        if request.serial not in self._known:
            self._known.add(request.serial)
            self.untold.append(Closure(request.request_id, step, reason))

    def read(self, requests: Iterable[LiveRequest]) -> None:
        """Add those of these requests that the worker closed."""
        if not self.changed:
            return
        self.seen = self._region.load(Counter.CLOSED)
        for request in requests:
            entry = self._region.read_closure(request.slot, request.serial)
            if entry is not None:
                self.add(request, *entry)

    def reason(self, request: LiveRequest) -> str | None:
        """Why a worker closed a request, if one did."""
        entry = self._region.read_closure(request.slot, request.serial)
        return None if entry is None else entry[1]

    def forget(self, request: LiveRequest) -> None:
        """The request has left."""
        self._known.discard(request.serial)

    def take(self) -> list[Closure]:
        """What was added since the last call. From any thread."""
        taken = []
        while self.untold:
            taken.append(self.untold.popleft())
        return taken
