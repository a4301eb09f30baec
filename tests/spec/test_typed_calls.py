"""Functions as specs, and what can be no spec."""

import dataclasses
import enum
import re
from random import Random
from typing import Literal

import pytest
from compilers import takes
from stopping import Walker
from typed_classes import Color, Person, Point, weather

import guided_plugin as gp
from guided_plugin import ToolCall, TypedSpec
from guided_plugin.errors import OutputError, SpecError


@pytest.fixture(scope="module")
def compiler(byte_vocabulary):
    return gp.GrammarCompiler(
        byte_vocabulary, config=gp.GuidedConfig(isolate_compiles=False, threads=1)
    )


# Functions


def register(person: Person, points: list[Point]) -> int:
    return len(points)


class Service:
    def find(self, key: str) -> str:
        return key


def test_a_call_of_a_function(compiler):
    typed = TypedSpec(weather)
    call = typed.read('{"name":"weather","arguments":{"city":"Oslo","unit":"blue"}}')
    assert call == ToolCall("weather", {"city": "Oslo", "unit": Color.BLUE}, weather)
    assert call.function(**call.arguments) == "Oslo 1 blue"
    assert TypedSpec(Service().find).read(
        '{"name":"find","arguments":{"key":"a"}}'
    ).arguments == {"key": "a"}
    for seed in range(10):
        made = typed.read(Walker(compiler).output(typed.spec, Random(seed)))
        assert weather(**made.arguments)


def test_calls_of_several_functions(compiler):
    typed = TypedSpec.tools(weather, register)
    seen = set()
    for seed in range(12):
        call = typed.read(Walker(compiler).output(typed.spec, Random(seed)))
        call.function(**call.arguments)
        seen.add(call.name)
    assert seen == {"weather", "register"}
    made = typed.read(
        '{"name":"register","arguments":{"person":{"name":"a","age":1},"points":[{"x":1}]}}'
    )
    assert made.arguments == {"person": Person(name="a", age=1), "points": [Point(1)]}


def test_calls_between_texts(compiler):
    typed = TypedSpec.tools(weather, begin="<tool_call>\n", end="\n</tool_call>")
    text = Walker(compiler).output(typed.spec, Random(1))
    assert text.startswith('<tool_call>\n{"name":"weather"')
    assert text.endswith("}\n</tool_call>")
    assert isinstance(typed.read(text), ToolCall)
    with pytest.raises(OutputError, match="is not between"):
        typed.read(text[:-1])


def test_many_calls_in_free_text(compiler):
    typed = TypedSpec.tools(
        weather, Service().find, begin="<tool_call>", end="</tool_call>", many=True
    )
    inner = '{"name":"find","arguments":{"key":"</tool_call> \\" }"}}'
    other = '{"name":"weather","arguments":{"city":"x"}}'
    text = f"I look: <tool_call>{inner}</tool_call> and <tool_call>{other}</tool_call>"
    assert takes(compiler, typed.spec, text)
    assert [(call.name, call.arguments) for call in typed.read(text)] == [
        ("find", {"key": '</tool_call> " }'}),
        ("weather", {"city": "x"}),
    ]
    assert typed.read("nothing to call") == []
    with pytest.raises(OutputError, match="is not JSON"):
        typed.read("<tool_call>{")


def untyped(city): ...
def starred(*cities: str): ...
def unknown(city: "Nowhere"): ...  # noqa: F821


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: TypedSpec(untyped), "'city' has no type"),
        (lambda: TypedSpec(starred), "cannot be passed by name"),
        (lambda: TypedSpec(unknown), "Nowhere"),
        (lambda: TypedSpec(lambda: 1), "not a function with a name"),
        (lambda: TypedSpec.tools(), "no function is given"),
        (
            lambda: TypedSpec.tools(weather, weather),
            "two functions are called 'weather'",
        ),
        (lambda: TypedSpec.tools(Point), "not a function with a name"),
        (lambda: TypedSpec.tools(weather, many=True), "need a text that begins them"),
        (lambda: TypedSpec.tools(weather, begin=3), "must be a string"),
        (lambda: TypedSpec({"json_schema": {}}), "must be a type"),
        (lambda: TypedSpec(Literal[b"a"]), "no form in JSON"),
        (lambda: TypedSpec(enum.Enum("Empty", [])), "enum"),
        (
            lambda: TypedSpec(dataclasses.make_dataclass("Lost", [("a", "Nowhere")])),
            "Nowhere",
        ),
        (lambda: TypedSpec(type("Custom", (), {})), "no JSON Schema of it"),
    ],
)
def test_what_can_be_no_spec_is_refused_by_name(make, what):
    with pytest.raises(SpecError, match=re.escape(what)) as caught:
        make()
    assert caught.value.where
    assert caught.value.hint
