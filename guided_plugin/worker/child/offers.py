"""Drafts that the worker offers: text that must follow, a name that followed earlier or
whitespace as outputs had it before, and how sure each is.

The device waits for them in each step, so they are looked for in bounded time.
"""

from __future__ import annotations

import time

import numpy as np

from guided_plugin.grammar.learnt_drafts import Found, LearntDrafts
from guided_plugin.grammar.table import GrammarTable
from guided_plugin.step import NO_TOKEN
from guided_plugin.worker.child.rings import Plan, WorkerRings
from guided_plugin.worker.layout import TOKEN_DEPTH
from guided_plugin.worker.words import Counter

_WORTH = 0.5
"""For how long the worker looks for drafts of a row: a part of its share of a step. In
a simulation of real documents 0.36 of the looks found 2.4 drafts each: half a step of a
row."""
_LONGEST = 0.02
"""Seconds that such a look takes at most."""

_SURE = 0.97
"""The probability that a draft that must follow is taken. A pretrained model took 0.975
of them on average where masks allow other spellings too, and all of them greedily."""

_LEARNT = 0.4
"""The weight of the last step's time in what is known of steps."""


class Offers:
    """Offers drafts for the steps of one session."""

    def __init__(
        self, rings: WorkerRings, table: GrammarTable, learnt: LearntDrafts
    ) -> None:
        self._rings = rings
        self._table = table
        self._learnt = learnt
        self._most = rings.region.shape.drafts
        # by row: what is offered in this step, and what for
        self._found: dict[int, Found] = {}
        # slots that are looked at when there is nothing else to do, for later
        self._lookups: list[int] = []
        self._unread: list[int] = []  # those whose outputs are read then
        self._gap = _LONGEST  # seconds between steps, lately
        self._last = 0.0  # when the last one came
        # the row that is looked at first, since there was no time for it
        self._turn = 0

    def seen(self, plan: Plan, blocks: list[list[int]], *, whole: bool) -> None:
        """The tokens of a step are there: say which drafts are verified, if any, before
        a grammar sees them. Only rows of which nothing is known are moved past their
        tokens first; those leave the blocks. Rows it comes too late for keep what was
        proposed. `whole`: all of its requests run."""
        self._lookups.clear()
        self._unread.clear()
        if not plan.offers:
            return
        last = self._last
        self._last = time.perf_counter()
        self._gap += (min(self._last - last, _LONGEST) - self._gap) * _LEARNT
        self._found.clear()
        unknown = self._recall(plan, blocks) if whole else []
        share = self._gap * _WORTH / len(plan.slots)
        end = time.perf_counter() + len(unknown) * share
        turn = self._turn
        self._turn = 0
        for row in sorted(unknown, key=lambda row: row < turn):
            if time.perf_counter() > end:
                self._turn = self._turn or row
                self._lookups.append(plan.slots[row])
                continue
            slot = plan.slots[row]
            self._table.accept_more((slot,), [[block[row]] for block in blocks])
            for block in blocks:
                block[row] = NO_TOKEN
            found = self._look(slot)
            if found.tokens:
                self._found[row] = found
        self._write(plan)
        self._publish(plan)
        self._count(plan)
        self._unread.extend(plan.slots)

    def settle(self, plan: Plan) -> None:
        """Its masks are filled now: what was proposed stands, if a worker before this
        took the tokens in."""
        if not self._rings.region.reached(Counter.OFFERED, plan.step):
            self._publish(plan)

    def learn(self) -> bool:
        """Look at a place that there was no time for, for those that come there later,
        or read an output. Returns whether there was one left."""
        requests = self._table.requests
        if self._lookups:
            slot = self._lookups.pop()
            if slot in requests:
                self._look(slot)
        elif self._unread:
            slot = self._unread.pop()
            if slot in requests:
                self._learnt.read(slot, requests[slot])
        else:
            return False
        return True

    def _publish(self, plan: Plan) -> None:
        self._rings.region.store(Counter.OFFERED, plan.step)
        begun = max(plan.planned, self._last)
        self._rings.region.times["answer"].add(time.perf_counter() - begun)

    def _recall(self, plan: Plan, blocks: list[list[int]]) -> list[int]:
        """Find what is known; the rows of which nothing is."""
        unknown: list[int] = []
        requests = self._table.requests
        region = self._rings.region
        for row, (slot, *tokens) in enumerate(zip(plan.slots, *blocks, strict=True)):
            new = tokens
            if tokens[-1] == NO_TOKEN:
                new = tokens[: tokens.index(NO_TOKEN)]
            region.store(Counter.DOING, slot + 1)
            found, wanted = self._learnt.after(slot, requests[slot], new)
            if wanted:
                unknown.append(row)
            elif found is not None and found.tokens:
                self._found[row] = found
        region.store(Counter.DOING, 0)
        return unknown

    def _look(self, slot: int) -> Found:
        """Find what follows in a slot, and keep it."""
        with self._rings.blame_scope(slot):
            return self._learnt.look(slot, self._table.requests[slot])

    def _write(self, plan: Plan) -> None:
        drafts = self._rings.region.drafts(plan.step, len(plan.slots))
        tokens = drafts[:, :, 0]
        sure = drafts.view(np.float32)[:, :, 1]
        sure[:, tokens[0] < 0] = 0.0
        if self._found:
            rows = list(self._found)
            found = self._found.values()
            none = (NO_TOKEN,) * self._most
            tokens[:, rows] = np.array(
                [(*one.tokens, *none[len(one.tokens) :]) for one in found]
            ).T
            sure[:, rows] = np.where(tokens[:, rows] < 0, 0.0, _SURE)
            sure[0, rows] = [
                _SURE if one.source is None else one.source.sure for one in found
            ]

    def _count(self, plan: Plan) -> None:
        """Count the tokens and the drafts of a step."""
        count = len(plan.slots)
        region = self._rings.region
        figures = region.figures
        for one in self._found.values():
            figures["offered"] += len(one.tokens)
        tokens = region.tokens[plan.step % TOKEN_DEPTH, : count * (self._most + 1)]
        figures["forwards"] += np.count_nonzero(tokens[:count] >= 0)
        figures["taken"] += np.count_nonzero(tokens[count:] >= 0)
