"""The replacements of methods of vLLM's frontends, which admit guided requests before
an engine sees them.

vLLM has no hook for this; `names` says which method each function here wraps and why,
and `patches` puts it there. A spec that can't be compiled is the client's error: status
400, path and hint. Imports vLLM lazily.
"""

from __future__ import annotations

import sys
from collections.abc import Coroutine, Mapping
from contextvars import ContextVar
from functools import partial
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

from guided_plugin._version import __version__
from guided_plugin.errors import GuidedError, RequestError, printable
from guided_plugin.hosts.vllm import logs
from guided_plugin.hosts.vllm.admission import REASONING, Ahead, Begun, Gate, gate_of
from guided_plugin.hosts.vllm.common import GUIDED, METRICS
from guided_plugin.hosts.vllm.headers import Middleware
from guided_plugin.hosts.vllm.health import Health, ask_all, offer_methods
from guided_plugin.hosts.vllm.hold import check_ready
from guided_plugin.hosts.vllm.metrics import metrics
from guided_plugin.hosts.vllm.names import When
from guided_plugin.hosts.vllm.patches import by_name, patch
from guided_plugin.hosts.vllm.reasoning import Said
from guided_plugin.hosts.vllm.refusals import note, refusal, refused
from guided_plugin.hosts.vllm.specs import LEFT

_COMPLETION = "cmpl-"
"""Begins the ids of requests of /v1/completions."""

_SWITCH_SECONDS = 5e-4
"""So soon threads that compile give way to a server's event loop. While 100 new schemas
are admitted, 95% of its turns come within 1.5 ms; with Python's 5 ms, within 5.9 ms (2
processors)."""

_begun: ContextVar[list[Begun] | None] = ContextVar("prompts_begun", default=None)
"""The prompts that a server is about to send to its engine for the request whose stream
it prepares."""

_BY_OPTIONS = "leave no token that the grammar allows"
"""In the reason of a request that failed by options of its own (`Ledger`): the client
can change them."""

_UNSET_LEVEL = "auto"
"""vLLM builds the tag of a request with tools by a strict level, which its server gives
to its parsers (`--tool-strict-level`). This one says that the start command gives
none."""
_STRICTEST = "parameter"
"""With it the calls of each tool, named, `required` or `auto`, have the form that the
model's parser reads, and arguments that satisfy the tool's schema."""


def install() -> None:
    """Wrap what every process of vLLM's has. Does nothing the second time. Entry point
    `vllm.general_plugins`: vLLM calls it in each of its processes."""
    logs.adopt_handlers()
    patch(When.START)
    offer_methods()


def made(self: Any, *args: Any, original: Any, **kwargs: Any) -> None:
    """`InputProcessor.__init__`: only frontends have one."""
    original(self, *args, **kwargs)
    gate = gate_of(self)
    patch(When.SERVING)
    holds_tools = gate.options.take_over and gate.options.tools_strict
    if holds_tools and gate.unsupported_reason is None:
        patch(When.TOOLS)
    gate.warm_up()


def process_inputs(self: Any, *args: Any, original: Any, **kwargs: Any) -> Any:
    """`InputProcessor.process_inputs`."""
    gate = gate_of(self)
    given = by_name(original, *args, **kwargs)
    params = given["params"]
    if not gate.concerns(params):
        return original(self, *args, **kwargs)
    try:
        given["params"] = gate.admit(params)
        request = original(self, **given)
        gate.complete(request)
    except GuidedError as error:
        raise refused(error, given.get("request_id"), params) from error
    except Exception as error:  # vLLM's own refusal
        metrics().refused(type(error).__name__)
        raise
    return request


def add_request(self: Any, *args: Any, original: Any, **kwargs: Any) -> Any:
    """`LLMEngine.add_request`."""
    gate = gate_of(self)
    given = by_name(original, *args, **kwargs)
    check_ready(given.get("prompt"), self.vllm_config)
    if gate.unsupported_reason is None and gate.concerns(given["params"]):
        try:
            gate.health.check(self.collective_rpc)
        except GuidedError as error:
            raise refused(error, given.get("request_id")) from error
    return original(self, *args, **kwargs)


