"""What a client reads of a refused request: the place that it wrote, and `param`.
vLLM's own requests, parsers and error JSON around the plugin's gate;
tests/hosts/clients has the same from a server."""

import asyncio
import json
import pathlib
import re
from types import SimpleNamespace

import pytest
from vllm import SamplingParams
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.serve.exception_handling.error_response import (
    create_error_response,
)
from vllm.exceptions import VLLMValidationError
from vllm.parser.parser_manager import ParserManager
from vllm.sampling_params import StructuredOutputsParams
from vllm.tool_parsers import utils
from vllm_support import TAKES_OVER, ParserTokenizer, config, params_of

from guided_plugin import OutputSpec
from guided_plugin.hosts.vllm import specs
from guided_plugin.hosts.vllm.admission import Gate
from guided_plugin.hosts.vllm.gate import (
    add_request_async,
    cleanup,
    process_inputs,
    serve_tokens,
)
from guided_plugin.hosts.vllm.metrics import metrics
from guided_plugin.hosts.vllm.refusals import note

FINE = {"type": "object", "properties": {"a": {"type": "string"}}}
NAMED = {"type": "function", "function": {"name": "save"}}


@pytest.fixture
def engine(byte_tokenizer):
    return SimpleNamespace(
        input_processor=SimpleNamespace(_guided_gate=Gate(config(TAKES_OVER))),
        vllm_config=config(TAKES_OVER),
    )


def adjusted(request, parser="hermes"):
    """A request with tools, with the constraint that vLLM's parser writes into it."""
    made = ParserManager.get_parser(
        parser, enable_auto_tools=True, tool_strict_level="parameter"
    )
    return made(ParserTokenizer(), request.tools).adjust_request(request)


def error_of(engine, request, parser="hermes"):
    """The error in vLLM's answer to a request, which a server with this engine and
    these parsers gets."""

    async def added(self, request_id, prompt, params):
        raise AssertionError("nothing was refused")

    async def create(serving, request, raw_request=None):
        """As vLLM's serving: parsers write their constraint into the request, which
        becomes params."""
        if getattr(request, "tools", None):
            request = adjusted(request, parser)
        own = getattr(request, "sampling_params", None)
        params = request.to_sampling_params(20, {}) if own is None else own
        return await add_request_async(engine, "one", "x", params, original=added)

    async def passed_on(serving, awaitable, request, raw_request):
        return await awaitable

    serving = SimpleNamespace(engine_client=engine)
    if hasattr(request, "sampling_params"):
        answer = serve_tokens(serving, request, original=create)
    else:
        answer = cleanup(
            serving, create(serving, request), request, None, original=passed_on
        )
    with pytest.raises(VLLMValidationError) as caught:
        asyncio.run(answer)
    return create_error_response(caught.value).error


def tool(parameters, name="save"):
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def chat(**fields):
    return ChatCompletionRequest(
        model="demo", messages=[{"role": "user", "content": "?"}], **fields
    )


def completion(**fields):
    return CompletionRequest(model="demo", prompt="?", **fields)


def response(**fields):
    return ResponsesRequest(model="demo", input="?", **fields)


def tokens(**fields):
    return SimpleNamespace(sampling_params=SamplingParams(**fields), request_id="one")


KINDS = {
    "chat": chat,
    "completion": completion,
    "response": response,
    "tokens": tokens,
}
TABLE = json.loads(pathlib.Path(__file__).with_name("places.json").read_text())
CASES = [
    *TABLE["refused"],
    (
        "extra_args.guided: a ( ",
        "tokens",
        "",
        {"extra_args": {"guided": OutputSpec.regex("(a")}},
    ),
    (
        "structured_outputs.json#/type: ",
        "tokens",
        "",
        {"structured_outputs": StructuredOutputsParams(json={"type": "text"})},
    ),
]
if not hasattr(utils, "get_function_tools"):
    # vLLM 0.31 constrains no tool of a namespace
    CASES = [case for case in CASES if "tools[1].tools" not in case[0]]


@pytest.mark.parametrize(("says", "kind", "parser", "fields"), CASES)
def test_an_error_has_the_place_that_the_client_wrote(
    engine, says, kind, parser, fields
):
    error = error_of(engine, KINDS[kind](**fields), parser)
    assert error.message.startswith(says)
    assert error.param == re.split(r"\W", says)[0]
    assert "parameter=" not in error.message


