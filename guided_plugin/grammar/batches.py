"""Calls for all requests of one backend in a step. If a call raises, each request is retried by itself.

A batch lives until a request in it starts, ends or gets a new matcher. Depends on the grammar protocols.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from guided_plugin.errors import GuidedError, RequestError, printable
from guided_plugin.grammar.base import Backend, Grammar, MaskArray, Matcher
from guided_plugin.grammar.request_state import RequestState
from guided_plugin.spec import OutputSpec

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class RunningRequest:
    """What a `GrammarTable` keeps for a slot."""

    request_id: str
    spec: OutputSpec
    grammar: Grammar
    matcher: Matcher
    backend: Backend
    stop_token_ids: tuple[int, ...]
    state: RequestState
    """With every token that counts, for replay and for checking."""
    error: GuidedError | None = None
    forbidden: tuple[array[int], ...] = ()
    """Beginnings of the constrained part that its grammar refuses."""
    stays: bool = False
    """Whether it keeps its matcher though that shares much."""

    def replayed(self) -> tuple[Matcher, bool]:
        """A new matcher, moved past the request's tokens, and whether it accepted all of them."""
        matcher = self.backend.start(self.grammar, self.stop_token_ids)
        return matcher, all(matcher.accept(token) for token in self.state.constrained())


class StepBatch:
    """Requests of one backend, called in this thread. The table drops a batch that is stale or has errors."""

    def __init__(self, positions: list[int], requests: Sequence[RunningRequest]) -> None:
        self.positions = positions
        """Where the requests are among the slots of the step."""
        self.requests = requests
        self.errors: dict[int, GuidedError] = {}
        """The requests that failed in the last call, by their index in the batch."""
        self.stale = False
        """Whether matchers were replaced."""
        self._matchers = requests[0].backend.batch([request.matcher for request in requests])

    def fill(self, mask: MaskArray, rows: list[int]) -> None:
        """Write the mask of request i into mask[rows[i]], unless the request fails."""
        try:
            self._matchers.fill(mask, rows)
        except Exception as error:
            _log.warning("%d rows are retried one by one: %s", len(rows), printable(error))
            for index, (request, row) in enumerate(zip(self.requests, rows, strict=True)):
                try:  # filling moves no matcher
                    request.backend.batch([request.matcher]).fill(mask, [row])
                except Exception as own:
                    self.errors[index] = _failed(own)

    def accept(self, tokens: list[int]) -> list[bool]:
        """Whether each request took its token; False also for those that fail."""
        try:
            return self._matchers.accept(tokens)
        except Exception as error:
            _log.warning("%d rows are retried one by one: %s", len(tokens), printable(error))
            self.stale = True  # some matchers have moved and some have not, so all are replayed
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
