"""Counts of items and properties: exact, and never a position from which nothing leads
to an end."""

import json

import pytest
from llguidance_specs import VOCABULARY, allowed, takes

from guided_plugin import OutputSpec
from guided_plugin.errors import UnsatisfiableSpecError, UnsupportedSpecError

OBJECT = {"type": "object"}
ONE = {"contains": {"const": 1}}
FOUR = {
    "properties": {name: {"const": 1} for name in "abcd"},
    "additionalProperties": False,
}

CASES = [
    ({"contains": {}}, ["[1]", "[1,2]"], ["[]"]),
    (ONE, ["[1]", "[2,1]", "[1,2]", "[3,1,2,1]"], ["[2,2]", "[]"]),
    ({**ONE, "items": {"enum": [1, 2]}}, ["[1,2,1]", "[2,1]"], ["[2,2]", "[1,3]"]),
    ({"type": "array", "not": {"items": {"const": 1}}}, ["[2]", "[1,1,2]"], ["[]", "[1]", "[1,1]"]),
    ({**OBJECT, "minProperties": 2}, ['{"a":1,"b":1}'], ['{"a":1,"a":1}', '{"a":1}']),
    ({"properties": {"a": {}}, "minProperties": 1}, ['{"a":1}', '{"b":1}'], ["{}"]),
    (
        {**OBJECT, "required": ["a"], "minProperties": 3},
        ['{"b":1,"a":1,"c":1}'],
        ['{"a":1,"b":1,"b":1}', '{"a":1,"b":1}'],
    ),
    (
        {**FOUR, "minProperties": 2},
        ['{"b":1,"a":1}', '{"a":1,"b":1,"c":1,"d":1}'],
        ['{"a":1}', "{}", '{"a":1,"a":1}'],
    ),
    ({**FOUR, "maxProperties": 2}, ["{}", '{"d":1}', '{"b":1,"a":1}'], ['{"a":1,"b":1,"c":1}']),
    (
        {**FOUR, "required": ["c"], "minProperties": 2, "maxProperties": 3},
        ['{"c":1,"a":1}', '{"a":1,"b":1,"c":1}'],
        ['{"c":1}', '{"a":1,"b":1}', '{"a":1,"b":1,"c":1,"d":1}'],
    ),
    ({**OBJECT, "required": ["a"], "maxProperties": 1}, ['{"a":1}'], ['{"b":1}', '{"a":1,"b":1}']),
    ({**OBJECT, "required": ["a", "b"], "maxProperties": 3}, ['{"c":1,"b":1,"a":1}'], ['{"c":1,"d":1}']),
    ({**OBJECT, "maxProperties": 0}, ["{}"], ['{"a":1}']),
    (
        {**OBJECT, "properties": {"a": {}}, "additionalProperties": False}
        | {"not": {"properties": {"a": {"type": "string"}}}},
        ['{"a":1}'],
        ['{"a":"x"}', "{}"],
    ),
    (
        {**OBJECT, "patternProperties": {"^x$": {"type": "integer"}}, "additionalProperties": False}
        | {"minProperties": 1},
        ['{"x":1}'],
        ["{}", '{"x":"a"}'],
    ),
    ({"anyOf": [{"type": "number", "minimum": 5, "maximum": 3}, {"type": "null"}]}, ["null"], ["4", "6"]),
    ({"anyOf": [{"type": "string", "minLength": 5, "maxLength": 3}, {"type": "null"}]}, ["null"], ['"abcd"']),
    ({"anyOf": [{"type": "array", "minItems": 3, "maxItems": 1}, {"type": "null"}]}, ["null"], ["[1,1]"]),
    ({**OBJECT, "properties": {"a": {"minItems": 3, "maxItems": 1}}}, ['{"a":1}', "{}"], ['{"a":[1,1]}']),
    ({"not": {"minimum": 5, "maximum": 3}}, ["4", "6"], ['"x"']),
    (  # one of the two properties that it must have never ends
        {
            "properties": {"a": {"type": "null"}, "c": {"$ref": "#/$defs/endless"}},
            "additionalProperties": False,
            "minProperties": 2,
            "$defs": {
                "endless": {
                    "type": "object",
                    "properties": {"n": {"$ref": "#/$defs/endless"}},
                    "required": ["n"],
                }
            },
        },
        ["1"],
        ['{"a":null}', "{}"],
    ),
    (
        {**OBJECT, "properties": {"a": {"type": "string", "pattern": "^a+$", "not": {"pattern": "^a"}}}},
        ["{}", '{"b":1}'],
        ['{"a":"a"}'],
    ),
    ({"prefixItems": [{}, {"type": "string", "pattern": "^a", "not": {"pattern": "a"}}]}, ["[1]"], ["[1,2]"]),
]  # fmt: skip


def walk(backend, grammar, text):
    """Whether a text is taken; every position on the way must allow some token."""
    matcher = backend.start(grammar, VOCABULARY.stop_token_ids)
    for byte in text.encode():
        assert allowed(backend, [matcher])[0], text
        if not matcher.accept_text(bytes([byte])):
            return False
    assert allowed(backend, [matcher])[0], text
    return matcher.complete


@pytest.mark.parametrize(
    ("schema", "good", "bad"), CASES, ids=lambda case: json.dumps(case)[:60]
)
def test_counts_are_exact_and_lead_nowhere_dead(backend, schema, good, bad):
    grammar = backend.compile(OutputSpec.json_schema(schema, strict=False))
    for text in [*good, *bad]:
        assert walk(backend, grammar, text) is (text in good), text


