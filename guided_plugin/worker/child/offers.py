"""Drafts that the worker offers: text that must follow, else a key that followed earlier; and how sure it is.

The device waits for them in each step, so they are looked for in bounded time.
"""

from __future__ import annotations

import time

import numpy as np

from guided_plugin.grammar.earlier import EarlierKeys
from guided_plugin.grammar.forced import ForcedTokens
from guided_plugin.grammar.recall import NOTHING, Found, Recall
from guided_plugin.grammar.table import GrammarTable
from guided_plugin.step import NO_TOKEN
from guided_plugin.worker.child.rings import Plan, WorkerRings
from guided_plugin.worker.layout import TOKEN_DEPTH
from guided_plugin.worker.words import Counter, Time

_WORTH, _LONGEST = 0.5, 0.02
"""For how long the worker looks for drafts of a row: a part of its share of a step, of so many seconds at
most. In a simulation of real documents 0.36 of the looks found 2.4 drafts each: half a step of a row."""

_FEW_ROWS = 4
"""So many are always looked at: that takes less than the 2% of drafts that recalling them loses."""

_LEARN_SECONDS = 100e-6
"""For how long it learns from outputs before it looks for other work. Learning only once in a step took 0.578
forward passes a token on slow processors; where all is learnt, 0.555 (simulated)."""

_SURE = 0.97
"""How sure it is that a draft that must follow is taken. A pretrained model took 0.975 of them on average
where masks allow other spellings too, and all of them greedily."""

_LEARNT = 0.4
"""How much of the time of the last step counts in what is known of steps."""


