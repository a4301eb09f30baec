"""Calls for all requests of one backend in a step. Depends on the grammar protocols.

A batch lives until a request in it starts, ends or gets a new matcher. If a call for
all raises, each is retried by itself. A backend that does not bound its calls is called
for one row after the other, in another thread; for a while so is one that does, after a
call that took as long as a row may. The row that takes too long fails: its call, which
can't be interrupted, is abandoned, and another thread goes on with the rows that are
left.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from guided_plugin.errors import BudgetError, GuidedError, RequestError, printable
from guided_plugin.grammar.base import (
    Backend,
    Grammar,
    MaskArray,
    Matcher,
    OutputClosing,
)
from guided_plugin.grammar.native import DeadlineCalls, Overdue
from guided_plugin.grammar.request_state import RequestState
from guided_plugin.grammar.waiting import Lead
from guided_plugin.spec import OutputSpec

_log = logging.getLogger(__name__)

_REPLAY = 1.5
"""The longest replay of a new request, as a multiple of one call."""
_REPLAY_SECONDS = 1.0
"""Processor time of a replay that runs, at most."""

_WATCHED = 2
"""Masks of a request by itself, after one that took too long. Where 256 rows of strings
with bounded lengths begin, one mask in a hundred takes that long, and the next does
not."""

STEP_SECONDS = 0.005
"""For the masks of a step: after more it is measured whose take longer than a tenth of
that. The masks of 64 real schemas take 1.8 ms in one thread, one of SQL 0.2 ms."""

_ROW_SECONDS = STEP_SECONDS / 10

_HEAD_WORDS = 64

Quarantine = Callable[[OutputSpec, GuidedError], None]
"""Refuse a spec for a while."""


@dataclass(slots=True, eq=False)
class RunningRequest:
    """The request in a slot of a `GrammarTable`."""

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
    """True if it keeps its matcher though that shares much."""
    closing: OutputClosing | None = None
    """The closing of it before its token limit, where its spec asks for that."""
    lead: Lead | None = None
    """For that, what ends its wait for a trigger."""
    watched: int = 0
    """For so many masks more it is called by itself and has a deadline, though its
    backend bounds them."""
    measured: int = 0
    """The number of times its mask was measured where others' were not."""
    spent: float = 0.0
    """Seconds of processor time of what was done for it alone since that was last
    looked at."""
    cost: float = 0.0
    """Seconds for a mask and its token, on average of the last ones that it was watched
    for, where that is too long for a step; else 0.0."""

    @property
    def bounded(self) -> bool:
        """True if it is called together with others."""
        return self.grammar.bounded and not self.watched

    def look(self) -> None:
        """A mask was measured: watch the request, if it took too long."""
        if self.spent > _ROW_SECONDS:
            self.watch()

    def watch(self) -> None:
        """Measure its next masks."""
        self.watched = self.watched or _WATCHED
        self.spent = 0.0

    def charge(self) -> None:
        """A mask of its own is there. After the last one that it is watched for it is
        known what they take: some are cheap, others not."""
        if not self.watched:
            return
        self.watched -= 1
        if not self.watched:
            cost = self.spent / _WATCHED
            self.cost = cost if cost > _ROW_SECONDS else 0.0
            if self.cost:
                self.watch()

    def replayed(self) -> tuple[Matcher, bool]:
        """A new matcher, moved past the request's tokens, and whether it accepted all
        of them."""
        matcher = self.backend.start(self.grammar, self.stop_token_ids)
        return matcher, refused(
            matcher, self.state.constrained(), _REPLAY_SECONDS
        ) is None


def refused(matcher: Matcher, tokens: Iterable[int], seconds: float) -> int | None:
    """The first token that a matcher refuses; None: it has moved past all. Raises
    BudgetError where that takes more processor time, as others wait."""
    end = time.thread_time() + seconds
    for token in tokens:
        if not matcher.accept(token):
            return token
        if time.thread_time() > end:
            raise _over("replay", seconds)
    return None