@pytest.mark.parametrize("parser", ["hermes", "qwen3_coder", "xlam"])
def test_a_keyword_of_the_wrong_type_in_a_tool_has_its_place(engine, parser):
    # As servers are set up: small specs compile in the frontend, others in helpers.
    gate = engine.input_processor._guided_gate = Gate(
        config({"take_over": True, "threads": 1})
    )
    wrong = TABLE["keywords"].items()
    for keyword, value in ((one, value) for one, values in wrong for value in values):
        bad = {"type": "object", "properties": {"a": {keyword: value}}}
        for choice in ("required", "auto", NAMED):
            if choice == "auto" and parser == "xlam":  # it constrains nothing
                continue
            request = chat(tools=[tool(FINE, "a"), tool(bad)], tool_choice=choice)
            error = error_of(engine, request, parser)
            assert error.code == 400
            place = f"tools[1].function.parameters#/properties/a/{keyword}: "
            # numbers that JSON does not have, in one schema of all tools
            if parser == "xlam" and str(value) in ("inf", "nan"):
                named = "" if choice == "required" else "[1].function.parameters"
                place = f"tools{named}: JSON has no Infinity and no NaN"
            assert error.message.startswith(place)
    gate.specs.compiler.close()


@pytest.mark.parametrize("size", [200, 10_000], ids=["read", "unread"])
@pytest.mark.parametrize(("place", "parser", "fields"), TABLE["over a limit"])
def test_a_spec_over_a_limit_has_the_field_that_it_is_made_of(
    engine, place, parser, fields, size
):
    engine.input_processor._guided_gate = Gate(
        config({**TAKES_OVER, "max_spec_bytes": 100})
    )
    asked = json.loads(json.dumps(fields).replace("LONG", "x" * size))
    error = error_of(engine, chat(**asked), parser)
    assert error.param == place.split(".")[0]
    assert re.match(
        rf"{place}(\.json_schema)?: a spec of .* is over the limit", error.message
    )


def test_what_vllm_refuses_of_a_request_that_was_left_to_it_is_counted(monkeypatch):
    def check(self, request_id, prompt, params):
        raise ValueError("vLLM's own")

    counted = []
    # vLLM takes it, and drops the pattern, which demands what JSON can't have.
    refused = StructuredOutputsParams(json={"enum": ["a"]}, whitespace_pattern="[.]")
    params = SamplingParams(structured_outputs=refused)
    monkeypatch.setattr(metrics(), "refused", lambda *told: counted.append(told))
    monkeypatch.setattr(metrics(), "count", lambda *told: counted.append(told))
    processor = SimpleNamespace(
        _guided_gate=Gate(config({**TAKES_OVER, "refused": "vllm"}))
    )
    with pytest.raises(ValueError, match="vLLM's own"):
        process_inputs(processor, "one", "x", params, original=check)
    assert counted == [("ValueError",)]


@pytest.mark.parametrize("slow", [False, True])
def test_the_log_of_a_spec_that_is_left_has_the_place_that_the_client_wrote(
    engine, caplog, slow
):
    gate = Gate(config({**TAKES_OVER, "refused": "vllm"}))
    if slow:
        gate.specs.compiler.why_quick = lambda spec: ""
    bad = {
        "type": "object",
        "properties": {"a": {"type": "integer", "not": {}}},
        "required": ["a"],
    }

    async def admit():
        request = chat(tools=[tool(bad)], tool_choice="required")
        note(request)
        return await gate.admit_async(adjusted(request).to_sampling_params(20, {}))

    with caplog.at_level("WARNING", "guided_plugin"):
        assert asyncio.run(admit()).extra_args["guided"] is specs.LEFT
    (said,) = caplog.messages
    assert "structured output: tools[0].function.parameters#/properties/a" in said
    assert "format" not in said


@pytest.mark.parametrize(("form", "limits"), TABLE["admitted"])
def test_options_that_leave_a_beginning_are_admitted(engine, form, limits):
    """What comes later is seen when it comes."""
    gate = engine.input_processor._guided_gate
    assert asyncio.run(gate.admit_async(params_of(form, **limits)))
