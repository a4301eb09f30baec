"""The lowering's language is the schema's: every text it takes is valid, and the valid ones are taken."""

import itertools
import json

import jsonschema
import pytest

from guided_plugin import GuidedConfig, OutputSpec, Vocabulary
from guided_plugin.errors import UnsatisfiableSpecError, UnsupportedSpecError
from guided_plugin.grammar.base import Prepared
from guided_plugin.grammar.llguidance.backend import LLGuidanceBackend
from guided_plugin.grammar.llguidance.lark import schema_to_lark

VOCABULARY = Vocabulary.from_tokens([*(bytes([byte]) for byte in range(256)), b"</s>"], [256])

SCALARS = [None, True, False, 0, 1, -1, 2, 3, 7, 10, 12, 100, 1000, 0.5, 1.5, -2.25, 0.3, 99.99, 1.0]
STRINGS = ["", "a", "b", "ab", "abc", "A1", "x-1", "12", "2020-02-29", "2021-02-29", 'q"\\\n', "é"]
ARRAYS = [
    [],
    [1],
    [1, 1],
    [1, 2],
    ["a"],
    ["a", "b"],
    ["a", 1],
    [1, "a"],
    [1, "a", None],
    ["a", "a", 1],
    [[1]],
]
NAMES = ["a", "b", "c", "x-1", "zz"]
OBJECTS = [
    dict(zip(names, values, strict=True))
    for count in range(4)
    for names in itertools.permutations(NAMES, count)
    for values in ([1, "a", None][:count], ["b", 2, 2][:count])
]
POOL = [*SCALARS, *STRINGS, *ARRAYS, *OBJECTS, {"a": {"a": 1}}, {"a": {"a": {}}}, {"a": [{"b": 1}]}]

