"""Schemas as grammars: which are refused, where a comma may come, and how large the
grammars are.

What their grammars take is in test_language_equality.py.
"""

import json
import time
from unittest.mock import patch

import pytest
from compilers import allowed, start, takes, unbounded
from vocabularies import BYTES

from guided_plugin.config import GuidedConfig
from guided_plugin.errors import UnsatisfiableSpecError, UnsupportedSpecError
from guided_plugin.grammar.llguidance.lark import patterns, schema_to_lark
from guided_plugin.spec import OutputSpec

COMPILER = unbounded(BYTES)


def open_spec(schema):
    return OutputSpec.json_schema(schema, strict=False)


UNSUPPORTED = json.loads(r"""[
    [{"contains": {}, "maxItems": 2}, "#/contains", ""],
    [{"contains": {"const": 1}, "minItems": 2}, "#/contains", ""],
    [{"allOf": [{"contains": {"const": 0}}, {"contains": {"const": 1}}]},
        "#/allOf/0/contains", ""],
    [{"prefixItems": [{"const": 2}], "contains": {"const": 1}}, "#/contains", ""],
    [{"properties": {"a": {}}, "minProperties": 2}, "#/minProperties", ""],
    [{"properties": {"a": {}}, "maxProperties": 2}, "#/maxProperties", ""],
    [{"propertyNames": {"pattern": "^[ab]$"}, "minProperties": 2}, "#/minProperties",
        ""],
    [{"type": "object", "minProperties": 5000000}, "#/minProperties", ""],
    [{"required": ["1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12",
        "13", "14", "15", "16", "17", "18", "19", "20", "21", "22", "23", "24", "25",
        "26", "27", "28", "29", "30", "31", "32", "33", "34", "35", "36", "37", "38",
        "39", "40", "41"], "maxProperties": 60}, "#/maxProperties", ""],
    [{"type": "object", "not": {"additionalProperties": {"type": "integer"}}},
        "#/not", ""],
    [{"type": "object", "not": {"propertyNames": {"maxLength": 1}}},
        "#/not/propertyNames", "its opposite"],
    [{"not": {"then": false, "propertyNames": {"maxLength": 1}}},
        "#/not/propertyNames", "its opposite"],
    [{"type": "object", "not": {"patternProperties": {"^x": {"const": 1}}}},
        "#/not/patternProperties", "its opposite"],
    [{"patternProperties": {"a": {"const": "a"}, "b": {"const": "b"},
        "c": {"const": "c"}, "d": {"const": "d"}, "e": {"const": "e"},
        "f": {"const": "f"}, "g": {"const": "g"}}}, "#/patternProperties", ""],
    [{"items": {"not": {"contains": {"type": "integer"}}}}, "#/items/not/contains",
        "its opposite"],
    [{"items": {"not": {"additionalProperties": {"type": "integer"}}}, "properties":
        {"x": {"not": {"additionalProperties": {"type": "integer"}}}}}, "#/items/not",
        ""],
    [{"items": {"not": {"uniqueItems": true}}}, "#/items/not/uniqueItems",
        "its opposite"],
    [{"items": {"not": {"then": false, "if": {"type": "integer"}}}}, "#/items/not/if",
        "its opposite"],
    [{"items": {"not": {"dependencies": {"a": ["b"]}}}}, "#/items/not/dependencies",
        "its opposite"],
    [{"$dynamicRef": "#a", "$defs": {"a": {"$dynamicAnchor": "a"}}}, "#/$dynamicRef",
        "is not supported"],
    [{"$schema": "https://json-schema.org/draft/2019-09/schema",
        "$recursiveRef": "#"}, "#/$recursiveRef", "is not supported"],
    [{"items": {"unevaluatedProperties": false}}, "#/items/unevaluatedProperties",
        "is not supported"],
    [{"unevaluatedItems": {}}, "#/unevaluatedItems", "is not supported"],
    [{"contains": {}, "minContains": 2}, "#/minContains", "is not supported"],
    [{"allOf": [{"contains": {}, "maxContains": 2}]}, "#/allOf/0/maxContains",
        "is not supported"],
    [{"allOf": [{"$ref": "#"}]}, "#", "in place"],
    [{"type": "string", "pattern": "a\\b"}, "#/pattern", "word boundary"],
    [{"type": "number", "multipleOf": 4294967296}, "#/multipleOf", "multipleOf"],
    [{"items": {"not": {"multipleOf": 0.123456789}}}, "#/items/not/multipleOf",
        "multipleOf"],
    [{"multipleOf": 3, "anyOf": [{"type": "null"}, {"multipleOf": 99991}]},
        "#/anyOf/1/multipleOf", "multipleOf"]
]""")


