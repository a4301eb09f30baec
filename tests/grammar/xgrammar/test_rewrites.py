"""Rewrites of schemas keep their language: instances near both sides get one verdict from an oracle."""

from __future__ import annotations

import copy
import itertools
import json

import pytest
from equality import near
from equality_oracle import oracle
from equality_schemas import FAMILIES

from guided_plugin import Plugins
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.grammar.xgrammar.rewrites import REWRITES, rewritten
from guided_plugin.grammar.xgrammar.rewrites.annotations import drop_annotations
from guided_plugin.grammar.xgrammar.rewrites.conjunctions import merge_conjunctions
from guided_plugin.grammar.xgrammar.rewrites.one_of import open_exclusive
from guided_plugin.grammar.xgrammar.rewrites.values import fold_values
from guided_plugin.grammar.xgrammar.schema import prepared_schema
from guided_plugin.grammar.xgrammar.tags import tag_text
from guided_plugin.spec import OutputSpec

NAMES = {rewrite.__name__: rewrite for rewrite in REWRITES}
DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
CASES = [(family, name) for family, cases in FAMILIES.items() for name in cases]


def apply(schema, rewrites, *, strict=False):
    before = copy.deepcopy(schema)
    new = rewritten(schema, rewrites, strict=strict)
    assert schema == before, "rewrites work on a copy"
    return new


@pytest.mark.parametrize(("family", "name"), CASES)
def test_the_language_stays_the_same(family, name):
    case = FAMILIES[family][name]
    before = oracle(case.schema)
    for count in range(1, len(REWRITES) + 1):
        for rewrites in (REWRITES[:count], [REWRITES[count - 1]]):
            new = apply(case.schema, rewrites)
            after = oracle(new)
            values = itertools.chain(near(case.schema, case.seeds, count=60), near(new, case.seeds, count=30))
            different = [value for value in values if before(value) != after(value)]
            assert different == [], (new, [rewrite.__name__ for rewrite in rewrites])


TOGETHER = [
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    {"properties": {"b": {"minLength": 1}}, "required": ["b"]},
    {"properties": {"a": {"minimum": 3}}, "additionalProperties": {"type": "string"}},
    {"additionalProperties": False, "properties": {"a": {}, "b": {"maxLength": 2}}},
    {"minProperties": 1, "maxProperties": 2},
    {"type": ["object", "integer"], "maximum": 5},
    {"type": "number", "minimum": 1, "multipleOf": 2},
    {"multipleOf": 3, "exclusiveMaximum": 20},
    {"enum": [1, 6, "ab", {"a": 3}, None]},
    {"const": 6},
    {"type": "array", "items": {"type": "integer"}, "minItems": 1},
    {"items": {"maximum": 4}, "maxItems": 2},
    {"type": "string", "minLength": 1, "maxLength": 3},
    {"anyOf": [{"type": "string"}, {"type": "object", "properties": {"b": {"const": "x"}}}]},
    {"anyOf": [{"minimum": 2}, {"required": ["b"]}], "title": "t"},
    {"oneOf": [{"type": "integer"}, {"type": "string"}]},
    {"not": {"const": 3}},
    {"$ref": "#/$defs/part"},
    True,
    False,
]
DEFINED = {"part": {"type": "object", "properties": {"b": {"type": "string"}}, "required": ["b"]}}
SEEDS = (
    1,
    6,
    12,
    "ab",
    "",
    None,
    {"a": 3},
    {"a": 3, "b": "x"},
    {"b": "xy"},
    [1],
    [1, 5, 2],
    {"a": 1, "c": "z"},
)


@pytest.mark.parametrize("left", range(len(TOGETHER)))
def test_every_two_schemas_together(left):
    for right in range(len(TOGETHER)):
        schema = {"allOf": [TOGETHER[left], TOGETHER[right]], "$defs": DEFINED}
        before = oracle(schema)
        new = apply(schema, [open_exclusive, merge_conjunctions])
        after, folded = oracle(new), oracle(apply(new, [fold_values]))
        values = itertools.chain(SEEDS, near(schema, SEEDS, count=25), near(new, SEEDS, count=15))
        different = [value for value in values if not before(value) == after(value) == folded(value)]
        assert different == [], (schema, new)


