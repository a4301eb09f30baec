"""The engine's side of a grammar worker: requests, plans, journals. Never waits for the worker in a step.

What is true of the requests is kept here; messages only tell a worker what changed. So a session can end
at any moment, and the next one is told everything again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import sys
import threading
import time
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.errors import BudgetError, GuidedError, PipelineError, PluginError, RequestError
from guided_plugin.ipc.channel import Channel
from guided_plugin.spec import OutputSpec
from guided_plugin.step import UNGUIDED, Admission, Closure, StepPlan
from guided_plugin.worker.engine.admissions import Admissions
from guided_plugin.worker.engine.closures import Closures
from guided_plugin.worker.engine.journal import LiveRequest
from guided_plugin.worker.engine.steps import Published, StepRing
from guided_plugin.worker.layout import Counter, Region, Shape
from guided_plugin.worker.messages import Add, Failed, Hello, Ready, Remove, Sync, Synced, Verdict

__all__ = ["WorkerClient"]

_Moment = tuple[int, int, int]


class WorkerClient:
    """Requests and steps of one engine, whichever worker serves them. Touched by two threads: the
    host's, and the supervisor's."""

    def __init__(
        self, compiler: GrammarCompiler, max_slots: int, *, drafts: int = 0, first_step: int = 0
    ) -> None:
        self.compiler = compiler
        self.region = Region.create(Shape(max_slots, compiler.vocabulary.words, drafts))
        self.steps = StepRing(self.region, first_step)
        self.lock = threading.RLock()
        self.wake: Callable[[], None] = lambda: None
        """Tells the supervisor that there is something to do."""
        self.failures: deque[LiveRequest] = deque()
        """Requests that failed since the host last looked."""
        self.closures = Closures(self.region)
        self._vocabulary = dataclasses.replace(compiler.vocabulary, encode=None)
        self._numbers = itertools.count(1)
        self._live: dict[int, LiveRequest] = {}
        self._admissions = Admissions(compiler)
        self._syncs: dict[int, tuple[Future[frozenset[int]], Sync]] = {}
        self._settled: tuple[_Moment, frozenset[int]] = ((-1, -1, -1), frozenset())
        self._refusal: GuidedError | None = None
        self._refused_until = 0.0
        self._channel: Channel | None = None
        self._messages = self._changes = 0
        self._last_plan = StepPlan((), ())
        self._published = Published(0, array("i"), ())
        self._forked = False
        _clients.add(self)

    # Requests

    def prepare(self, spec: OutputSpec) -> Future[Admission]:
        """Have a spec compiled; never blocks."""
        spec = self._normal(spec)
        quarantined = self.compiler.quarantined(spec)
        if quarantined is not None:
            verdict: Future[Admission] = Future()
            verdict.set_exception(quarantined)
            return verdict
        with self.lock:
            earlier = self._admissions.lookup(spec)
            if earlier is not None:
                return earlier
            verdict, question = self._admissions.open(next(self._numbers), spec)
            refusal = self._refused()
            if refusal is None:
                self._send(question)
            else:
                self._admissions.refuse(refusal)
        self.wake()
        return verdict

    def add(self, slot: int, request_id: str, spec: OutputSpec, tokens: Iterable[int]) -> None:
        """Start a request in a slot; never blocks. A grammar that isn't there yet is waited for by the
        first step that has the request in it."""
        spec = self._normal(spec)
        stops = spec.stop_token_ids or self._vocabulary.stop_token_ids
        with self.lock:
            refusal = self._refused() or self.compiler.quarantined(spec)
            if refusal is not None:
                raise refusal.for_request(request_id)
            request = LiveRequest(next(self._numbers), slot, request_id, spec, stops)
            request.extend(array("q", tokens))
            alone = not self._live
            self._live[slot] = request
            self._send(self._add_message(request))
            # To wake the supervisor's thread costs more than all of this, and beside others it is awake.
            idle = alone or self._channel is None or self._channel.pending
        if idle:
            self.wake()

    def remove(self, slot: int) -> None:
        """Free a slot; never blocks."""
        with self.lock:
            self.closures.read(self._live.values())
            self.closures.forget(self._live.pop(slot))
            self._last_plan = StepPlan((), ())
            self._send(Remove(slot))

    def request(self, slot: int) -> LiveRequest:
        """The request in a slot, once everything that happened to it so far is known. Waits for that."""
        self._settle(slot)
        self.harvest()
        return self._live[slot]

    def take_failures(self) -> list[LiveRequest]:
        """The requests that failed since the last call, without those that have left."""
        found = []
        while self.failures:
            request = self.failures.popleft()
            if self._live.get(request.slot) is request:
                found.append(request)
        return found

    def take_closed(self) -> list[Closure]:
        """The requests that were closed since the last call, those that have left included. From any thread.
        Complete for every step whose masks are there."""
        if self.closures.changed:
            with self.lock:
                self.closures.read(self._live.values())
        return self.closures.take()

    @property
    def busy(self) -> bool:
        """Whether anybody would miss the worker: a request, or a device that waits for masks."""
        waiting = self.steps.filled < self.steps.planned
        return waiting or bool(self._live or self._admissions or self._syncs)

    # Steps

    def plan(self, plan: StepPlan) -> int:
        """Announce the next step, and its number. Waits only for a host that is a whole ring ahead."""
        if self._forked:
            raise _forked()
        self.steps.make_room()
        with self.lock:
            if plan is not self._last_plan:
                self._publish(plan)
            step = self.steps.announce(self._published, self._messages)
            if self._refusal is not None:
                self.steps.close_rows(step)
        return step

    def scheduled(self, step: int) -> None:
        """The step is sampled, and its tokens will land. Call it before they can."""
        with self.lock:
            self.steps.scheduled(step)

    def retract(self, step: int) -> None:
        """They will not land after all."""
        with self.lock:
            self.steps.retract(step)

    def harvest(self) -> None:
        """Take what landed into the journals."""
        with self.lock:
            self.steps.harvest()

    # Sessions: called by the supervisor

    def begin_session(self, channel: Channel, *, careful: bool) -> None:
        """Tell a new worker everything: the vocabulary, the live requests, the steps in flight."""
        with self.lock:
            self.region.check()
            accepted, filled = self.steps.landed, self.steps.filled
            self.steps.harvest(accepted)
            self.region.store(Counter.ACCEPTED, accepted)
            self.region.store(Counter.DOING, 0)
            self.region.store(Counter.HEARTBEAT, 0)
            plugins = self.compiler.plugins
            self._channel, self._messages = channel, 0
            channel.send(
                Hello(
                    self._vocabulary,
                    self.compiler.config,
                    plugins.entry_points,
                    tuple(_import_path()),
                    self.region.shape,
                    self.region.identity,
                    filled,
                    accepted,
                    self.steps.planned + 1 if careful else min(filled, accepted),
                )
            )
            for request in self._live.values():
                reason = self.closures.reason(request)
                if reason is not None:  # the worker before closed it, and ended before it could send that
                    self._fail(request, RequestError(reason))
                self._send(self._add_message(request))
            for question in self._admissions.questions():
                self._send(question)
            for _, sync in self._syncs.values():
                self._send(sync)
            for step, published in list(self.steps.in_flight(min(filled, accepted))):
                # All requests are told; some that were planned have left since.
                slots = [r.slot if self._live.get(r.slot) is r else UNGUIDED for r in published.requests]
                self.steps.rewrite(step, slots, self._next_id(), self._messages)

    def end_session(self) -> None:
        """There is no worker."""
        with self.lock:
            self._channel = None

    def received(self, message: object) -> None:
        """Take a message of the worker."""
        with self.lock:
            if isinstance(message, Verdict):
                self._admissions.judge(message)
            elif isinstance(message, Failed):
                request = next((r for r in self._live.values() if r.serial == message.serial), None)
                if request is not None:
                    self._fail(request, message.error, message.count)
                    if isinstance(message.error, BudgetError):
                        self.compiler.quarantine(request.spec, message.error)
            elif isinstance(message, Synced):
                waiting = self._syncs.pop(message.ticket, None)
                if waiting is not None:
                    waiting[0].set_result(message.starting)
            elif isinstance(message, Ready):
                self._compare_plugins(message)

    def close_outstanding(self, error: GuidedError) -> None:
        """Fail the rows of the steps that nobody fills, and let the device go on. No worker may run."""
        with self.lock:
            try:
                self.steps.harvest()
            finally:  # the device must not wait for ever, whatever fails here
                for step, published in list(self.steps.outstanding()):
                    for request in published.requests:
                        if self._live.get(request.slot) is request:
                            self._fail(request, error)
                    self.steps.close_rows(step)

    def blame(self, slot: int | None, reason: str, *, hung: bool = False) -> bool:
        """A worker ended while it worked on the request in `slot` alone, if on one, or while it compiled.
        Whether one of these explains it.

        A request that a worker hangs on is to blame at once. One that a worker dies on may merely have been
        next when the machine ended the worker: it is to blame the second time.
        """
        with self.lock:
            request = None if slot is None else self._live.get(slot)
            if request is not None:
                request.deaths += 1
                if request.deaths >= 2 or hung:
                    error = _hung_on(reason) if hung else _deadly("working on this request", reason)
                    self._fail(request, error)
                    self.compiler.quarantine(request.spec, error)
                    return True
            return self._admissions.blame(_deadly("compiling this spec", reason))

    def refuse(self, error: GuidedError, seconds: float) -> None:
        """Fail every request, and refuse new ones for a while. What is planned gets closed masks at once."""
        with self.lock:
            self._refusal, self._refused_until = error, time.monotonic() + seconds
            with contextlib.ExitStack() as end:  # all of it happens, whatever a part raises
                end.callback(self._end_syncs)
                end.callback(self._admissions.refuse, error)
                end.callback(self._fail_all, error)
                self.close_outstanding(error)

    @property
    def refusing(self) -> bool:
        """Whether guided requests are refused."""
        return self._refusal is not None

    def refusal(self) -> GuidedError | None:
        """Why a new request would be refused now. From any thread."""
        if self._refusal is None and not self._forked:
            return None
        with self.lock:
            return self._refused()

    # Inside

    def _refused(self) -> GuidedError | None:
        if self._forked:
            return _forked()
        if self._refusal is not None and time.monotonic() >= self._refused_until:
            self._refusal = None
            self.wake()
        return self._refusal

    def _normal(self, spec: OutputSpec) -> OutputSpec:
        """The spec as a worker can read it: no text that takes a tokenizer."""
        for token in spec.stop_token_ids or ():
            if token >= self._vocabulary.size:
                raise RequestError(
                    f"stop token {token} is outside the vocabulary",
                    where="stop_token_ids",
                    hint=f"the vocabulary has {self._vocabulary.size} tokens",
                )
        if isinstance(spec.start_after, str):
            trigger = self.compiler.vocabulary.sequence(spec.start_after)
            return dataclasses.replace(spec, start_after=trigger or None)
        return spec

    def _send(self, message: object) -> None:
        self._changes += 1
        if self._channel is not None:
            self._messages += 1
            self._channel.send(message)

    def _add_message(self, request: LiveRequest) -> Add:
        return Add(
            request.serial,
            request.slot,
            request.request_id,
            request.spec,
            request.counted(),
            request.error,
            self.compiler.trusts(request.spec),
        )

    def _publish(self, plan: StepPlan) -> None:
        requests = tuple(map(self._live.__getitem__, plan.slots))
        self._published = Published(self._next_id(), array("i", plan.slots), requests)
        self._last_plan = plan

    def _next_id(self) -> int:
        return next(self._numbers) & 0xFFFFFFFF

    def _fail(self, request: LiveRequest, error: GuidedError, count: int | None = None) -> None:
        if request.error is None:
            request.fail(error, count)
            self.closures.read(self._live.values())  # what a worker wrote has the exact step
            self.closures.add(request, self.steps.filled + 1, error.reason)
            self.failures.append(request)

    def _fail_all(self, error: GuidedError) -> None:
        for request in self._live.values():
            self._fail(request, error)

    def _end_syncs(self) -> None:
        syncs, self._syncs = self._syncs, {}
        for future, _ in syncs.values():
            future.set_result(frozenset())

    def _compare_plugins(self, ready: Ready) -> None:
        missing = set(self.compiler.plugins.backends) - ready.backends
        missing |= set(self.compiler.plugins.lowerings) - ready.lowerings
        if missing:
            self.refuse(
                PluginError(
                    f"the grammar worker can't load {', '.join(sorted(missing))}",
                    hint="offer it through the entry-point group guided_plugin, or use mode='inline'",
                ),
                float("inf"),
            )

    def _settle(self, slot: int) -> None:
        """Wait until the worker has dealt with all there is so far; nothing, if it said so before."""
        while not self._forked:
            with self.lock:
                moment, starting = self._settled
                if self._refusal is not None or (moment == self._moment() and slot not in starting):
                    return
                ticket = next(self._numbers)
                sync = Sync(ticket, self.steps.follows, self.steps.planned)
                future: Future[frozenset[int]] = Future()
                self._syncs[ticket] = future, sync
                self._send(sync)
                moment = self._moment()
            self.wake()
            starting = future.result()
            with self.lock:
                self._settled = moment, starting
            if slot in starting:
                time.sleep(0.002)
        raise _forked()

    def _moment(self) -> _Moment:
        """What changes when there is anything new to wait for."""
        return self.steps.follows, self.steps.planned, self._changes

    def close(self) -> None:
        """Nobody plans any more: let go what waits, on the device or here."""
        if self._forked:
            return
        closed = PipelineError("is closed", where="pipeline", hint="make a new StepPipeline")
        self.refuse(closed, float("inf"))
        self.region.close()

    def _after_fork(self) -> None:
        self._forked = True
        self.lock = threading.RLock()
        if self._channel is not None:
            self._channel.sock.close()
        self.region.close()


def _import_path() -> list[str]:
    return [os.path.abspath(entry) for entry in sys.path]


def _deadly(doing: str, reason: str) -> GuidedError:
    return RequestError(
        f"{doing} ended the grammar worker twice",
        hint=f"it is not tried a third time; the last one {reason}",
    )


def _hung_on(reason: str) -> GuidedError:
    return BudgetError(
        f"the grammar worker {reason} while it works on this request alone",
        hint="write its grammar without ambiguity; worker_step_ms sets the limit",
    )


def _forked() -> PipelineError:
    return PipelineError(
        "belongs to the process that this one was forked from",
        where="pipeline",
        hint="make a StepPipeline in each process that decodes",
    )


_clients: weakref.WeakSet[WorkerClient] = weakref.WeakSet()


def _after_fork() -> None:
    for client in list(_clients):
        client._after_fork()


os.register_at_fork(after_in_child=_after_fork)