def _over(what: str, seconds: float) -> BudgetError:
    return BudgetError(
        f"a {what} of its grammar takes more than {1e3 * seconds:.0f} ms of processor time",
        hint="write the grammar without ambiguity, as `(a | b)*` instead of `e ::= e e | a | b`; row_ms "
        "sets the limit",
    )


class StepBatch:
    """Requests of one backend, called in this thread. The table drops a batch that is
    stale or has errors."""

    def __init__(
        self, seconds: float, positions: list[int], requests: Sequence[RunningRequest]
    ) -> None:
        """`seconds`: after a call that takes longer its requests are watched."""
        self._seconds = seconds
        self.positions = positions
        """The positions of the requests among the slots of the step."""
        self.requests = requests
        self.errors: dict[int, GuidedError] = {}
        """The requests that failed in the last call, by their index in the batch."""
        self.stale = False
        """True if matchers were replaced, or requests are called otherwise now."""
        self._matchers = requests[0].backend.batch(
            [request.matcher for request in requests]
        )

    def fill(self, mask: MaskArray, rows: list[int], until: float = 0.0) -> None:
        """Write the mask of request i into mask[rows[i]], unless the request fails.
        `until`: up to then requests are called one by one and measured, first those
        that were not for longest."""
        left = list(range(len(rows)))
        own = rows
        matchers = self._matchers
        if until:
            left.sort(key=lambda index: self.requests[index].measured)
            while left and time.perf_counter() < until:
                self.requests[left[0]].measured += 1
                self._fill_alone(left.pop(0), mask, rows)
            if not left:
                return
            others = [self.requests[index].matcher for index in left]
            matchers = self.requests[0].backend.batch(others)
            own = [rows[index] for index in left]
        begun = time.perf_counter()
        try:
            matchers.fill(mask, own)
            self._watch(begun)
            return
        except Exception as error:
            _log.warning(
                "%d rows are retried one by one: %s", len(left), printable(error)
            )
        for index in left:
            self._fill_alone(index, mask, rows)

    def _fill_alone(self, index: int, mask: MaskArray, rows: list[int]) -> None:
        request = self.requests[index]
        alone = request.backend.batch([request.matcher])
        try:  # filling moves no matcher
            _timed(request, partial(alone.fill, mask, [rows[index]]))
        except Exception as own:
            self.errors[index] = _failed(own)

    def accept(self, tokens: list[int]) -> list[bool]:
        """True if each request took its token; False also for those that fail."""
        begun = time.perf_counter()
        try:
            verdicts = self._matchers.accept(tokens)
            self._watch(begun)
            return verdicts
        except Exception as error:
            _log.warning(
                "%d rows are retried one by one: %s", len(tokens), printable(error)
            )
            # some matchers have moved and some have not, so all are replayed
            self.stale = True
            return [self._replayed(index, token) for index, token in enumerate(tokens)]

    def _watch(self, begun: float) -> None:
        """Which request a slow call was slow for is seen in the next ones."""
        if time.perf_counter() - begun > self._seconds:
            self.stale = True
            for request in self.requests:
                request.watch()

    def _replayed(self, index: int, token: int) -> bool:
        request = self.requests[index]
        try:
            matcher, complete = request.replayed()
            accepted = complete and bool(
                request.backend.batch([matcher]).accept([token])[0]
            )
        except Exception as error:
            self.errors[index] = _failed(error)
            return False
        request.matcher = matcher
        return accepted


def _failed(error: Exception) -> GuidedError:
    return RequestError(f"its backend failed: {error}")


