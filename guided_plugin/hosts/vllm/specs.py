"""The specs of vLLM's frontend, each read and compiled once for all requests that ask
for it.

`Specs.begin` leads from what was `Asked` to what is `Admitted`, for every caller. The
engine gets the `OutputSpec` packed, and parses no form; and what a helper process made
of the spec, which its worker only loads.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import marshal
import math
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from guided_plugin.compiling.background import Background
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.compiling.limits import check_size
from guided_plugin.config import GuidedConfig
from guided_plugin.errors import (
    BusyError,
    CompileLimitError,
    GrammarError,
    GuidedError,
    SpecError,
)
from guided_plugin.hosts.vllm.common import GUIDED, vocabulary_of
from guided_plugin.hosts.vllm.metrics import metrics
from guided_plugin.hosts.vllm.refusals import placed
from guided_plugin.spec import OutputSpec
from guided_plugin.spec.memo import ENTRY_BYTES, Latest
from guided_plugin.spec.output_spec import spec_bytes
from guided_plugin.step import Admission

_log = logging.getLogger(__name__)

_LOADED_BYTES = 2048
"""The size up to which what is made of a spec loads within a forward pass: 3,000 bytes
load in 1.4 ms, 4,800 in 3.4 (llguidance 1.7.6, a processor of 2.6 GHz)."""

_START_SECONDS = 120.0
"""Seconds that a request waits for the first helper process of a frontend."""

_ADMITTED_BYTES = 16 << 20
"""Memory for admitted specs: their texts, by a digest of what clients wrote."""


@dataclass(slots=True, eq=False)
class Asked:
    """The guidance that a request asks for."""

    form: Any
    own: bool
    """True if it is asked with `guided`; else with vLLM's own fields."""
    key: bytes | None = None
    """The key that the form is remembered by, once it was looked up: a digest, as the
    client's object may change. None where it is not plain data."""


@dataclass(slots=True, eq=False)
class Admitted:
    """A spec that has compiled. It replaces the client's form in `extra_args` until
    `Gate.complete`. It is an object, so no client can send one."""

    spec: OutputSpec
    """Its triggers are token ids: the scheduler has no tokenizer, and no request with
    it needs one again."""
    admission: Admission
    made: tuple[Any, ...] | None = None
    """The part of its `EngineSpec` from which the engine loads its grammar; None where
    the engine compiles that."""
    named: frozenset[int] = frozenset()
    """Control tokens that it names: none may be a stop token of its request."""
    quick: bool = False
    """As in its `EngineSpec`."""

    def __deepcopy__(self, memo: Any) -> Admitted:
        return self  # vLLM clones the params of each request


LEFT = Admitted(OutputSpec.json_object(), Admission(""))
"""In place of an admitted spec: its requests are left to vLLM's own manager (`refused:
"vllm"`)."""


