"""The requests of one engine, and what a grammar worker is told of them. Never waits
for the worker in a step.

What is true of the requests is kept here; messages only tell a worker what changed. So
a session can end at any moment, and the next one is told everything again
(`session.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import os
import threading
import time
import weakref
from array import array
from collections.abc import Callable, Iterable
from concurrent.futures import Future

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.errors import GuidedError, PipelineError
from guided_plugin.grammar.request_state import RequestState
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.ipc.channel import Channel
from guided_plugin.spec import OutputSpec
from guided_plugin.step import Admission, StepPlan
from guided_plugin.worker.engine.admissions import Admissions
from guided_plugin.worker.engine.requests import LiveRequests
from guided_plugin.worker.engine.steps import StepRing, forked
from guided_plugin.worker.layout import Region, Shape
from guided_plugin.worker.messages import LiveRequest, Remove, Sync
from guided_plugin.worker.words import Counter


class WorkerClient:
    """Calls of the host's thread, whichever worker serves it. The supervisor's thread
    calls it too."""

    def __init__(
        self,
        compiler: GrammarCompiler,
        max_slots: int,
        *,
        drafts: int = 0,
        first_step: int = 0,
        followers: int = 0,
    ) -> None:
        self.compiler = compiler
        self.vocabulary = dataclasses.replace(compiler.vocabulary, encode=None)
        self.region = Region.create(
            Shape(max_slots, compiler.vocabulary.words, drafts, followers)
        )
        self.steps = StepRing(self.region, first_step)
        self.requests = LiveRequests(self.region, self.steps)
        self.admissions = Admissions(compiler)
        self.syncs: dict[int, tuple[Future[None], Sync]] = {}
        """Questions that wait until the worker has come so far."""
        self.wake: Callable[[], None] = lambda: None
        """Tells the supervisor that there is something to do."""
        self.numbers = itertools.count(1)
        self.ready = threading.Event()
        """Set when the first worker has made its backends, or when none will: requests
        wait for neither."""
        self.channel: Channel | None = None
        """To the worker, while there is one."""
        self.undelivered = False
        """True if messages wait for the next plan."""
        self._changes = 0
        self._settled = (-1, -1, -1)
        """The steps and changes that the worker is known to have dealt with."""
        self._refusal: GuidedError | None = None
        self._refused_until = 0.0
        self._suspended = False
        _clients.add(self)

    # Requests

    def prepare(self, spec: OutputSpec) -> Future[Admission]:
        """Have a spec compiled; never blocks."""
        spec = _normal(spec, self.vocabulary)
        quarantined = self.compiler.refusal(spec)
        if quarantined is not None:
            verdict: Future[Admission] = Future()
            verdict.set_exception(quarantined)
            return verdict
        with self.steps.lock:
            earlier = self.admissions.lookup(spec)
            if earlier is not None:
                return earlier
            idle = not self._asked
            verdict, question = self.admissions.open(spec)
            refusal = self.refusal()
            if refusal is None or self._suspended:  # the worker that comes is asked
                self.send(question)
                # the supervisor goes on when there is room
                idle = idle or (self.channel is not None and self.channel.pending)
            else:
                self.admissions.refuse(refusal)
        self._watch(idle)
        return verdict

    def add(
        self, slot: int, request_id: str, spec: OutputSpec, tokens: Iterable[int]
    ) -> None:
        """Start a request in a slot; never blocks. A grammar that isn't there yet is
        waited for by the first step that has the request in it."""
        spec = _normal(spec, self.vocabulary)
        stops = spec.stop_token_ids or self.vocabulary.stop_token_ids
        with self.steps.lock:
            refusal = self.refusal() or self.compiler.refusal(spec)
            if refusal is not None:
                raise refusal.for_request(request_id)
            request = LiveRequest(next(self.numbers), slot, request_id, spec, stops)
            request.state.extend(array("q", tokens))
            idle = not self._asked
            self.requests[slot] = request
            self.send(request, later=not idle)
        self._watch(idle)

    def add_failed(
        self, slot: int, request_id: str, spec: OutputSpec, error: GuidedError
    ) -> None:
        """A request takes a slot, but can't begin: its rows are closed. Never
        blocks."""
        stops = self.vocabulary.usable_stops(spec.stop_token_ids)
        # Its triggers and its stop tokens may be what is wrong with it.
        spec = dataclasses.replace(spec, start_after=None, stop_token_ids=stops)
        with self.steps.lock:
            request = LiveRequest(next(self.numbers), slot, request_id, spec, stops)
            self.requests[slot] = request
            self.requests.fail(request, error)
            self.send(request)
        self.wake()

    def remove(self, slot: int) -> None:
        """Free a slot; never blocks."""
        with self.steps.lock:
            self.requests.remove(slot)
            self.send(Remove(slot), later=bool(self.requests))

    def publish(self, plan: StepPlan) -> None:
        """Have the steps from now on announce a plan."""
        with self.steps.lock:
            requests = tuple(map(self.requests.__getitem__, plan.slots))
            self.steps.publish(next(self.numbers), array("i", plan.slots), requests)

    def state(self, slot: int) -> RequestState:
        """The state of the request in a slot, once everything that happened to it so
        far is known. Waits for that."""
        self._settle()
        self.steps.harvest()
        with self.steps.lock:
            self.requests.read_closures()
        return self.requests[slot].state

    @property
    def busy(self) -> bool:
        """True if anything waits for the worker: a request, or a device that needs
        masks."""
        return self._asked or self.steps.filled < self.steps.planned

    @property
    def _asked(self) -> bool:
        # without steps: no lock keeps a worker from filling what waits
        return bool(self.requests or self.admissions or self.syncs)

    # Refusals

    def refuse(
        self, error: GuidedError, seconds: float, *, suspended: bool = False
    ) -> None:
        """Fail every request, and refuse new ones and specs for a while. What is
        planned gets closed masks at once. `suspended`: until `resume`, which is likely
        to come within so many seconds; specs wait for their verdicts."""
        with self.steps.lock:
            self._refusal, self._refused_until = error, time.monotonic() + seconds
            self._suspended = suspended
            self.steps.refusing = True
            # all of it happens, whatever a part raises
            with contextlib.ExitStack() as end:
                if not suspended:
                    for future, _ in self.syncs.values():
                        end.callback(future.set_result, None)
                    end.callback(self.syncs.clear)
                    end.callback(self.admissions.refuse, error)
                end.callback(self.requests.fail_all, error)
                end.callback(self._close_outstanding, error)
                self.steps.harvest()

    def resume(self) -> None:
        """There is a worker again."""
        with self.steps.lock:
            if self._suspended:
                self._refusal = None
                self._suspended = False
                self.steps.refusing = False

    @property
    def refusing(self) -> bool:
        """True if guided requests are refused, and no worker is being started."""
        return self._refusal is not None and not self._suspended

    def refusal(self) -> GuidedError | None:
        """Why a new request would be refused now. From any thread."""
        if self._refusal is None:
            return None
        with self.steps.lock:
            if self.refusing and time.monotonic() >= self._refused_until:
                self._refusal = None
                self.steps.refusing = False
                self.wake()
            return self._refusal

    def refused_for(self) -> float:
        """For how many more seconds, at least; infinite where it is for good. From any
        thread."""
        with self.steps.lock:
            if self.refusal() is None:
                return 0.0
            return max(0.0, self._refused_until - time.monotonic())

    def _close_outstanding(self, error: GuidedError) -> None:
        """Fail the rows of the steps that are not filled, and let the device go on. No
        worker may run."""
        for step, published in self.steps.in_flight(self.steps.filled):
            for request in published.requests:
                self.requests.fail(request, error)
            self.steps.close_rows(step)

    def end(self) -> None:
        """No more steps are planned: let go what waits, on the device or here."""
        closed = PipelineError(
            "is closed", where="pipeline", hint="make a new StepPipeline"
        )
        self.refuse(closed, float("inf"))
        self.region.store(Counter.ENDED, 1)
        self.ready.set()
        self.region.close()

    # Messages

    def send(self, message: object, *, later: bool = False) -> None:
        """Tell the worker, if there is one; `later`: with the next message or plan. The
        next worker is told what is true then."""
        self._changes += 1
        if self.channel is not None:
            self.steps.messages += 1
            self.channel.send(message, later=later)
            self.undelivered |= later

    def deliver(self) -> None:
        """Send what waits for the next plan."""
        channel = self.channel
        self.undelivered = False
        if channel is not None:
            channel.flush()
            if channel.pending:  # the supervisor goes on when there is room
                self.wake()

    # Inside

    def _watch(self, idle: bool) -> None:
        """Have the supervisor look after what waits now. To wake its thread costs more
        than a request: while anything else waits, it is awake."""
        if idle or self.channel is None:
            self.wake()

    def _settle(self) -> None:
        """Wait until the worker has dealt with all there is so far; nothing, if it said
        so before."""
        steps = self.steps
        if steps.forked:
            raise forked()
        with steps.lock:
            moment = steps.follows, steps.planned, self._changes
            if self._refusal is not None or self._settled == moment:
                return
            sync = Sync(next(self.numbers), steps.follows, steps.planned)
            future: Future[None] = Future()
            self.syncs[sync.ticket] = future, sync
            self.send(sync)
            moment = steps.follows, steps.planned, self._changes
        self.wake()
        future.result()
        self._settled = moment

    def after_fork(self) -> None:
        """This is a copy in a forked process, which has neither worker nor steps."""
        self.steps.lock = threading.RLock()
        self.steps.forked = True
        self._suspended = False
        self._refusal, self._refused_until = forked(), math.inf
        # no answer comes to the parent's questions, nor does a supervisor wake
        self.admissions = Admissions(self.compiler)
        self.wake = lambda: None
        if self.channel is not None:
            self.channel.sock.close()
        self.region.close()


def _normal(spec: OutputSpec, vocabulary: Vocabulary) -> OutputSpec:
    """The spec as a worker can read it: no text that takes a tokenizer."""
    vocabulary.check_stops(spec.stop_token_ids or (), where="stop_token_ids")
    if spec.start_after is None:
        return spec
    return dataclasses.replace(
        spec, start_after=vocabulary.triggers(spec.start_after) or None
    )


_clients: weakref.WeakSet[WorkerClient] = weakref.WeakSet()


def _after_fork() -> None:
    for client in list(_clients):
        client.after_fork()


os.register_at_fork(after_in_child=_after_fork)
