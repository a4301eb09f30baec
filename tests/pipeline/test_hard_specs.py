"""Specs for which an output was once wrong, or a refusal misleading, inline and in a
worker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import guided_plugin as gp
from guided_plugin.errors import GuidedError

END = 256
TURN = 257
THINK = 258
VOCABULARY = gp.Vocabulary.from_tokens(
    [
        *(bytes([byte]) for byte in range(256)),
        b"<|im_end|>",
        b"<|eot|>",
        b"<think>",
        b'","',
        b"},{",
        b"],[",
    ],
    [END, TURN],
    [THINK],
)


@pytest.fixture(scope="module", params=["inline", "process"])
def pipeline(request: pytest.FixtureRequest) -> Iterator[gp.StepPipeline]:
    compiler = gp.GrammarCompiler(VOCABULARY, config=gp.GuidedConfig(threads=1))
    with gp.StepPipeline(compiler, max_slots=1, mode=request.param) as found:
        yield found


def ends(pipeline: gp.StepPipeline, spec: gp.OutputSpec, text: str) -> bool:
    """Whether a text is a whole output."""
    slot = pipeline.add_request("one", spec)
    try:
        for token in (*text.encode(), END):
            pipeline.plan([slot])
            pipeline.fill_mask()
            if not pipeline.apply_mask(torch.zeros(1, VOCABULARY.size))[
                0, token
            ].isfinite():
                return False
            pipeline.schedule_update(torch.tensor([token]))
            pipeline.finish_update()
        return True
    finally:
        pipeline.remove_request("one")


def schema(document: Any, **options: Any) -> gp.OutputSpec:
    return gp.OutputSpec.json_schema(document, strict=False, **options)


def lark(source: str) -> gp.OutputSpec:
    return gp.OutputSpec.grammar(source, "lark")


def inner(document: Any) -> gp.OutputSpec:
    return lark(f'start: "<" x ">"\nx: %json {json.dumps(document)}')


def tag(form: dict[str, Any]) -> gp.OutputSpec:
    return gp.OutputSpec.structural_tag({"format": form})


def closed(*names: str) -> dict[str, Any]:
    properties = {name: {"type": "string"} for name in names}
    return {
        "type": "object",
        "properties": properties,
        "required": list(names),
        "additionalProperties": False,
    }


UNIQUE = {"type": "array", "uniqueItems": True}
ENUM = {**UNIQUE, "items": {"enum": [{"a": 1, "b": 2}, {}]}}
UNION = {
    **UNIQUE,
    "items": {
        "anyOf": [closed("user_id", "user_name"), closed("order_id", "order_total")]
    },
}
USERS = '[{"user_id":"a","user_name":"b"},{"order_id":"a","order_total":"b"},%s]'
USER = '{"user_id":"a","user_name":"%s"}'

INTEGERS = {**UNIQUE, "items": {"type": "integer"}}
NAMED = {"patternProperties": {"^$": INTEGERS}, "additionalProperties": False}
PROPERTIES = {
    f"p{i}": {"anyOf": [{"type": "string"}, {"type": "integer"}]} for i in range(3300)
}
MANY = {"type": "object", "properties": PROPERTIES, "minProperties": 1}

TEXTS: list[tuple[gp.OutputSpec, list[str], list[str]]] = [
    (schema(INTEGERS), ["[1,2]"], ["[1,1]", "[1,2,1]"]),
    (
        schema({"type": "object", "minProperties": 2, "additionalProperties": {}}),
        ['{"a":1,"b":1}'],
        ['{"a":1}'],
    ),
    (inner({"not": {"type": "string"}}), ["<1>"], ['<"a">']),
    (
        inner({"type": "integer", "if": {"minimum": 3}, "then": {"maximum": 4}}),
        ["<2>", "<4>"],
        ["<5>"],
    ),
    (
        inner({"dependentRequired": {"x": ["y"]}, **closed("x", "y"), "required": []}),
        ["<{}>"],
        ['<{"x":"a"}>'],
    ),
    (inner({"oneOf": [{"type": "integer"}, {"type": "number"}]}), ["<1.5>"], ["<1>"]),
    (schema(ENUM), ['[{"a":1,"b":2},{}]', "[{}]"], ["[{},{}]"]),
    (schema(ENUM, whitespace="flexible"), ['[{"a": 1, "b": 2}, {}]'], ["[{}, { }]"]),
    (schema(UNION), [USERS % (USER % "c")], [USERS % (USER % "b")]),
    (
        schema({**UNIQUE, "items": {"anyOf": [{"const": "a"}, {"enum": ["b", "a"]}]}}),
        ['["a","b"]'],
        ['["a","a"]'],
    ),
    (schema(NAMED), ['{"":[1,2]}'], ['{"":[1,1]}']),
    (
        schema({"type": "number", "minimum": 1e10}),
        ["50036000000.5", "10000000000"],
        ["9e9", "9999999999"],
    ),
    (schema({"type": "integer", "minimum": 0}), ["0"], ["-0"]),
    (schema({"enum": ["a\x7f"]}), ['"a\x7f"'], ['"a"']),
    (
        schema({"type": "object", "properties": {"\x7f": {}}, "required": ["\x7f"]}),
        ['{"\x7f":1}'],
        ["{}"],
    ),
    (schema(MANY, whitespace="compact"), ['{"p1":1,"p2":"a"}'], ["{}"]),
    (schema({"type": "string"}), [r'"\u0041\/\ud83d\ude00"'], [r'"\ud83d"', r'"\x"']),
    (
        schema({"type": "array", "items": {"type": "string"}}),
        [r'["\u00e9"]'],
        [r'["\u00e"]'],
    ),
]
STOP = "may be a stop token in the middle of the output"
DRAFT_4 = {
    "$schema": "http://json-schema.org/draft-04/schema#",
    "type": "number",
    "minimum": 1000.0,
    "anyOf": [{"type": ["integer", "string", "number"], "multipleOf": 1}],
    "oneOf": [{}, {"type": "integer", "minimum": 10}],
}
REFUSED: dict[str, tuple[Any, str, str]] = {
    "a switch": (
        lambda: inner({"x-guidance": {"lenient": True}}),
        "grammar, line 2, column 4, #/x-guidance",
        "",
    ),
    "a stop token": (
        lambda: lark('start: "a" <|im_end|> "b"'),
        "grammar, line 1, column 12",
        STOP,
    ),
    "its id": (
        lambda: lark(f'start: "a"\n | <[{TURN}]> "b"'),
        "grammar, line 2, column 4",
        STOP,
    ),
    "in EBNF": (
        lambda: gp.OutputSpec.grammar(f'root ::= "a" Token({END}) "b"'),
        "grammar",
        "Token",
    ),
    "distinct items in a grammar": (
        lambda: inner(INTEGERS),
        "grammar, line 2, column 4",
        "not enforced inside a grammar",
    ),
    "distinct items of any type": (
        lambda: schema({"uniqueItems": True}),
        "#/uniqueItems",
        "any type",
    ),
    "distinct open objects": (
        lambda: schema({**UNIQUE, "items": {"type": "object"}}),
        "#/uniqueItems",
        "names that are not listed",
    ),
    "a surrogate in a class": (
        lambda: gp.OutputSpec.regex("[\ud800a]"),
        "regex",
        "surrogate",
    ),
    "a surrogate as a trigger": (
        lambda: gp.OutputSpec.regex("a", start_after="\ud800"),
        "start_after",
        "",
    ),
    "105,000 triggers": (
        lambda: gp.OutputSpec.regex("a", start_after=[f"t{i}" for i in range(105_000)]),
        "start_after",
        "",
    ),
    "240,000 nodes": (lambda: schema({"examples": [[]] * 240_000}), "#", "JSON values"),
    "draft 4": (lambda: schema(DRAFT_4), "#/oneOf", "can't be enforced"),
}


@pytest.mark.parametrize(
    ("spec", "good", "bad"), TEXTS, ids=[spec.text[:60] for spec, _, _ in TEXTS]
)
def test_takes_what_satisfies_it_and_nothing_else(pipeline, spec, good, bad):
    assert [text for text in [*good, *bad] if ends(pipeline, spec, text)] == good


@pytest.mark.parametrize(("make", "where", "says"), REFUSED.values(), ids=REFUSED)
def test_is_refused_with_its_place_and_reason(pipeline, make, where, says):
    with pytest.raises(GuidedError) as caught:
        pipeline.add_request("one", make())
    assert (caught.value.where[: len(where)], says in caught.value.what) == (
        where,
        True,
    ), str(caught.value)
    assert "nothing" not in str(caught.value)