class Specs:
    """The specs of one frontend: what is remembered of them, and what is being made.
    Thread-safe."""

    def __init__(self, vllm_config: Any, options: GuidedConfig) -> None:
        self._config = vllm_config
        self._options = options
        self._lock = threading.RLock()
        self._compiler: GrammarCompiler | None = None
        self._admitted: Latest[bytes, Admitted] = Latest(_ADMITTED_BYTES)
        """By a digest of what clients wrote."""
        self.room = options.compile_processes + options.compile_queue
        """The most specs of a server that wait for helper processes, or are there."""
        self._waiting: dict[object, Future[Admitted]] = {}
        """The specs that wait for helper processes."""
        self._threads = Background(self.room)
        self.patience = _START_SECONDS
        """Seconds that a request waits until its spec is ready. The helper processes
        take seconds to start."""

    @property
    def compiler(self) -> GrammarCompiler:
        """The frontend's compiler; made at first use, which takes a second for a large
        vocabulary."""
        with self._lock:
            if self._compiler is None:
                vocabulary = vocabulary_of(self._config)
                self._compiler = GrammarCompiler(
                    vocabulary, config=self._options, serves=True
                )
            return self._compiler

    def known(self, asked: Asked) -> Admitted | None:
        """Return what is remembered of a form. Raises CompileLimitError for one that is
        too large, uncopied."""
        if asked.key is None:
            check_size(asked.form, self._options)
            asked.key = digest_of(asked.form)
            if asked.key is None:
                return None
        with self._lock:
            found = self._admitted.get(asked.key)
        return None if found is LEFT and asked.own else found

    def begin(
        self, asked: Asked, most: float = math.inf, *, ahead: bool = False
    ) -> Admitted | Future[Admitted]:
        """The spec that a request asks for, if it is remembered or compiles in
        milliseconds; else what a thread makes of it, for all requests of the same form.
        `most`: how many may be made at a time. `ahead`: the caller does not need it
        yet, so that it never compiles here. Raises GuidedError."""
        found = self.known(asked)
        if found is not None:
            return found
        try:
            spec = self._read(asked.form)
            refusal = self.compiler.refusal(spec)
            if refusal is not None:
                raise refusal
        except GuidedError as error:
            return self._left(asked, error)
        quick = "" if ahead else self.compiler.why_quick(spec)
        if quick:
            return self._compiled(asked, spec, self._deadline, quick)
        key = object() if asked.key is None else (asked.key, asked.own)
        with self._lock:
            running = self._waiting.get(key)
            if running is None:
                if (found := self.known(asked)) is not None:
                    return found  # it was made since the caller looked it up
                if len(self._waiting) >= most:
                    raise BusyError(
                        f"{len(self._waiting)} specs are compiling or waiting",
                        where="compiling",
                        hint="try again, or raise compile_queue or compile_processes",
                    )
                deadline = math.inf if ahead else self._deadline
                compiled = partial(self._compiled, asked, spec, deadline)
                running = self._waiting[key] = self._threads.submit(compiled)
                running.add_done_callback(lambda _: self._waiting.pop(key, None))
            return running

    def _read(self, form: Any) -> OutputSpec:
        spec = read_spec(form).settled(self._options)
        if spec.stop_token_ids is None and spec.start_after is None:
            return spec
        vocabulary = self.compiler.vocabulary
        vocabulary.check_stops(
            spec.stop_token_ids or (), where=f"{GUIDED}.stop_token_ids", text=False
        )
        return dataclasses.replace(
            spec, start_after=vocabulary.triggers(spec.start_after) or None
        )

    @property
    def _deadline(self) -> float:
        """Until when a request that comes now is answered, whatever it waits for."""
        return time.monotonic() + self.patience

    def _compiled(
        self, asked: Asked, spec: OutputSpec, deadline: float, quick: str = ""
    ) -> Admitted:
        """`quick`: why it takes milliseconds, where it does."""
        start = time.monotonic()
        try:
            made = self.compiler.admit(spec, deadline=deadline, here=quick == "small")
            of = made or self.compiler.compile(spec)
        except GuidedError as error:
            return self._left(asked, error)
        self.patience = 2 * self._options.compile_seconds
        metrics().compiles.labels(of.backend).observe(time.monotonic() - start)
        admitted = Admitted(
            spec,
            of.admission(),
            made.sent() if made else None,
            of.named,
            quick=quick != "" and made is not None and made.size_bytes <= _LOADED_BYTES,
        )
        return self._remember(asked, admitted)

    def _left(self, asked: Asked, error: GuidedError) -> Admitted:
        """LEFT, where the operator leaves a refused spec to vLLM. Raises the error
        elsewhere."""
        if asked.own or self._options.refused != "vllm" or not may_leave(error):
            raise error
        told, _ = placed(error, None, asked.form)
        _log.warning("left to vLLM's own structured output: %s", told.reason)
        return self._remember(asked, LEFT)

    def _remember(self, asked: Asked, admitted: Admitted) -> Admitted:
        if asked.key is not None:
            size = 2 * ENTRY_BYTES + spec_bytes(admitted.spec, *(admitted.made or ()))
            with self._lock:
                self._admitted.put(asked.key, admitted, size)
        return admitted


def read_spec(form: Any) -> OutputSpec:
    """The spec that a client asks for. Raises SpecError where it can't be read."""
    spec = OutputSpec.parse(form)
    if spec is None:
        raise SpecError(
            "asks for plain text", where=GUIDED, hint="leave it out instead"
        )
    return spec


def may_leave(error: GuidedError) -> bool:
    """True if `refused: "vllm"` leaves a spec that was refused to vLLM: one that is
    malformed, or that no backend of the plugin enforces. One over a limit is not left:
    the limits protect the server."""
    return isinstance(error, GrammarError | SpecError) and not isinstance(
        error, CompileLimitError
    )


def digest_of(form: Any) -> bytes | None:
    """Return the digest that a form is remembered by; None where it is not plain
    data."""
    # No form that can be read begins with NUL.
    plain = f"\0{dataclasses.astuple(form)}" if isinstance(form, OutputSpec) else form
    try:
        written = marshal.dumps(plain, _NO_REFERENCES)
    except ValueError:
        return None
    return hashlib.blake2b(written, digest_size=24).digest()


_NO_REFERENCES = 2
"""A version of marshal's format whose bytes follow from the value alone, at a tenth of
what JSON costs."""
