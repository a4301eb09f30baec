"""References, which are relative to the nearest `$id`."""

import json

import pytest
from llguidance_specs import takes

from guided_plugin import OutputSpec
from guided_plugin.errors import UnsatisfiableSpecError, UnsupportedSpecError
from guided_plugin.grammar.llguidance.lark import schema_to_lark

INTEGER = {"type": "integer"}
STRING = {"type": "string"}


CASES = [
    (
        {
            "$id": "http://x.test/root",
            "$ref": "b/c",
            "$defs": {"d": {"$id": "b/", "$defs": {"e": {"$id": "c"} | INTEGER}}},
        },
        ["1"],
        ['"a"'],
    ),
    (
        {
            "$id": "http://x.test/root",
            "properties": {"p": {"$ref": "a.json"}},
            "$defs": {"a": {"$id": "a.json"} | INTEGER},
        },
        ['{"p":1}'],
        ['{"p":"a"}'],
    ),
    (
        {
            "$ref": "#/$defs/a",
            "$defs": {
                "a": {"$id": "x.json", "$ref": "#/$defs/b", "$defs": {"b": INTEGER}},
                "b": STRING,
            },
        },
        ["1"],
        ['"a"'],
    ),
    (
        {"$id": "urn:x:1", "$ref": "urn:x:1#/$defs/a", "$defs": {"a": INTEGER}},
        ["1"],
        ['"a"'],
    ),
    (
        {
            "$ref": "x.json#here",
            "$defs": {
                "a": {"$id": "x.json", "$defs": {"b": {"$anchor": "here"} | INTEGER}}
            },
        },
        ["1"],
        ['""'],
    ),
    # A dynamic anchor is an ordinary one to `$ref`.
    (
        {"$ref": "#here", "$defs": {"a": {"$dynamicAnchor": "here"} | INTEGER}},
        ["1"],
        ['""'],
    ),
]


@pytest.mark.parametrize(
    ("schema", "good", "bad"), CASES, ids=lambda case: json.dumps(case)[:60]
)
def test_references_lead_where_the_standard_says(backend, schema, good, bad):
    spec = OutputSpec.json_schema(schema, strict=False)
    for text in [*good, *bad]:
        assert takes(backend, spec, text) is (text in good), text


@pytest.mark.parametrize(
    ("schema", "where"),
    [
        (
            {"$dynamicRef": "#a", "$defs": {"a": {"$dynamicAnchor": "a"}}},
            "#/$dynamicRef",
        ),
        ({"items": {"unevaluatedProperties": False}}, "#/items/unevaluatedProperties"),
        ({"unevaluatedItems": {"type": "string"}}, "#/unevaluatedItems"),
        ({"contains": {}, "minContains": 2}, "#/minContains"),
        ({"allOf": [{"contains": {}, "maxContains": 2}]}, "#/allOf/0/maxContains"),
        (
            {
                "$schema": "https://json-schema.org/draft/2019-09/schema",
                "$recursiveRef": "#",
            },
            "#/$recursiveRef",
        ),
    ],
)
def test_what_hardly_any_schema_has_is_refused_with_its_place(schema, where):
    with pytest.raises(UnsupportedSpecError, match="is not supported") as caught:
        schema_to_lark(schema, strict=False, whitespace="compact")
    assert caught.value.where == where
    assert caught.value.hint


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("patternProperties", {"^a": INTEGER}),
        ("propertyNames", {"maxLength": 1}),
        ("contains", INTEGER),
        ("uniqueItems", True),
        ("if", INTEGER),
        ("dependencies", {"a": ["b"]}),
    ],
)
def test_opposites_that_hardly_any_schema_needs_are_refused(keyword, value):
    opposite = {"items": {"not": {"then": False, keyword: value}}}
    with pytest.raises(UnsupportedSpecError, match="its opposite") as caught:
        schema_to_lark(opposite, strict=False, whitespace="compact")
    assert caught.value.where == f"#/items/not/{keyword}"
    assert caught.value.hint


def test_where_they_decide_nothing_they_are_no_trouble(backend):
    for schema in (
        {"type": "string", "unevaluatedProperties": False},
        {"items": {}, "maxContains": 2},
    ):
        assert takes(backend, OutputSpec.json_schema(schema, strict=False), '"a"')


def test_bounds_next_to_a_reference_that_stands_alone_are_not_blamed() -> None:
    crossed = {"$ref": "#/definitions/a", "minimum": 3, "maximum": 1}
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"x": crossed},
        "required": ["x", "y"],
        "definitions": {"a": {"type": "integer"}, "never": False},
    }
    schema_to_lark(schema, strict=False, whitespace="compact")
    impossible = {**schema, "properties": {"x": crossed, "y": False}}
    with pytest.raises(UnsatisfiableSpecError) as caught:
        schema_to_lark(impossible, strict=False, whitespace="compact")
    assert "is above" not in caught.value.what
