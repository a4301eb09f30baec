"""What is wrapped in vLLM's frontend, so that guided requests are admitted before an engine sees them.

    InputProcessor.__init__         the frontend's gate is made, and beam search is wrapped
    InputProcessor.process_inputs   admission, and the spec written into the engine's own params
    LLMEngine.add_request           admission, the engine's health, slow specs made ready in the engine first
    AsyncLLM.add_request            the same, without blocking the event loop

vLLM has no hook for this. A spec that can't be compiled is the client's error: status 400, path and hint.
All but small ones are made ready in the engine before their requests go there: a step that waited for one
would hold up the whole batch. While the engine can guide nothing, or there is no room for a compile, requests
get status 503 (`retry`). Imports vLLM lazily.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from guided_plugin.errors import GuidedError
from guided_plugin.hosts.vllm import noted
from guided_plugin.hosts.vllm.admission import LEFT, REASONING, Admitted, gate_of, refusal, refused
from guided_plugin.hosts.vllm.answers import install as install_answers
from guided_plugin.hosts.vllm.asking import ask_all
from guided_plugin.hosts.vllm.beams import install_beams
from guided_plugin.hosts.vllm.common import GUIDED, PREPARE, read_spec
from guided_plugin.hosts.vllm.entrance import check_ready
from guided_plugin.hosts.vllm.entrance import install as install_entrance
from guided_plugin.hosts.vllm.failures import install as install_failures
from guided_plugin.hosts.vllm.ready import wrap_frontend
from guided_plugin.hosts.vllm.reasoning import Said
from guided_plugin.hosts.vllm.retry import install as install_retry
from guided_plugin.hosts.vllm.retry import stop_waiting
from guided_plugin.hosts.vllm.together import install_together
from guided_plugin.hosts.vllm.tools import hold_tools
from guided_plugin.hosts.vllm.worker_methods import offer_methods
from guided_plugin.hosts.vllm.wrapping import Call, wrap

_log = logging.getLogger(__name__)

_PAUSES = 0.001, 0.05
"""Seconds between the first two questions whether a spec is ready in the engine, and at most."""

_COMPLETION = "cmpl-"
"""Begins the ids of requests of /v1/completions."""


def check_params(params: Any) -> None:
    """Refuse a spec that can't be read, where no gate has admitted it."""
    form = (params.extra_args or {}).get(GUIDED)
    if form is not None and not isinstance(form, Admitted):
        try:
            read_spec(form)
        except GuidedError as error:
            raise refusal(error) from error


def install() -> None:
    """Wrap what vLLM's frontend does with a request. Does nothing the second time. Entry point
    `vllm.general_plugins`: vLLM calls it in each of its processes."""
    noted.adopt_handlers()
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
    for owner in (LLMEngine, AsyncLLM):
        wrap_frontend(owner, lambda made: gate_of(made).wait_ready())
    wrap(LLMEngine, "add_request", _add_request)
    wrap(AsyncLLM, "add_request", _add_request_async)
    install_failures()
    install_entrance()
    offer_methods()  # here, as workers of other stages than the last load no logits processor


def _init(original: Any) -> Any:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        install_beams()  # here, as only frontends have an input processor
        install_answers()
        install_retry()
        install_together()
        gate = gate_of(self)
        if gate.options.tools_strict and gate.unsupported_reason is None:
            hold_tools()
        gate.warm_up()

    return init


def _process_inputs(original: Any) -> Any:
    call = Call(original)

    def process_inputs(self: Any, *args: Any, **kwargs: Any) -> Any:
        gate, params = gate_of(self), call.get("params", args, kwargs)
        if not gate.concerns(params):
            return original(self, *args, **kwargs)
        try:
            carried = gate.admit(params)
        except GuidedError as error:
            raise refusal(error) from error
        args, kwargs = call.having(carried, args, kwargs)
        try:
            request = original(self, *args, **kwargs)
            gate.complete(request.sampling_params, request.prompt_token_ids)
        except GuidedError as error:
            raise refused(error, call.get("request_id", args, kwargs)) from error
        return request

    return process_inputs


def _add_request(original: Any) -> Any:
    call = Call(original)

    def add_request(self: Any, *args: Any, **kwargs: Any) -> Any:
        gate, params = gate_of(self), call.get("params", args, kwargs)
        check_ready(call.get("prompt", args, kwargs), self.vllm_config)
        if not gate.concerns(params):
            return original(self, *args, **kwargs)
        try:
            deadline = gate.deadline()
            carried = gate.admit(params, deadline)
            admitted: Admitted = carried.extra_args[GUIDED]
            if admitted is not LEFT:
                gate.health.check(lambda method: self.collective_rpc(method))
            if not admitted.prepared:
                question, pauses = gate.question(admitted), _pauses()
                while not all(map(all, self.collective_rpc(PREPARE, args=([question],)))):
                    if time.monotonic() > deadline:
                        raise gate.late()
                    question = (admitted.key, None)
                    time.sleep(next(pauses))
                gate.prepared(admitted)
        except GuidedError as error:
            raise refused(error, call.get("request_id", args, kwargs)) from error
        args, kwargs = call.having(carried, args, kwargs)
        return original(self, *args, **kwargs)

    return add_request


def _add_request_async(original: Any) -> Any:
    call = Call(original)

    async def add_request(self: Any, *args: Any, **kwargs: Any) -> Any:
        gate, params = gate_of(self), call.get("params", args, kwargs)
        check_ready(call.get("prompt", args, kwargs), self.vllm_config)
        if not gate.concerns(params):
            return await original(self, *args, **kwargs)
        request_id = str(call.get("request_id", args, kwargs))
        async with gate.in_time(request_id) as deadline:
            carried = await gate.admit_async(params, deadline)
            admitted: Admitted = carried.extra_args[GUIDED]
            if admitted is not LEFT:
                noted.on_loop(self)
                await gate.health.check_async(partial(ask_all, self))
                # Completions are one text: their reasoning would never be told from the rest.
                whole = request_id.startswith(_COMPLETION)
                carried.extra_args[REASONING] = Said(
                    True if whole else call.get("reasoning_ended", args, kwargs),
                    call.get("reasoning_parser_kwargs", args, kwargs) or {},
                )
            if not admitted.prepared:
                question, pauses = gate.question(admitted), _pauses()
                while not all(map(all, await ask_all(self, PREPARE, ([question],)))):
                    question = (admitted.key, None)
                    await asyncio.sleep(next(pauses))
                gate.prepared(admitted)
        stop_waiting()
        args, kwargs = call.having(carried, args, kwargs)
        return await original(self, *args, **kwargs)

    return add_request


def _pauses() -> Iterator[float]:
    """Longer and longer ones."""
    pause, longest = _PAUSES
    while True:
        yield pause
        pause = min(1.5 * pause, longest)
