"""References: relative to the nearest `$id`, and dynamic ones, which depend on the way to them."""

import json

import pytest
from llguidance_specs import takes

from guided_plugin import OutputSpec
from guided_plugin.errors import UnsatisfiableSpecError
from guided_plugin.grammar.llguidance.lark import schema_to_lark

DRAFT_2019 = "https://json-schema.org/draft/2019-09/schema"
INTEGER, STRING = {"type": "integer"}, {"type": "string"}


def generic_list(**anchor):
    """A list whose items a schema around it chooses."""
    anchored = {"$id": "list", "type": "array", "items": {"$dynamicRef": "#item"}}
    return {**anchored, "$defs": {"any": {"$dynamicAnchor": "item", **anchor}}}


TREE = {
    "$id": "http://x.test/tree",
    "$dynamicAnchor": "node",
    "type": "object",
    "properties": {"data": True, "children": {"type": "array", "items": {"$dynamicRef": "#node"}}},
}

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
            "$defs": {"a": {"$id": "x.json", "$ref": "#/$defs/b", "$defs": {"b": INTEGER}}, "b": STRING},
        },
        ["1"],
        ['"a"'],
    ),
    ({"$id": "urn:x:1", "$ref": "urn:x:1#/$defs/a", "$defs": {"a": INTEGER}}, ["1"], ['"a"']),
    (
        {
            "$ref": "x.json#here",
            "$defs": {"a": {"$id": "x.json", "$defs": {"b": {"$anchor": "here"} | INTEGER}}},
        },
        ["1"],
        ['""'],
    ),
    # A dynamic anchor further out takes the place of one further in.
    (
        {
            "$id": "root",
            "$ref": "list",
            "$defs": {"item": {"$dynamicAnchor": "item"} | STRING, "list": generic_list()},
        },
        ['["a"]', "[]"],
        ["[1]"],
    ),
    # An ordinary anchor doesn't.
    (
        {
            "$id": "root",
            "$ref": "list",
            "$defs": {"item": {"$anchor": "item"} | STRING, "list": generic_list(type="null")},
        },
        ["[null]"],
        ['["a"]'],
    ),
    # Two ways to one list.
    (
        {
            "$id": "root",
            "properties": {"a": {"$ref": "numbers"}, "b": {"$ref": "strings"}},
            "$defs": {
                "numbers": {
                    "$id": "numbers",
                    "$ref": "list",
                    "$defs": {"i": {"$dynamicAnchor": "item"} | INTEGER},
                },
                "strings": {
                    "$id": "strings",
                    "$ref": "list",
                    "$defs": {"i": {"$dynamicAnchor": "item"} | STRING},
                },
                "list": generic_list(),
            },
        },
        ['{"a":[1],"b":["x"]}'],
        ['{"a":["x"]}', '{"b":[1]}'],
    ),
    (
        {
            "$id": "http://x.test/strict",
            "$dynamicAnchor": "node",
            "$ref": "tree",
            "unevaluatedProperties": False,
            "$defs": {"t": TREE},
        },
        ['{"children":[{"data":1}]}'],
        ['{"children":[{"daat":1}]}', '{"daat":1}'],
    ),
    (
        {
            "$schema": DRAFT_2019,
            "$id": "http://x.test/",
            "$recursiveAnchor": True,
            "properties": {"a": {"$recursiveRef": "#"}},
            "additionalProperties": False,
        },
        ['{"a":{}}'],
        ['{"a":{"b":1}}'],
    ),
    (
        {
            "$schema": DRAFT_2019,
            "$id": "http://x.test/root",
            "$recursiveAnchor": True,
            "$ref": "tree",
            "required": ["data"],
            "$defs": {
                "tree": {
                    "$id": "tree",
                    "$recursiveAnchor": True,
                    "properties": {"child": {"$recursiveRef": "#"}},
                }
            },
        },
        ['{"data":1,"child":{"data":2}}'],
        ['{"data":1,"child":{}}'],
    ),
    (
        {
            "$schema": DRAFT_2019,
            "$id": "http://x.test/root",
            "$recursiveAnchor": True,
            "$ref": "tree",
            "required": ["data"],
            "$defs": {"tree": {"$id": "tree", "properties": {"child": {"$recursiveRef": "#"}}}},
        },
        ['{"data":1,"child":{}}'],
        ['{"child":{}}'],
    ),
]


@pytest.mark.parametrize(("schema", "good", "bad"), CASES, ids=lambda case: json.dumps(case)[:60])
def test_references_lead_where_the_standard_says(backend, schema, good, bad):
    spec = OutputSpec.json_schema(schema, strict=False)
    for text in [*good, *bad]:
        assert takes(backend, spec, text) is (text in good), text


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
