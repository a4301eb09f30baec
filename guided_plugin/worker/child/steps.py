"""Accepts the tokens that landed and fills the masks that are due. Steps with drafts have their own class.

Usually all slots of a plan are worked on together. Where one is closed, or where the worker before ended,
they are worked on one by one, so that the end of a worker can be attributed to one request.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from guided_plugin.grammar.drafts import fill_with_drafts
from guided_plugin.grammar.forced import ForcedTokens
from guided_plugin.step import NO_TOKEN
from guided_plugin.worker.child.requests import WorkerRequests
from guided_plugin.worker.child.rings import Plan, WorkerRings
from guided_plugin.worker.layout import PLAN_DEPTH, Counter, Time

_OFFER_SECONDS = 500e-6
"""For how long the worker looks for drafts of a step. 64 rows take 200 us."""

_SURE = 0.97
"""How sure it is that a draft that must follow is taken. A pretrained model took 0.975 of them on average
where masks allow other spellings too, and all of them greedily."""

_LEARN_EVERY, _LEARNT, _LATER = 16, 0.4, 0.5
"""Steps after which rates are learnt, how much of the new ones counts, and how much of them drafts are worth
that may come. In a simulation of real documents at 1 to 128 rows this came within 4% of a budget that knows
the drafts; where these were worth 0.02 each, within 30% (1 row)."""

_PACE_EVERY = 16
"""Steps after which backends are told the time between them; a quarter of these times were shorter."""


class PlainSteps:
    """Steps whose masks are filled before their tokens are sampled."""

    ahead = 0
    """By how many steps tokens come before masks."""

    def __init__(self, rings: WorkerRings, requests: WorkerRequests, pace: StepPace) -> None:
        self._rings = rings
        self._requests = requests
        self._table = requests.table
        self._pace = pace

    def accept(self) -> bool:
        """Move the grammars past the tokens that landed since. Whether there were any."""
        rings = self._rings
        worked = False
        for step in self._sampled_steps():
            plan = rings.plan(step)
            if not self._ready(plan):
                break
            rings.mark(step, Time.ACCEPT)
            for tokens in rings.tokens(plan):
                self._accept(plan, tokens)
            rings.mark(step, Time.ACCEPTED)
            rings.accepted = step
            rings.region.store(Counter.ACCEPTED, step)
            rings.forget(step - self.ahead)  # if tokens come first, the step's masks are still to be filled
            worked = True
        return worked

    def fill(self) -> bool:
        """Fill the masks of the next plan, once the tokens before it are accepted. Whether that was done."""
        rings = self._rings
        if rings.planned <= rings.filled:
            return False
        plan = rings.plan(rings.filled + 1)
        if self._needs(plan) > rings.accepted or not self._ready(plan):
            return False
        rings.mark(plan.step, Time.FILL)
        self._fill(plan)
        rings.mark(plan.step, Time.FILLED)
        if self._table.failures:
            self._requests.publish_failures()
        rings.filled = plan.step
        rings.region.store(Counter.FILLED, plan.step)
        rings.forget(plan.step - PLAN_DEPTH)  # planned, never sampled
        return True

    def _needs(self, plan: Plan) -> int:
        """The step whose tokens must be accepted before the masks of a plan are filled."""
        return plan.follows

    def _fill(self, plan: Plan) -> None:
        self._pace.step(time.perf_counter())
        mask, count = self._rings.masks(plan), len(plan.slots)
        if self._together(plan):
            self._table.fill(plan.slots, mask)
        else:
            self._fill_one_by_one(plan, lambda row, slot: self._table.fill((slot,), mask[row::count]))

    def _sampled_steps(self) -> list[int]:
        """The steps that were sampled since and filled here, in order: not every plan is sampled."""
        rings = self._rings
        step, steps = rings.sampled, []
        while step > rings.accepted:
            if step <= rings.filled + self.ahead:
                steps.append(step)
            step = rings.plan(step).follows
        return steps[::-1]

    def _ready(self, plan: Plan) -> bool:
        """Whether the messages before a plan took effect, and its requests have their grammars."""
        return plan.messages <= self._rings.applied and self._requests.all_started(plan.slots)

    def _together(self, plan: Plan) -> bool:
        return self._requests.all_run(plan) and plan.step > self._rings.isolate_until

    def _accept(self, plan: Plan, tokens: list[int]) -> None:
        if self._together(plan):
            self._table.accept(plan.slots, tokens)
            return
        for slot, token in zip(plan.slots, tokens, strict=True):
            if self._requests.runs(slot):
                with self._rings.blame_scope(slot):
                    self._table.accept((slot,), [token])

    def _fill_one_by_one(self, plan: Plan, fill: Callable[[int, int], None]) -> None:
        """Call `fill` with the row and slot of each running request; close the other rows."""
        for row, slot in enumerate(plan.slots):
            if self._requests.runs(slot):
                with self._rings.blame_scope(slot):
                    fill(row, slot)
            else:
                stops = self._requests.stop_tokens(slot)
                self._rings.region.close_row(plan.step, row, len(plan.slots), stops)


class DraftSteps(PlainSteps):
    """Steps of speculative decoding: sampled tokens and drafts come first, then the masks."""

    ahead = 1

    def __init__(
        self, rings: WorkerRings, requests: WorkerRequests, pace: StepPace, forced: ForcedTokens | None
    ) -> None:
        """`forced`: what must follow is offered; None: what was proposed is verified."""
        super().__init__(rings, requests, pace)
        self._forced = forced
        most = rings.region.shape.drafts
        self._counts = np.zeros(most + 1)
        """Rows of the last steps, and how many of them had so many drafts."""
        self._rates = np.zeros(most)
        """The part of the rows that had so many drafts, lately."""
        self._templates = np.zeros((most + 1, most, 2), np.int32)
        """What is offered to a row that has so many drafts, before these are written."""
        self._templates[:, :, 0] = NO_TOKEN

    def _needs(self, plan: Plan) -> int:
        return plan.step

    def _offer(self, plan: Plan) -> None:
        """Say which drafts are verified: what must follow in place of what was proposed. In time: the device
        waits for this one, and rows that it comes too late for keep what was proposed."""
        drafts = self._rings.region.drafts(plan.step, len(plan.slots))
        most, end = len(drafts), time.perf_counter() + _OFFER_SECONDS
        counts = self._counts
        drafts[:, drafts[0, :, 0] < 0] = self._templates[0][:, np.newaxis]
        if self._forced is not None and self._together(plan):
            for row, slot in enumerate(plan.slots):
                forced = self._forced.after(self._table.requests[slot], most)
                if forced:
                    drafts[:, row] = self._templates[len(forced)]
                    drafts[: len(forced), row, 0] = forced
                    counts[1 : len(forced) + 1] += 1
                if time.perf_counter() > end:
                    break
        self._rings.region.store(Counter.OFFERED, plan.step)
        self._rings.mark(plan.step, Time.OFFERED)
        counts[0] += len(plan.slots)
        if plan.step % _LEARN_EVERY == 0:
            self._learn()

    def _learn(self) -> None:
        """How many drafts rows have. vLLM chooses how many a step verifies before it sees them, from the
        confidences of the step before the last: there places without a draft are worth what they were
        lately."""
        self._rates += (self._counts[1:] / self._counts[0] - self._rates) * _LEARNT
        self._counts[:] = 0
        sure = np.cumprod(np.full(len(self._rates), _SURE))
        for count, template in enumerate(self._templates):
            chances = np.concatenate(([1.0], sure[:count], _LATER * self._rates[count:]))
            template[:, 1] = (chances[1:] / np.maximum(chances[:-1], 1e-9)).astype(np.float32).view(np.int32)

    def _fill(self, plan: Plan) -> None:
        if plan.offers and not self._rings.region.offered(plan.step):
            self._offer(plan)
        mask, count = self._rings.masks(plan), len(plan.slots)
        drafts = self._rings.region.drafts(plan.step, count)[:, :, 0].tolist()
        if self._together(plan):
            fill_with_drafts(self._table, plan.slots, mask, drafts)
            return

        def fill(row: int, slot: int) -> None:
            own = [tokens[row : row + 1] for tokens in drafts]
            fill_with_drafts(self._table, (slot,), mask[row::count], own)

        self._fill_one_by_one(plan, fill)


class StepPace:
    """Tells backends the time between steps, in which their fills are hidden."""

    def __init__(self, tell: Callable[[float], None]) -> None:
        self._tell = tell
        self._last = 0.0
        self._gaps: list[float] = []

    def step(self, now: float) -> None:
        """The next step's masks are about to be filled."""
        self._gaps.append(now - self._last)
        self._last = now
        if len(self._gaps) == _PACE_EVERY:
            # Not the shortest: a host may plan a step again that it had planned otherwise.
            self._tell(sorted(self._gaps)[_PACE_EVERY // 4])
            self._gaps.clear()