@pytest.mark.parametrize(("schema", "where", "says"), UNSUPPORTED)
def test_what_hardly_any_schema_asks_for_is_refused_with_its_place(schema, where, says):
    backend = COMPILER.backend("llguidance")  # no limit of the compiler comes first
    with pytest.raises(UnsupportedSpecError) as caught:
        backend.compile(open_spec(schema))
    assert caught.value.where == where
    assert says in caught.value.what
    assert caught.value.hint


def test_numbers_beyond_every_double_are_refused():
    with pytest.raises(UnsupportedSpecError, match="too large") as caught:
        COMPILER.compile(open_spec({"items": {"minimum": -(10**400)}}))
    assert caught.value.where == "#/items/minimum"


UNSATISFIABLE = json.loads(r"""[
    {"type": "object", "required": ["a", "b"], "maxProperties": 1},
    {"type": "object", "required": ["a"], "propertyNames": {"maxLength": 0}},
    {"type": "object", "minProperties": 3, "propertyNames": {"enum": ["a", "b"]}},
    {"type": "object", "minProperties": 1, "propertyNames": {"pattern": "^a",
        "not": {"pattern": "a"}}},
    {"type": "object", "minProperties": 1, "patternProperties": {"^[^a]*$": false,
        "a": false}},
    {"type": "object", "required": ["a"], "properties": {"a": {"minItems": 2,
        "maxItems": 1, "type": "array"}}},
    {"type": "object", "properties": {"a": false}, "required": ["a"]},
    {"type": "string", "pattern": "^a$", "minLength": 2.0},
    {"type": "array", "contains": false},
    {"type": "array", "contains": {"const": 1}, "items": {"const": 2}},
    {"type": "array", "prefixItems": [{}, false], "minItems": 2},
    {"type": "string", "pattern": "^a+$", "allOf": [{"pattern": "^b+$"}]},
    {"type": "string", "pattern": "^a$", "maxLength": 0},
    {"type": "string", "pattern": "[]"},
    {"type": "string", "pattern": "x[]+y"},
    {"type": "string", "pattern": "[^\\s\\S]"},
    {"type": "string", "pattern": "\ud800"},
    {"type": "string", "pattern": "(?:a[]|[])b"},
    {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 4},
    {"type": "integer", "minimum": 1, "maximum": 6, "multipleOf": 7},
    {"type": "number", "minimum": 0.1, "maximum": 0.2, "multipleOf": 0.25},
    {"type": "integer", "minimum": 1, "maximum": 3, "not": {"enum": [1, 2, 3]}},
    {"type": "integer", "minimum": 1, "maximum": 3, "multipleOf": 2,
        "not": {"const": 2.0}},
    {"type": "integer", "multipleOf": 6, "not": {"multipleOf": 3}},
    {"type": "number", "multipleOf": 3, "not": {"type": "integer"}},
    {"const": 1e+23, "not": {"const": 100000000000000000000000}},
    {"type": "number", "exclusiveMinimum": 5, "maximum": 5},
    {"type": "string", "minLength": 3, "maxLength": 2},
    {"type": "array", "minItems": 3, "maxItems": 2},
    {"type": "object", "minProperties": 3, "maxProperties": 2},
    {"type": "integer", "minimum": 3, "maximum": 2}
]""")


@pytest.mark.parametrize("schema", UNSATISFIABLE)
def test_what_allows_nothing_is_refused(schema):
    with pytest.raises(UnsatisfiableSpecError):
        COMPILER.compile(open_spec(schema))
    # As a property it can be left out, and must not be begun.
    property_of = {"properties": {"a": schema}, "additionalProperties": False}
    matcher = start(COMPILER, open_spec(property_of))
    assert takes(COMPILER, matcher, "{}")
    assert not matcher.accept_text(b'{"')


UNDECIDED = json.loads(r"""[
    {"type": "string", "unevaluatedProperties": false},
    {"items": {}, "maxContains": 2},
    {"patternProperties": {"1": {}, "2": {}, "3": {}, "4": {}, "5": {}, "6": {},
        "7": {}}, "propertyNames": {"enum": ["a", "1"]}}
]""")


@pytest.mark.parametrize("schema", UNDECIDED)
def test_what_decides_nothing_is_no_trouble(schema):
    assert takes(COMPILER, OutputSpec.json_schema(schema), '"a"')


COMMAS = json.loads(r"""[
    [{"properties": {"a": {"const": 1}, "b": {"const": 1}, "c": {"const": 1}}},
        "{'c':1,'a':1", ",}"],
    [{"properties": {"a": {"const": 1}, "b": {"const": 1}, "c": {"const": 1}}},
        "{'c':1,'a':1,'b':1", "}"],
    [{"properties": {"a": {"const": 1}, "b": {"const": 1}, "c": {"const": 1}},
        "maxProperties": 2}, "{'b':1", ",}"],
    [{"properties": {"a": {"const": 1}, "b": {"const": 1}, "c": {"const": 1}},
        "maxProperties": 2}, "{'b':1,'c':1", "}"],
    [{"properties": {"a": {"const": 1}, "b": {"const": 1}, "c": {"const": 1}},
        "required": ["c"], "maxProperties": 2}, "{'b':1", ","],
    [{"properties": {"a": {"const": 1}, "b": {"const": 1}, "c": {"const": 1}},
        "required": ["c"], "maxProperties": 2}, "{'b':1,'c':1", "}"],
    [{"properties": {"a": {"const": 1}, "b": {"type": "string", "pattern": "^a",
        "format": "ipv4"}}}, "{'a':1", "}"]
]""")


