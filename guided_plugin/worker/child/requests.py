"""The requests of a worker, by slot. Their grammars are compiled in threads, never in
its loop."""

from __future__ import annotations

import math
import time
from concurrent.futures import Future
from functools import partial

from guided_plugin.compiling.background import Background
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.errors import GuidedError, RequestError
from guided_plugin.grammar.base import Grammar
from guided_plugin.grammar.table import GrammarTable
from guided_plugin.ipc import processors
from guided_plugin.ipc.channel import Channel
from guided_plugin.worker.child.rings import WorkerRings
from guided_plugin.worker.layout import FENCED, fence
from guided_plugin.worker.messages import Compile, LiveRequest, Outcome, Verdict
from guided_plugin.worker.words import Counter

_QUICK_THREADS = max(2, min(4, processors.count() // 4))
"""Threads for specs that take milliseconds, half of that in native code. Others, which
wait for helper processes or take long to load, have threads of their own."""


class WorkerRequests:
    """The requests of one session. What one request does wrong fails that request."""

    def __init__(
        self, compiler: GrammarCompiler, channel: Channel, rings: WorkerRings
    ) -> None:
        config = compiler.config
        self.table = GrammarTable(
            compiler.vocabulary,
            config.row_ms / 1e3,
            # The supervisor must not take a worker that waits for one row for a hung
            # one.
            min(5 * config.row_ms, config.worker_step_ms / 2) / 1e3,
            progress=rings.beat,
            answer_room=config.answer_room,
        )
        self.table.slow = rings.region.slow
        rings.region.slow[:] = 0.0  # a worker before this one wrote there
        self._compiler = compiler
        self._quick = Background(_QUICK_THREADS)
        self._slow = Background(gives_way=True)
        self._channel = channel
        self._rings = rings
        self._patience = config.worker_grammar_ms / 1e3
        self.stop_token_ids = compiler.vocabulary.stop_token_ids
        self._told: dict[int, LiveRequest] = {}
        """All requests, by slot, as the engine told them."""
        self.starting: dict[int, Future[Grammar]] = {}
        """By slot, the grammars that are being compiled."""
        self._wanted_since: dict[int, float] = {}
        """By slot, when a plan first named a request whose grammar was not there."""

    def __len__(self) -> int:
        return len(self._told)

    def add(self, message: LiveRequest) -> None:
        """A request took a slot."""
        self._told[message.slot] = message
        if message.error is None:
            self.starting[message.slot] = self._grammar(message)
            message.prepared = None  # the compiler keeps it
        else:
            self._fail(message, message.error)

    def remove(self, slot: int) -> None:
        """A slot is free."""
        if self.starting.pop(slot, None) is None:
            self.table.remove(slot)
        self._wanted_since.pop(slot, None)
        del self._told[slot]
        self._rings.vacate(slot)

    def start_compiled(self) -> bool:
        """Start the requests whose grammars are there."""
        done = [slot for slot, grammar in self.starting.items() if grammar.done()]
        for slot in done:
            request = self._told[slot]
            compiled = self.starting.pop(slot)
            with self._rings.blame_scope(slot):
                try:
                    grammar = compiled.result()
                    backend = self._compiler.backend(grammar.backend)
                    self.table.add(
                        slot,
                        request.request_id,
                        request.spec,
                        grammar,
                        backend,
                        request.state.tokens,
                    )
                except Exception as error:
                    self._fail(request, as_guided_error(error))
            self._rings.beat()
        return bool(done)

    def all_started(self, slots: tuple[int, ...]) -> bool:
        """True if no slot of a plan waits for its grammar; a request that waits for too
        long fails closed."""
        if not self.starting:
            return True
        now = time.monotonic()
        waiting = False
        for slot in filter(self.starting.__contains__, slots):
            if now - self._wanted_since.setdefault(slot, now) < self._patience:
                waiting = True
                continue
            del self.starting[slot]
            error = RequestError(
                f"its grammar was not ready {self._patience:g} s after it was needed",
                hint="add the request when its spec has compiled, or raise worker_grammar_ms",
            )
            self._fail(self._told[slot], error)
        return not waiting

    def compile(self, message: Compile) -> None:
        """Tell the engine whether a spec compiles, once that is known."""
        self._grammar(message).add_done_callback(partial(self._send_verdict, message))

    def publish_failures(self) -> None:
        """Write into the shared memory which requests are closed, or led, from the next
        filled step on."""
        for slot, error in self.table.failures:
            self._publish(slot, error.reason)
        table = self.table
        for slot, place in table.led.items():
            self._publish(slot, "", table.requests[slot].state.led, place)
        for name, count in table.counts.items():
            self._rings.region.figures[name] += count
        table.led = {}
        table.counts.clear()

    def report_failures(self) -> None:
        """Tell the engine which requests failed, and which may be cut."""
        self.publish_failures()
        for slot, why in self.table.unprotected.items():
            self._channel.send(Outcome(self._told[slot].serial, why))
        self.table.unprotected = {}
        failures = self.table.failures
        self.table.failures = []
        for slot, error in failures:
            self._channel.send(
                Outcome(self._told[slot].serial, error, len(self.table.tokens(slot)))
            )

    def _grammar(self, message: LiveRequest | Compile) -> Future[Grammar]:
        """The grammar of a message's spec."""
        spec = message.spec
        compiler = self._compiler
        if message.prepared is not None:
            compiler.keep(spec, message.prepared)
        grammar = compiler.cached(spec)
        if grammar is None:
            threads = self._quick if compiler.why_quick(spec) else self._slow
            # How long a request waits is for its engine to say.
            return compiler.begun(spec) or threads.submit(
                partial(compiler.compile, spec, deadline=math.inf)
            )
        cached: Future[Grammar] = Future()
        cached.set_result(grammar)
        return cached

    def _send_verdict(self, message: Compile, done: Future[Grammar]) -> None:
        """Runs in the compiling thread: the loop may be asleep."""
        error = done.exception()
        if error is not None:
            self._channel.send(Verdict(message.key, as_guided_error(error)))
            return
        # The engine keeps it for the worker after this one.
        made = self._compiler.kept(message.spec) if message.prepared is None else None
        self._channel.send(Verdict(message.key, done.result().admission(), made))

    def _publish(self, slot: int, reason: str, led: int = 0, place: int = 0) -> None:
        """Write the `Closure` of the next step. To be called before FILLED reaches that
        step. The first failure of a request stays."""
        region = self._rings.region
        serial = self._told[slot].serial
        entry = region.closures[slot]
        if entry["serial"] == serial and entry["reason"]:
            return
        entry["serial"] = 0
        entry["step"] = self._rings.filled + 1
        entry["led"] = led
        entry["place"] = place
        entry["reason"] = reason.encode()  # cut where it is too long
        if FENCED:
            fence()
        entry["serial"] = serial
        region.store(Counter.CLOSED, region.load(Counter.CLOSED) + 1)

    def _fail(self, request: LiveRequest, error: GuidedError) -> None:
        """Fail a request that has no grammar. What it had produced counts."""
        slot = request.slot
        self.table.add_failed(slot, request.request_id, request.spec, error)
        self.table.requests[slot].state.tokens.extend(request.state.tokens)


def as_guided_error(error: BaseException) -> GuidedError:
    """Return what a compile or a start raised as an error for its request."""
    if isinstance(error, GuidedError):
        return error
    return RequestError(
        f"the grammar worker could not use its spec: {error!r}", where="grammar worker"
    )
