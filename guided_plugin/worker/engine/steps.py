"""The engine's side of the rings: announces steps, remembers what is in flight, reads
journals out.

A step of the host goes through `announce` and `scheduled` alone; its lock is the
client's too.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
import threading
import time
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from guided_plugin.errors import PipelineError
from guided_plugin.step import NO_TOKEN
from guided_plugin.worker.layout import (
    FENCED,
    PLAN_DEPTH,
    TOKEN_DEPTH,
    Region,
    fence,
    unwrap,
)
from guided_plugin.worker.messages import LiveRequest
from guided_plugin.worker.words import Counter, PlanField

# Looked up here once: members of an enumeration cost as much as the store they are for.
_STEP = int(PlanField.STEP)
_FOLLOWS = int(PlanField.FOLLOWS)
_MESSAGES = int(PlanField.MESSAGES)
_PLAN_ID = int(PlanField.PLAN_ID)
_COUNT = int(PlanField.COUNT)
_SLOTS = int(PlanField.SLOTS)
_OFFERS = int(PlanField.OFFERS)
_MICROSECONDS = int(PlanField.MICROSECONDS)
_U32 = 0xFFFFFFFF
_HALF = 0x80000000


@dataclass(slots=True, eq=False)
class Published:
    """A plan as workers see it; the same object as long as the host's plan is."""

    plan_id: int
    slots: array[int]
    requests: tuple[LiveRequest, ...]