@pytest.mark.parametrize(("schema", "text", "shown"), COMMAS)
def test_a_comma_comes_only_before_a_property_that_is_possible(schema, text, shown):
    closed = {"type": "object", "additionalProperties": False, **schema}
    matcher = start(COMPILER, open_spec(closed))
    assert matcher.accept_text(text.replace("'", '"').encode())
    assert set(allowed(matcher)) & {*b",}"} == {*map(ord, shown)}


def size(schema, strict=False):
    spec = OutputSpec.json_schema(schema, whitespace="compact", strict=strict)
    return len(schema_to_lark(spec.settled(GuidedConfig())).text)


SIZES = json.loads(r"""[
    [{"type": "number", "multipleOf": 86400}, 200000],
    [{"type": "number", "multipleOf": 3.14}, 300000],
    [{"type": "integer", "multipleOf": 5, "minimum": 0}, 4000]
]""")


@pytest.mark.parametrize(("schema", "most"), SIZES)
def test_the_text_of_a_grammar_with_many_remainders_is_bounded(schema, most):
    assert size(schema) < most


def test_long_lists_of_numbers_take_time_in_proportion():
    def seconds(count):
        begin = time.process_time()
        size({"type": "integer", "minimum": 1, "enum": list(range(count))})
        return time.process_time() - begin

    seconds(10)
    assert seconds(8_000) < 40 * max(seconds(800), 0.01)


def test_names_are_compared_with_each_pattern_once():
    with patch.object(patterns, "matches", return_value=False) as compared:
        size({"properties": {"k": {}}, "patternProperties": {"a": {}, "b": {}}})
    assert compared.call_count == 2


KINDS = ['{"const": "%s"}', '{"type": "string", "pattern": "^%s"}']


def branches(count, kinds):
    """Each describes its kind, and properties that others describe in another way; none
    requires a kind."""
    found = []
    for number in range(count):
        others = range(number, number + 4)
        described = {f"f{other}": {"const": number - other} for other in others}
        kind = json.loads(kinds % chr(ord("a") + number))
        found.append({"properties": {"kind": kind, **described}})
    return found


UNIONS = json.loads(r"""{
    "beside": {"type": "object", "required": ["kind"], "oneOf": "BRANCHES"},
    "before": {"oneOf": "BRANCHES", "type": "object", "required": ["kind"]},
    "deep": {"allOf": [{"allOf": [{"allOf": [{"oneOf": "BRANCHES"}]}]},
        {"allOf": [{"type": "object", "required": ["kind"]}]}]},
    "reference": {"$ref": "#/$defs/union", "type": "object", "required": ["kind"],
        "$defs": {"union": {"oneOf": "BRANCHES"}}},
    "anyOf": {"anyOf": [{"allOf": [{"oneOf": "BRANCHES"}, {"type": "object",
        "required": ["kind"]}]}, {"type": "null"}]},
    "property": {"allOf": [{"properties": {"x": {"type": "object",
        "required": ["kind"]}}}, {"properties": {"x": {"oneOf": "BRANCHES"}}}]},
    "items": {"items": {"oneOf": "BRANCHES"}, "allOf": [{"items": {"type": "object",
        "required": ["kind"]}}]},
    "counted": {"type": "object", "required": ["kind"], "minProperties": 1,
        "oneOf": "BRANCHES"}
}""")


def union(place, count, kinds):
    text = json.dumps(UNIONS[place])
    return json.loads(text.replace('"BRANCHES"', json.dumps(branches(count, kinds))))


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("place", UNIONS)
def test_a_grammar_grows_with_the_branches_and_not_with_their_products(
    place, kinds, strict
):
    """What stands next to a union tells its branches apart."""
    small, medium, large = (
        size(union(place, count, kinds), strict) for count in (6, 12, 24)
    )
    assert large < 2.5 * medium < 6.25 * small
    assert medium < 20_000


@pytest.mark.parametrize("kinds", KINDS)
def test_branches_that_nothing_tells_apart_are_refused_with_what_would(kinds):
    with pytest.raises(UnsupportedSpecError, match="too many alternatives") as caught:
        size({"type": "object", "oneOf": branches(12, kinds)})
    assert caught.value.where == "#/oneOf"
    assert "required" in caught.value.hint
