"""The gate: what happens to a request in vLLM's frontend, before an engine sees it. Imports vLLM.

A spec is read, completed (after which tokens it begins, when a reasoning parser is configured) and
compiled here; one that doesn't compile is a client's error, with path and hint. With `take_over` vLLM's own
`structured_outputs` become specs too. Callers' SamplingParams are never written to.

A spec that takes long to compile is compiled in the engine too before the request goes there: a step that
waited for it would hold up the whole batch.

A request that comes while the engine can guide nothing is answered with status 503 (`vllm_health`).

vLLM has no hook for this, so `install` wraps four methods. Wrapped twice they work once, and for an engine
without guided requests they cost a look at two attributes.
"""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import threading
import time
from collections import OrderedDict
from typing import Any

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import GuidedConfig
from guided_plugin.errors import GuidedError, RequestError, SpecError, VocabularyError
from guided_plugin.grammar.native import native
from guided_plugin.hosts.vllm.beams import install_beams
from guided_plugin.hosts.vllm.common import (
    GUIDED,
    KNOWN,
    PREPARE,
    options_of,
    spec_of,
    unsupported_reason,
    vocabulary_of,
)
from guided_plugin.hosts.vllm.failures import install as install_failures
from guided_plugin.hosts.vllm.failures import unreported
from guided_plugin.hosts.vllm.health import Health
from guided_plugin.hosts.vllm.wrapping import Call, wrap
from guided_plugin.spec import OutputSpec

__all__ = ["Gate", "check_params", "install"]

_log = logging.getLogger(__name__)

_REASONING = "guided_reasoning"
"""A note in `extra_args` between the two wrappers: what the caller knows of the reasoning."""

_SLOW_SECONDS = 0.05
"""A spec that took longer than this to compile must be ready before its request enters a batch."""

_POLL_SECONDS = 0.02
_MAX_READY = 4096

_CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
_FORM = (*_CONSTRAINTS, "disable_any_whitespace", "disable_additional_properties", "whitespace_pattern")


def check_params(params: Any) -> None:
    """Refuse a spec that can't be read. All that can be said without the engine's configuration."""
    try:
        spec_of(params)
    except GuidedError as error:
        raise refusal(error) from error


def refusal(error: GuidedError) -> Exception:
    """The error as vLLM's own, which its server answers with status 400."""
    from vllm.exceptions import VLLMValidationError

    told: Exception = VLLMValidationError(str(error))
    return told


