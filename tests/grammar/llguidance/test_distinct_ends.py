"""Items that must be distinct where few are left: what walks never get stuck in, and what is refused."""

from __future__ import annotations

import json
from random import Random

import pytest
from distinct_walks import BOOLEAN, UNIQUE, VOCABULARIES, Members, closed, repeats, spec_of, walker, wander

from guided_plugin.errors import UnsatisfiableSpecError, UnsupportedSpecError

ONE = {"const": 1}
CLOSED = closed()


def matching(pattern):
    return {"type": "string", "pattern": pattern}


OBJECTS = [
    {**CLOSED, "patternProperties": {"^[ab]$": ONE}},
    {**CLOSED, "patternProperties": {"^[ab]$": ONE}, "minProperties": 1},
    {**CLOSED, "patternProperties": {"^[ab]$": ONE, "^[bc]$": {"type": "integer"}}},
    {**CLOSED, "patternProperties": {"^a$": BOOLEAN}, "properties": {"b": ONE, "c": ONE}, "minProperties": 2},
    {**closed(a=BOOLEAN, b=ONE), "minProperties": 1},
    {**closed(a=BOOLEAN, b=ONE, c=ONE), "maxProperties": 2},
    {"type": "object", "required": ["a", "b"], "maxProperties": 2, "properties": {"a": ONE, "b": BOOLEAN}},
    {"type": "object", "propertyNames": matching("^[ab]$"), "additionalProperties": ONE},
    {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": ONE}
    | {"minProperties": 1},
    {"anyOf": [closed("a", "b", a=ONE, b=ONE), closed("a", "b", b=ONE, a=ONE)]},
    {"type": "array", "items": {**closed(a=ONE, b=ONE), "minProperties": 1}, "maxItems": 1},
    {"type": "object", "properties": {"a": ONE}, "patternProperties": {"^b$": ONE}}
    | {"unevaluatedProperties": False},
]  # fmt: skip


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("items", OBJECTS)
def test_objects_that_differ_have_one_order(items, vocabulary):
    walk_through(vocabulary, {**UNIQUE, "items": items})


def walk_through(vocabulary, schema):
    ended = 0
    for seed in range(6):
        spec = spec_of(schema, strict=bool(seed % 2))
        text = wander(vocabulary, spec, Random(seed), steps=80)
        if text is not None:
            ended += 1
            assert repeats(json.loads(text, object_pairs_hook=Members), schema) == [], text
    assert ended


@pytest.mark.parametrize(
    ("items", "good", "bad"),
    [
        (OBJECTS[4], ['[{"a":true,"b":1},{"b":1}]', '[{"a":true}]'], ["[{}]", '[{"b":1},{"b":1}]']),
        (OBJECTS[5], ['[{"a":true,"c":1},{"b":1,"c":1},{}]'], ['[{"a":true,"b":1,"c":1}]', "[{},{}]"]),
        (
            {"type": "object", "required": ["b"], "maxProperties": 2, "properties": {"a": ONE, "b": ONE}},
            ['[{"b":1},{"a":1,"b":1},{"b":1,"x":0},{"b":1,"x":1}]'],
            ['[{"a":1}]', '[{"a":1,"b":1,"x":1}]', '[{"b":1,"x":1,"y":1}]'],
        ),
    ],
)
def test_counted_objects_that_differ(items, good, bad):
    compiler, walks = walker("bytes")
    grammar = compiler.compile(spec_of({**UNIQUE, "items": items}))
    for text in [*good, *bad]:
        walk = walks.walk(grammar, text)
        assert (walk.accepted, walk.early, walk.leaks) == (text in good, [], []), text


@pytest.mark.parametrize(
    "items", [{"type": "object", "maxProperties": 2}, {"type": "array", "items": {"maxProperties": 3}}]
)
def test_bounded_objects_with_any_names_are_refused_as_items_that_differ(items):
    compiler, _ = walker("bytes")
    with pytest.raises(UnsupportedSpecError) as caught:
        compiler.compile(spec_of({**UNIQUE, "items": items}))
    assert caught.value.where.endswith("maxProperties")
    compiler.compile(spec_of({"type": "array", "items": items}))


@pytest.mark.parametrize(
    ("items", "count"),
    [
        (matching("^[ab]$"), 2),
        (matching("^[a-c]?$"), 4),
        ({"type": "string", "maxLength": 1, "pattern": "^(a|b|cc)*$"}, 3),
        ({"anyOf": [matching("^[ab]$"), matching("^[bc]$")]}, 3),
        ({"anyOf": [{"type": "integer", "minimum": 0, "maximum": 3}, {"enum": [2, 3, 4]}]}, 5),
        ({**UNIQUE, "items": BOOLEAN}, 5),
        ({"type": "array", "prefixItems": [BOOLEAN], "items": False}, 3),
        ({**closed(a=BOOLEAN, b=ONE), "minProperties": 1}, 5),
        ({**CLOSED, "patternProperties": {"^[ab]$": ONE}}, 4),
        ({"type": "object", "properties": {"a": BOOLEAN}, "required": ["a"], "maxProperties": 1}, 2),
        ({"type": "array", "items": matching("^[ab]$"), "minItems": 1, "maxItems": 1}, 2),
    ],
)
def test_more_items_than_values_are_refused_at_admission(items, count):
    compiler, _ = walker("bytes")
    schema = {**UNIQUE, "items": items, "minItems": count}
    walk_through("bytes", schema)
    with pytest.raises(UnsatisfiableSpecError):
        compiler.compile(spec_of({**schema, "minItems": count + 1}))


def test_values_that_contains_counts_and_others_are_too_few():
    compiler, _ = walker("bytes")
    items = {"anyOf": [matching("^[ab]$"), BOOLEAN]}
    schema = {**UNIQUE, "items": items, "contains": {"type": "string"}, "maxContains": 1}
    walk_through("bytes", {**schema, "minItems": 3})
    with pytest.raises(UnsatisfiableSpecError):
        compiler.compile(spec_of({**schema, "minItems": 4}))


COMPETING = [
    {"prefixItems": [matching("^[ab]$"), matching("^a$")], "minItems": 2},
    {"prefixItems": [{"enum": ["a", "b", "c"]}, {"enum": ["a"]}], "minItems": 2},
    {"prefixItems": [{"type": "string"}, matching("^a$"), matching("^b$")], "minItems": 3},
    {"prefixItems": [{"type": "string"}], "items": matching("^[ab]$"), "minItems": 3},
    {
        "prefixItems": [{"enum": ["a", "b"]}, {"enum": ["a"]}],
        "contains": {"type": "string"},
        "minContains": 2,
    },
    {"prefixItems": [{}, BOOLEAN, BOOLEAN], "minItems": 3},
]


@pytest.mark.parametrize("schema", COMPETING)
def test_items_that_may_take_the_values_of_later_ones_are_refused(schema):
    compiler, _ = walker("bytes")
    with pytest.raises(UnsupportedSpecError, match="uniqueItems") as caught:
        compiler.compile(spec_of({**UNIQUE, **schema}))
    assert caught.value.where == "#/uniqueItems"


@pytest.mark.parametrize(
    "schema",
    [
        {"prefixItems": [matching("^[ab]$"), matching("^a$")], "items": {"type": "integer"}},
        {"prefixItems": [{"type": "string"}], "items": matching("^[ab]$"), "minItems": 2},
        {"prefixItems": [BOOLEAN, {"type": "integer"}, BOOLEAN], "minItems": 3},
        {"prefixItems": [{"type": "string"}, BOOLEAN], "items": {"type": "integer"}, "minItems": 4},
    ],
)
def test_items_that_leave_values_for_later_ones(schema):
    walk_through("bytes", {**UNIQUE, **schema})


def either(*schemas):
    return {"anyOf": [*schemas]}


KINDS = [
    {"items": either(matching("^a$"), {"type": "integer"})},
    {"items": either(matching("^ab?$"), BOOLEAN, {"type": "integer"})},
    {"items": either(matching("^a{0,2}$"), {"type": "array", "maxItems": 1, "items": BOOLEAN})},
    {"items": either({"type": "object", "maxProperties": 0}, {"type": "integer"}, matching("^$"))},
    {"items": either({"type": "array", "maxItems": 1, "items": matching("^a$")}, {"type": "integer"})},
    {"items": either(closed(a=ONE), closed("b", b=matching("^a$")), {"type": "integer"})},
    {"prefixItems": [{"type": "integer"}], "items": either(matching("^a$"), {"const": -1})},
    {"prefixItems": [{"type": "string"}], "items": matching("^[ab]$")},
    {"items": either(matching("^[ab]$"), {"type": "integer"}), "contains": {"type": "string"}, "maxItems": 3}
    | {"minContains": 2},
]


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("schema", KINDS)
def test_no_token_opens_a_kind_of_value_that_is_used_up(schema, vocabulary):
    walk_through(vocabulary, {**UNIQUE, **schema})
