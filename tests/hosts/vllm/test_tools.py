"""`tools_strict`: the tags that vLLM's own parsers build with and without it, as the
plugin enforces them."""

from types import SimpleNamespace

import pytest
from compilers import compiler_of, start
from openai.types.responses import FunctionTool
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.parser.parser_manager import ParserManager
from vllm.tool_parsers import structural_tag_registry
from vllm.tool_parsers.tool_strict_level import ToolStrictLevel
from vllm_support import SMALL, TAKES_OVER, VOCABULARY, ParserTokenizer, config

import guided_plugin as gp
from guided_plugin.hosts.vllm import gate as vllm_gate
from guided_plugin.hosts.vllm import patches as vllm_contract
from guided_plugin.hosts.vllm.names import When
from guided_plugin.hosts.vllm.patches import patch

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}},
    "required": ["city"],
}
NAMED = {"type": "function", "function": {"name": "weather"}}


@pytest.fixture
def manager(monkeypatch):
    """`ParserManager`, which the test may have wrapped."""
    original = ParserManager.__dict__["get_parser"]
    if hasattr(original, "_guided_plugin"):  # by another test
        original = classmethod(original.__wrapped__.__func__)
    monkeypatch.setattr(ParserManager, "get_parser", original)
    return ParserManager


def spec_of(manager, choice, parameters=SCHEMA, strict=None, **options):
    """What the plugin is asked for by a request with one tool."""
    function = {"name": "weather", "parameters": parameters, "strict": strict}
    tool = {"type": "function", "function": function}
    request = ChatCompletionRequest(
        model="demo",
        messages=[{"role": "user", "content": "?"}],
        tools=[tool],
        tool_choice=choice,
    )
    parser = manager.get_parser("hermes", enable_auto_tools=True, **options)
    adjusted = parser(ParserTokenizer(), request.tools).adjust_request(request)
    outputs = adjusted.structured_outputs
    return (
        None
        if outputs is None
        else gp.OutputSpec.parse({"structural_tag": outputs.structural_tag})
    )


def takes(spec, text):
    return start(compiler_of(VOCABULARY), spec).accept_text(text.encode())


def call(arguments):
    return '<tool_call>{"name": "weather", "arguments": ' + arguments + "}</tool_call>"


@pytest.mark.parametrize("choice", ["auto", "required", NAMED], ids=str)
def test_every_tool_is_held_to_its_schema(manager, choice):
    before = spec_of(manager, choice)
    assert before is None if choice == "auto" else takes(before, call('{"town":3}'))
    patch(When.TOOLS)
    for strict, held in ((None, True), (True, True), (False, False)):
        spec = spec_of(manager, choice, strict=strict)
        assert takes(spec, call('{"city":"Rome"}'))
        assert takes(spec, call('{"town":3}')) is not held
        assert takes(spec, "Hello") == (choice == "auto")


@pytest.mark.parametrize("choice", ["auto", "required", NAMED], ids=str)
def test_the_arguments_of_a_tool_without_parameters_are_an_empty_object(
    manager, choice
):
    patch(When.TOOLS)
    spec = spec_of(manager, choice, parameters=None)
    assert takes(spec, call("{}"))
    assert not any(
        takes(spec, call(text))
        for text in ("false", "1", "null", "[]", '{"city":"Rome"}')
    )
    tool = FunctionTool(type="function", name="now", parameters=None, strict=None)
    (found,) = structural_tag_registry.resolve_tool_strictness(
        [tool], choice, ToolStrictLevel.PARAMETER
    )
    empty = {"type": "object", "properties": {}, "additionalProperties": False}
    assert found.parameters == empty
    assert tool.parameters is None


@pytest.mark.parametrize(
    ("flag", "level"),
    [("auto", ToolStrictLevel.PARAMETER), ("function", ToolStrictLevel.FUNCTION)],
)
def test_the_highest_level_is_asked_for_where_the_flag_says_none(manager, flag, level):
    """Without a flag too: `test_every_tool_is_held_to_its_schema`."""
    patch(When.TOOLS)
    parser = manager.get_parser(
        "hermes", enable_auto_tools=True, tool_strict_level=flag
    )
    assert parser.tool_strict_level == level


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (TAKES_OVER, True),
        ({**TAKES_OVER, "tools_strict": False}, False),
        (SMALL, False),
    ],
    ids=str,
)
def test_a_gate_that_takes_over_asks_for_it_unless_the_option_says_no(
    byte_tokenizer, monkeypatch, options, wanted
):
    called = []
    monkeypatch.setattr(vllm_gate, "patch", called.append)
    processor = SimpleNamespace(vllm_config=config(options))
    vllm_gate.made(processor, original=lambda self: None)
    assert (When.TOOLS in called) is wanted


def test_a_vllm_without_levels_says_so(monkeypatch):
    said = []
    # Servers of other tests in this process may have changed what loggers do.
    log = SimpleNamespace(
        warning=lambda form, *values: said.append(form % values), debug=lambda *_: None
    )
    monkeypatch.setattr(vllm_contract, "_log", log)
    monkeypatch.setattr(ParserManager, "get_parser", lambda tool_parser_name: None)
    vllm_contract._broken.cache_clear()
    patch(When.TOOLS)
    vllm_contract._broken.cache_clear()
    assert any("the option tools_strict" in line for line in said)
