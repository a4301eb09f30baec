"""The worker's view of the shared memory: plans, masks and tokens by step, and its own
progress."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from guided_plugin.grammar.base import MaskArray
from guided_plugin.step import NO_TOKEN, UNGUIDED
from guided_plugin.worker.layout import PLAN_DEPTH, TOKEN_DEPTH, Region, unwrap
from guided_plugin.worker.words import Counter, PlanField


@dataclass(slots=True, eq=False)
class Plan:
    """A plan as it was read, kept until its tokens are accepted."""

    step: int
    follows: int
    messages: int
    plan_id: int
    slots: tuple[int, ...]
    """UNGUIDED where the request has left since."""
    offers: bool | None
    """True if the drafts of a step, which is sent before the model runs, are the
    worker's to choose."""
    planned: float = 0.0
    """When it was, by `time.perf_counter`."""


class WorkerRings:
    """Steps by number, without bounds; only what is in the region wraps."""

    def __init__(
        self, region: Region, filled: int, accepted: int, isolate_until: int
    ) -> None:
        self.region = region
        self.filled = filled
        """Masks up to this step are in the ring."""
        self.accepted = accepted
        """Tokens up to this step were seen by the grammars."""
        self.applied = 0
        """The number of messages of this session that took effect. A plan says how many
        precede it."""
        self.isolate_until = isolate_until
        """Up to this step slots are worked on one by one."""
        self._plans: dict[int, Plan] = {}
        # Filled by the worker before and not yet accepted: their tokens come to this
        # one.
        for step in range(max(accepted, filled - PLAN_DEPTH) + 1, filled + 1):
            self.plan(step)

    @property
    def planned(self) -> int:
        """The newest plan."""
        return unwrap(self.region.load(Counter.PLANNED), self.filled)

    @property
    def sampled(self) -> int:
        """The newest step whose tokens are in the ring."""
        return unwrap(self.region.load(Counter.SAMPLED), self.accepted)

    def plan(self, step: int) -> Plan:
        """The plan of a step."""
        plan = self._plans.get(step)
        if plan is None:
            record = self.region.plans[step % PLAN_DEPTH]
            head: list[int] = record[: PlanField.SLOTS].tolist()
            plan_id = head[PlanField.PLAN_ID]
            before = self._plans.get(step - 1)
            if before is not None and before.plan_id == plan_id:
                slots = before.slots  # the same object, whose hash is known
            else:
                end = PlanField.SLOTS + head[PlanField.COUNT]
                slots = tuple(record[PlanField.SLOTS : end].view("int32").tolist())
            now = time.perf_counter()
            ago = int(now * 1e6) - head[PlanField.MICROSECONDS] & 0xFFFFFFFF
            plan = self._plans[step] = Plan(
                step,
                unwrap(head[PlanField.FOLLOWS], step),
                head[PlanField.MESSAGES],
                plan_id,
                slots,
                (None, False, True)[head[PlanField.OFFERS]],
                now - ago / 1e6,
            )
        return plan

    def masks(self, plan: Plan) -> MaskArray:
        """The masks of a plan's slots; with drafts a block of them for each
        position."""
        return self.region.masks[
            plan.step % PLAN_DEPTH, : len(plan.slots) * self.region.shape.positions
        ]

    def tokens(self, plan: Plan) -> list[list[int]]:
        """The tokens that were sampled for a plan's slots, for each position that has
        any."""
        count = len(plan.slots)
        positions = self.region.shape.positions
        values = self.region.tokens[
            plan.step % TOKEN_DEPTH, : count * positions
        ].reshape(positions, count)
        if positions > 1:
            values = values[
                : 1 + np.count_nonzero((values[1:] != NO_TOKEN).any(axis=1))
            ]
        blocks: list[list[int]] = values.tolist()
        return blocks

    def vacate(self, slot: int) -> None:
        """A request left. Tokens on their way for it must not reach the slot's next
        request."""
        for plan in self._plans.values():
            if plan.step <= self.filled and slot in plan.slots:
                plan.slots = tuple(
                    UNGUIDED if other == slot else other for other in plan.slots
                )

    def forget(self, step: int) -> None:
        """The plans up to a step are not needed any more."""
        for old in [known for known in self._plans if known <= step]:
            del self._plans[old]

    def beat(self) -> None:
        """Show the engine that the worker makes progress."""
        self.region.store(Counter.HEARTBEAT, self.region.load(Counter.HEARTBEAT) + 1)

    @contextmanager
    def blame_scope(self, slot: int) -> Iterator[None]:
        """Around work for one slot. If the worker ends in here, the engine attributes
        that to its request."""
        self.region.store(Counter.DOING, slot + 1)
        # not in a `try`: after an exception the worker ends, and the counter must still
        # tell
        yield
        self.region.store(Counter.DOING, 0)
