"""Rows of backends that do not bound their calls: each call has a deadline. Depends on the grammar protocols.

Rows of one backend are worked on together, in a thread of their own. If that takes too long, each request
gets a new matcher, its tokens are replayed, and it is worked on alone. So the request that takes too long is
found, and it fails by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from guided_plugin.errors import BudgetError, GuidedError, RequestError
from guided_plugin.grammar.base import Backend, Grammar, MaskArray, Matcher, MatcherBatch
from guided_plugin.grammar.deadline import DeadlineCalls, Overdue
from guided_plugin.spec import OutputSpec

__all__ = ["Quarantine", "UnboundedRequest", "UnboundedRows"]

_log = logging.getLogger(__name__)

_TOGETHER = 1.5
"""How many times longer than one row a batch may take. The clock decides: its threads are the backend's."""

_REPLAY = 2.5
"""How many times longer than one call the replay of a request may take."""

_SIDE_BY_SIDE = 8
"""How many requests are worked on alone at the same time: more would wait for a processor, and look late."""

_STEPS_ALONE = 256
"""Calls that a request makes alone after its batch was late, before it joins the others again."""

Quarantine = Callable[[OutputSpec, GuidedError], None]
"""Refuse a spec for a while."""


class UnboundedRequest(Protocol):
    """A request whose matcher can be made again."""

    spec: OutputSpec
    grammar: Grammar
    backend: Backend
    matcher: Matcher
    alone: int
    """For how many calls it is worked on alone."""

    def replayed(self) -> tuple[Matcher, bool]:
        """A new matcher in the request's position, and whether it took all tokens."""
        ...


class UnboundedRows:
    """Calls for requests whose backend bounds nothing. Used by one thread at a time."""

    def __init__(
        self,
        seconds: float,
        longest: float,
        quarantine: Quarantine | None = None,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        """`seconds` of processor time, or `longest` by the clock, for a call of one request. `progress` is
        called while many are worked on alone."""
        self._calls: DeadlineCalls[Any] = DeadlineCalls(seconds, longest)
        self._quarantine = quarantine
        self._progress = progress
        self._masks: MaskArray = np.empty((0, 0), np.int32)

    def overdue(self) -> float:
        """For how many seconds the longest of the abandoned calls has run; 0.0 if none runs."""
        return self._calls.overdue()

    def fill(
        self, requests: Sequence[UnboundedRequest], together: MatcherBatch | None, words: int
    ) -> tuple[MaskArray, list[GuidedError | None]]:
        """A mask for each request, and why there is none."""
        masks, count = self._buffer(len(requests), words), len(requests)
        replay = False
        if together is not None and count > 1:
            outcome = self._together(requests, partial(together.fill, masks, list(range(count))))
            if not isinstance(outcome, Exception):
                return masks, [None] * count
            self._forget_buffer()
            masks, replay = self._buffer(count, words), True
        own = together if not replay else None
        calls = [partial(_filled, one, own, masks[i : i + 1], replay) for i, one in enumerate(requests)]
        errors = []
        for request, outcome in zip(requests, self._alone(calls, replay), strict=True):
            error = self._judged(request, outcome, "mask")
            if error is None:
                request.matcher = outcome
            else:
                self._forget_buffer()
            errors.append(error)
        return masks, errors

    def accept(
        self, requests: Sequence[UnboundedRequest], together: MatcherBatch | None, tokens: list[int]
    ) -> list[bool | GuidedError]:
        """Whether each request took its token, or why that is not known."""
        replay = False
        if together is not None and len(requests) > 1:
            outcome = self._together(requests, partial(together.accept, tokens))
            if not isinstance(outcome, Exception):
                return list(outcome)
            replay = True
        own = together if not replay else None
        pairs = zip(requests, tokens, strict=True)
        calls = [partial(_accepted, one, own, token, replay) for one, token in pairs]
        verdicts: list[bool | GuidedError] = []
        for request, outcome in zip(requests, self._alone(calls, replay), strict=True):
            error = self._judged(request, outcome, "token")
            if error is None:
                request.matcher, accepted = outcome
                verdicts.append(accepted)
            else:
                verdicts.append(error)
        return verdicts

    def replay(self, request: UnboundedRequest, act: Callable[[], None]) -> GuidedError | None:
        """Bring a request to where it was; why that took too long. Raises what `act` raised."""
        (outcome,) = self._calls.run([act], times=_REPLAY)
        if isinstance(outcome, Overdue):
            return self._judged(request, outcome, "replay")
        if isinstance(outcome, Exception):
            raise outcome
        return None

    def _together(self, requests: Sequence[UnboundedRequest], call: Callable[[], Any]) -> Any:
        """What a batch's call returned, or the error; after an error each request is worked on alone."""
        (outcome,) = self._calls.run([call], longest=_TOGETHER * self._calls.seconds)
        if isinstance(outcome, Exception):
            late = isinstance(outcome, Overdue)
            why = "their masks or tokens take too long" if late else outcome
            _log.warning("%d rows are retried one by one: %s", len(requests), why)
            for request in requests:
                request.alone = _STEPS_ALONE
            abandon_threads: Callable[[], None] | None = getattr(requests[0].backend, "abandon_threads", None)
            if abandon_threads is not None and late:
                abandon_threads()
        return outcome

    def _alone(self, calls: Sequence[Callable[[], Any]], replay: bool) -> list[Any]:
        outcomes = []
        for first in range(0, len(calls), _SIDE_BY_SIDE):
            some = calls[first : first + _SIDE_BY_SIDE]
            outcomes += self._calls.run(some, times=_REPLAY if replay else 1.0)
            self._progress()
        return outcomes

    def _judged(self, request: UnboundedRequest, outcome: Any, what: str) -> GuidedError | None:
        """Why a request goes on no more, if it doesn't."""
        if not isinstance(outcome, Exception):
            request.alone = max(0, request.alone - 1)
            return None
        if not isinstance(outcome, Overdue):
            return RequestError(f"its backend failed: {outcome}")
        error = BudgetError(
            f"a {what} of its grammar takes more than {1e3 * self._calls.seconds:.0f} ms of processor time",
            hint="write the grammar without ambiguity, as `(a | b)*` instead of `e ::= e e | a | b`; row_ms "
            "sets the limit",
        )
        if self._quarantine is not None:
            self._quarantine(request.spec, error)
        return error

    def _forget_buffer(self) -> None:
        """A call that is late goes on writing into it."""
        self._masks = np.empty((0, 0), np.int32)

    def _buffer(self, count: int, words: int) -> MaskArray:
        if self._masks.shape[0] < count or self._masks.shape[1] != words:
            self._masks = np.empty((count, words), np.int32)
        return self._masks[:count]


def _filled(request: UnboundedRequest, own: MatcherBatch | None, mask: MaskArray, replay: bool) -> Matcher:
    """`own`: a batch of this request alone, if there is one."""
    matcher = _there(request) if replay else request.matcher
    (own or request.backend.batch([matcher])).fill(mask, [0])
    return matcher


def _accepted(
    request: UnboundedRequest, own: MatcherBatch | None, token: int, replay: bool
) -> tuple[Matcher, bool]:
    matcher = _there(request) if replay else request.matcher
    return matcher, bool((own or request.backend.batch([matcher])).accept([token])[0])


def _there(request: UnboundedRequest) -> Matcher:
    matcher, took_all = request.replayed()
    if not took_all:
        raise RequestError("a new matcher refused tokens that the old one took")
    return matcher
