"""Proofs that two schemas exclude each other, judged by jsonschema."""

import itertools

import pytest
from jsonschema import Draft202012Validator

from guided_plugin.grammar.xgrammar.rewrites.one_of import all_disjoint, disjoint

CAT = {"type": "object", "properties": {"kind": {"const": "cat"}, "lives": {}}, "required": ["kind"]}
DOG = {"type": "object", "properties": {"kind": {"enum": ["dog", "wolf"]}}, "required": ["kind"]}
CLOSED_A = {"properties": {"a": {}}, "required": ["a"], "type": "object", "additionalProperties": False}
CLOSED_B = {"properties": {"b": {}}, "type": "object", "additionalProperties": False}

EXCLUSIVE = [
    ({"type": "string"}, {"type": "null"}),
    ({"type": ["string", "null"]}, {"type": ["object", "number"]}),
    ({"const": 1}, {"const": 2}),
    ({"enum": ["a", "b"]}, {"enum": ["c"]}),
    ({"enum": ["a"]}, {"type": "integer"}),
    (CAT, DOG),
    (CLOSED_A, CLOSED_B),
    ({"type": "integer", "maximum": 3}, {"type": "number", "minimum": 3.5}),
    ({"anyOf": [{"type": "string"}, {"const": None}]}, {"type": "boolean"}),
    ({"allOf": [{"type": "string"}, {"minLength": 2}]}, {"type": "array"}),
    (False, {}),
]
UNPROVEN = [
    ({"type": "integer"}, {"type": "number"}),
    ({"const": 1}, {"const": 1.0}),
    ({"const": {"a": 1, "b": 2}}, {"const": {"b": 2, "a": 1}}),
    ({"type": "string"}, {}),
    ({"properties": CAT["properties"]}, {"properties": DOG["properties"]}),
    ({**CAT, "required": []}, {**DOG, "required": []}),
    ({"type": "integer", "maximum": 3}, {"type": "integer", "minimum": 3}),
    (CLOSED_A, {**CLOSED_B, "patternProperties": {"^a": {}}}),
    (True, {"type": "string"}),
]
VALUES = [
    *(None, True, 0, 1, 1.0, 2, 3, 3.5, "", "a", "b", "c", [], {}, {"a": 1}, {"b": 1}, {"a": 1, "b": 2}),
    *({"kind": "cat"}, {"kind": "dog"}, {"kind": "wolf", "a": 1}),
]


@pytest.mark.parametrize(("a", "b"), EXCLUSIVE)
def test_proven_apart(a, b):
    assert disjoint(a, b, {})
    assert disjoint(b, a, {})
    first, second = Draft202012Validator(a), Draft202012Validator(b)
    assert not any(first.is_valid(value) and second.is_valid(value) for value in VALUES)


@pytest.mark.parametrize(("a", "b"), UNPROVEN)
def test_not_proven(a, b):
    assert not disjoint(a, b, {})
    assert not disjoint(b, a, {})


def test_every_claim_among_all_pairs_is_true():
    schemas = [schema for pair in EXCLUSIVE + UNPROVEN for schema in pair]
    for a, b in itertools.product(schemas, schemas):
        if disjoint(a, b, {}):
            first, second = Draft202012Validator(a), Draft202012Validator(b)
            assert not any(first.is_valid(value) and second.is_valid(value) for value in VALUES), (a, b)


def test_references_are_followed():
    document = {"$defs": {"Cat": CAT, "Dog": DOG, "Loop": {"$ref": "#/$defs/Loop"}}}
    assert disjoint({"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}, document)
    assert not disjoint({"$ref": "#/$defs/Loop"}, {"$ref": "#/$defs/Cat"}, document)
    assert not disjoint({"$ref": "#/$defs/None"}, {"$ref": "https://elsewhere"}, document)


def test_closed_objects_by_default():
    a = {"type": "object", "properties": {"a": {}}, "required": ["a"]}
    b = {"type": "object", "properties": {"b": {}}, "required": ["b"]}
    assert not all_disjoint([a, b], {})
    assert all_disjoint([a, b], {}, closed=True)
    assert not all_disjoint([a, b, a], {}, closed=True)