@pytest.mark.parametrize(
    ("rewrite", "schema", "expected"),
    [
        (
            "drop_annotations",
            {"type": "string", "title": "t", "minimum": 3, "minLength": 0, "then": {}, "uniqueItems": False},
            {"type": "string"},
        ),
        (
            "drop_annotations",
            {"$schema": DRAFT_7, "definitions": {"a": {}}, "not": {"$ref": "#/definitions/a", "minimum": 2}},
            {"$schema": DRAFT_7, "definitions": {"a": {}}, "not": {"$ref": "#/definitions/a"}},
        ),
        ("drop_annotations", {"$schema": DRAFT_4, "const": 1, "if": {}, "then": {}}, {"$schema": DRAFT_4}),
        (
            "open_exclusive",
            {"oneOf": [{"type": "string"}, {"type": "null"}]},
            {"anyOf": [{"type": "string"}, {"type": "null"}]},
        ),
        ("open_exclusive", {"oneOf": [{"minimum": 1}, {"maximum": 3}]}, None),
        ("fold_values", {"type": "integer", "enum": [1, 2.5, "x", 3.0, 1.0]}, {"enum": [1.0, 3.0]}),
        ("fold_values", {"const": "abc", "maxLength": 2}, False),
        ("fold_values", {"enum": ["a", "bcd"], "pattern": "a"}, {"enum": ["a", "bcd"], "pattern": "a"}),
        (
            "lengths_to_pattern",
            {"type": "string", "minLength": 2, "maxLength": 5},
            {"type": "string", "pattern": r"^[\s\S]{2,5}$"},
        ),
        (
            "lengths_to_pattern",
            {"type": "string", "minLength": 1},
            {"type": "string", "pattern": r"^[\s\S]{1,}$"},
        ),
        ("lengths_to_pattern", {"type": "string", "maxLength": 129}, None),
        ("lengths_to_pattern", {"maxLength": 2}, None),
        ("lengths_to_pattern", {"type": "string", "maxLength": 2, "pattern": "a"}, None),
        (
            "merge_conjunctions",
            {"allOf": [{"type": "number", "minimum": 1}, {"type": ["integer", "null"], "minimum": 3}]},
            {"type": "integer", "minimum": 3},
        ),
        (
            "merge_conjunctions",
            {"properties": {"a": {}}, "anyOf": [{"required": ["a"]}, {"maxProperties": 0}]},
            {
                "anyOf": [
                    {"required": ["a"], "properties": {"a": {}}},
                    {"maxProperties": 0, "properties": {"a": {}}},
                ]
            },
        ),
        ("merge_conjunctions", {"allOf": [{"type": "string"}, {"type": "null"}]}, False),
        # Python holds 1 and true equal, JSON Schema does not.
        ("merge_conjunctions", {"allOf": [{"const": 1}, {"const": True}]}, False),
        ("merge_conjunctions", {"allOf": [{"enum": [0, 2]}, {"enum": [False, 2]}]}, {"enum": [2]}),
        # Two patterns have no common form, and unevaluated keywords look at the parts.
        ("merge_conjunctions", {"allOf": [{"pattern": "a"}, {"pattern": "b"}]}, None),
        ("merge_conjunctions", {"allOf": [{"minimum": 1}], "unevaluatedProperties": False}, None),
        (
            "merge_conjunctions",
            {"allOf": [{"if": {"minimum": 1}, "then": False}, {"if": True, "else": False}]},
            None,
        ),
    ],
)
def test_what_becomes_of_it(rewrite, schema, expected):
    new = apply(schema, [NAMES[rewrite]])
    assert new == (schema if expected is None else expected)


def test_what_is_referred_to_stays_where_it_is():
    inner = {"title": "t", "type": "integer"}
    schema = {
        "allOf": [{"properties": {"a": inner}}, {"properties": {"b": {"$ref": "#/allOf/0/properties/a"}}}]
    }
    assert apply(schema, [merge_conjunctions]) == schema
    kept = {"properties": {"a": {"$ref": "#/examples/x"}}, "examples": {"x": {"type": "null"}}}
    assert apply(kept, [drop_annotations]) == kept