class StepRing:
    """Steps by number, without bounds; only what is written into the region wraps."""

    def __init__(self, region: Region, first_step: int) -> None:
        self.lock = threading.RLock()
        self.messages = 0
        """Messages to the worker of this session."""
        self.refusing = self.forked = False
        """True if the rows of every step are closed; true if this is a copy in a forked
        process."""
        self._region = region
        self._planned_word = region.word(Counter.PLANNED)
        self._filled_word = region.word(Counter.FILLED)
        self.planned = self.follows = first_step
        """The newest step that was announced, and the newest that was sampled."""
        for counter in (
            Counter.PLANNED,
            Counter.SAMPLED,
            Counter.OFFERED,
            Counter.FILLED,
            Counter.ACCEPTED,
        ):
            region.store(counter, first_step)
        self._published = nothing = Published(0, array("i"), ())
        # What each place in the plan ring holds: step, the step it follows, its plan.
        self._entries = [(first_step, first_step, nothing)] * PLAN_DEPTH
        self._heads = [
            memoryview(plan.data).cast("B").cast("I") for plan in region.plans
        ]
        self._slots = [
            memoryview(plan.data).cast("B").cast("i")[_SLOTS:] for plan in region.plans
        ]
        self._seen = first_step
        """As far as FILLED was seen to have come."""
        self._unread: deque[tuple[int, Published]] = deque()
        """Sampled steps whose tokens are not in the journals yet."""

    @property
    def filled(self) -> int:
        """The newest step whose masks are there."""
        return unwrap(self._region.load(Counter.FILLED), self.planned)

    @property
    def landed(self) -> int:
        """The newest step whose tokens are in the ring."""
        return unwrap(self._region.load(Counter.SAMPLED), self.planned)

    def publish(
        self, plan_id: int, slots: array[int], requests: tuple[LiveRequest, ...]
    ) -> None:
        """Have the steps from now on announce this plan."""
        self._published = Published(plan_id, slots, requests)

    def announce(self, *, offers: bool | None = None) -> int:
        """Write the plan of the next step and raise its flag; the step's number. Waits
        only for a host that is ahead by as many steps as rings are deep. `offers`: see
        `PlanField`."""
        if self.forked:
            raise forked()
        step = self.planned + 1
        if self._seen < step + 1 - PLAN_DEPTH:
            self.wait_filled(step + 1 - PLAN_DEPTH)
        at = step % PLAN_DEPTH
        head = self._heads[at]
        with self.lock:
            published = self._published
            if self._entries[at][2] is not published:
                head[_COUNT] = len(published.slots)
                head[_PLAN_ID] = published.plan_id & _U32
                self._slots[at][: len(published.slots)] = memoryview(published.slots)
            head[_STEP] = step & _U32
            head[_FOLLOWS] = self.follows & _U32
            head[_MESSAGES] = self.messages
            head[_OFFERS] = 0 if offers is None else 1 + offers
            head[_MICROSECONDS] = int(time.perf_counter() * 1e6) & _U32
            self._entries[at] = step, self.follows, published
            self.planned = step
            if FENCED:
                fence()
            self._planned_word[0] = step & _U32
            if len(self._unread) > TOKEN_DEPTH // 2:
                self.harvest()
            if self.refusing:
                self.close_rows(step)
        return step

    def scheduled(self, step: int) -> None:
        """The step is sampled, and its tokens will be written. Call it before they can
        be."""
        with self.lock:
            self.follows = step
            self._unread.append((step, self._entries[step % PLAN_DEPTH][2]))

    def retract(self, step: int) -> None:
        """They will not be written after all."""
        with self.lock:
            self.follows = self._entries[step % PLAN_DEPTH][1]
            if self._unread and self._unread[-1][0] == step:
                self._unread.pop()

    def harvest(self, landed: int | None = None) -> None:
        """Take the tokens that are there into the journals, or those that were there up
        to a step. All steps at once: where requests come and go, each has a plan of its
        own."""
        with self.lock:
            landed = self.landed if landed is None else landed
            ready = [*itertools.takewhile(lambda one: one[0] <= landed, self._unread)]
            if not ready:
                return
            serials = []
            blocks = []
            positions = self._region.shape.positions
            for plan, steps in itertools.groupby(ready, key=operator.itemgetter(1)):
                places = [step % TOKEN_DEPTH for step, _ in steps]
                count = len(plan.requests)
                # [steps, positions * requests], requests in the order of the plan
                blocks.append(self._region.tokens[places, : positions * count].ravel())
                own = [request.serial for request in plan.requests]
                serials.append(np.tile(own, len(places) * positions))
            tokens = np.concatenate(blocks)
            serial = np.concatenate(serials)[tokens != NO_TOKEN]
            order = np.argsort(serial, kind="stable")
            serial = serial[order]
            written = tokens[tokens != NO_TOKEN][order]
            begins = np.flatnonzero(np.diff(serial, prepend=-1))
            requests = {one.serial: one for _, plan in ready for one in plan.requests}
            # All or none of these steps are in the journals: a request replayed without
            # some would go wrong.
            for begin, own_tokens in zip(
                begins.tolist(), np.split(written, begins[1:]), strict=False
            ):
                journal = requests[int(serial[begin])].state
                journal.extend(array("q", own_tokens.tobytes()))
            for _ in ready:
                self._unread.popleft()

    def in_flight(self, after: int) -> Iterator[tuple[int, Published]]:
        """The steps after one, in order."""
        for step, _, published in sorted(self._entries, key=operator.itemgetter(0)):
            if step > after:
                yield step, published

    def rewrite(self, step: int, slots: Sequence[int], plan_id: int) -> None:
        """Make a plan in flight one of a new session."""
        at = step % PLAN_DEPTH
        head, (_, follows, published) = self._heads[at], self._entries[at]
        head[_MESSAGES], head[_PLAN_ID] = self.messages, plan_id & _U32
        self._slots[at][: len(slots)] = memoryview(array("i", slots))
        # Another object, so that the next plan in this place is written out again.
        self._entries[at] = step, follows, dataclasses.replace(published)

    def close_rows(self, step: int) -> None:
        """Fill a step's masks with stop tokens alone, and raise its flag. No worker may
        run."""
        region = self._region
        requests = self._entries[step % PLAN_DEPTH][2].requests
        for row, request in enumerate(requests):
            region.close_row(step, row, len(requests), request.stop_token_ids)
        if region.shape.drafts and not region.reached(Counter.OFFERED, step):
            region.drafts(step, len(requests))[:] = NO_TOKEN, 0
            region.store(Counter.OFFERED, step)
        region.store(Counter.FILLED, step)

    def wait_filled(self, step: int) -> None:
        """Wait on the host for the masks of a step; the supervisor sees to it that this
        ends."""
        tries = 0
        # By signed difference of 32 bits: up to _HALF it is behind, above it is ahead.
        while 0 < (behind := (step - self._filled_word[0]) & _U32) < _HALF:
            tries += 1
            if tries > 50:
                time.sleep(2e-5)
        if FENCED:
            fence()
        self._seen = step if behind == 0 else step + _U32 + 1 - behind


def forked() -> PipelineError:
    """Return the error of a fork that uses the pipeline of the process it was forked
    from."""
    return PipelineError(
        "belongs to the process that this one was forked from",
        where="pipeline",
        hint="make a StepPipeline in each process that decodes",
    )