class Gate:
    """One engine's frontend. Compiles what comes, so that bad specs end here; thread-safe."""

    def __init__(self, vllm_config: Any) -> None:
        self.options: GuidedConfig = options_of(vllm_config)
        self.unsupported_reason = unsupported_reason(vllm_config, self.options) or unreported(vllm_config)
        self.health = Health()
        self._config = vllm_config
        self._lock = threading.Lock()
        self._compiler: GrammarCompiler | None = None
        self._slow: OrderedDict[str, bool] = OrderedDict()
        """Specs that take long, as text, and whether the engine has them. The first takes long whatever it
        is: the engine's grammar worker may still be starting."""
        self._wordings = _Texts()
        """What clients wrote, and the text that was made of it; such a text stands for itself."""
        outputs = vllm_config.structured_outputs_config
        self._reasoner = "" if outputs.enable_in_reasoning else outputs.reasoning_parser
        if self.unsupported_reason is not None and self.options.take_over:
            _log.warning("structured outputs are left to vLLM: %s", self.unsupported_reason)

    @property
    def takes_over(self) -> bool:
        """Whether vLLM's own structured outputs are served."""
        return self.options.take_over and self.unsupported_reason is None

    def concerns(self, params: Any) -> bool:
        """Whether a request is guided, or will be."""
        extra = getattr(params, "extra_args", None)
        if extra and extra.get(GUIDED) is not None:
            return True
        return self.takes_over and _constraint(params) is not None

    def admit(self, params: Any) -> Any:
        """The params with which a guided request goes on: a copy, with its spec as text. Compiles the spec,
        unless that has been done. Raises GuidedError."""
        if self.unsupported_reason is not None:
            raise self.unsupported_reason
        carried = self.recall(params)
        if carried is not None:
            return carried
        theirs, ours = _constraint(params), spec_of(params)
        if theirs is not None and ours is not None:
            raise SpecError("stands beside structured_outputs", where=GUIDED, hint="ask for one of the two")
        text = self._admit(OutputSpec.parse(theirs) if ours is None else ours)
        wording = _wording(params)
        if wording is not None:
            self._wordings.put(wording, text)
        return _carry(params, text)

    def recall(self, params: Any) -> Any | None:
        """The same for what was admitted before, in other words: the same schema comes again and again. None
        if this one wasn't."""
        wording = _wording(params) if self.unsupported_reason is None else None
        text = self._wordings.get(wording) if wording is not None else None
        return None if text is None else _carry(params, text)

    def admitted(self, params: Any) -> bool:
        """Whether these params come from here."""
        extra = params.extra_args or {}
        text = extra.get(GUIDED)
        known = extra.get(KNOWN) is True and isinstance(text, str) and self._wordings.get(text) == text
        return known and _constraint(params) is None

    def _admit(self, spec: OutputSpec | None) -> str:
        """Compile a spec; the text that stands for it."""
        if spec is None:
            raise SpecError("asks for plain text", where=GUIDED, hint="leave it out instead")
        start = time.monotonic()
        self.compiler.compile(spec)
        text = _write(spec)
        if not self._slow or time.monotonic() - start > _SLOW_SECONDS:
            with self._lock:
                self._slow.setdefault(text, False)
                while len(self._slow) > _MAX_READY:
                    self._slow.popitem(last=False)
        self._wordings.put(text, text)
        return text

    def unprepared(self, params: Any) -> str | None:
        """The spec of an admitted request, if the engine must compile it first."""
        text: str = params.extra_args[GUIDED]
        return text if self._slow.get(text) is False else None

    def prepared(self, text: str) -> None:
        """The engine has compiled it, or has refused to."""
        self._slow[text] = True

    def complete(self, params: Any, prompt_token_ids: list[int] | None) -> None:
        """Finish the engine's own params: where the spec begins, after a reasoning part."""
        extra = params.extra_args = dict(params.extra_args)  # vLLM's copy may be a shallow one
        note = extra.pop(_REASONING, {})
        if not self._reasoner:
            return
        spec = spec_of(params)
        if spec is None or spec.start_after is not None:
            return
        end = self._reasoning_end(note, prompt_token_ids)
        if end:
            extra[GUIDED] = _write(OutputSpec.parse({**spec.to_dict(), "start_after": list(end)}))

    @property
    def compiler(self) -> GrammarCompiler:
        """The frontend's compiler; made at first use, which takes a second for a large vocabulary."""
        with self._lock:
            if self._compiler is None:
                self._compiler = GrammarCompiler(vocabulary_of(self._config), config=self.options)
            return self._compiler

    def warm_up(self) -> None:
        """Read the vocabulary in the background."""
        if self.unsupported_reason is None:
            threading.Thread(target=self._warm, name="guided-gate", daemon=True).start()

    def _warm(self) -> None:
        try:
            with native():  # reading a tokenizer is native work, too
                self.compiler.compile(OutputSpec.regex("[0-9]"))
        except GuidedError as error:
            if isinstance(error, VocabularyError):
                self.unsupported_reason = error
            _log.warning("guided requests will be refused: %s", error)

    def _reasoning_end(self, note: dict[str, Any], prompt_token_ids: list[int] | None) -> tuple[int, ...]:
        """The tokens that end the reasoning part of an output; none if there is no such part."""
        ended = note.get("ended")
        if ended:
            return ()
        from vllm.reasoning import ReasoningParserManager
        from vllm.tokenizers import cached_tokenizer_from_config

        tokenizer = cached_tokenizer_from_config(model_config=self._config.model_config)
        parser = ReasoningParserManager.get_reasoning_parser(self._reasoner)(
            tokenizer=tokenizer, **(note.get("kwargs") or {})
        )
        if ended is None and parser.is_reasoning_end(prompt_token_ids or []):
            return ()
        end = getattr(parser, "end_token_id", None)
        if isinstance(end, int):
            return (end,)
        text = parser.reasoning_end_str
        if text:
            return self.compiler.vocabulary.sequence(text)
        raise RequestError(
            f"the reasoning parser {self._reasoner!r} doesn't say what ends the reasoning",
            hint="give start_after in the spec",
        )


def _constraint(params: Any) -> dict[str, Any] | None:
    """vLLM's own constraint of a request, as a form that `OutputSpec.parse` reads."""
    outputs = getattr(params, "structured_outputs", None)
    if outputs is None or all(getattr(outputs, name) is None for name in _CONSTRAINTS):
        return None
    return {name: value for name in _FORM if (value := getattr(outputs, name)) is not None}


def _carry(params: Any, text: str) -> Any:
    # What it holds is not copied: vLLM does that before it writes to it.
    carried = copy.copy(params)
    carried.structured_outputs = None
    carried.extra_args = {**(params.extra_args or {}), GUIDED: text, KNOWN: True}
    return carried