def test_schemas_with_names_of_their_own_stay_as_they_are():
    schema = {"$defs": {"a": {"$id": "http://x.test/a", "allOf": [{"type": "integer"}, {"minimum": 1}]}}}
    assert apply(schema, REWRITES) == schema


def test_alternatives_that_multiply_have_an_end():
    parts = [{"anyOf": [{"required": [f"{name}{i}"]} for name in "abc"]} for i in range(12)]
    schema = {"allOf": parts}
    assert apply(schema, [merge_conjunctions]) == schema


def test_a_definition_that_holds_itself_has_an_end():
    schema = {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, {"minimum": 1}]}}, "$ref": "#/$defs/a"}
    assert apply(schema, [merge_conjunctions])["$defs"] == schema["$defs"]


def test_closed_objects_are_closed_together():
    schema = {
        "type": "object",
        "properties": {"a": {"type": "null"}, "b": {"type": "null"}},
        "anyOf": [{"required": ["a"]}, {"required": ["z"]}],
    }
    new = apply(schema, [merge_conjunctions], strict=True)
    assert new["required"] == ["a"]
    assert "anyOf" not in new


@pytest.mark.parametrize(
    ("schema", "accepted", "refused"),
    [
        (
            {"type": "string", "minLength": 2, "maxLength": 3},
            ['"ab"', '"é😀x"'],
            ['"a"', '"abcd"', '"a\x01"'],
        ),
        (
            {
                "allOf": [
                    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                    {"properties": {"a": {"minimum": 3}, "b": {"type": "null"}}, "required": ["b"]},
                ]
            },
            ['{"a":3,"b":null}'],
            ['{"a":3}', '{"a":2,"b":null}'],
        ),
        (
            {"$defs": {"a": {"type": "integer", "description": "d"}}, "$ref": "#/$defs/a", "minimum": 5},
            ["5", "17"],
            ["4", '"x"'],
        ),
        (
            {"type": "object", "properties": {"a": {"enum": ["x", 1], "type": "string"}}, "required": ["a"]},
            ['{"a":"x"}'],
            ['{"a":1}'],
        ),
        (
            {"type": "string", "format": "date"},
            ['"2024-02-29"', '"1999-12-31"'],
            ['"2024-02-30"', '"2023-02-29"', '"2024-2-3"'],
        ),
        ({"type": "string", "format": "ipv4"}, ['"1.2.3.4"'], ['"01.2.3.4"', '"1.2.3.256"']),
        ({"type": "string", "pattern": "^a[^]b$"}, ['"axb"'], ['"a"b"', '"a\x01b"', '"ab"']),
    ],
)
def test_xgrammar_takes_what_they_make_of_it(byte_vocabulary, schema, accepted, refused):
    compiler = GrammarCompiler(byte_vocabulary, plugins=Plugins(entry_points=False))
    grammar = compiler.compile(OutputSpec.json_schema(schema, backend="xgrammar"))
    start = compiler.backend("xgrammar").start(grammar, byte_vocabulary.stop_token_ids)

    def takes(text):
        matcher = start.fork()
        return matcher.accept_text(text.encode()) and matcher.complete

    assert [takes(text) for text in accepted] == [True] * len(accepted)
    assert [takes(text) for text in refused] == [False] * len(refused)


SHARED = {"type": "string", "const": 5, "items": {"const": 1, "type": "integer"}}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "title": "t", "minLength": 2, "maxLength": 3},
        {"allOf": [{"type": "integer"}, {"minimum": 1}]},
        # A part that is merged into both alternatives, and then replaced.
        {"type": "object", "properties": {"a": SHARED}, "anyOf": [{"required": ["a"]}, {"minProperties": 1}]},
    ],
)
def test_schemas_in_structural_tags_are_rewritten_like_others(schema):
    prepared = prepared_schema(schema, strict=True)
    assert prepared != schema
    content = {"type": "json_schema", "json_schema": schema}
    tag = json.loads(tag_text(OutputSpec.structural_tag({"format": content})))
    assert tag["format"]["json_schema"] == prepared
    older = {"structures": [{"begin": "<f>", "schema": schema, "end": "</f>"}], "triggers": ["<f"]}
    tag = json.loads(tag_text(OutputSpec.structural_tag(older)))
    assert tag["format"]["tags"][0]["content"]["json_schema"] == prepared
