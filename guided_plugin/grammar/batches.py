"""Calls for all requests of one backend in a step. If a call raises, each request is retried by itself.

A batch lives until a request in it starts, ends or gets a new matcher. Depends on the grammar protocols.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from guided_plugin.errors import GuidedError, RequestError
from guided_plugin.grammar.base import MaskArray
from guided_plugin.grammar.running import RunningRequest

__all__ = ["BoundedBatch", "StepBatch"]

_log = logging.getLogger(__name__)


class StepBatch(Protocol):
    """Requests of one backend. The table drops a batch that is stale or has errors."""

    positions: list[int]
    """Where the requests are among the slots of the step."""
    requests: Sequence[RunningRequest]
    errors: dict[int, GuidedError]
    """The requests that failed in the last call, by their index in the batch."""
    stale: bool
    """Whether matchers were replaced, or requests belong into another batch."""

    def fill(self, mask: MaskArray, rows: list[int]) -> None:
        """Write the mask of request i into mask[rows[i]], unless it fails."""
        ...

    def accept(self, tokens: list[int]) -> list[bool]:
        """Whether each request took its token; False also for those that fail."""
        ...


class BoundedBatch:
    """Requests of a backend that bounds what a call costs: it is called in this thread."""

    def __init__(self, positions: list[int], requests: Sequence[RunningRequest]) -> None:
        self.positions, self.requests = positions, requests
        self.errors: dict[int, GuidedError] = {}
        self.stale = False
        self._matchers = requests[0].backend.batch([request.matcher for request in requests])

    def fill(self, mask: MaskArray, rows: list[int]) -> None:
        """Write the masks. After an error each request is filled by itself: filling moves no matcher."""
        try:
            self._matchers.fill(mask, rows)
        except Exception as error:
            _log.warning("%d rows are retried one by one: %s", len(rows), error)
            for index, (request, row) in enumerate(zip(self.requests, rows, strict=True)):
                try:
                    request.backend.batch([request.matcher]).fill(mask, [row])
                except Exception as own:
                    self.errors[index] = _failed(own)

    def accept(self, tokens: list[int]) -> list[bool]:
        """Move the matchers. After an error some have moved and some have not, so all are replayed."""
        try:
            return self._matchers.accept(tokens)
        except Exception as error:
            _log.warning("%d rows are retried one by one: %s", len(tokens), error)
            self.stale = True
            return [self._replayed(index, token) for index, token in enumerate(tokens)]

    def _replayed(self, index: int, token: int) -> bool:
        request = self.requests[index]
        try:
            matcher, complete = request.replayed()
            accepted = complete and bool(request.backend.batch([matcher]).accept([token])[0])
        except Exception as error:
            self.errors[index] = _failed(error)
            return False
        request.matcher = matcher
        return accepted


def _failed(error: Exception) -> GuidedError:
    return RequestError(f"its backend failed: {error}")
