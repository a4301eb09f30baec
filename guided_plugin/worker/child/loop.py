"""The grammar worker's loop: tokens in, masks out, in shared memory. Touches the grammar layer; no CUDA.

One loop: take messages, accept the tokens that landed, fill the masks that are due. It never waits for
one request on behalf of another: specs compile in threads, and a plan waits for a grammar only when that
request is in it. What one request does wrong fails that request; what this process does wrong ends it,
and the engine starts another.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import InitVar, dataclass, field
from functools import partial
from typing import NoReturn

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.errors import GuidedError, RequestError
from guided_plugin.grammar.base import Grammar
from guided_plugin.grammar.drafts import fill_with_drafts
from guided_plugin.grammar.table import GrammarTable
from guided_plugin.ipc.channel import Channel
from guided_plugin.spec import OutputSpec
from guided_plugin.step import UNGUIDED, Admission
from guided_plugin.worker.layout import PLAN_DEPTH, TOKEN_DEPTH, Counter, PlanField, Region, Time, unwrap
from guided_plugin.worker.messages import (
    Add,
    Compile,
    Failed,
    Hello,
    Remove,
    Sync,
    Synced,
    Verdict,
    Warm,
)

__all__ = ["GrammarWorker", "WorkerRetires"]

_log = logging.getLogger(__name__)

_NAPS = ((0.005, 20e-6), (1.0, 500e-6), (float("inf"), 3e-3))
"""How long a pause is (second), by how long there was nothing to do (first)."""

_PACE_EVERY = 16
"""Steps after which backends are told how far apart they were; a quarter of them were nearer."""

_COMPILES = 8
"""Specs that compile at the same time: more than there are processors, lest slow ones hold up the rest."""

_CARE_SECONDS = 1.0
"""How long compiles wait at most for requests that the worker before may have died of."""

_OVERDUE_SECONDS = 60.0
"""How long a call that was given up may go on before its worker is replaced. It uses a processor; but a new
worker takes a second to read a large vocabulary, and all rows wait for it."""

_OVERDUE_BYTES = 1 << 30
"""How much memory the worker may gain meanwhile."""

_OVERDUE_CHECK = 0.25
"""Seconds between two looks for such calls."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

_IDLE = 0.1
"""The pause while there is no request at all; a message ends it."""


class WorkerRetires(Exception):
    """The worker ends itself and wants another in its place."""


@dataclass(slots=True)
class _Starting:
    """A request whose grammar is being compiled."""

    add: Add
    grammar: Future[Grammar]
    wanted_since: float | None = None
    """When a plan first named it."""


@dataclass(slots=True)
class _Plan:
    """A plan as it was read, kept until its tokens are accepted."""

    step: int
    follows: int
    messages: int
    plan_id: int
    slots: tuple[int, ...]
    """UNGUIDED where the request has left since."""
    checked: int = -1
    """The state of the slots for which `whole` holds."""
    whole: bool = False
    """Whether every slot has a running grammar: the case that must be fast."""


