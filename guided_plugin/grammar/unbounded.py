"""Calls for requests whose backend does not bound its calls: each has a deadline. Depends on the protocols.

Requests of one backend are worked on together, in another thread. If that takes too long, each request gets
a new matcher, its tokens are replayed, and it is worked on by itself. This finds the request that takes too
long, and only that one fails.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from guided_plugin.errors import BudgetError, GuidedError, RequestError, printable
from guided_plugin.grammar.base import MaskArray, MatcherBatch
from guided_plugin.grammar.batches import RunningRequest, StepBatch
from guided_plugin.grammar.native import DeadlineCalls, Overdue
from guided_plugin.spec import OutputSpec

_log = logging.getLogger(__name__)

_TOGETHER = 0.75
"""How much of the time of one row a batch may take. The clock decides: its threads are the backend's. All
rows wait for this and for what follows, and a batch that is late for another reason loses nothing."""

_REPLAY = 1.5
"""How many times longer than one call the replay of a request may take."""

_AT_ONCE = 8
"""How many requests are isolated at the same time: more would wait for a processor, and look late."""

_ISOLATED_CALLS = 256
"""Calls that a request makes by itself after its batch was late, before it joins the others again."""

Quarantine = Callable[[OutputSpec, GuidedError], None]
"""Refuse a spec for a while."""


class UnboundedCalls:
    """The threads and deadlines of one table. Used by one thread at a time."""

    def __init__(
        self,
        seconds: float,
        longest: float,
        quarantine: Quarantine | None = None,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        """`seconds` of processor time, or `longest` by the clock, for a call of one request. `progress` is
        called while many requests are isolated."""
        self._calls: DeadlineCalls[Any] = DeadlineCalls(seconds, longest)
        self._quarantine = quarantine
        self._progress = progress
        self._masks: MaskArray = np.empty((0, 0), np.int32)

    def overdue(self) -> float:
        """For how many seconds the longest of the abandoned calls has run; 0.0 if none runs."""
        return self._calls.overdue()

    def masks(self, count: int, words: int) -> MaskArray:
        """A buffer for a batch: not the step's own, since an abandoned call goes on writing."""
        if self._masks.shape[0] < count or self._masks.shape[1] != words:
            self._masks = np.empty((count, words), np.int32)
        return self._masks[:count]

    def together(self, requests: Sequence[RunningRequest], call: Callable[[], Any]) -> Any:
        """What a batch's call returned, or its error; after an error the requests are isolated."""
        (outcome,) = self._calls.run([call], longest=_TOGETHER * self._calls.seconds)
        if isinstance(outcome, Exception):
            late = isinstance(outcome, Overdue)
            why = "their masks or tokens take too long" if late else printable(outcome)
            _log.warning("%d rows are retried one by one: %s", len(requests), why)
            self._masks = np.empty((0, 0), np.int32)
            for request in requests:
                request.isolated_calls = _ISOLATED_CALLS
            abandon: Callable[[], None] | None = getattr(requests[0].backend, "abandon_threads", None)
            if abandon is not None and late:
                abandon()
        return outcome

    def isolated(
        self,
        requests: Sequence[RunningRequest],
        calls: Sequence[Callable[[], Any]],
        what: str,
        times: float,
    ) -> list[Any]:
        """What each call returned for its request, or a GuidedError."""
        outcomes = []
        for first in range(0, len(calls), _AT_ONCE):
            outcomes += self._calls.run(calls[first : first + _AT_ONCE], times=times)
            self._progress()
        pairs = zip(requests, outcomes, strict=True)
        return [self._checked(request, outcome, what) for request, outcome in pairs]

    def replay(self, request: RunningRequest, act: Callable[[], None]) -> None:
        """Move a new request past its tokens. Raises what `act` raises, or a BudgetError."""
        (outcome,) = self._calls.run([act], times=_REPLAY)
        if isinstance(outcome, Exception):
            raise self._late(request, "replay") if isinstance(outcome, Overdue) else outcome

    def _checked(self, request: RunningRequest, outcome: Any, what: str) -> Any:
        if isinstance(outcome, Overdue):
            return self._late(request, what)
        if isinstance(outcome, Exception):
            return RequestError(f"its backend failed: {outcome}")
        request.isolated_calls = max(0, request.isolated_calls - 1)
        return outcome

    def _late(self, request: RunningRequest, what: str) -> GuidedError:
        error = BudgetError(
            f"a {what} of its grammar takes more than {1e3 * self._calls.seconds:.0f} ms of processor time",
            hint="write the grammar without ambiguity, as `(a | b)*` instead of `e ::= e e | a | b`; row_ms "
            "sets the limit",
        )
        if self._quarantine is not None:
            self._quarantine(request.spec, error)
        return error