@pytest.mark.parametrize(
    "schema",
    [
        {**OBJECT, "required": ["a", "b"], "maxProperties": 1},
        {**OBJECT, "required": ["a"], "propertyNames": {"maxLength": 0}},
        {**OBJECT, "minProperties": 3, "propertyNames": {"enum": ["a", "b"]}},
        {
            **OBJECT,
            "minProperties": 1,
            "propertyNames": {"pattern": "^a", "not": {"pattern": "a"}},
        },
        {
            **OBJECT,
            "minProperties": 1,
            "patternProperties": {"^[^a]*$": False, "a": False},
        },
        {
            **OBJECT,
            "required": ["a"],
            "properties": {"a": {"type": "string", "pattern": "^a$", "maxLength": 0}},
        },
        {
            **OBJECT,
            "required": ["a"],
            "properties": {"a": {"type": "array", "minItems": 2, "maxItems": 1}},
        },
        {"type": "array", "contains": False},
        {"type": "array", **ONE, "items": {"const": 2}},
        {"type": "array", "prefixItems": [{}, False], "minItems": 2},
        {"type": "string", "pattern": "^a+$", "allOf": [{"pattern": "^b+$"}]},
    ],
    ids=json.dumps,
)
def test_what_allows_nothing_is_refused(backend, schema):
    with pytest.raises(UnsatisfiableSpecError):
        backend.compile(OutputSpec.json_schema(schema, strict=False))


def test_crossed_bounds_are_named_where_nothing_else_is_left(backend):
    schema = {
        **OBJECT,
        "required": ["a"],
        "properties": {"a": {"type": "array", "minItems": 2, "maxItems": 1}},
    }
    with pytest.raises(UnsatisfiableSpecError) as caught:
        backend.compile(OutputSpec.json_schema(schema, strict=False))
    assert caught.value.where == "#/properties/a/minItems"


def test_large_counts(backend):
    spec = OutputSpec.json_schema({**OBJECT, "maxProperties": 1_000_000}, strict=False)
    assert takes(backend, spec, '{"a":1}')


NAMES = {
    "properties": {name: {"const": 1} for name in "abc"},
    "additionalProperties": False,
}
# A property that nothing satisfies, which is found out only when the grammar is
# written.
IMPOSSIBLE = {"type": "string", "pattern": "^a", "format": "ipv4"}
NEVER = {
    "properties": {"a": {"const": 1}, "b": IMPOSSIBLE},
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("schema", "text", "more"),
    [
        ({**OBJECT, **NAMES}, '{"c":1,"a":1', True),
        ({**OBJECT, **NAMES}, '{"c":1,"a":1,"b":1', False),
        ({**OBJECT, **NAMES, "maxProperties": 2}, '{"b":1', True),
        ({**OBJECT, **NAMES, "maxProperties": 2}, '{"b":1,"c":1', False),
        ({**OBJECT, **NAMES, "required": ["c"], "maxProperties": 2}, '{"b":1', True),
        ({**OBJECT, **NAMES, "required": ["c"], "maxProperties": 2}, '{"c":1', True),
        (
            {**OBJECT, **NAMES, "required": ["c"], "maxProperties": 2},
            '{"b":1,"c":1',
            False,
        ),
        ({**OBJECT, "required": ["c"], "maxProperties": 1}, '{"c":1', False),
        ({**OBJECT, **NEVER}, '{"a":1', False),
    ],
)
def test_a_comma_comes_only_before_a_property_that_is_possible(
    backend, schema, text, more
):
    spec = OutputSpec.json_schema(schema, strict=False)
    matcher = backend.start(backend.compile(spec), VOCABULARY.stop_token_ids)
    assert matcher.accept_text(text.encode())
    shown = {VOCABULARY.tokens[token] for token in allowed(backend, [matcher])[0]}
    assert (b"," in shown, b"}" in shown) == (
        more,
        '"c"' in text or "required" not in schema,
    )


NOT_INTEGERS = {"not": {"additionalProperties": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("schema", "where"),
    [
        ({"contains": {}, "maxItems": 2}, "#/contains"),
        ({**ONE, "minItems": 2}, "#/contains"),
        (
            {"allOf": [{"contains": {"const": i}} for i in range(2)]},
            "#/allOf/0/contains",
        ),
        ({"prefixItems": [{"const": 2}], **ONE}, "#/contains"),
        ({"not": {"prefixItems": [{}], "items": {"type": "null"}}}, "#/not"),
        ({"properties": {"a": {}}, "minProperties": 2}, "#/minProperties"),
        ({"properties": {"a": {}}, "maxProperties": 2}, "#/maxProperties"),
        (
            {"propertyNames": {"pattern": "^[ab]$"}, "minProperties": 2},
            "#/minProperties",
        ),
        ({**OBJECT, "minProperties": 5_000_000}, "#/minProperties"),
        (
            {"required": list(map(str, range(41))), "maxProperties": 60},
            "#/maxProperties",
        ),
        ({**OBJECT, **NOT_INTEGERS}, "#/not"),
        ({**OBJECT, "oneOf": [NOT_INTEGERS["not"], {"minProperties": 0}]}, "#/oneOf"),
        ({**OBJECT, "not": {"propertyNames": {"maxLength": 1}}}, "#/not"),
        ({**OBJECT, "not": {"patternProperties": {"^x": {"const": 1}}}}, "#/not"),
        (
            {"patternProperties": {letter: {"const": letter} for letter in "abcdefg"}},
            "#/patternProperties",
        ),
    ],
    ids=lambda case: json.dumps(case)[:60],
)
def test_what_hardly_any_schema_asks_for_is_refused_with_its_place(
    backend, schema, where
):
    with pytest.raises(UnsupportedSpecError) as caught:
        backend.compile(OutputSpec.json_schema(schema, strict=False))
    assert caught.value.where == where
    assert caught.value.hint
