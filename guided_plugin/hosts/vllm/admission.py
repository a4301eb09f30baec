"""Admission of guided requests in vLLM's frontend, before an engine sees them. Imports vLLM lazily.

A spec is parsed and compiled here, once for all requests with the same wording. The engine gets the fields of
the `OutputSpec`, and parses nothing; and what a helper process made of the spec, which its worker only loads.

Nothing whose cost follows from what a client wrote runs on the event loop: specs that compile in milliseconds
have threads of their own, large forms are read in another one, one after the other, so that they take the
interpreter from nothing else for long. Callers' SamplingParams are never written to.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import logging
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from guided_plugin.compiling.background import Background
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.compiling.limits import check_size
from guided_plugin.config import SpecLimits
from guided_plugin.errors import BusyError, GuidedError, SpecError, VocabularyError, printable
from guided_plugin.grammar.native import native
from guided_plugin.hosts.vllm import telling
from guided_plugin.hosts.vllm.asked import (
    LEFT,
    MARK,
    REASONING,
    Admitted,
    Asked,
    constraint,
    digest_of,
    may_leave,
    refused,
)
from guided_plugin.hosts.vllm.common import (
    ADMITTED,
    GUIDED,
    is_within,
    options_of,
    read_spec,
    vocabulary_of,
)
from guided_plugin.hosts.vllm.failures import refused_unseen
from guided_plugin.hosts.vllm.patches import note_version
from guided_plugin.hosts.vllm.questions import Health, in_background, wait_for
from guided_plugin.hosts.vllm.reasoning import Reasoning
from guided_plugin.spec import OutputSpec
from guided_plugin.spec.memo import ENTRY_BYTES, Latest, texts_bytes

_log = logging.getLogger(__name__)

_SLOW_SECONDS = 0.05
"""A spec that took longer than this to compile must be ready in the engine before its request goes there."""

_QUICK_THREADS = 2
_MOST_QUICK = 1024
"""Threads for specs that are parsed and compiled in milliseconds, and how many of those may wait."""

_START_SECONDS = 120.0
"""How long a request waits for the first grammar worker of an engine."""

_LIGHT = SpecLimits(max_spec_bytes=1 << 16, max_nodes=4_000)
"""Forms up to this size are looked up on the event loop and read by the quick threads. To look at that many
nodes takes 1.1 ms (240,000: 62 ms, on a processor of 2.6 GHz)."""

_ADMITTED_BYTES = 16 << 20
"""What is remembered of admitted specs: their texts, by a digest of what clients wrote."""

_ID_BYTES = 40
"""What a token id takes: the number, and its place in a tuple."""


class Gate:
    """The guided requests of one frontend. Thread-safe."""

    def __init__(self, vllm_config: Any) -> None:
        telling.adopt_handlers()  # vLLM sets up its log when it makes an engine's frontend
        self.options = options_of(vllm_config)
        self.unsupported_reason = refused_unseen(vllm_config, self.options)
        if self.unsupported_reason is None:
            note_version()
        self.health = Health()
        self._config = vllm_config
        self._lock = threading.RLock()
        self._compiler: GrammarCompiler | None = None
        self._ready: threading.Event | None = None
        """Set when no request waits for what all need; None where nothing was started."""
        self._engine_started = False
        """Whether the engine has compiled a spec. Its grammar worker takes seconds to start."""
        self._admitted: Latest[bytes, Admitted] = Latest(_ADMITTED_BYTES)
        """By a digest of what clients wrote."""
        self._quick: Background[Any] = Background(_QUICK_THREADS, _MOST_QUICK)
        self._large: Background[Any] = Background(1, _MOST_QUICK)
        """Reads large forms."""
        slow = self.options.compile_processes + self.options.compile_queue
        self._slow: Background[Any] = Background(slow, slow)
        self._admitting: dict[bytes | None, Future[Admitted]] = {}
        """The specs that take longer."""
        self.expected: list[Admitted] = []
        """Specs of requests that `LLM` will add next, which the engine does not have ready yet."""
        outputs = vllm_config.structured_outputs_config
        self._reasoner = "" if outputs.enable_in_reasoning else outputs.reasoning_parser
        self._reasoning: Reasoning | None = None
        if self.unsupported_reason is not None and self.options.take_over:
            _log.warning("structured outputs are left to vLLM: %s", self.unsupported_reason)

    def concerns(self, params: Any) -> bool:
        """Whether a request is guided, or will be."""
        extra = getattr(params, "extra_args", None)
        if extra and extra.get(GUIDED) is not None:
            return True
        takes_over = self.options.take_over and self.unsupported_reason is None
        return takes_over and constraint(params) is not None

    def concerns_request(self, request: Any) -> bool:
        """Whether a server's request may be guided: `concerns` has the answer, of its params."""
        extra = getattr(request, "vllm_xargs", None)
        if extra and extra.get(GUIDED) is not None:
            return True
        return self.options.take_over and self.unsupported_reason is None

    def asked(self, params: Any, deadline: float | None = None) -> Asked | Admitted:
        """What a guided request asks for; params that were admitted hold that. Raises GuidedError."""
        if self.unsupported_reason is not None:
            raise self.unsupported_reason
        ours: Any = (params.extra_args or {}).get(GUIDED)
        theirs = constraint(params) if ours is not LEFT else None
        if ours is not None and theirs is not None:
            hint = "use one of the two"
            raise SpecError("is given together with structured_outputs", where=GUIDED, hint=hint)
        if isinstance(ours, Admitted):
            return ours
        deadline = self.deadline() if deadline is None else deadline
        return Asked(theirs if ours is None else ours, ours is not None, deadline)

    def admit(self, params: Any, deadline: float | None = None) -> Any:
        """A copy of the params of a guided request that holds its `Admitted` spec; params that hold one are
        returned as they are. Compiles a spec that is not remembered. Raises GuidedError."""
        asked = self.asked(params, deadline)
        if isinstance(asked, Admitted):
            return params
        found = self.look_up(asked)
        return self.carry(params, self._compiled(asked) if found is None else found)

    async def admit_async(self, params: Any, deadline: float | None = None) -> Any:
        """The same on an event loop. Identical specs that take longer wait for one compile."""
        asked = self.asked(params, deadline)
        if isinstance(asked, Admitted):
            return params
        light = is_within(asked.form, _LIGHT)
        found = self.look_up(asked) if light else None
        if found is None:
            reader = self._quick if light else self._large
            found = await asyncio.wrap_future(reader.submit(partial(self._compiled, asked, here=True)))
        if found is None:
            waiting = asyncio.wrap_future(self.admit_in_background(asked))
            waiting.add_done_callback(_take_error)
            found = await asyncio.shield(waiting)  # a client that hangs up ends its own wait only
        return self.carry(params, found)

    def look_up(self, asked: Asked) -> Admitted | None:
        """What is remembered of a form. Raises CompileLimitError for one that is too large, uncopied."""
        check_size(asked.form, self.options)
        asked.key = digest_of(asked.form)
        if asked.key is None:
            return None
        with self._lock:
            found = self._admitted.get(asked.key)
        return None if found is LEFT and asked.own else found

    def admit_in_background(self, asked: Asked) -> Future[Admitted]:
        """Admit a spec that takes longer. Raises BusyError."""
        with self._lock:
            running = self._admitting.get(asked.key)
            if running is None:
                running = self._slow.submit(partial(self._compiled, asked))
                if asked.key is not None:
                    self._admitting[asked.key] = running
                    running.add_done_callback(lambda _: self._admitting.pop(asked.key, None))
            return running

    def deadline(self) -> float:
        """Until when a request that has arrived is answered: its spec compiled, and ready in the engine."""
        return telling.deadline_in(self.patience)

    @asynccontextmanager
    async def in_time(self, request_id: str) -> AsyncIterator[float]:
        """A stage in which a request of an event loop waits for its spec, until its deadline. What is raised
        leaves as vLLM's own error."""
        deadline = self.deadline()
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                yield deadline
        except TimeoutError:
            raise refused(self.late(), request_id) from None
        except GuidedError as error:
            raise refused(error, request_id) from error

    def late(self) -> BusyError:
        """The error of a request whose spec was not ready in time."""
        return BusyError(f"its spec was not ready within {self.patience:g} s", hint="try again")

    def question(self, admitted: Admitted) -> tuple[str, dict[str, Any] | None]:
        """What `guided_prepare` is asked about a spec: after the first time its key is enough."""
        if admitted.told:
            return admitted.key, None
        admitted.told = True
        made = self.compiler.kept(admitted.spec)
        return admitted.key, {
            "spec": admitted.fields,
            "prepared": None if made is None else dataclasses.asdict(made),
        }

    def answered(self, asked: list[Admitted], answers: list[list[bool]]) -> bool:
        """Note which specs the engine has ready, or has refused; whether the first one is among them. Each
        of its workers has answered for each spec."""
        for admitted, ready in zip(asked, zip(*answers, strict=True), strict=True):
            if all(ready):
                admitted.prepared = self._engine_started = True
                if admitted in self.expected:
                    self.expected.remove(admitted)
        return asked[0].prepared

    @property
    def patience(self) -> float:
        """How many seconds a request waits until its spec is ready."""
        return 2 * self.options.compile_seconds if self._engine_started else _START_SECONDS

    def complete(self, params: Any, prompt_token_ids: list[int] | None) -> None:
        """Write the spec of an admitted request into the engine's own params, as plain data, and after which
        tokens it begins where the output has a reasoning part."""
        extra = params.extra_args = dict(params.extra_args)  # vLLM's copy may be a shallow one
        admitted, note = extra.pop(GUIDED), extra.pop(REASONING, None)
        if admitted is LEFT:
            extra[MARK] = True
            return
        fields = admitted.fields
        if self._reasoner and fields["start_after"] is None:
            vocabulary = self.compiler.vocabulary
            if self._reasoning is None:
                self._reasoning = Reasoning(self._reasoner, self._config, vocabulary)
            ends = self._reasoning.ends(note, prompt_token_ids)
            fields = {**fields, "start_after": vocabulary.triggers(ends) or None}
        telling.listener.admitted(admitted.backend, admitted.unenforced)
        extra[GUIDED], extra[ADMITTED] = fields, True

    @property
    def compiler(self) -> GrammarCompiler:
        """The frontend's compiler; made at first use, which takes a second for a large vocabulary."""
        with self._lock:
            if self._compiler is None:
                self._compiler = GrammarCompiler(vocabulary_of(self._config), config=self.options)
            return self._compiler

    def warm_up(self) -> None:
        """Read the vocabulary and make backends in the background, where requests are likely to come; else
        the first one does that."""
        if self.unsupported_reason is None and self.options.take_over:
            self._ready = in_background(self._warm, "guided-gate")
            return
        later = "; it starts with the first guided request" if self.unsupported_reason is None else ""
        _log.info("%s%s", telling.frontend_line(self.options, self.unsupported_reason, ()), later)

    def wait_ready(self) -> None:
        """Wait for that, for a bounded time. The engine is there: it has said so."""
        if self.unsupported_reason is None and self._ready is not None:
            wait_for(self._ready, "the gate of guided requests", "the first of them wait for it")
            self._engine_started = True  # one that is late says so when it is asked for its health

    def _warm(self) -> None:
        try:
            with native():  # reading a tokenizer is native work, too
                compiler = self.compiler
                _log.info("%s", telling.frontend_line(self.options, None, compiler.plugins.backends))
            compiler.warm_up()
        except GuidedError as error:
            if isinstance(error, VocabularyError):
                self.unsupported_reason = error
            _log.warning("guided requests will be refused: %s", error)
        except Exception as error:  # the first request tries again, and gets it
            _log.warning("the gate could not get ready: %s", printable(repr(error)))

    def carry(self, params: Any, admitted: Admitted) -> Any:
        """The params of a guided request with its spec. Raises RequestError for stop tokens at which vLLM
        would end an output in the middle."""
        carried = copy.copy(params)
        carried.extra_args = {**(params.extra_args or {}), GUIDED: admitted}
        if admitted is not LEFT:
            stops = {*(getattr(params, "stop_token_ids", None) or ()), *(admitted.spec.stop_token_ids or ())}
            self.compiler.vocabulary.check_stops(
                stops, where="stop_token_ids", text=False, named=admitted.named
            )
            telling.tell_unenforced(admitted.unenforced)
            carried.structured_outputs = None
        return carried

    def _compiled(self, asked: Asked, *, here: bool = False) -> Any:
        """The `Admitted` spec of a request; LEFT for a refused one that the operator leaves to vLLM. `here`:
        None for a spec that takes longer than milliseconds."""
        try:
            found = self.look_up(asked) if asked.key is None else None
            if found is not None:
                return found
            spec = self._read(asked)
            start = time.monotonic()
            compiler, until = self.compiler, asked.deadline
            made = compiler.admit_here(spec) if here else (compiler.admit(spec, deadline=until),)
        except GuidedError as error:
            if asked.own or self.options.refused != "vllm" or not may_leave(error):
                raise
            with self._lock:  # one line for a spec, though several requests may wait for it
                if asked.key is None or self._admitted.get(asked.key) is not LEFT:
                    _log.warning("left to vLLM's own structured output: %s", error.reason)
                return self._remember(asked, LEFT)
        if made is None:
            return None
        seconds = time.monotonic() - start
        return self._admitted_spec(asked, spec, made == (None,) and seconds <= _SLOW_SECONDS, seconds)

    def _read(self, asked: Asked) -> OutputSpec:
        if asked.spec is None:
            spec, vocabulary = read_spec(asked.form), self.compiler.vocabulary
            vocabulary.check_stops(spec.stop_token_ids or (), where=f"{GUIDED}.stop_token_ids", text=False)
            if spec.start_after is not None:
                spec = dataclasses.replace(spec, start_after=vocabulary.triggers(spec.start_after) or None)
            asked.spec = spec
        return asked.spec

    def _admitted_spec(self, asked: Asked, spec: OutputSpec, quick: bool, seconds: float) -> Admitted:
        made = self.compiler.kept(spec) or self.compiler.cached(spec)
        backend = "" if made is None else made.backend
        telling.listener.compiled(backend, seconds)
        left = () if made is None else made.unenforced
        named = frozenset() if made is None else made.named
        quick = quick and self._engine_started
        return self._remember(asked, Admitted(spec, quick, backend, left, named))

    def _remember(self, asked: Asked, admitted: Admitted) -> Admitted:
        if asked.key is not None:
            triggers = sum(len(each.tokens) for each in admitted.spec.start_after or ())
            size = 2 * ENTRY_BYTES + texts_bytes(admitted.spec.text) + _ID_BYTES * triggers
            with self._lock:
                known = self._admitted.get(asked.key)
                if known is not None and known is not LEFT:
                    return known
                self._admitted.put(asked.key, admitted, size)
        return admitted


def gate_of(owner: Any) -> Gate:
    """The gate of an input processor, or of a client that has one."""
    processor = getattr(owner, "input_processor", owner)
    gate: Gate | None = processor.__dict__.get("_guided_gate")
    if gate is None:
        gate = processor.__dict__["_guided_gate"] = Gate(processor.vllm_config)
    return gate


def _take_error(done: asyncio.Future[Any]) -> None:
    if not done.cancelled():
        done.exception()  # else asyncio logs that nothing has waited for it