class UnboundedBatch(StepBatch):
    """Requests of a backend that does not bound its calls: it is called in other threads."""

    def __init__(
        self, calls: UnboundedCalls, positions: list[int], requests: Sequence[RunningRequest], isolated: bool
    ) -> None:
        super().__init__(positions, requests)
        self._calls = calls
        self._isolated = isolated
        """Whether each request is worked on by itself."""

    def fill(self, mask: MaskArray, rows: list[int]) -> None:
        """Write the mask of request i into mask[rows[i]], unless the request fails."""
        count, words = len(rows), mask.shape[1]
        late = False
        if count > 1 and not self._isolated:
            masks = self._calls.masks(count, words)
            call = partial(self._matchers.fill, masks, list(range(count)))
            late = isinstance(self._calls.together(self.requests, call), Exception)
            if not late:
                mask[rows] = masks
                return
        masks_or_none = self._each([partial(_fill, words)] * count, "mask", replay=late)
        for row, own in zip(rows, masks_or_none, strict=True):
            if own is not None:
                mask[row] = own

    def accept(self, tokens: list[int]) -> list[bool]:
        """Whether each request took its token; False also for those that fail."""
        late = False
        if len(tokens) > 1 and not self._isolated:
            outcome = self._calls.together(self.requests, partial(self._matchers.accept, tokens))
            late = isinstance(outcome, Exception)
            if not late:
                return list(outcome)
        return [bool(v) for v in self._each([partial(_accept, t) for t in tokens], "token", replay=late)]

    def _each(self, acts: Sequence[Callable[[MatcherBatch], Any]], what: str, *, replay: bool) -> list[Any]:
        """What `acts` return for each request; None for those that fail. With `replay` each request gets
        a new matcher first, because an abandoned call may still use the old one."""
        own = None if replay or self._isolated else self._matchers
        calls = [partial(_act, r, act, own, replay) for r, act in zip(self.requests, acts, strict=True)]
        found: list[Any] = []
        outcomes = self._calls.isolated(self.requests, calls, what, _REPLAY if replay else 1.0)
        for index, (request, outcome) in enumerate(zip(self.requests, outcomes, strict=True)):
            if isinstance(outcome, GuidedError):
                self.errors[index] = outcome
                found.append(None)
            else:
                request.matcher, result = outcome
                found.append(result)
        self.stale = any((request.isolated_calls > 0) != self._isolated for request in self.requests)
        return found


def _act(
    request: RunningRequest, act: Callable[[MatcherBatch], Any], own: MatcherBatch | None, replay: bool
) -> Any:
    """The request's matcher, and what `act` returned for a batch of it alone: `own`, if there is one."""
    matcher = request.matcher
    if replay:
        matcher, complete = request.replayed()
        if not complete:
            raise RequestError("a new matcher refused tokens that the old one took")
    return matcher, act(own or request.backend.batch([matcher]))


def _fill(words: int, matchers: MatcherBatch) -> MaskArray:
    mask: MaskArray = np.empty((1, words), np.int32)
    matchers.fill(mask, [0])
    return mask.reshape(-1)


def _accept(token: int, matchers: MatcherBatch) -> bool:
    return bool(matchers.accept([token])[0])
