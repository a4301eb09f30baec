"""Admission of guided requests in vLLM's frontend, before an engine sees them. Imports vLLM lazily.

A spec is parsed and compiled here, once for all requests with the same wording. The engine gets the fields of
the `OutputSpec`, and parses nothing; and what a helper process made of the spec, which its worker only loads.
Specs that compile in milliseconds have threads of their own, so that no other keeps them waiting. Callers'
SamplingParams are never written to.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import hashlib
import json
import logging
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from guided_plugin.compiling.background import Background
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.compiling.limits import check_size
from guided_plugin.compiling.readiness import get_ready
from guided_plugin.errors import (
    CompileLimitError,
    GuidedError,
    PipelineError,
    SpecError,
    VocabularyError,
    printable,
)
from guided_plugin.grammar.native import native
from guided_plugin.hosts.vllm import noted
from guided_plugin.hosts.vllm.common import (
    ADMITTED,
    GUIDED,
    options_of,
    plain_prepared,
    read_spec,
    vocabulary_of,
)
from guided_plugin.hosts.vllm.contract import CONSTRAINT_FORM, CONSTRAINTS
from guided_plugin.hosts.vllm.failures import refused_unseen
from guided_plugin.hosts.vllm.health import Health
from guided_plugin.hosts.vllm.leaving import Leaving
from guided_plugin.hosts.vllm.ready import in_background, wait_for
from guided_plugin.hosts.vllm.reasoning import Reasoning
from guided_plugin.hosts.vllm.retry import LEAST, tell_unenforced, unavailable
from guided_plugin.hosts.vllm.start_line import frontend_line
from guided_plugin.hosts.vllm.versions import note_version
from guided_plugin.spec import OutputSpec, identity_of
from guided_plugin.spec.memo import ENTRY_BYTES, Latest, texts_bytes
from guided_plugin.spec.triggers import triggers

_log = logging.getLogger(__name__)

REASONING = "guided_reasoning"
"""The key of `extra_args` for what the caller of AsyncLLM says about the reasoning, until `Gate.complete`."""

_SLOW_SECONDS = 0.05
"""A spec that took longer than this to compile must be ready in the engine before its request goes there."""

_QUICK_THREADS = 2
_MOST_QUICK = 1024
"""Threads for specs that are parsed and compiled in milliseconds, and how many of those may wait."""

_START_SECONDS = 120.0
"""How long a request waits for the first grammar worker of an engine."""

_ADMITTED_BYTES = 16 << 20
"""What is remembered of admitted specs: their texts, by a digest of what clients wrote."""


@dataclass(slots=True, eq=False)
class Admitted:
    """A spec that has compiled. It replaces the client's form in `extra_args` until `Gate.complete`. It is an
    object, so no client can send one."""

    fields: Mapping[str, Any]
    """The fields of the `OutputSpec`, as plain data. Shared by all requests: never written to."""
    prepared: bool
    """Whether its requests may go to the engine at once; else the engine gets it ready first."""
    key: str
    """What frontend and engine call it meanwhile."""
    backend: str = ""
    """What it compiled with, for metrics."""
    unenforced: tuple[str, ...] = ()
    """The keywords in it that nothing enforces (`unenforced_keywords`)."""

    def __deepcopy__(self, memo: Any) -> Admitted:
        return self  # vLLM clones the params of each request


class Gate:
    """The guided requests of one frontend. Thread-safe."""

    def __init__(self, vllm_config: Any) -> None:
        noted.adopt_handlers()  # vLLM sets up its log when it makes an engine's frontend
        self.options = options_of(vllm_config)
        self.unsupported_reason = refused_unseen(vllm_config, self.options)
        if self.unsupported_reason is None:
            note_version()
        self.health = Health()
        self._leaving = Leaving(wanted=self.options.refused == "vllm")
        self._config = vllm_config
        self._lock = threading.Lock()
        self._compiler: GrammarCompiler | None = None
        self._ready: threading.Event | None = None
        """Set when no request waits for what all need; None where nothing was started."""
        self._engine_started = False
        """Whether the engine has compiled a spec. Its grammar worker takes seconds to start."""
        self._admitted: Latest[bytes, Admitted] = Latest(_ADMITTED_BYTES)
        """By a digest of what clients wrote."""
        self._quick: Background[Admitted | None] = Background(_QUICK_THREADS, _MOST_QUICK)
        slow = self.options.compile_processes + self.options.compile_queue
        self._slow: Background[Admitted] = Background(slow, slow)
        self._admitting: dict[bytes | None, Future[Admitted]] = {}
        """The specs that take longer."""
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

    def left(self, params: Any, error: GuidedError | None = None) -> bool:
        """Whether a request goes on to vLLM's own manager: its spec was refused, now or before."""
        if not self._leaving.wanted or (params.extra_args or {}).get(GUIDED) is not None:
            return False
        try:
            key = self._key(constraint(params))
        except CompileLimitError:  # it is refused: limits protect the server
            return False
        return self._leaving.holds(key) if error is None else self._leaving.takes(key, error)

    def concerns_request(self, request: Any) -> bool:
        """Whether a server's request may be guided: `concerns` has the answer, of its params."""
        extra = getattr(request, "vllm_xargs", None)
        if extra and extra.get(GUIDED) is not None:
            return True
        return self.options.take_over and self.unsupported_reason is None

    def admit(self, params: Any) -> Any:
        """A copy of the params of a guided request that holds its `Admitted` spec; params that hold one are
        returned as they are. Compiles a spec that is not remembered. Raises GuidedError."""
        form, key, found = self.look_up(params)
        return self._carry(params, self._admit_form(form, key)) if found is None else found

    async def admit_async(self, params: Any) -> Any:
        """The same on an event loop. Identical specs that take longer wait for one compile."""
        form, key, found = self.look_up(params)
        if found is not None:
            return found
        here = self._quick.submit(partial(self._admit_here, form, key))
        admitted = await asyncio.wrap_future(here)
        if admitted is None:
            waiting = asyncio.wrap_future(self.admit_in_background(form, key))
            waiting.add_done_callback(_take_error)
            admitted = await asyncio.shield(waiting)  # a client that hangs up ends its own wait only
        return self._carry(params, admitted)

    def look_up(self, params: Any) -> tuple[Any, bytes | None, Any | None]:
        """What a request asks for, its digest, and what `admit` returns if that takes no compile."""
        if self.unsupported_reason is not None:
            raise self.unsupported_reason
        form = _form_of(params)
        if isinstance(form, Admitted):
            return form, None, params
        key = self._key(form)
        if key is None:
            return form, None, None
        with self._lock:
            admitted = self._admitted.get(key)
        return form, key, None if admitted is None else self._carry(params, admitted)

    def _key(self, form: Any) -> bytes | None:
        """What a form is remembered by. Raises CompileLimitError for one that is too large, uncopied:
        this runs on the event loop, and all requests would wait."""
        check_size(form, self.options)
        return _key(form)

    def prepared(self, admitted: Admitted) -> None:
        """The engine has a spec ready, or has refused it."""
        admitted.prepared = self._engine_started = True

    def question(self, admitted: Admitted) -> tuple[str, dict[str, Any] | None]:
        """What `guided_prepare` is first asked about a spec: later on its key is enough."""
        made = self.compiler.kept(OutputSpec(**admitted.fields))
        return admitted.key, {
            "spec": admitted.fields,
            "prepared": None if made is None else plain_prepared(made),
        }

    @property
    def patience(self) -> float:
        """How many seconds a request waits until the engine has its spec ready."""
        return 2 * self.options.compile_seconds if self._engine_started else _START_SECONDS

    def complete(self, params: Any, prompt_token_ids: list[int] | None) -> None:
        """Write the spec of an admitted request into the engine's own params, as plain data, and after which
        tokens it begins where the output has a reasoning part."""
        extra = params.extra_args = dict(params.extra_args)  # vLLM's copy may be a shallow one
        fields, note = extra[GUIDED].fields, extra.pop(REASONING, {})
        ends = triggers(fields["start_after"])
        if self._reasoner and ends is None:
            if self._reasoning is None:
                self._reasoning = Reasoning(self._reasoner, self._config, self.compiler.vocabulary)
            ends = self._reasoning.ends(note, prompt_token_ids)
        if ends is not None:  # as token ids: the scheduler has no tokenizer
            fields = {**fields, "start_after": self.compiler.vocabulary.triggers(ends) or None}
        noted.admitted(extra[GUIDED].backend, extra[GUIDED].unenforced)
        extra[GUIDED], extra[ADMITTED] = fields, True

    @property
    def compiler(self) -> GrammarCompiler:
        """The frontend's compiler; made at first use, which takes a second for a large vocabulary."""
        with self._lock:
            if self._compiler is None:
                self._compiler = GrammarCompiler(vocabulary_of(self._config), config=self.options)
            return self._compiler

    def warm_up(self) -> None:
        """Read the vocabulary, and make backends and helper processes, in the background."""
        if self.unsupported_reason is not None:
            _log.info("%s", frontend_line(self.options, self.unsupported_reason, ()))
        else:
            self._ready = in_background(self._warm, "guided-gate")

    def wait_ready(self) -> None:
        """Wait for that, for a bounded time. The engine is there: it has said so."""
        if self.unsupported_reason is None and self._ready is not None:
            wait_for(self._ready, "the gate of guided requests", "the first of them wait for it")
            self._engine_started = True  # one that is late says so when it is asked for its health

    def _warm(self) -> None:
        try:
            with native():  # reading a tokenizer is native work, too
                compiler = self.compiler
                _log.info("%s", frontend_line(self.options, None, compiler.plugins.backends))
            get_ready(compiler)
        except GuidedError as error:
            if isinstance(error, VocabularyError):
                self.unsupported_reason = error
            _log.warning("guided requests will be refused: %s", error)
        except Exception as error:  # the first request tries again, and gets it
            _log.warning("the gate could not get ready: %s", printable(repr(error)))

    def _carry(self, params: Any, admitted: Admitted) -> Any:
        """The params of a guided request with its spec. Raises RequestError for stop tokens at which vLLM
        would end an output in the middle."""
        stops = getattr(params, "stop_token_ids", None) or ()
        self.compiler.vocabulary.check_stops(stops, where="stop_token_ids", text=False)
        tell_unenforced(admitted.unenforced)
        carried = copy.copy(params)
        carried.structured_outputs = None
        carried.extra_args = {**(params.extra_args or {}), GUIDED: admitted}
        return carried

    def admit_in_background(self, form: Any, key: bytes | None) -> Future[Admitted]:
        """Admit a spec that takes longer. Raises BusyError."""
        with self._lock:
            running = self._admitting.get(key)
            if running is None:
                running = self._slow.submit(partial(self._admit_form, form, key))
                if key is not None:
                    self._admitting[key] = running
                    running.add_done_callback(lambda _: self._admitting.pop(key, None))
            return running

    def _admit_form(self, form: Any, key: bytes | None) -> Admitted:
        """`key`: made before, as the client's object may change."""
        spec = self._read(form)
        start = time.monotonic()
        small = self.compiler.admit(spec) is None
        seconds = time.monotonic() - start
        return self._admitted_spec(spec, key, small and seconds <= _SLOW_SECONDS, seconds)

    def _admit_here(self, form: Any, key: bytes | None) -> Admitted | None:
        """The same; None for a spec that takes longer than milliseconds."""
        spec = self._read(form)
        start = time.monotonic()
        compiled = self.compiler.admit_here(spec)
        if compiled is None:
            return None
        return self._admitted_spec(spec, key, compiled == (None,), time.monotonic() - start)

    def _read(self, form: Any) -> OutputSpec:
        spec, vocabulary = read_spec(form), self.compiler.vocabulary
        vocabulary.check_stops(spec.stop_token_ids or (), where=f"{GUIDED}.stop_token_ids", text=False)
        vocabulary.triggers(spec.start_after)
        return spec

    def _admitted_spec(self, spec: OutputSpec, key: bytes | None, quick: bool, seconds: float) -> Admitted:
        fields = dataclasses.asdict(spec)
        made = self.compiler.kept(spec) or self.compiler.cached(spec)
        backend = "" if made is None else made.backend
        noted.compiled(backend, seconds)
        left = () if made is None else made.unenforced
        admitted = Admitted(fields, quick and self._engine_started, identity_of(spec).hex(), backend, left)
        if key is None:
            return admitted
        with self._lock:
            if key not in self._admitted:
                self._admitted.put(key, admitted, 2 * ENTRY_BYTES + texts_bytes(spec.text))
        return admitted


