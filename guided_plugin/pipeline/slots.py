"""Slots: a request keeps its slot from start to end; rows change every step, slots don't. Depends on
errors."""

from __future__ import annotations

from guided_plugin.errors import PipelineError


class Slots:
    """Gives out the numbers 0 .. capacity-1, the lowest free one first."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise PipelineError(f"max_slots must be at least 1, not {capacity}")
        self.capacity = capacity
        self._free = list(range(capacity - 1, -1, -1))
        self._by_request: dict[str, int] = {}

    def take(self, request_id: str) -> int:
        """A free slot for a request."""
        if request_id in self._by_request:
            raise PipelineError(
                "is running already", request_id=request_id, hint="request ids must be unique"
            )
        if not self._free:
            raise PipelineError(
                f"all {self.capacity} slots are taken", request_id=request_id, hint="raise max_slots"
            )
        slot = self._by_request[request_id] = self._free.pop()
        return slot

    def give_back(self, request_id: str) -> int:
        """The slot of a request that ended; free from now on."""
        try:
            slot = self._by_request.pop(request_id)
        except KeyError:
            raise PipelineError("is not running", request_id=request_id) from None
        self._free.append(slot)
        return slot

    def of(self, request_id: str) -> int | None:
        """The slot of a running request."""
        return self._by_request.get(request_id)

    def __len__(self) -> int:
        return len(self._by_request)
