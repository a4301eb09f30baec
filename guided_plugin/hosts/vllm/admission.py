"""Admission of guided requests in vLLM's frontend, before an engine sees them. Imports
vLLM lazily.

Nothing whose cost follows from what a client wrote runs on the event loop: specs that
compile in milliseconds have a thread of their own, large forms are read in another one,
one after the other, so that they take the interpreter from nothing else for long.
Callers' SamplingParams are never written to.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import logging
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from typing import Any

from guided_plugin.compiling.background import Background, in_background
from guided_plugin.config import SpecLimits
from guided_plugin.errors import (
    BusyError,
    GuidedError,
    RequestError,
    SpecError,
    VocabularyError,
    near_miss,
)
from guided_plugin.hosts.vllm import logs
from guided_plugin.hosts.vllm.common import (
    EXTRA,
    GUIDED,
    MARK,
    EngineSpec,
    constraint,
    is_within,
    refused_unseen,
    settings_of,
)
from guided_plugin.hosts.vllm.headers import tell_unenforced
from guided_plugin.hosts.vllm.health import Health, ask_all
from guided_plugin.hosts.vllm.metrics import metrics
from guided_plugin.hosts.vllm.patches import is_tested, version_text
from guided_plugin.hosts.vllm.reasoning import Reasoning, Said
from guided_plugin.hosts.vllm.refusals import refused
from guided_plugin.hosts.vllm.specs import LEFT, Admitted, Asked, Specs
from guided_plugin.spec import check_room, packed
from guided_plugin.spec.triggers import Trigger, nearest

_log = logging.getLogger(__name__)

REASONING = "guided_reasoning"
"""The key of `extra_args` for what the caller of AsyncLLM says about the reasoning,
until `Gate.complete`."""

_AHEAD = 128
"""The number of prompts of a call of `LLM` that are looked at before the first of them
is added. The engine runs those that were added."""

_LARGEST = 1e20
"""The largest factor or bias of logits: with temperatures from 0.01 on, logits of up to
1e16 stay finite."""

_LIGHT = SpecLimits(max_spec_bytes=1 << 16, max_nodes=4_000)
"""Forms up to this size are looked up on the event loop and read by the quick thread.
To look at that many nodes takes 1.1 ms (240,000: 62 ms, on a processor of 2.6 GHz)."""

Begun = tuple[Any, Sequence[int], Said]
"""The prompt that a server is about to send to its engine: its params and tokens, and
what is said about its reasoning."""


class Gate:
    """The guided requests of one frontend. Thread-safe."""

    def __init__(self, vllm_config: Any) -> None:
        # vLLM sets up its log when it makes an engine's frontend
        logs.adopt_handlers()
        metrics()  # 0 from the start
        self.options, sources = settings_of(vllm_config)
        self._told = self.options.told(sources)
        self.unsupported_reason = refused_unseen(vllm_config, self.options)
        if not is_tested(version_text()):
            _log.warning("vLLM %s is not among the tested versions", version_text())
        self.health = Health()
        self.specs = Specs(vllm_config, self.options)
        self._quick = Background(1)
        """Reads and compiles what takes milliseconds. Two threads take no less time for
        100 new schemas, and keep the event loop waiting for twice as long."""
        self._large = Background(1)
        """Reads large forms."""
        self._config = vllm_config
        outputs = vllm_config.structured_outputs_config
        self._reasoner = "" if outputs.enable_in_reasoning else outputs.reasoning_parser

    def concerns(self, params: Any) -> bool:
        """True if a request is guided, or will be, or is refused."""
        try:
            return self.asked(params) is not None
        except GuidedError:
            return True

    def asked(self, params: Any) -> Asked | Admitted | None:
        """Return what a request asks for, if it is guided; params that were admitted
        hold that. Raises GuidedError."""
        extra = getattr(params, "extra_args", None) or {}
        ours: Any = extra.get(GUIDED)
        if ours is None:
            if self.unsupported_reason is not None:
                return None
            for key in islice(extra, 10):  # clients choose how many there are
                if near_miss(key, (GUIDED,)):
                    raise SpecError(
                        f"unknown key {key!r}",
                        where=EXTRA,
                        hint=f"did you mean {GUIDED!r}?",
                    )
            theirs = constraint(params) if self.options.take_over else None
            return None if theirs is None else Asked(theirs, own=False)
        if self.unsupported_reason is not None:
            # a copy: an error that is raised keeps what raised it
            raise copy.copy(self.unsupported_reason)
        if ours is not LEFT and constraint(params) is not None:
            raise SpecError(
                "is given together with another constraint",
                where=GUIDED,
                hint="use one of the two",
            )
        return ours if isinstance(ours, Admitted) else Asked(ours, own=True)

    def admit(self, params: Any) -> Any:
        """A copy of the params of a guided request that holds its `Admitted` spec;
        params that hold one are returned as they are, and since the vocabulary
        could not be read, requests are left to vLLM. Waits for a spec that is not
        remembered. Raises GuidedError."""
        asked = self.asked(params)
        if not isinstance(asked, Asked):
            return params if asked else self.carry(params, LEFT)
        found = self.specs.begin(asked)
        return self.carry(
            params, found.result() if isinstance(found, Future) else found
        )

    async def admit_async(self, params: Any) -> Any:
        """Admit a request on an event loop. Raises BusyError where too many specs wait
        for helpers."""
        asked = self.asked(params)
        if not isinstance(asked, Asked):
            return params if asked else self.carry(params, LEFT)
        light = is_within(asked.form, _LIGHT)
        found: Any = self.specs.known(asked) if light else None
        if found is None:
            reader = self._quick if light else self._large
            begin = partial(self.specs.begin, asked, self.specs.room)
            found = await asyncio.wrap_future(reader.submit(begin))
        if isinstance(found, Future):
            waiting = asyncio.wrap_future(found)
            # else asyncio logs that nothing has waited for its error
            waiting.add_done_callback(lambda done: done.cancelled() or done.exception())
            # a client that hangs up ends its own wait only
            found = await asyncio.shield(waiting)
        return self.carry(params, found)

    def begin(self, params: Any) -> None:
        """Begin the spec of a request that will come, if it is guided. What is wrong
        with it is raised when it comes."""
        with suppress(GuidedError):
            asked = self.asked(params)
            if isinstance(asked, Asked):
                self.specs.begin(asked, ahead=True)

    async def admit_in_time(
        self, engine: Any, request_id: str, params: Any, begun: Sequence[Begun] = ()
    ) -> Any:
        """`admit_async` for a request of an engine that can guide, which waits for a
        bounded time. `begun`: its prompts, where their room is to be checked; all have
        the same spec. What is raised leaves as vLLM's own error."""
        try:
            async with asyncio.timeout(self.specs.patience):
                carried = await self.admit_async(params)
                admitted: Admitted = carried.extra_args[GUIDED]
                if admitted is not LEFT:
                    await self.health.check_async(partial(ask_all, engine))
                    for one, prompt, said in begun:
                        self._bounds(admitted, one, prompt, len(prompt), said)
                return carried
        except TimeoutError:
            error = BusyError(
                f"the spec, or the engine, was not ready within {self.specs.patience:g} s",
                hint="try again",
            )
            raise refused(error, request_id, params) from None
        except GuidedError as error:
            raise refused(error, request_id, params) from error

    def complete(self, request: Any) -> None:
        """Write the spec of an admitted request into the engine's own params, as plain
        data; after which tokens it begins where the output has a reasoning part; and
        how many it may have where it is closed before that. Raises RequestError where
        these are too few."""
        params = request.sampling_params
        prompt = request.prompt_token_ids
        # vLLM's copy may be a shallow one
        extra = params.extra_args = dict(params.extra_args)
        admitted = extra.pop(GUIDED)
        said = extra.pop(REASONING, Said(None, {}))
        if admitted is LEFT:
            extra[MARK] = True
            logs.left(request.request_id)
            return
        length = len(request.prompt_embeds if prompt is None else prompt)
        ends, room = self._bounds(admitted, params, prompt or (), length, said)
        spec = admitted.spec
        if ends and spec.start_after is None:
            spec = replace(spec, start_after=ends)
        metrics().count("admitted", admitted.admission.backend)
        # Requests that share no cached prefixes share nothing that their outputs teach.
        salt = request.cache_salt
        if salt:
            salt = hashlib.blake2b(repr(salt).encode(), digest_size=16).hexdigest()
        extra[GUIDED] = EngineSpec(
            packed(spec)[0], room, salt, admitted.made, quick=admitted.quick
        )

    def _bounds(
        self,
        admitted: Admitted,
        params: Any,
        prompt: Sequence[int],
        length: int,
        said: Said,
    ) -> tuple[tuple[Trigger, ...], int | None]:
        """Return what ends the part of an output before the constrained one; and, where
        the spec is closed before them, how many tokens may follow so many of a prompt.
        Raises RequestError where that is too few for any output and the nearest end
        before it."""
        spec = admitted.spec
        ends = spec.start_after or ()
        if spec.start_after is None and self._reasoner:
            vocabulary = self.specs.compiler.vocabulary
            ends = vocabulary.triggers(self._reasoning.ends(said, prompt))
        if not spec.close_before_length:
            return ends, None
        room: int = self._config.model_config.max_model_len - length
        if params.max_tokens is not None:
            room = min(params.max_tokens, room)
        end = nearest(ends)
        check_room((len(end.tokens) if end else 0) + admitted.admission.least, room)
        return ends, room

    @cached_property
    def _reasoning(self) -> Reasoning:
        return Reasoning(self._reasoner, self._config, self.specs.compiler.vocabulary)

    def warm_up(self) -> None:
        """Read the vocabulary and make backends in the background, where requests are
        likely to come; else the first one does that."""
        error = self.unsupported_reason
        line = logs.start_line("frontend", self.options, error)
        tell = _log.warning if error and self.options.take_over else _log.info
        tell("%s; %s", line, self._told)
        if error is None and self.options.take_over:
            in_background(self._warm, "guided-gate")

    def _warm(self) -> None:
        try:
            self.specs.compiler.warm_up()
        except VocabularyError as error:
            self.unsupported_reason = error
            _log.warning("guided requests will be refused: %s", error)

    def carry(self, params: Any, admitted: Admitted) -> Any:
        """The params of a guided request with its spec. Raises RequestError for stop
        tokens at which vLLM would end an output in the middle, and for numbers that
        turn logits into infinities."""
        carried = copy.copy(params)
        carried.extra_args = {**(params.extra_args or {}), GUIDED: admitted}
        if admitted is LEFT:
            return carried
        _check_numbers(params)
        stops = {
            *(params.stop_token_ids or ()),
            *(admitted.spec.stop_token_ids or ()),
        }
        if stops:
            self.specs.compiler.vocabulary.check_stops(
                stops, where="stop_token_ids", text=False, named=admitted.named
            )
        if admitted.admission.unenforced:
            tell_unenforced(admitted.admission.unenforced)
        carried.structured_outputs = None
        return carried