def _wording(params: Any) -> str | None:
    """What a client asked for, as text; None where it is no plain data, or asked for twice."""
    asked = (params.extra_args or {}).get(GUIDED)
    theirs = _constraint(params)
    if asked is None:
        asked = theirs
    elif theirs is not None:
        return None
    if isinstance(asked, str):
        return asked
    if not isinstance(asked, dict):
        return None
    try:
        return json.dumps(asked, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        return None


class _Texts:
    """A table of texts that forgets the oldest when they get many, or long. From any thread."""

    def __init__(self, most: int = 1024, characters: int = 1 << 24) -> None:
        self._most, self._characters = most, characters
        self._lock = threading.Lock()
        self._texts: OrderedDict[str, str] = OrderedDict()
        self._size = 0

    def get(self, key: str) -> str | None:
        """The text of a key."""
        return self._texts.get(key)

    def put(self, key: str, text: str) -> None:
        """Remember it."""
        with self._lock:
            if key not in self._texts:
                self._texts[key] = text
                self._size += len(key) + len(text)
            while len(self._texts) > self._most or self._size > self._characters:
                old, known = self._texts.popitem(last=False)
                self._size -= len(old) + len(known)


def _write(spec: OutputSpec | None) -> str:
    return json.dumps(spec.to_dict() if spec is not None else None, separators=(",", ":"))


def gate_of(owner: Any) -> Gate:
    """The gate of an input processor or of a client that has one."""
    processor = getattr(owner, "input_processor", owner)
    gate: Gate | None = processor.__dict__.get("_guided_gate")
    if gate is None:
        gate = processor.__dict__["_guided_gate"] = Gate(processor.vllm_config)
    return gate


def install() -> None:
    """Wrap what vLLM's frontend does with a request. Does nothing the second time. Entry point
    `vllm.general_plugins`: vLLM calls it in each of its processes."""
    try:
        from vllm.v1.engine.async_llm import AsyncLLM
        from vllm.v1.engine.input_processor import InputProcessor
        from vllm.v1.engine.llm_engine import LLMEngine
    except ImportError as error:
        # A server that serves no guided request must start with any vLLM.
        _log.warning("this vLLM is not supported, guided requests are not served: %s", error)
        return
    wrap(InputProcessor, "__init__", _init)
    wrap(InputProcessor, "process_inputs", _process_inputs)
    wrap(LLMEngine, "add_request", _add_request)
    wrap(AsyncLLM, "add_request", _add_request_async)
    install_failures()


def _init(original: Any) -> Any:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        install_beams(_refuse_beams)  # here, as only frontends have an input processor
        gate_of(self).warm_up()

    return init


def _refuse_beams(owner: Any, asked: Any, where: str) -> None:
    if gate_of(owner).concerns(asked):
        raise refusal(
            RequestError(
                "beam search can't be guided: vLLM asks for each token of a beam without the constraint",
                where=where,
                hint="leave out beam search (n with a temperature gives several outputs) or the constraint",
            )
        )


def _process_inputs(original: Any) -> Any:
    call = Call(original)

    def process_inputs(self: Any, *args: Any, **kwargs: Any) -> Any:
        gate, params = gate_of(self), call.get("params", args, kwargs)
        if not gate.concerns(params):
            return original(self, *args, **kwargs)
        try:
            if not gate.admitted(params):
                args, kwargs = call.having(gate.admit(params), args, kwargs)
            request = original(self, *args, **kwargs)
            gate.complete(request.sampling_params, request.prompt_token_ids)
        except GuidedError as error:
            raise refusal(error) from error
        return request

    return process_inputs


def _add_request(original: Any) -> Any:
    """The same before it, and the engine prepared."""
    call = Call(original)

    def add_request(self: Any, *args: Any, **kwargs: Any) -> Any:
        gate, params = gate_of(self), call.get("params", args, kwargs)
        if gate.concerns(params):
            try:
                carried = gate.admit(params)
            except GuidedError as error:
                raise refusal(error) from error
            gate.health.check(lambda method: self.collective_rpc(method))
            text = gate.unprepared(carried)
            while text is not None and not all(self.collective_rpc(PREPARE, args=(text,))):
                time.sleep(_POLL_SECONDS)
            if text is not None:
                gate.prepared(text)
            args, kwargs = call.having(carried, args, kwargs)
        return original(self, *args, **kwargs)

    return add_request


def _add_request_async(original: Any) -> Any:
    """The same off the event loop: a compile must not keep others waiting."""
    call = Call(original)

    async def add_request(self: Any, *args: Any, **kwargs: Any) -> Any:
        gate, params = gate_of(self), call.get("params", args, kwargs)
        if not gate.concerns(params):
            return await original(self, *args, **kwargs)
        try:
            carried: Any = gate.recall(params) or await asyncio.to_thread(gate.admit, params)
        except GuidedError as error:
            raise refusal(error) from error
        await gate.health.check_async(lambda method: self.collective_rpc(method))
        carried.extra_args[_REASONING] = {
            "ended": call.get("reasoning_ended", args, kwargs),
            "kwargs": call.get("reasoning_parser_kwargs", args, kwargs),
        }
        text = gate.unprepared(carried)
        while text is not None and not all(await self.collective_rpc(PREPARE, args=(text,))):
            await asyncio.sleep(_POLL_SECONDS)
        if text is not None:
            gate.prepared(text)
        args, kwargs = call.having(carried, args, kwargs)
        return await original(self, *args, **kwargs)

    return add_request
