"""`whitespace` and `strict` as an operator sets them for a server: what they make of
requests that don't say. Each goes through vLLM's own protocol and tool parsers, and
through the gate, to the fields that its engine gets; these are judged by a fresh
matcher of a compiler that has no options, on texts of `json.dumps`."""

import json
from functools import partial

import pytest
from compilers import compiler_of, takes
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.parser.parser_manager import ParserManager
from vllm_support import TAKES_OVER, VOCABULARY, ParserTokenizer, config, engine_request

import guided_plugin as gp
from guided_plugin.hosts.vllm.admission import Gate
from guided_plugin.hosts.vllm.common import engine_spec

pytestmark = pytest.mark.usefixtures("byte_tokenizer")

AT = {
    "type": "object",
    "properties": {"x": {"type": "array", "items": {"type": "integer"}}},
}
SCHEMA = {
    "type": "object",
    "properties": {"at": {**AT, "required": ["x"]}, "on": {"type": "boolean"}},
    "required": ["at", "on"],
}
DATA = {"at": {"x": [1, 2]}, "on": True}
MORE = {**DATA, "z": {"y": 1}}
LAYOUTS = {
    "compact": {"separators": (",", ":")},
    "spaced": {},
    "flexible": {"indent": 1},
}
MESSAGES = [{"role": "user", "content": "?"}]
NAMED = {"type": "function", "function": {"name": "weather"}}
FORMAT = {"name": "x", "schema": SCHEMA}
TAG = {
    "type": "tag",
    "begin": "<f>",
    "content": {"type": "json_schema", "json_schema": SCHEMA},
    "end": "</f>",
}


@pytest.fixture(scope="module")
def compiler():
    return compiler_of(VOCABULARY)


def chat(**options):
    return ChatCompletionRequest(messages=MESSAGES, **options).to_sampling_params(
        70, {}
    )


def tool_call(parser, choice):
    """A request with a tool, as a server with this parser changes it."""
    tool = {
        "type": "function",
        "function": {"name": "weather", "parameters": SCHEMA, "strict": True},
    }
    request = ChatCompletionRequest(messages=MESSAGES, tools=[tool], tool_choice=choice)
    made = ParserManager.get_parser(parser, enable_auto_tools=True)(
        ParserTokenizer(), request.tools
    )
    return made.adjust_request(request).to_sampling_params(70, {})


def guided(**form):
    return chat(vllm_xargs={"guided": json.dumps(form)})


def call(text):
    return '<tool_call>{"name": "weather", "arguments": ' + text + "}</tool_call>"


def xml_call(text):
    """Each value of the object in an element, in the same layout."""
    value = json.loads(text)
    layout = next(
        each for each in LAYOUTS.values() if json.dumps(value, **each) == text
    )
    elements = [
        f"<parameter={key}>{json.dumps(inner, **layout)}</parameter>\n"
        for key, inner in value.items()
    ]
    return (
        "<tool_call>\n<function=weather>\n"
        + "".join(elements)
        + "</function>\n</tool_call>"
    )


JSON = {
    "response_format": (
        lambda: chat(response_format={"type": "json_schema", "json_schema": FORMAT}),
        str,
    ),
    "json_object": (lambda: chat(response_format={"type": "json_object"}), str),
    "structured_outputs": (lambda: chat(structured_outputs={"json": SCHEMA}), str),
    "completion": (
        lambda: CompletionRequest(
            prompt="x", response_format={"type": "json_schema", "json_schema": FORMAT}
        ).to_sampling_params(70, {}),
        str,
    ),
    "responses": (
        lambda: ResponsesRequest(
            input="x", text={"format": {"type": "json_schema", **FORMAT}}
        ).to_sampling_params(70, {}),
        str,
    ),
    "structural_tag": (
        lambda: chat(response_format={"type": "structural_tag", "format": TAG}),
        "<f>{}</f>".format,
    ),
    "guided": (lambda: guided(json_schema=SCHEMA), str),
    **{
        f"tool {choice}": (lambda choice=choice: tool_call("hermes", choice), call)
        for choice in ("auto", "required")
    },
    "tool named": (lambda: tool_call("hermes", NAMED), call),
}
XML = {
    f"xml tool {choice}": (
        lambda choice=choice: tool_call("qwen3_coder", choice),
        xml_call,
    )
    for choice in ("auto", "required")
}


def takes_of(compiler, params, **options):
    """What answers whether an engine takes a text for a request, if an operator has set
    these options."""
    gate = Gate(config({**TAKES_OVER, **options}))
    assert gate.concerns(params)
    carried = gate.admit(params)
    gate.complete(engine_request(carried, [1]))
    return partial(takes, compiler, compiler.compile(engine_spec(carried).read()))


@pytest.mark.parametrize("form", [*JSON, *XML])
def test_what_an_operator_sets_is_so_where_requests_do_not_say(compiler, form):
    make, wrapped = {**JSON, **XML}[form]

    def layouts(served, data):
        return [
            name
            for name, layout in LAYOUTS.items()
            if served(wrapped(json.dumps(data, **layout)))
        ]

    for whitespace in LAYOUTS:
        served = takes_of(compiler, make(), whitespace=whitespace)
        taken = [*LAYOUTS] if whitespace == "flexible" else [whitespace]
        assert layouts(served, DATA) == taken
        if form != "json_object":
            assert layouts(served, {**DATA, "on": 1}) == []
    for strict in (True, False):
        options = {"whitespace": "spaced", "strict": strict}
        if form in XML and not strict:
            with pytest.raises(
                gp.GuidedError, match=r"qwen_xml.*in tool 'weather' \(use strict: true"
            ):
                takes_of(compiler, make(), **options)
            continue
        is_open = not strict or form == "json_object"
        served = takes_of(compiler, make(), **options)
        assert layouts(served, MORE) == ["spaced"] * is_open
        if form in JSON:
            assert not served(wrapped(json.dumps([DATA])))


@pytest.mark.parametrize("form", [*JSON, *XML])
def test_every_form_is_closed_before_its_limit_where_an_operator_says_so(form):
    gate = Gate(config({**TAKES_OVER, "close_before_length": True}))
    make = {**JSON, **XML}[form][0]
    carried = gate.admit(make())
    least = carried.extra_args["guided"].least
    # A call need not come with `auto`.
    assert (least == 1) == form.endswith("tool auto")
    carried.max_tokens = least
    gate.complete(engine_request(carried, [1]))
    spec = engine_spec(carried).read()
    assert (spec.close_before_length, spec.room) == (True, least)