async def add_request_async(self: Any, *args: Any, original: Any, **kwargs: Any) -> Any:
    """`AsyncLLM.add_request`."""
    gate = gate_of(self)
    given = by_name(original, *args, **kwargs)
    check_ready(given.get("prompt"), self.vllm_config)
    if not gate.concerns(given["params"]):
        return await original(self, *args, **kwargs)
    request_id = str(given.get("request_id"))
    carried = await gate.admit_in_time(self, request_id, given["params"])
    if carried.extra_args[GUIDED] is not LEFT:
        carried.extra_args[REASONING] = _said(given)
    given["params"] = carried
    return await original(self, **given)


async def cleanup(
    self: Any, awaitable: Any, request: Any, raw_request: Any, *, original: Any
) -> Any:
    """`GenerateBaseServing._with_kv_transfer_rejection_cleanup`: chats, completions and
    responses pass through it, with the coroutine that makes the stream. vLLM calls the
    engine when that is read, after status 200 was sent."""
    note(request)
    # Inside: what cleans up after a refused request sees this refusal too.
    return await original(
        self, _admitted(self, awaitable, request), request, raw_request
    )


async def serve_tokens(
    self: Any, request: Any, *args: Any, original: Any, **kwargs: Any
) -> Any:
    """`ServingTokens.serve_tokens`: tokens in, tokens out."""
    return await _admitted(self, original(self, request, *args, **kwargs), request)


def generate(self: Any, *args: Any, original: Any, **kwargs: Any) -> Any:
    """`AsyncLLM.generate`, and what calls it for responses. Both are async generators:
    nothing of them has run yet."""
    begun = _begun.get()
    if begun is not None:
        given = by_name(original, *args, **kwargs)
        prompt = given.get("prompt") or given["engine_input"]
        tokens = prompt.get("prompt_token_ids") or ()
        begun.append((given["sampling_params"], tokens, _said(given)))
    return original(self, *args, **kwargs)


def _said(given: Mapping[str, Any]) -> Said:
    """Return what a caller of the engine says about the reasoning of a request."""
    # Completions are one text: their reasoning would never be told from the rest.
    whole = str(given.get("request_id")).startswith(_COMPLETION)
    return Said(
        whole or given.get("reasoning_ended"),
        given.get("reasoning_parser_kwargs") or {},
    )


async def _admitted(
    serving: Any, awaitable: Coroutine[Any, Any, Any], request: Any
) -> Any:
    """The answer of an entrance; of a request that is streamed, or goes on in the
    background, once its spec is admitted, with room for its shortest output. The
    engine's own look at it finds that remembered."""
    gate = gate_of(serving.engine_client)
    try:
        _refuse_beams(gate, request)
    except Exception:
        awaitable.close()
        raise
    if not (getattr(request, "stream", False) or getattr(request, "background", False)):
        return await awaitable
    begun: list[Begun] = []
    told = _begun.set(begun)
    answer = await awaitable
    _begun.reset(told)
    if begun and gate.concerns(begun[0][0]):
        await gate.admit_in_time(
            serving.engine_client, request.request_id, begun[0][0], begun
        )
    return answer


