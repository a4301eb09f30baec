"""What a server's client is told, and when. Imports vLLM lazily.

    chats, completions, responses   a request whose spec is refused gets its status before a stream begins
    ServingTokens.serve_tokens      the same for tokens in, tokens out
    OutputProcessor.process_outputs before 0.33: the reason of a request that fails while it runs

vLLM calls the engine when a stream is read, after status 200 was sent. The first three entrances pass through
`GenerateBaseServing._with_kv_transfer_rejection_cleanup`, with the coroutine that makes the stream.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus
from pkgutil import resolve_name
from typing import Any

from guided_plugin.errors import printable
from guided_plugin.hosts.vllm import noted
from guided_plugin.hosts.vllm.admission import LEFT, Gate, gate_of
from guided_plugin.hosts.vllm.asking import ask_all
from guided_plugin.hosts.vllm.common import GUIDED
from guided_plugin.hosts.vllm.contract import broken
from guided_plugin.hosts.vllm.parts import Part
from guided_plugin.hosts.vllm.wrapping import wrap

_log = logging.getLogger(__name__)

_SERVING = "vllm.entrypoints.generate.base.serving:GenerateBaseServing"
_TOKENS = "vllm.entrypoints.scale_out.token_in_token_out.serving:ServingTokens"
_MOST_TOKENS = 1 << 30
"""More than any `min_tokens`: the params are looked at and thrown away."""

_OUTPUTS = "vllm.v1.engine.output_processor:OutputProcessor"


def install() -> None:
    """Wrap what answers clients, if it is as expected. Does nothing the second time."""
    error = broken(Part.ANSWERS)
    if error is not None:
        return
    try:
        wrap(resolve_name(_SERVING), "_with_kv_transfer_rejection_cleanup", _cleanup)
        wrap(resolve_name(_TOKENS), "serve_tokens", _serve_tokens)
    except (ImportError, AttributeError) as missing:  # a frontend without a server, as `LLM` may be
        _log.debug("no server in this process: %s", missing)
    from vllm.v1.engine import EngineCoreOutput

    if "error" not in EngineCoreOutput.__struct_fields__:  # since 0.33 vLLM passes reasons on by itself
        wrap(resolve_name(_OUTPUTS), "process_outputs", _process_outputs)


def _cleanup(original: Any) -> Any:
    async def with_cleanup(self: Any, awaitable: Any, request: Any, raw_request: Any) -> Any:
        # Inside: what cleans up after a refused request sees this refusal too.
        return await original(self, _admitted(self, awaitable, request, _made_params), request, raw_request)

    return with_cleanup


def _serve_tokens(original: Any) -> Any:
    async def serve_tokens(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        return await _admitted(self, original(self, request, *args, **kwargs), request, _own_params)

    return serve_tokens


def _made_params(gate: Gate, serving: Any, request: Any) -> Any:
    """What a chat, a completion or a response asks of the engine; None where nothing of it may be guided."""
    if not gate.concerns_request(request):
        return None
    return request.to_sampling_params(_MOST_TOKENS, serving.default_sampling_params)


def _own_params(gate: Gate, serving: Any, request: Any) -> Any:
    return request.sampling_params


async def _admitted(
    serving: Any, awaitable: Awaitable[Any], request: Any, params_of: Callable[[Gate, Any, Any], Any]
) -> Any:
    """The answer of an entrance; of a request that is streamed, or goes on in the background, once its spec
    is admitted. The engine's own look at it finds that remembered."""
    answer = await awaitable
    engine = getattr(serving, "engine_client", None)
    late = getattr(request, "stream", False) or getattr(request, "background", False)
    if not late or engine is None or not hasattr(engine, "input_processor") or hasattr(answer, "error"):
        return answer
    if getattr(request, "use_beam_search", False):  # it makes no params of that kind: `beams` looks at it
        return answer
    gate = gate_of(engine)
    params = params_of(gate, serving, request)
    if gate.concerns(params):
        try:
            async with gate.in_time(request.request_id) as deadline:
                carried = await gate.admit_async(params, deadline)
                if carried.extra_args[GUIDED] is not LEFT:
                    await gate.health.check_async(partial(ask_all, engine))
        except Exception:
            close = getattr(answer, "aclose", None)
            if close is not None:
                await close()
            raise
    return answer


def _process_outputs(original: Any) -> Any:
    from vllm.exceptions import GracefulHTTPError
    from vllm.v1.engine import FinishReason

    failure = FinishReason.ERROR

    def process_outputs(self: Any, engine_core_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        failed = [one for one in engine_core_outputs if one.finish_reason is failure and one.stop_reason]
        queues = [(self.request_states.get(one.request_id), one.stop_reason) for one in failed]
        result = original(self, engine_core_outputs, *args, **kwargs)
        for state, reason in queues:
            if state is not None and state.queue is not None:  # LLM has no queues: it returns `stop_reason`
                what = f"guided request failed: {printable(reason)}"
                noted.failed()
                state.queue.put(GracefulHTTPError(what, HTTPStatus.INTERNAL_SERVER_ERROR))
        return result

    return process_outputs
