"""Accepts the tokens that landed and fills the masks that are due. Steps with drafts
have their own class.

Usually all slots of a plan are worked on together. Where a request has left, or where
the worker before ended, they are worked on one by one, so that the end of a worker can be
attributed to one request.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from guided_plugin.grammar.drafts import fill_with_drafts
from guided_plugin.step import UNGUIDED
from guided_plugin.worker.child.offers import Offers
from guided_plugin.worker.child.requests import WorkerRequests
from guided_plugin.worker.child.rings import Plan, WorkerRings
from guided_plugin.worker.layout import PLAN_DEPTH
from guided_plugin.worker.words import Counter

_PACE_EVERY = 16
"""Steps after which backends are told the time between them; a quarter of these times
were shorter."""


class PlainSteps:
    """Steps whose masks are filled before their tokens are sampled."""

    ahead = 0
    """By how many steps tokens come before masks."""

    def __init__(
        self, rings: WorkerRings, requests: WorkerRequests, pace: StepPace
    ) -> None:
        self._rings = rings
        self._requests = requests
        self._table = requests.table
        self._pace = pace
        self._times = rings.region.times
        self._seen_at = 0.0
        """When the newest tokens were seen."""

    def accept(self) -> bool:
        """Move the grammars past the tokens that landed since. Returns whether there
        were any."""
        rings = self._rings
        worked = False
        for step in self._sampled_steps():
            plan = rings.plan(step)
            if not self._ready(plan):
                break
            self._seen_at = time.perf_counter()
            blocks = rings.tokens(plan)
            self._see(plan, blocks)
            self._accept(plan, blocks)
            self._times["accept"].add(time.perf_counter() - self._seen_at)
            rings.accepted = step
            rings.region.store(Counter.ACCEPTED, step)
            # if tokens come first, the step's masks are still to be filled
            rings.forget(step - self.ahead)
            worked = True
        return worked

    def fill(self) -> bool:
        """Fill the masks of the next plan, once the tokens before it are accepted.
        Returns whether that was done."""
        rings = self._rings
        if rings.planned <= rings.filled:
            return False
        plan = rings.plan(rings.filled + 1)
        if self._needs(plan) > rings.accepted or not self._ready(plan):
            return False
        begun = time.perf_counter()
        self._fill(plan)
        ended = time.perf_counter()
        self._times["fill"].add(ended - begun)
        self._times["plan_to_mask"].add(ended - max(self._seen_at, plan.planned))
        if self._table.failures or self._table.led or self._table.counts.total():
            self._requests.publish_failures()
        rings.filled = plan.step
        rings.region.store(Counter.FILLED, plan.step)
        rings.forget(plan.step - PLAN_DEPTH)  # planned, never sampled
        return True

    def learn(self) -> bool:
        """There is nothing else to do: learn from what came, for a while. Returns
        whether there was anything left."""
        return False

    def _see(self, plan: Plan, blocks: list[list[int]]) -> None:
        """The tokens of a step are there. Rows that take theirs in here take them out
        of the blocks."""

    def _needs(self, plan: Plan) -> int:
        """The step whose tokens must be accepted before the masks of a plan are
        filled."""
        return plan.follows

    def _fill(self, plan: Plan) -> None:
        self._pace.step(time.perf_counter())
        mask = self._rings.masks(plan)
        count = len(plan.slots)
        if self._together(plan):
            self._table.fill(plan.slots, mask)
        else:
            self._fill_one_by_one(
                plan, lambda row, slot: self._table.fill((slot,), mask[row::count])
            )

    def _sampled_steps(self) -> list[int]:
        """The steps that were sampled since and filled here, in order: not every plan
        is sampled."""
        rings = self._rings
        step = rings.sampled
        steps = []
        while step > rings.accepted:
            if step <= rings.filled + self.ahead:
                steps.append(step)
            step = rings.plan(step).follows
        return steps[::-1]

    def _ready(self, plan: Plan) -> bool:
        """True if the messages before a plan took effect, and its requests have their
        grammars."""
        return plan.messages <= self._rings.applied and self._requests.all_started(
            plan.slots
        )

    def _together(self, plan: Plan) -> bool:
        whole = UNGUIDED not in plan.slots
        return whole and plan.step > self._rings.isolate_until

    def _accept(self, plan: Plan, blocks: list[list[int]]) -> None:
        if self._together(plan):
            self._table.accept(plan.slots, blocks[0])
            self._table.accept_more(plan.slots, blocks[1:])
            return
        for slot, *tokens in zip(plan.slots, *blocks, strict=True):
            if slot != UNGUIDED:
                with self._rings.blame_scope(slot):
                    self._table.accept((slot,), tokens[:1])
                    self._table.accept_more((slot,), [[token] for token in tokens[1:]])

    def _fill_one_by_one(self, plan: Plan, fill: Callable[[int, int], None]) -> None:
        """Call `fill` with the row and slot of each request; close the rows of those
        that have left."""
        for row, slot in enumerate(plan.slots):
            if slot != UNGUIDED:
                with self._rings.blame_scope(slot):
                    fill(row, slot)
            else:
                self._rings.region.close_row(
                    plan.step, row, len(plan.slots), self._requests.stop_token_ids
                )


class DraftSteps(PlainSteps):
    """Steps of speculative decoding: sampled tokens and drafts come first, then the
    masks."""

    ahead = 1

    def __init__(
        self,
        rings: WorkerRings,
        requests: WorkerRequests,
        pace: StepPace,
        offers: Offers | None,
    ) -> None:
        """`offers`: what chooses the drafts of plans that say so."""
        super().__init__(rings, requests, pace)
        self._offers = offers

    def _see(self, plan: Plan, blocks: list[list[int]]) -> None:
        if self._offers is not None:
            self._offers.seen(plan, blocks, whole=self._together(plan))

    def _needs(self, plan: Plan) -> int:
        return plan.step

    def learn(self) -> bool:
        return self._offers is not None and self._offers.learn()

    def _fill(self, plan: Plan) -> None:
        if plan.offers and self._offers is not None:
            self._offers.settle(plan)
        mask = self._rings.masks(plan)
        count = len(plan.slots)
        drafts = self._rings.region.drafts(plan.step, count)[:, :, 0].tolist()
        if self._together(plan):
            filled = fill_with_drafts(self._table, plan.slots, mask, drafts)
            # else its masks are due at once, or its requests only enter
            if plan.offers is not None:
                self._pace.step(time.perf_counter(), filled / count)
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

    def step(self, now: float, fills: float = 1.0) -> None:
        """A step's masks are filled now, so many for each of its rows."""
        self._gaps.append((now - self._last) / fills)
        self._last = now
        if len(self._gaps) == _PACE_EVERY:
            # Not the shortest: a host may plan a step again that it had planned
            # otherwise.
            self._tell(sorted(self._gaps)[_PACE_EVERY // 4])
            self._gaps.clear()