def init_entrypoints_middleware(
    args: Any, app: Any, *more: Any, original: Any, **kwargs: Any
) -> None:
    """Each app of this process's servers gets the middleware."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    original(args, app, *more, **kwargs)
    app.add_middleware(
        Middleware, state=partial(state_of, app), measure=partial(measure, app)
    )


async def state_of(app: Any) -> dict[str, Any]:
    """Return a server's report on its plugin. `off`: why nothing is guided; empty where
    the plugin is on, in this frontend and in each engine behind it, which are asked."""
    engine = getattr(app.state, "engine_client", None)
    told = {"version": __version__}
    if not hasattr(engine, "input_processor"):
        return {**told, "off": "this server has no engine"}
    gate = gate_of(engine)
    off: Exception | None = gate.unsupported_reason
    try:
        if off is None:
            health = Health()
            await health.check_async(partial(ask_all, engine))
            gate.health = health
    except Exception as error:  # an engine that has ended, too
        off = error
    return told | {
        "take_over": gate.options.take_over,
        "off": "" if off is None else printable(str(off), 300),
    }


async def measure(app: Any) -> None:
    """Ask the engines of a server for what its `/metrics` will say."""
    engine = getattr(app.state, "engine_client", None)
    if hasattr(engine, "input_processor"):
        await metrics().ask(partial(ask_all, engine, METRICS, (True,)))


def process_outputs(
    self: Any, engine_core_outputs: Any, *args: Any, original: Any, **kwargs: Any
) -> Any:
    """`OutputProcessor.process_outputs`."""
    from vllm.v1.engine import FinishReason

    failed = [
        (self.request_states.get(one.request_id), one)
        for one in engine_core_outputs
        if one.finish_reason is FinishReason.ERROR and one.stop_reason
    ]
    result = original(self, engine_core_outputs, *args, **kwargs)
    for state, one in failed:
        by_client = _BY_OPTIONS in one.stop_reason
        metrics().failures += not by_client
        metrics().count("failed")
        # LLM has no queues: it returns `stop_reason`. vLLM 0.33 passes errors on.
        queue = getattr(state, "queue", None)
        if queue is not None and not hasattr(one, "error"):
            from vllm.exceptions import GracefulHTTPError

            what = f"guided request failed: {printable(one.stop_reason)}"
            status = HTTPStatus(400 if by_client else 500)
            queue.put(GracefulHTTPError(what, status))
    return result


def render_and_add_requests(self: Any, *args: Any, original: Any, **kwargs: Any) -> Any:
    """`LLM._render_and_add_requests`, where `LLM` adds its prompts, one after the
    other."""
    given = by_name(original, *args, **kwargs)
    if len(given["params"]) > 1:  # else nothing to look ahead to
        given["params"] = Ahead(gate_of(self.llm_engine), given["params"])
    return original(self, **given)


def beam_search(self: Any, *args: Any, original: Any, **kwargs: Any) -> Any:
    """`LLM.beam_search`."""
    if gate_of(self.llm_engine).concerns(by_name(original, *args, **kwargs)["params"]):
        raise _no_beams("beam_search")
    return original(self, *args, **kwargs)


def _refuse_beams(gate: Gate, request: Any) -> None:
    """Refuse an HTTP request for a beam search with a constraint: vLLM makes a request
    for each token of each beam, without it."""
    if not getattr(request, "use_beam_search", False):
        return
    from vllm.sampling_params import StructuredOutputsParams

    asked = SimpleNamespace(
        extra_args=request.vllm_xargs,
        structured_outputs=request.extract_structured_outputs(),
    )
    if getattr(request, "tools", None) and request.tool_choice != "none":
        asked.structured_outputs = StructuredOutputsParams(json_object=True)
    if gate.concerns(asked):
        raise _no_beams("use_beam_search")


def to_beam_search_params(self: Any, *args: Any, original: Any, **kwargs: Any) -> Any:
    """Refuse a beam search in a request for speech to text: vLLM drops its spec
    there."""
    if GUIDED in (self.vllm_xargs or {}):
        raise _no_beams("use_beam_search")
    return original(self, *args, **kwargs)


def _no_beams(where: str) -> Any:
    return refusal(
        RequestError(
            "beam search can't be guided: vLLM asks for each token of a beam without the constraint",
            where=where,
            hint="leave out beam search (n with a temperature gives several outputs) or the constraint",
        )
    )


def get_parser(*args: Any, original: Any, **kwargs: Any) -> Any:
    """`ParserManager.get_parser`: the parsers of a server hold every tool to its
    schema, unless the operator set `--tool-strict-level`."""
    if kwargs.get("tool_strict_level", _UNSET_LEVEL) == _UNSET_LEVEL:
        kwargs = {**kwargs, "tool_strict_level": _STRICTEST}
    return original(*args, **kwargs)


def resolve_tool_strictness(
    tools: Any, *args: Any, original: Any, **kwargs: Any
) -> Any:
    """Tools as a request wrote them, where vLLM's level would say something else.

    A tool that says `strict: false` stays free. One without parameters takes an empty
    object: vLLM reads that as any JSON, `"arguments": false`.
    """
    resolved = original(tools, *args, **kwargs)
    if resolved is None:
        return None
    return [
        _as_written(tool, asked) for tool, asked in zip(resolved, tools, strict=True)
    ]


def _as_written(tool: Any, asked: Any) -> Any:
    """A tool with its level resolved, next to the same tool as a request wrote it."""
    function = getattr(tool, "function", tool)  # Responses have its fields in the tool
    changes: dict[str, Any] = {}
    if getattr(getattr(asked, "function", asked), "strict", None) is False:
        changes["strict"] = False
    if getattr(function, "parameters", {}) is None:
        changes["parameters"] = {
            "type": "object",
            "properties": {},
            "additionalProperties": False,
        }
    if hasattr(tool, "function"):
        changes = {"function": function.model_copy(update=changes)}
    return tool.model_copy(update=changes)