def gate_of(owner: Any) -> Gate:
    """The gate of an input processor, or of a client that has one."""
    processor = getattr(owner, "input_processor", owner)
    gate: Gate | None = processor.__dict__.get("_guided_gate")
    if gate is None:
        gate = processor.__dict__["_guided_gate"] = Gate(processor.vllm_config)
    return gate


def refused(error: GuidedError, request_id: Any) -> Exception:
    """The same for a frontend's request, noted in its log and its metrics."""
    noted.refused(error, str(request_id or ""))
    return refusal(error)


def refusal(error: GuidedError) -> Exception:
    """The error as vLLM's own, which its server answers with status 400, or 503 where there was no room."""
    from vllm.exceptions import VLLMValidationError

    if isinstance(error, PipelineError):  # nothing is wrong with the request; a place may be free soon
        return unavailable(str(error), LEAST)
    translated: Exception = VLLMValidationError(str(error))
    return translated


def _form_of(params: Any) -> Any:
    """What a guided request asks for. Raises SpecError if it asks twice."""
    ours, theirs = (params.extra_args or {}).get(GUIDED), constraint(params)
    if ours is not None and theirs is not None:
        raise SpecError("is given together with structured_outputs", where=GUIDED, hint="use one of the two")
    return theirs if ours is None else ours


def constraint(params: Any) -> dict[str, Any] | None:
    """vLLM's own constraint of a request, as a form that `OutputSpec.parse` reads."""
    outputs = getattr(params, "structured_outputs", None)
    if outputs is None or all(getattr(outputs, name) is None for name in CONSTRAINTS):
        return None
    return {name: value for name in CONSTRAINT_FORM if (value := getattr(outputs, name)) is not None}


def _key(form: Any) -> bytes | None:
    """What a form is remembered by: a digest; None where it is not plain data."""
    if isinstance(form, OutputSpec):
        text = f"\0{dataclasses.astuple(form)}"  # no form that can be read begins with NUL
    elif isinstance(form, str):
        text = form
    elif isinstance(form, dict):
        try:
            text = json.dumps(form, separators=(",", ":"))
        except (TypeError, ValueError, RecursionError):
            return None
    else:
        return None
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=24).digest()


def _take_error(done: asyncio.Future[Any]) -> None:
    if not done.cancelled():
        done.exception()  # else asyncio logs that nothing has waited for it