class UnboundedCalls(DeadlineCalls):
    """The threads and deadlines of one table."""

    def __init__(
        self,
        seconds: float,
        longest: float,
        quarantine: Quarantine | None = None,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        """`seconds` of processor time, or `longest` by the clock, for a call of one
        request. `progress` is called while calls are waited for."""
        super().__init__(seconds, longest, progress)
        self._quarantine = quarantine

    def replay(self, request: RunningRequest, act: Callable[[], None]) -> None:
        """Move a new request past its tokens. Raises what `act` raises, or a
        BudgetError."""
        (outcome,) = self.run([act], times=_REPLAY)
        if isinstance(outcome, Overdue):
            raise self.late(request, "replay", starved=outcome.starved)
        if isinstance(outcome, Exception):
            raise outcome

    def late(
        self, request: RunningRequest, what: str, *, starved: bool = False
    ) -> GuidedError:
        """Why a request fails that took too long; its spec is refused for a while,
        unless the machine is to blame."""
        if starved:
            return BudgetError(
                f"a {what} of its grammar was not done in {self.longest:g} s, with little processor time",
                hint="the machine is too busy, or its backend hangs; send the request again",
            )
        error = _over(what, self.seconds)
        if self._quarantine is not None:
            self._quarantine(request.spec, error)
        return error


class UnboundedBatch:
    """A `StepBatch` of a backend that does not bound its calls: each request is called
    by itself, in other threads. Its calls return what those of a `StepBatch` do."""

    def __init__(
        self,
        calls: UnboundedCalls,
        positions: list[int],
        requests: Sequence[RunningRequest],
    ) -> None:
        self.positions = positions
        self.requests = requests
        self.errors: dict[int, GuidedError] = {}
        self.stale = False
        self._calls = calls
        self._each = [request.backend.batch([request.matcher]) for request in requests]
        self._masks: MaskArray = np.empty((len(requests), 0), np.int32)
        """Not the memory of the step: an abandoned call goes on writing."""

    def fill(self, mask: MaskArray, rows: list[int], until: float = 0.0) -> None:
        if self._masks.shape[1] != mask.shape[1]:
            self._masks = np.empty((len(rows), mask.shape[1]), np.int32)
        self._run(
            [partial(one.fill, self._masks, [i]) for i, one in enumerate(self._each)],
            "mask",
        )
        mask[rows] = self._masks
        for request in self.requests:
            request.charge()
            self.stale |= request.bounded

    def accept(self, tokens: list[int]) -> list[bool]:
        calls = [
            partial(one.accept, [token])
            for one, token in zip(self._each, tokens, strict=True)
        ]
        return [
            not isinstance(one, GuidedError) and bool(one[0])
            for one in self._run(calls, "token")
        ]

    def _run(self, calls: Sequence[Callable[[], Any]], what: str) -> list[Any]:
        timed = [
            partial(_timed, *one) for one in zip(self.requests, calls, strict=True)
        ]
        outcomes = self._calls.run(timed)
        for i, outcome in enumerate(outcomes):
            if isinstance(outcome, Overdue):
                outcomes[i] = self._calls.late(
                    self.requests[i], what, starved=outcome.starved
                )
            elif isinstance(outcome, Exception):
                outcomes[i] = _failed(outcome)
        locked = set[int]()
        # it goes on, and who shares what it has locked would wait with the GIL
        if self._calls.overdue():
            for request, found in zip(self.requests, outcomes, strict=True):
                give_up = getattr(request.matcher, "give_up_shared", None)
                if isinstance(found, BudgetError) and give_up is not None:
                    locked.add(id(give_up()))
        for i, request in enumerate(self.requests):
            if id(getattr(request.matcher, "shared", None)) in locked:
                outcomes[i] = self._calls.late(request, what)
        self.errors = {
            i: one for i, one in enumerate(outcomes) if isinstance(one, GuidedError)
        }
        return outcomes


def _timed(request: RunningRequest, call: Callable[[], Any]) -> Any:
    """Note what a call takes."""
    begun = time.thread_time()
    try:
        return call()
    finally:
        request.spent += time.thread_time() - begun


def empty_rows(mask: MaskArray, positions: list[int]) -> list[int]:
    """Rows without a single allowed token. Most rows show one early: look there
    first."""
    if not positions:
        return []
    alive: list[bool] = np.any(mask[: positions[-1] + 1, :_HEAD_WORDS], axis=1).tolist()
    return [p for p in positions if not alive[p] and not np.any(mask[p])]
