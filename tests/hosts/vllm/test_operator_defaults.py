"""`whitespace` and `strict` as an operator sets them for a server: what they make of
requests that don't say. Each goes through vLLM's own protocol and tool parsers, and
through the gate, to the fields that its engine gets; these are judged by a fresh
matcher of a compiler that has no options, on texts of `json.dumps`."""

import json
import pathlib
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

DATA = {"at": {"x": [1, 2]}, "on": True}
LAYOUTS = {
    "compact": {"separators": (",", ":")},
    "spaced": {},
    "flexible": {"indent": 1},
}
KINDS = {
    "chat": partial(ChatCompletionRequest, messages=[{"role": "user", "content": "?"}]),
    "completion": partial(CompletionRequest, prompt="x"),
    "response": partial(ResponsesRequest, input="x"),
}
FORMS = json.loads(pathlib.Path(__file__).with_name("operators.json").read_text())
"""A kind of request, a parser of the server, fields of the request; what the text has
around it, and around each of its members."""


@pytest.fixture(scope="module")
def compiler():
    return compiler_of(VOCABULARY)


def params_of(form):
    """What a request becomes in a server with this parser."""
    kind, parser, fields, *_ = FORMS[form]
    request = KINDS[kind](**fields)
    if parser:
        made = ParserManager.get_parser(parser, enable_auto_tools=True)
        request = made(ParserTokenizer(), request.tools).adjust_request(request)
    return request.to_sampling_params(70, {})


def written(form, data, layout):
    *_, around, member = FORMS[form]
    text = json.dumps(data, **layout)
    if member:
        text = "".join(
            member % (key, json.dumps(inner, **layout)) for key, inner in data.items()
        )
    return around % text


def layouts_of(compiler, form, *texts, **options):
    """The layouts in which an engine takes each of these for a request, if an operator
    has set these options."""
    gate = Gate(config({**TAKES_OVER, **options}))
    params = params_of(form)
    assert gate.concerns(params)
    carried = gate.admit(params)
    gate.complete(engine_request(carried, [1]))
    grammar = compiler.compile(engine_spec(carried).read())
    return [
        [
            name
            for name, layout in LAYOUTS.items()
            if takes(
                compiler,
                grammar,
                written(
                    form,
                    data,
                    layout,
                ),
            )
        ]
        for data in texts
    ]


@pytest.mark.parametrize("form", FORMS)
def test_what_an_operator_sets_is_so_where_requests_do_not_say(compiler, form):
    is_xml = "xml" in form
    wrong = {**DATA, "on": 1}
    more = {**DATA, "z": {"y": 1}}
    for whitespace in LAYOUTS:
        taken = [*LAYOUTS] if whitespace == "flexible" else [whitespace]
        assert layouts_of(
            compiler,
            form,
            DATA,
            wrong,
            whitespace=whitespace,
        ) == [
            taken,
            taken * (form == "json_object"),
        ]
    for strict in (True, False):
        options = {"whitespace": "spaced", "strict": strict}
        if is_xml and not strict:
            with pytest.raises(
                gp.GuidedError, match=r"qwen_xml.*in tool 'weather' \(use strict: true"
            ):
                layouts_of(
                    compiler,
                    form,
                    **options,
                )
            continue
        is_open = not strict or form == "json_object"
        assert layouts_of(
            compiler,
            form,
            more,
            **options,
        ) == [["spaced"] * is_open]
    assert is_xml or layouts_of(
        compiler,
        form,
        [DATA],
        strict=False,
    ) == [[]]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_closed_before_its_limit_where_an_operator_says_so(form):
    gate = Gate(config({**TAKES_OVER, "close_before_length": True}))
    carried = gate.admit(params_of(form))
    least = carried.extra_args["guided"].admission.least
    # A call need not come with `auto`.
    assert (least == 1) == form.endswith("tool auto")
    carried.max_tokens = least
    gate.complete(engine_request(carried, [1]))
    spec = engine_spec(carried).read()
    assert (spec.close_before_length, spec.room) == (True, least)