OBJECT = {"type": "object"}
SCHEMAS = [
    {},
    {"type": ["integer", "string", "null"]},
    {"not": {"type": ["string", "number"]}},
    {"type": "integer", "minimum": -1, "maximum": 10},
    {"type": "number", "exclusiveMinimum": -2.25, "exclusiveMaximum": 99.99},
    {"type": "number", "minimum": 0.3, "maximum": 1.5},
    {"type": "number", "maximum": -1},
    {"type": "number", "not": {"minimum": 2, "maximum": 100}},
    {"type": "number", "multipleOf": 0.5},
    {"type": "number", "multipleOf": 10},
    {"type": "integer", "multipleOf": 3, "minimum": 1},
    {"type": "number", "not": {"type": "integer"}},
    {"type": "number", "not": {"enum": [0, 1, 1.5]}},
    {"type": "number", "not": {"multipleOf": 10}},
    {"enum": [1, "a", None, True, [1, "a"], {"a": 1}]},
    {"not": {"enum": [1, "a", None, True, [1], {"a": 1}]}},
    {"const": {"a": [{"b": 1}]}},
    {"type": "string", "minLength": 1, "maxLength": 2},
    {"type": "string", "not": {"minLength": 2}},
    {"type": "string", "pattern": "[0-9]"},
    {"type": "string", "pattern": "^(a|x-)"},
    {"type": "string", "pattern": "^(?!ab)[a-z]*$"},
    {"type": "string", "not": {"pattern": "^a"}},
    {"type": "string", "pattern": "\\W", "minLength": 2},
    {"type": "string", "format": "date"},
    {"type": "string", "not": {"enum": ["a", "ab"]}},
    {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2},
    {"prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False, "type": "array"},
    {"prefixItems": [{"type": "integer"}], "items": {"type": "string"}, "minItems": 2, "type": "array"},
    {"type": "array", "contains": {"type": "string"}},
    {"type": "array", "contains": {"const": 1}, "minContains": 2},
    {"type": "array", "contains": {"type": "integer"}, "maxContains": 1, "maxItems": 2},
    {"type": "array", "not": {"items": {"type": "integer"}}},
    {"type": "array", "not": {"contains": {"type": "integer"}}},
    {"type": "array", "items": {"enum": [1, 2, "a"]}, "uniqueItems": True, "minItems": 1},
    {"type": "array", "prefixItems": [{"type": "integer"}], "unevaluatedItems": {"type": "string"}},
    {**OBJECT, "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"]},
    {**OBJECT, "properties": {"a": {}, "b": {}}, "additionalProperties": False},
    {**OBJECT, "additionalProperties": {"type": "integer"}},
    {**OBJECT, "patternProperties": {"^x": {"type": "integer"}, "z$": {"type": "string"}}},
    {**OBJECT, "patternProperties": {"[a-b]": {"type": "integer"}}, "additionalProperties": False},
    {**OBJECT, "propertyNames": {"maxLength": 1}},
    {**OBJECT, "propertyNames": {"enum": ["a", "zz"]}},
    {**OBJECT, "not": {"propertyNames": {"maxLength": 1}}},
    {**OBJECT, "minProperties": 1, "maxProperties": 2},
    {**OBJECT, "properties": {"a": {}, "b": {}}, "additionalProperties": False, "minProperties": 1},
    {**OBJECT, "dependentRequired": {"a": ["b"]}},
    {**OBJECT, "dependentSchemas": {"a": {"required": ["c"], "properties": {"c": {"type": "null"}}}}},
    {**OBJECT, "not": {"required": ["a", "b"]}},
    {**OBJECT, "not": {"properties": {"a": {"type": "integer"}}}},
    {**OBJECT, "not": {"additionalProperties": {"type": "integer"}}},
    {**OBJECT, "not": {"patternProperties": {"^x": {"type": "integer"}}}},
    {**OBJECT, "if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"required": ["c"]}},
    {**OBJECT, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
    {**OBJECT, "not": {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}},
    {"oneOf": [{"type": "integer"}, {"minimum": 2}]},
    {"anyOf": [{"type": "string", "maxLength": 1}, {"type": "array", "maxItems": 1}]},
    {"allOf": [{"properties": {"a": {"type": "integer"}}}, {"required": ["a"]}], "type": "object"},
    {**OBJECT, "allOf": [{"properties": {"a": {}}}], "properties": {"b": {}}, "unevaluatedProperties": False},
    {"$ref": "#/$defs/t", "maxProperties": 1, "$defs": {"t": {"type": "object"}}},
    {**OBJECT, "properties": {"a": {"$ref": "#"}}, "additionalProperties": False},
    {"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/t", "minimum": 5,
     "definitions": {"t": {"type": "number"}}},
    {"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer", "minimum": 1,
     "exclusiveMinimum": True},
    {"$schema": "http://json-schema.org/draft-07/schema#", "type": "array",
     "items": [{"type": "integer"}], "additionalItems": {"type": "string"}},
    {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
     "dependencies": {"a": ["b"], "b": {"required": ["c"]}}},
    {"$id": "http://example.com/root.json", "$ref": "part.json#thing",
     "$defs": {"p": {"$id": "part.json", "$defs": {"q": {"$anchor": "thing", "type": "boolean"}}}}},
]  # fmt: skip


@pytest.fixture(scope="module")
def backend():
    return LLGuidanceBackend(VOCABULARY, GuidedConfig(threads=1))


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
def test_it_takes_what_is_valid_and_nothing_else(backend, schema):
    spec = OutputSpec.json_schema(schema, strict=False, whitespace="flexible")
    source = schema_to_lark(schema, strict=False, flexible=True, impossible_token=VOCABULARY.size)
    grammar = backend.load(Prepared(spec, "llguidance", source))
    validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    judge = validator(schema, format_checker=validator.FORMAT_CHECKER)
    verdicts = set()
    for instance in POOL:
        valid = judge.is_valid(instance)
        verdicts.add(valid)
        for text in (json.dumps(instance, ensure_ascii=False), json.dumps(instance, separators=(",", ":"))):
            if "\\u" in text:
                continue  # Characters are written as themselves.
            matcher = backend.start(grammar, (256,))
            taken = matcher.accept_text(text.encode()) and matcher.complete
            assert taken is valid, text
    # Neither a schema that takes everything nor one that takes nothing tells anything, but for {}.
    assert verdicts == {True, False} or schema == {} or "$id" in schema


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (
            {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {"type": "integer"}}}]},
            ['{"a":1,"b":2}', '{"b":2}', "{}", "[]"],
            ['{"b":2,"a":1}', '{"c":1}', '{"a":1,}', '{"b":1.0}'],
        ),
        (
            {
                "type": "object",
                "properties": {"a": {}, "b": {}, "c": {}},
                "required": ["b"],
                "not": {"type": "null"},
            },
            ['{"b":1}', '{"a":1,"b":1}', '{"a":1,"b":1,"c":1}', '{"b":1,"c":1}'],
            ['{"a":1}', '{"b":1,"a":1}', '{"b":1,"d":1}', "{}"],
        ),
    ],
)
def test_strict_closes_and_orders(backend, schema, good, bad):
    spec = OutputSpec.json_schema(schema)
    grammar = backend.load(Prepared(spec, "llguidance", schema_to_lark(schema, strict=True, flexible=False)))
    for text in [*good, *bad]:
        matcher = backend.start(grammar, (256,))
        assert (matcher.accept_text(text.encode()) and matcher.complete) is (text in good), text


@pytest.mark.parametrize(
    ("schema", "error", "says"),
    [
        ({"items": {"not": {"uniqueItems": True}}}, UnsupportedSpecError, "#/items/not/uniqueItems"),
        ({"$ref": "http://example.com/x"}, UnsupportedSpecError, "never fetched"),
        ({"$ref": "#/nothing"}, UnsupportedSpecError, "points at nothing"),
        ({"allOf": [{"$ref": "#"}]}, UnsupportedSpecError, "in place"),
        ({"type": "string", "pattern": "a\\b"}, UnsupportedSpecError, "word boundary"),
        ({"type": "string", "pattern": "(a)\\1"}, UnsupportedSpecError, "backreference"),
        ({"type": "number", "multipleOf": 99991}, UnsupportedSpecError, "#/multipleOf"),
        ({"type": "string", "enum": [1]}, UnsatisfiableSpecError, "no output"),
        (
            {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
            UnsatisfiableSpecError,
            "no output",
        ),
    ],
)  # fmt: skip
def test_what_it_refuses(schema, error, says):
    with pytest.raises(error, match=says):
        schema_to_lark(schema, strict=False, flexible=True)
