"""What hardly any schema has, references among it.

Where references lead is in test_language_equality.py.
"""

import json

import pytest
from llguidance_specs import takes

from guided_plugin import OutputSpec
from guided_plugin.errors import UnsatisfiableSpecError, UnsupportedSpecError
from guided_plugin.grammar.llguidance.lark import schema_to_lark

INTEGER = {"type": "integer"}
DYNAMIC = '{"$dynamicRef": "#a", "$defs": {"a": {"$dynamicAnchor": "a"}}}'
RECURSIVE = """{"$schema": "https://json-schema.org/draft/2019-09/schema",
    "$recursiveRef": "#"}"""


@pytest.mark.parametrize(
    ("schema", "where", "what"),
    [
        (DYNAMIC, "#/$dynamicRef", "is not supported"),
        (RECURSIVE, "#/$recursiveRef", "is not supported"),
        (
            '{"items": {"unevaluatedProperties": false}}',
            "#/items/unevaluatedProperties",
            "is not supported",
        ),
        ('{"unevaluatedItems": {}}', "#/unevaluatedItems", "is not supported"),
        ('{"contains": {}, "minContains": 2}', "#/minContains", "is not supported"),
        (
            '{"allOf": [{"contains": {}, "maxContains": 2}]}',
            "#/allOf/0/maxContains",
            "is not supported",
        ),
        (
            '{"items": {"not": {"uniqueItems": true}}}',
            "#/items/not/uniqueItems",
            "uniqueItems",
        ),
        ('{"allOf": [{"$ref": "#"}]}', "#", "in place"),
        (r'{"type": "string", "pattern": "a\\b"}', "#/pattern", "word boundary"),
    ],
)
def test_what_hardly_any_schema_has_is_refused_with_its_place(schema, where, what):
    with pytest.raises(UnsupportedSpecError, match=what) as caught:
        schema_to_lark(json.loads(schema), strict=False, whitespace="compact")
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


def test_bounds_next_to_a_reference_that_stands_alone_are_not_blamed():
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "properties": {
            "x": {"$ref": "#/definitions/a", "minimum": 3, "maximum": 1},
            "y": False,
        },
        "required": ["x"],
        "type": "object",
        "definitions": {"a": {"type": "integer"}},
    }
    schema_to_lark(schema, strict=False, whitespace="compact")
    schema["required"] = ["x", "y"]
    with pytest.raises(UnsatisfiableSpecError) as caught:
        schema_to_lark(schema, strict=False, whitespace="compact")
    assert "is above" not in caught.value.what