class Offers:
    """Of the steps of one session. `earlier` is asked where nothing must follow."""

    def __init__(
        self,
        rings: WorkerRings,
        table: GrammarTable,
        forced: ForcedTokens,
        earlier: EarlierKeys,
        recalled: Recall,
    ) -> None:
        self._rings, self._table, self._forced, self._earlier = rings, table, forced, earlier
        self._most = most = rings.region.shape.drafts
        # By how many drafts a row has: what is offered to it, before these are written.
        self._templates = np.full((most + 1, most, 2), (NO_TOKEN, 0), np.int32)
        self._templates[np.tri(most + 1, most, -1, bool), 1] = np.array(_SURE, np.float32).view(np.int32)
        self._none = (NO_TOKEN,) * most
        self._recalled = recalled
        self._found: dict[int, Found] = {}  # by row: what is offered in this step, and what for
        self._slots: tuple[int, ...] = ()  # of the last step, by row
        self._lookups: list[int] = []  # rows that are looked at when there is nothing else to do, for later
        self._gap, self._last = _LONGEST, 0.0  # seconds between steps, lately; when the last one came
        self._turn = self._learner = self._left = 0
        """The row that is the first one to be looked at, since there was no time for it; the one whose output
        was learnt from last; how many are left in this step."""

    def seen(self, plan: Plan, blocks: list[list[int]], *, whole: bool) -> None:
        """The tokens of a step are there: say which drafts are verified, if any, before a grammar sees them.
        Only rows of which nothing is known are moved past their tokens first; those leave the blocks. Rows it
        comes too late for keep what was proposed. `whole`: all of its requests run."""
        self._lookups.clear()
        if not plan.offers:
            return
        last, self._last = self._last, time.perf_counter()
        self._gap += (min(self._last - last, _LONGEST) - self._gap) * _LEARNT
        self._found.clear()
        self._slots, self._left = plan.slots, len(plan.slots)
        unknown = self._recall(plan, blocks) if whole else []
        end = time.perf_counter() + len(unknown) * self._gap * _WORTH / len(plan.slots)
        turn, self._turn = self._turn, 0
        for row in sorted(unknown, key=lambda row: row < turn):
            if time.perf_counter() > end:
                self._turn = self._turn or row
                self._lookups.append(row)
                continue
            slot = plan.slots[row]
            self._table.accept_more((slot,), [[block[row]] for block in blocks])
            for block in blocks:
                block[row] = NO_TOKEN
            found = self._look(slot, offered=True)
            if found.tokens:
                self._found[row] = found
        self._write(plan)
        self._publish(plan)
        self._count(plan)

    def settle(self, plan: Plan) -> None:
        """Its masks are filled now: what was proposed stands, if a worker before this took the tokens in."""
        if not self._rings.region.offered(plan.step):
            self._publish(plan)

    def learn(self) -> bool:
        """Learn from the outputs of the last step, for a while; whose turn it is not comes first next time.
        Whether there was anything left."""
        end, there = time.perf_counter() + _LEARN_SECONDS, bool(self._lookups or self._left)
        while self._lookups or self._left:
            if self._lookups:
                slot = self._slots[row := self._lookups.pop()]
                if slot in self._table.requests:
                    self._look(slot, offered=row in self._found)
            else:
                self._left -= 1
                self._learner = row = (self._learner + 1) % len(self._slots)
                found = self._found.get(row, NOTHING)
                with self._rings.blame_scope(self._slots[row]):
                    self._earlier.learn(self._slots[row], found.source, found.tokens)
            if time.perf_counter() > end:
                break
        return there

    def _publish(self, plan: Plan) -> None:
        self._rings.region.store(Counter.OFFERED, plan.step)
        self._rings.mark(plan.step, Time.OFFERED)

    def _recall(self, plan: Plan, blocks: list[list[int]]) -> list[int]:
        """Find what is known; the rows of which nothing is."""
        unknown: list[int] = []
        requests, few = self._table.requests, len(plan.slots) <= _FEW_ROWS
        for row, (slot, *tokens) in enumerate(zip(plan.slots, *blocks, strict=True)):
            new = tokens[: tokens.index(NO_TOKEN)] if tokens[-1] == NO_TOKEN else tokens
            found, wanted = self._recalled.after(slot, requests[slot], new)
            if few or (found is None and wanted):
                unknown.append(row)
                continue
            if wanted:
                self._lookups.append(row)
            if found is not None and found.tokens:
                self._found[row] = found
        return unknown

    def _look(self, slot: int, *, offered: bool) -> Found:
        """Find what follows in a slot, and keep it."""
        request = self._table.requests[slot]
        with self._rings.blame_scope(slot):
            forced = self._forced.after(request, self._most)
            tokens, source = (forced, None) if forced else self._earlier.after(slot, request, self._most)
        return self._recalled.keep(slot, request, tokens, source, offered=offered)

    def _write(self, plan: Plan) -> None:
        drafts = self._rings.region.drafts(plan.step, len(plan.slots))
        drafts[:, drafts[0, :, 0] < 0] = self._templates[0][:, np.newaxis]
        if self._found:
            rows, tokens = list(self._found), [found.tokens for found in self._found.values()]
            counts = np.array([len(one) for one in tokens])
            drafts[:, rows] = self._templates[counts].swapaxes(0, 1)
            drafts[:, rows, 0] = np.array([(*one, *self._none[len(one) :]) for one in tokens]).T
            earlier = {row: found.source.sure for row, found in self._found.items() if found.source}
            drafts[0, list(earlier), 1] = np.array(list(earlier.values()), np.float32).view(np.int32)

    def _count(self, plan: Plan) -> None:
        """Count the tokens and the drafts of a step."""
        count, rings = len(plan.slots), self._rings
        self._add(Counter.DRAFTS, sum(len(found.tokens) for found in self._found.values()))
        sampled = rings.region.tokens[plan.step % TOKEN_DEPTH, : count * (self._most + 1)] >= 0
        self._add(Counter.TOKENS, int(np.count_nonzero(sampled)))
        self._add(Counter.FORWARDS, int(np.count_nonzero(sampled[:count])))
        rings.region.store(Counter.EARLIER, self._earlier.offered)
        rings.region.store(Counter.EARLIER_TAKEN, self._earlier.taken)

    def _add(self, counter: Counter, more: int) -> None:
        if more:
            self._rings.region.store(counter, self._rings.region.load(counter) + more)
