"""`GrammarTable`: the grammar side of a step. Slots and tokens in, masks out; no
tensors, no devices.

Runs in the thread of a host or in a worker process. Nothing here raises for what one
request did: its row fails closed (only stop tokens stay allowed) and `failures` says
why. Depends on the grammar protocols.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from guided_plugin.config import GuidedConfig
from guided_plugin.errors import BudgetError, GuidedError, PipelineError, RequestError
from guided_plugin.grammar.base import (
    Backend,
    Grammar,
    MaskArray,
    OutputClosing,
    few_tokens,
    why_unprotected,
)
from guided_plugin.grammar.batches import (
    STEP_SECONDS,
    Quarantine,
    RunningRequest,
    StepBatch,
    UnboundedBatch,
    UnboundedCalls,
    empty_rows,
    refused,
)
from guided_plugin.grammar.renewal import Renewals, never_began
from guided_plugin.grammar.request_state import Phase, RequestState, as_array
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.grammar.waiting import (
    COUNTED,
    LED_OUTPUT,
    LED_REASONING,
    fill_waiting,
    lead_of,
)
from guided_plugin.spec import OutputSpec
from guided_plugin.step import NO_TOKEN

_log = logging.getLogger(__name__)

_GROUPS = 64
"""Groups that are remembered: of a step there is one, and with drafts two for each
position."""

_RENEW_EVERY = 16
"""Fills between two looks for matchers that are to be replaced, and between two of which
some rows are measured one by one."""

_LOOK_SECONDS = 0.1
"""Seconds between two such looks, at most: where masks take long, better matchers
matter most."""


@dataclass(slots=True)
class _Group:
    """The slots of a step, by what is done with them."""

    batches: list[StepBatch | UnboundedBatch]
    others: list[int]
    """The positions in the step of slots that no matcher guides: not yet, or no
    longer."""
    closing: list[tuple[int, RunningRequest, OutputClosing]]
    """Slots whose outputs end before their limit, with what is there."""


class GrammarTable:
    """Running grammars by slot. `fill` and `accept` take the guided slots of one step,
    in row order."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        row_seconds: float = 0.2,
        row_longest: float = 1.0,
        quarantine: Quarantine | None = None,
        progress: Callable[[], None] = lambda: None,
        answer_room: float = GuidedConfig.answer_room,
    ) -> None:
        """`row_seconds` of processor time, or `row_longest` by the clock, is what a
        call for one request may take; `quarantine` gets the specs that take longer.
        `progress` is called while a step is long. `answer_room`: the option."""
        self._vocabulary = vocabulary
        self._answer_room = answer_room
        self._unbounded = UnboundedCalls(row_seconds, row_longest, quarantine, progress)
        self.overdue = self._unbounded.overdue
        self.requests: dict[int, RunningRequest] = {}
        self._groups: dict[tuple[int, ...], _Group] = {}
        """By the slots that are worked on together; see `regroup`."""
        self.renewals = Renewals(vocabulary)
        self._fills = 0
        self._looked = 0.0
        self._fill_seconds = 0.0
        self._measured = -_RENEW_EVERY
        """The last fill whose rows were measured."""
        self.slow: Any = {}
        """The `cost` of requests by slot: a dict, or an array of a runtime's that the
        engine sees."""
        self.failures: list[tuple[int, GuidedError]] = []
        """Slots that failed since the host last took this list, with the reason."""
        self.led: dict[int, int] = {}
        """Slots whose outputs came so near their limit since then that they are led to
        an end: behind how many drafts of the next step."""
        self.counts: Counter[str] = Counter()
        """The numbers of parts that were led, and may be cut, by figures of
        `WorkerMetrics`. A worker takes them."""
        self.unprotected: dict[int, str] = {}
        """By slot, why outputs may be cut at their token limit. A worker takes what it
        tells."""

    def add(
        self,
        slot: int,
        request_id: str,
        spec: OutputSpec,
        grammar: Grammar,
        backend: Backend,
        tokens: Iterable[int] = (),
    ) -> None:
        """Start a request in a slot; `tokens` replays what it had produced before."""
        if slot in self.requests:
            raise PipelineError(
                f"slot {slot} is taken by request {self.requests[slot].request_id}"
            )
        self.slow[slot] = 0.0
        stops = spec.stop_token_ids or self._vocabulary.stop_token_ids
        try:
            self._vocabulary.check_stops(stops, named=grammar.named)
            triggers = self._vocabulary.triggers(spec.start_after)
        except GuidedError as error:
            raise error.for_request(request_id) from None
        history = [int(token) for token in tokens]

        def replay() -> None:
            end = time.thread_time() + self._unbounded.longest
            for token in history:
                # else it took too long, and this thread is abandoned
                if self.requests.get(slot) is request:
                    self._accept_one(slot, request, token)
                if time.thread_time() > end:
                    what = f"the replay of its {len(history)} tokens takes too long"
                    raise RequestError(
                        what, hint="ask for shorter outputs, or simplify the schema"
                    )

        added = False
        try:
            matcher = backend.start(grammar, stops)
            state = RequestState(triggers, stops)
            # Triggers that belong to the constrained part, where the grammar can't
            # begin with them.
            kept = [as_array(one) for one in triggers if one.kept]
            first = partial(backend.start, grammar, stops)
            seconds = self._unbounded.seconds
            forbidden = tuple(
                one for one in kept if refused(first(), one, seconds) is not None
            )
            request = RunningRequest(
                request_id,
                spec,
                grammar,
                matcher,
                backend,
                stops,
                state,
                forbidden=forbidden,
            )
            self.requests[slot] = request
            closer: Any = backend
            if grammar.shortest is None:
                self._unprotect(slot, why_unprotected(grammar))
            elif spec.room is None:
                self._unprotect(slot, "unprotected: its token limit is not known")
            else:
                request.closing = closer.closing(grammar, spec.room, stops)
            usable = [one for one in triggers if as_array(one) not in forbidden]
            if spec.close_before_length and spec.room is not None:
                answer_room = self._answer_room
                request.lead = lead_of(grammar, usable, spec.room, answer_room)
            if grammar.bounded or not history:
                replay()
            else:
                self._unbounded.replay(request, replay)
            added = True
        except RequestError as error:
            raise error.for_request(request_id) from error
        except Exception as error:
            raise RequestError(
                f"its backend failed: {error}", request_id=request_id
            ) from error
        finally:
            if not added:
                # The host was not told that the slot is in use, so it would never
                # remove the request.
                self.requests.pop(slot, None)
            self.regroup()

    def add_failed(
        self, slot: int, request_id: str, spec: OutputSpec, error: GuidedError
    ) -> None:
        """A request takes a slot, but has failed before it could begin: its rows are
        closed."""
        stops = self._vocabulary.usable_stops(spec.stop_token_ids)
        grammar = Grammar(spec, "", None, 0, 0.0, bounded=True)
        # of a request that has failed, neither matcher nor backend is asked
        none: Any = None
        self.requests[slot] = RunningRequest(
            request_id, spec, grammar, none, none, stops, RequestState((), stops)
        )
        self.fail(slot, error)

    def remove(self, slot: int) -> None:
        """Free a slot."""
        if self.requests.pop(slot, None) is None:
            raise PipelineError(f"slot {slot} is empty")
        self.regroup()

    def fail(self, slot: int, error: GuidedError) -> None:
        """Fail a request closed."""
        request = self.requests[slot]
        request.state.fail()
        request.error = error.for_request(request.request_id)
        self.failures.append((slot, request.error))
        self.regroup()

    def phase(self, slot: int) -> Phase:
        """The phase of the request in a slot."""
        return self.requests[slot].state.phase

    def tokens(self, slot: int) -> tuple[int, ...]:
        """The tokens of a slot that count."""
        return tuple(self.requests[slot].state.tokens)

    def regroup(self) -> None:
        """A phase or a matcher changed: group the slots of later steps again."""
        self._groups.clear()

    def fill(
        self, slots: tuple[int, ...], mask: MaskArray, rows: list[int] | None = None
    ) -> None:
        """Write the mask of slots[i] into mask[rows[i]]; without rows, into mask[i]. With
        them it is one behind drafts, where no new matcher would stay."""
        self._fills += rows is None
        start = time.perf_counter()
        until = 0.0
        alone: list[RunningRequest] = []
        if rows is None and (
            self._fills % _RENEW_EVERY == 0 or start - self._looked > _LOOK_SECONDS
        ):
            slow = self._fill_seconds > STEP_SECONDS
            self._look_at_matchers()
            start = self._looked = time.perf_counter()
            if slow and self._fills >= self._measured + _RENEW_EVERY:
                self._measured = self._fills
                until = start + STEP_SECONDS
                alone = [one for one in self.requests.values() if not one.watched]
        rows = rows or list(range(len(slots)))
        group = self._group(slots)
        for request in alone:
            request.spent = 0.0
        for batch in group.batches:
            own = [rows[position] for position in batch.positions]
            self._fill_batch(batch, slots, mask, own, until)
        for position, request, closing in group.closing:
            if len(request.state.tokens) >= closing.due and request.error is None:
                row = mask[rows[position]]
                self._close(slots[position], request, closing, row)
        for position in group.others:
            request = self.requests[slots[position]]
            row = mask[rows[position]]
            if request.state.phase is not Phase.WAITING:
                row[:] = self.stop_row(request)
                continue
            lead = request.lead
            token = None if lead is None else lead.token(request.state)
            if token is not None:
                row[:] = few_tokens(len(row), (token,))
                self.counts["led_tokens"] += 1
                self._note_led(slots[position], request, LED_REASONING)
                continue
            fill_waiting(row, request.state, request.forbidden)
        self._fill_seconds = time.perf_counter() - start
        for request in alone:
            request.look()
        if any(request.watched for request in alone):
            self._measured -= _RENEW_EVERY  # there may be others
            self.regroup()

    def _close(
        self,
        slot: int,
        request: RunningRequest,
        closing: OutputClosing,
        row: MaskArray,
    ) -> None:
        """Keep room for an end in the mask of a request that runs."""
        state = request.state
        begun = time.thread_time()
        before = closing.led
        problem: Exception | None = None
        try:
            closing.restrict(
                request.matcher, len(state.tokens), state.constrained(), row
            )
        except Exception as error:
            problem = error
        # What it may take is counted in steps, not in time: in every run, and on every
        # rank, the same tokens have the same end. Masks of a client's grammar may take
        # so long all the same.
        spent = time.thread_time() - begun
        request.spent += spent
        if not request.grammar.bounded and spent > self._unbounded.seconds:
            problem = problem or TimeoutError("it takes too long")
        if problem is not None:
            request.closing = None
            self.regroup()
        elif closing.due >= (request.spec.room or 0):  # it is not looked at again
            problem = LookupError("none is known")
        if problem is not None and not state.unprotected:
            reason = f"unprotected: the search for its end failed: {problem}"
            self._unprotect(slot, reason)
            _log.warning("request %s: %s", request.request_id, reason)
        if closing.led > before:
            self.counts["led_tokens"] += 1
            if not before:
                self._note_led(slot, request, LED_OUTPUT)

    def _note_led(self, slot: int, request: RunningRequest, what: int) -> None:
        self.led[slot] = 0
        if not request.state.led & what:
            request.state.led |= what
            self.counts[COUNTED[what]] += 1

    def _unprotect(self, slot: int, reason: str) -> None:
        """An output may be cut at its token limit, if there is a reason."""
        if reason:
            self.requests[slot].state.unprotected = reason
            self.unprotected[slot] = reason
            self.counts["unprotected_outputs"] += 1

    def _look_at_matchers(self) -> None:
        """Replace matchers whose shared state is to be given up, as many as time
        allows. If there is none, those that share with too many, for as long as a fill
        takes."""
        outdated = [
            one
            for one in self.requests.values()
            if getattr(one.matcher, "outdated", False)
        ]
        for request in outdated:
            if not self.renewals.refresh(request):
                return
            self.regroup()
        if outdated:
            return
        end = time.perf_counter() + self._fill_seconds
        for request in self.requests.values():
            if not request.stays and getattr(request.matcher, "crowded", False):
                if time.perf_counter() > end or not self.renewals.move(request):
                    return
                self.regroup()

    def _fill_batch(
        self,
        batch: StepBatch | UnboundedBatch,
        slots: tuple[int, ...],
        mask: MaskArray,
        rows: list[int],
        until: float,
    ) -> None:
        batch.fill(mask, rows, until)
        errors = batch.errors
        filled = [row for index, row in enumerate(rows) if index not in errors]
        for row in empty_rows(mask, filled):
            index = rows.index(row)
            error = self.renewals.fill(batch.requests[index], mask, row)
            self._looked = 0.0  # others that share its lexer are replaced soon
            self.regroup()
            if error is not None:
                errors[index] = error
        for index, error in errors.items():
            self.fail(slots[batch.positions[index]], error)
            mask[rows[index]] = self.stop_row(batch.requests[index])
        if isinstance(batch, UnboundedBatch):
            for position, request in zip(batch.positions, batch.requests, strict=True):
                self.slow[slots[position]] = request.cost
        if batch.stale:
            self.regroup()

    def accept(self, slots: tuple[int, ...], tokens: Sequence[int]) -> None:
        """Move every slot past the token that was sampled for it; NO_TOKEN where none
        was."""
        if NO_TOKEN in tokens:
            sampled = [
                (slot, token)
                for slot, token in zip(slots, tokens, strict=True)
                if token != NO_TOKEN
            ]
            if not sampled:
                return
            slots = tuple(slot for slot, _ in sampled)
            tokens = [token for _, token in sampled]
        group = self._group(slots)
        changed = False
        for batch in group.batches:
            chosen = [tokens[position] for position in batch.positions]
            verdicts = batch.accept(chosen)
            changed |= batch.stale
            outcomes = zip(batch.requests, chosen, verdicts, strict=True)
            for index, (request, token, accepted) in enumerate(outcomes):
                if not accepted:
                    changed = True
                    error = batch.errors.get(index) or self.renewals.accept(
                        request, token
                    )
                    if error is not None:
                        self.fail(slots[batch.positions[index]], error)
                        continue
                if request.state.take(token):
                    changed = True
        for position in group.others:
            slot = slots[position]
            self._accept_one(slot, self.requests[slot], tokens[position])
        if changed:
            self.regroup()

    def accept_more(
        self, slots: tuple[int, ...], blocks: Sequence[Sequence[int]]
    ) -> None:
        """Move slots past what came behind the tokens of `accept`, as few have any:
        blocks[p][i] is the next token of slots[i], or NO_TOKEN if it has no more."""
        for slot, *tokens in zip(slots, *blocks, strict=True):
            for token in tokens:
                if token == NO_TOKEN:
                    break
                request = self.requests[slot]
                if not request.bounded:
                    self.accept((slot,), [token])
                    continue
                try:
                    self._accept_one(slot, request, token)
                except Exception as error:
                    self.fail(slot, RequestError(f"its backend failed: {error}"))

    def _accept_one(self, slot: int, request: RunningRequest, token: int) -> None:
        phase = request.state.phase
        error = None
        if token < 0 and phase in (Phase.WAITING, Phase.ACTIVE):
            error = self.renewals.refusal(request, token)
        elif phase is Phase.ACTIVE and not request.matcher.accept(token):
            error = self.renewals.accept(request, token)
        if error is not None:
            self.fail(slot, error)
        elif request.state.take(token) and phase is Phase.WAITING:
            self._begin(slot, request)
        if request.state.phase is not phase:
            self.regroup()

    def _begin(self, slot: int, request: RunningRequest) -> None:
        """A request waits no more: it begins, or has ended."""
        if request.state.phase is Phase.FAILED:
            self.fail(slot, never_began(request.spec))
        try:
            token = refused(
                request.matcher, request.state.constrained(), self._unbounded.seconds
            )
            if token is not None and request.state.phase is Phase.ACTIVE:
                self.fail(slot, self.renewals.refusal(request, token))
        except BudgetError as error:
            self.fail(slot, error)

    def _group(self, slots: tuple[int, ...]) -> _Group:
        """The slots of a step by backend."""
        group = self._groups.get(slots)
        if group is not None:
            return group
        active: dict[tuple[str, bool], list[int]] = {}
        group = _Group([], [], [])
        for position, slot in enumerate(slots):
            request = self.requests.get(slot)
            if request is None:
                raise PipelineError(
                    f"slot {slot} has no request", hint="call add_request first"
                )
            if request.state.phase is Phase.ACTIVE:
                kind = request.backend.name, request.bounded
                active.setdefault(kind, []).append(position)
                if request.closing is not None:
                    group.closing.append((position, request, request.closing))
            else:
                group.others.append(position)
        for (_, bounded), positions in active.items():
            requests = [self.requests[slots[position]] for position in positions]
            if bounded:
                seconds = self._unbounded.seconds
                group.batches.append(StepBatch(seconds, positions, requests))
            else:
                calls = self._unbounded
                group.batches.append(UnboundedBatch(calls, positions, requests))
        if len(self._groups) >= _GROUPS:
            self.regroup()
        self._groups[slots] = group
        return group

    def stop_row(self, request: RunningRequest) -> MaskArray:
        """The mask that allows nothing but a request's stop tokens."""
        return few_tokens(self._vocabulary.words, request.stop_token_ids)