@dataclass
class GrammarWorker:
    """One session: from a `Hello` to the end of the channel."""

    channel: Channel
    region: Region
    hello: Hello
    compiler: GrammarCompiler
    received: InitVar[list[object]]
    """Messages that came with the `Hello`."""
    _serials: dict[int, int] = field(default_factory=dict)
    _closed: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Slots that failed without a grammar, with their stop tokens."""
    _starting: dict[int, _Starting] = field(default_factory=dict)
    _plans: dict[int, _Plan] = field(default_factory=dict)
    _inbox: deque[object] = field(default_factory=deque)
    _syncs: list[Sync] = field(default_factory=list)
    _warming: list[Future[None]] | None = None
    _applied: int = 0
    _state: int = 0
    """Counts changes of which slots run."""

    def __post_init__(self, received: list[object]) -> None:
        self._inbox.extend(received)
        config = self.hello.config
        self._table = GrammarTable(
            self.compiler.vocabulary,
            config.row_ms / 1e3,
            # The supervisor must not take a worker that waits for one row for a hung one.
            min(5 * config.row_ms, config.worker_step_ms / 2) / 1e3,
            progress=self._beat,
        )
        self._filled = self.hello.filled
        self._accepted = self.hello.accepted
        self._isolate_until = self.hello.isolate_until
        self._deferred: deque[Compile] = deque()
        """Compiles that wait until the isolate part of a session is over."""
        self._begun = time.monotonic()
        self._patience = config.worker_grammar_ms / 1e3
        self._spin = config.worker_spin_us / 1e6
        self._shape = self.region.shape
        self._drafts = self._shape.drafts > 0
        """Whether the tokens of a step come before its masks."""
        self._pace = _Pace(self.compiler)
        self._overdue_check = 0.0
        self._overdue_bytes: int | None = None
        """The worker's memory when it first saw the call that goes on."""
        self._longest_nap = min(_IDLE, config.worker_step_ms / 4e3)
        self._threads = ThreadPoolExecutor(_COMPILES, "guided-compile")
        self._last_work = time.monotonic()
        # Filled by the worker before, not yet accepted: their tokens come to this one.
        for step in range(max(self._accepted, self._filled - PLAN_DEPTH) + 1, self._filled + 1):
            self._read_plan(step)

    def close(self) -> None:
        """Compile no more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def run(self) -> NoReturn:
        """Serve until the engine hangs up, which raises ChannelClosedError."""
        self._warm_up()
        while True:
            # A list: each of the three has its turn in every round.
            worked = any([self._take_messages(), self._accept_tokens(), self._fill_masks()])
            self._answer()
            self._retire_if_overdue()
            self._beat()
            if worked:
                self._last_work = time.monotonic()
            else:
                self._rest()

    def _beat(self) -> None:
        """Show the engine that there is progress."""
        self.region.store(Counter.HEARTBEAT, self.region.load(Counter.HEARTBEAT) + 1)

    def _retire_if_overdue(self) -> None:
        """End this worker if a call that was given up goes on for long, or while no request would notice."""
        now = time.monotonic()
        if now < self._overdue_check:
            return
        self._overdue_check = now + _OVERDUE_CHECK
        seconds = self._table.overdue()
        if not seconds:
            self._overdue_bytes = None
            return
        resident = _resident_bytes()
        if self._overdue_bytes is None:
            self._overdue_bytes = resident
        grown = resident - self._overdue_bytes
        if seconds > _OVERDUE_SECONDS or grown > _OVERDUE_BYTES or not self._serials:
            raise WorkerRetires(
                f"a call of a backend that was given up goes on after {seconds:.1f} s, and its worker has "
                f"grown by {grown / 2**20:.0f} MiB"
            )

    # Messages

    def _take_messages(self) -> bool:
        """Receive whatever is there; apply what precedes the next plan, or all if there is none.

        The plan counter is read after the channel: a message sent after a plan can't be taken for one
        sent before it.
        """
        self._inbox.extend(self.channel.receive())
        before, limit = self._applied, None
        planned = self._planned()
        if planned > self._filled:
            limit = self._read_plan(self._filled + 1).messages
        while self._inbox and (limit is None or self._applied < limit):
            message = self._inbox.popleft()
            self._applied += 1
            self._apply(message)
        started = bool(self._starting) and self._start_compiled()
        asked = bool(self._deferred) and self._end_care()
        return started or asked or self._applied > before

    def _apply(self, message: object) -> None:
        if isinstance(message, Add):
            self._serials[message.slot] = message.serial
            if message.error is None:
                self._starting[message.slot] = _Starting(message, self._compile(message))
            else:
                self._closed[message.slot] = self._stops(message.spec)
            self._state += 1
        elif isinstance(message, Remove):
            self._remove(message.slot)
        elif isinstance(message, Compile):
            if self._filled < self._isolate_until:
                self._deferred.append(message)
            else:
                self._ask(message)
        elif isinstance(message, Sync):
            self._syncs.append(message)

    def _ask(self, message: Compile) -> None:
        ticket = message.ticket
        self._compile(message).add_done_callback(lambda done: self._judge(ticket, done))

    def _end_care(self) -> bool:
        """Compile what was asked for, once the requests that a worker may have died of have had their turn:
        beside them it could not be told who ended the next one."""
        turn_over = self._planned() <= self._filled and not self._starting
        late = time.monotonic() - self._begun > _CARE_SECONDS
        if not (turn_over or late or self._filled >= self._isolate_until):
            return False
        self._isolate_until = self._filled
        while self._deferred:
            self._ask(self._deferred.popleft())
        return True

    def _remove(self, slot: int) -> None:
        if self._starting.pop(slot, None) is None and self._closed.pop(slot, None) is None:
            self._table.remove(slot)
        del self._serials[slot]
        self._state += 1
        # Tokens on their way for it must not reach the slot's next request.
        for plan in self._plans.values():
            if plan.step <= self._filled and slot in plan.slots:
                plan.slots = tuple(UNGUIDED if s == slot else s for s in plan.slots)
                plan.checked = -1

    def _answer(self) -> None:
        """Send what there is to tell."""
        if self._table.failures:
            self._publish_failures()
            failures, self._table.failures = self._table.failures, []
            for slot, error in failures:
                count = len(self._table.tokens(slot))
                self.channel.send(Failed(self._serials[slot], error, count))
        if self._warming is not None and all(done.done() for done in self._warming):
            for failure in filter(None, (done.exception() for done in self._warming)):
                _log.warning("a backend could not get ready: %s", failure)
            self._warming = None
            self.channel.send(Warm())
        for sync in list(self._syncs):
            if sync.after > self._accepted or sync.filled > self._filled:
                continue
            self._syncs.remove(sync)
            self.channel.send(Synced(sync.ticket, frozenset(self._starting)))
        if self.channel.pending:
            self.channel.flush()

    # Grammars

    def _compile(self, message: Add | Compile) -> Future[Grammar]:
        if message.precompiled:
            self.compiler.trust(message.spec)
        grammar = self.compiler.cached(message.spec)
        if grammar is None:
            return self._threads.submit(self.compiler.compile, message.spec)
        there: Future[Grammar] = Future()
        there.set_result(grammar)
        return there

    def _judge(self, ticket: int, done: Future[Grammar]) -> None:
        """Runs in the compiling thread: the loop may be asleep."""
        if done.cancelled():
            return
        error = done.exception()
        if error is not None:
            self.channel.send(Verdict(ticket, _guided(error)))
            return
        grammar = done.result()
        answer = Admission(grammar.backend, grammar.seconds, grammar.warnings, grammar.reason)
        self.channel.send(Verdict(ticket, answer))

    def _start_compiled(self) -> bool:
        """Start the requests whose grammars are there."""
        done = [slot for slot, starting in self._starting.items() if starting.grammar.done()]
        for slot in done:
            starting = self._starting.pop(slot)
            add = starting.add
            self.region.store(Counter.DOING, slot + 1)
            try:
                grammar = starting.grammar.result()
                backend = self.compiler.backend(grammar.backend)
                self._table.add(slot, add.request_id, add.spec, grammar, backend, add.tokens)
            except Exception as error:
                with contextlib.suppress(GuidedError):
                    self._table.remove(slot)
                self._close(add, _guided(error))
            self.region.store(Counter.DOING, 0)
            self._beat()
            self._state += 1
        return bool(done)

    def _close(self, add: Add, error: GuidedError) -> None:
        """Fail a request that has no grammar to fail in."""
        self._closed[add.slot] = self._stops(add.spec)
        self.region.write_closure(add.slot, add.serial, self._filled + 1, error.reason)
        self.channel.send(Failed(add.serial, error.for_request(add.request_id), len(add.tokens)))

    def _publish_failures(self) -> None:
        """Write into the shared memory which requests are closed from the next filled step on."""
        for slot, error in self._table.failures:
            self.region.write_closure(slot, self._serials[slot], self._filled + 1, error.reason)

    def _all_started(self, slots: tuple[int, ...]) -> bool:
        """Whether no slot of a plan is waited for; what takes too long fails closed."""
        if not self._starting:
            return True
        now = time.monotonic()
        waiting = False
        for slot in slots:
            starting = self._starting.get(slot)
            if starting is None:
                continue
            if starting.wanted_since is None:
                starting.wanted_since = now
            if now - starting.wanted_since < self._patience:
                waiting = True
                continue
            del self._starting[slot]
            self._state += 1
            self._close(
                starting.add,
                RequestError(
                    f"its grammar was not there {self._patience:g} s after it was needed",
                    hint="add the request when its spec has compiled, or raise worker_grammar_ms",
                ),
            )
        return not waiting

    # Steps

    def _accept_tokens(self) -> bool:
        """Let the grammars see the tokens that landed since."""
        landed = unwrap(self.region.load(Counter.SAMPLED), self._accepted)
        if landed <= self._accepted:
            return False
        worked = False
        for step in self._sampled_steps(landed):
            plan = self._plans[step]
            if plan.messages > self._applied or not self._all_started(plan.slots):
                break
            self._mark(step, Time.ACCEPT)
            for tokens in self._values(plan)[0]:
                self._accept_position(plan, tokens)
            self._mark(step, Time.ACCEPTED)
            self._accepted = step
            self.region.store(Counter.ACCEPTED, step)
            # With drafts its masks are still to come.
            for old in [s for s in self._plans if s <= step - self._drafts]:
                del self._plans[old]
            worked = True
        return worked

    def _accept_position(self, plan: _Plan, tokens: list[int]) -> None:
        if self._whole(plan) and plan.step > self._isolate_until:
            self._table.accept(plan.slots, tokens)
            return
        for slot, token in zip(plan.slots, tokens, strict=True):
            if slot in self._serials and slot not in self._closed:
                self._alone(slot, partial(self._table.accept, (slot,), [token]))

    def _sampled_steps(self, landed: int) -> list[int]:
        """The steps up to `landed` that were sampled and filled here: not every plan is sampled. With drafts
        the tokens of a step come before its masks."""
        steps = []
        while landed > self._accepted:
            if landed <= self._filled + self._drafts:
                steps.append(landed)
            landed = self._read_plan(landed).follows
        return steps[::-1]

    def _fill_masks(self) -> bool:
        """Fill the masks of the next plan once the tokens before it are accepted."""
        if self._planned() <= self._filled:
            return False
        step = self._filled + 1
        plan = self._read_plan(step)
        if (
            plan.messages > self._applied
            or (step if self._drafts else plan.follows) > self._accepted
            or not self._all_started(plan.slots)
        ):
            return False
        self._mark(step, Time.FILL)
        if not self._drafts:
            self._pace.step(time.perf_counter())
        count = len(plan.slots)
        mask = self.region.masks[step % PLAN_DEPTH, : count * self._shape.positions]
        drafts = self._values(plan)[1] if self._drafts else []
        if self._whole(plan) and step > self._isolate_until:
            fill_with_drafts(self._table, plan.slots, mask, drafts)
        else:
            for row, slot in enumerate(plan.slots):
                if slot in self._serials and slot not in self._closed:
                    own = [position[row : row + 1] for position in drafts]
                    self._alone(slot, partial(fill_with_drafts, self._table, (slot,), mask[row::count], own))
                else:
                    stops = self._closed.get(slot, self.compiler.vocabulary.stop_token_ids)
                    self.region.close_row(step, row, count, stops)
        self._mark(step, Time.FILLED)
        if self._table.failures:
            self._publish_failures()
        self._filled = step
        self.region.store(Counter.FILLED, step)
        for old in [s for s in self._plans if s <= step - PLAN_DEPTH]:
            del self._plans[old]  # planned, never sampled
        return True

    def _values(self, plan: _Plan) -> tuple[list[list[int]], list[list[int]]]:
        """What landed for a step: for each position the tokens of all its requests, and their drafts."""
        count = len(plan.slots)
        values = self.region.tokens[plan.step % TOKEN_DEPTH, : count * self._shape.values]
        return self._shape.split(values.tolist(), count)

    def _alone(self, slot: int, work: Callable[[], None]) -> None:
        """Work on one slot, in a way that a crash can be laid at its door."""
        self.region.store(Counter.DOING, slot + 1)
        work()
        self.region.store(Counter.DOING, 0)

    def _planned(self) -> int:
        return unwrap(self.region.load(Counter.PLANNED), self._filled)

    def _read_plan(self, step: int) -> _Plan:
        plan = self._plans.get(step)
        if plan is None:
            record = self.region.plans[step % PLAN_DEPTH]
            head: list[int] = record[: PlanField.SLOTS].tolist()
            before = self._plans.get(step - 1)
            if before is not None and before.plan_id == head[PlanField.PLAN_ID] and before.checked >= 0:
                slots, checked, whole = before.slots, before.checked, before.whole
            else:
                end = PlanField.SLOTS + head[PlanField.COUNT]
                slots = tuple(record[PlanField.SLOTS : end].view("int32").tolist())
                checked, whole = -1, False
            follows = unwrap(head[PlanField.FOLLOWS], step)
            messages = head[PlanField.MESSAGES]
            plan = _Plan(step, follows, messages, head[PlanField.PLAN_ID], slots, checked, whole)
            self._plans[step] = plan
        return plan

    def _whole(self, plan: _Plan) -> bool:
        if plan.checked != self._state:
            plan.checked = self._state
            plan.whole = all(slot in self._serials and slot not in self._closed for slot in plan.slots)
        return plan.whole

    def _mark(self, step: int, what: Time) -> None:
        row = self.region.times[step % TOKEN_DEPTH]
        row[what] = time.perf_counter_ns()

    def _stops(self, spec: OutputSpec) -> tuple[int, ...]:
        return spec.stop_token_ids or self.compiler.vocabulary.stop_token_ids

    def _warm_up(self) -> None:
        """Build what each backend needs of the vocabulary while nobody waits for it."""
        names = self.compiler.plugins.backends
        self.compiler.start()
        self._warming = [self._threads.submit(self.compiler.warm_up, name) for name in names]

    def _rest(self) -> None:
        """Poll closely after work, less and less later; a message always ends a pause."""
        quiet = time.monotonic() - self._last_work
        if quiet < self._spin:
            return
        if self._serials or self._syncs or self._warming:
            nap = next(nap for until, nap in _NAPS if quiet < until)
        else:
            nap = self._longest_nap
        select.select([self.channel], [], [], nap)


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES


class _Pace:
    """How far apart steps are, for backends whose fills are hidden behind them."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = compiler
        self._last = 0.0
        self._gaps: list[float] = []

    def step(self, now: float) -> None:
        """The next step's masks are about to be filled."""
        self._gaps.append(now - self._last)
        self._last = now
        if len(self._gaps) == _PACE_EVERY:
            # Not the nearest: a host may plan a step again that it had planned otherwise.
            self._compiler.pace(sorted(self._gaps)[_PACE_EVERY // 4])
            self._gaps.clear()


def _guided(error: BaseException) -> GuidedError:
    if isinstance(error, GuidedError):
        return error
    return RequestError(f"the grammar worker could not use its spec: {error!r}", where="grammar worker")