class Ahead(list[Any]):
    """The parameters of each prompt. To read those of one begins the spec of one that
    comes later, so that they compile at the same time; `add_request` raises what is
    wrong with one."""

    def __init__(self, gate: Gate, params: Sequence[Any]) -> None:
        super().__init__(params)
        self._rest = map(gate.begin, params)
        deque(islice(self._rest, _AHEAD - 1), 0)

    def __getitem__(self, index: Any) -> Any:
        next(self._rest, None)
        return super().__getitem__(index)


def gate_of(owner: Any) -> Gate:
    """The gate of an input processor, or of a client that has one."""
    processor = getattr(owner, "input_processor", owner)
    if not hasattr(processor, "_guided_gate"):
        processor._guided_gate = Gate(processor.vllm_config)
    gate: Gate = processor._guided_gate
    return gate


def _check_numbers(params: Any) -> None:
    """Refuse what overflows in the 32 bits in which vLLM samples: of infinite logits no
    mask is left."""
    penalty = params.repetition_penalty
    factors = {
        "repetition_penalty": [penalty, 1 / penalty],
        "logit_bias": (params.logit_bias or {}).values(),
    }
    for name, given in factors.items():
        for factor in given:
            if not factor <= _LARGEST:  # also NaN
                raise RequestError(
                    "makes logits infinite, which no mask can take away",
                    where=name,
                    hint="usual values are 1 to 1.5, and biases up to 100",
                )
