"""Counts of items and properties: nothing is begun that cannot end.

What their grammars take is in test_language_equality.py.
"""

import itertools
import json

import pytest
from instances import text_of
from llguidance_specs import VOCABULARY, allowed
from oracle import oracle

from guided_plugin import OutputSpec
from guided_plugin.errors import UnsatisfiableSpecError, UnsupportedSpecError

OBJECT = {"type": "object"}


@pytest.mark.parametrize(
    "schema",
    [
        '"required": ["a", "b"], "maxProperties": 1',
        '"required": ["a"], "propertyNames": {"maxLength": 0}',
        '"minProperties": 3, "propertyNames": {"pattern": "^[ab]$"}',
        '"minProperties": 1, "propertyNames": {"pattern": "^a", "not": {"pattern": "a"}}',
        '"minProperties": 1, "patternProperties": {"^[^a]*$": false, "a": false}',
        '"required": ["a"], "properties": {"a": {"minItems": 2, "maxItems": 1, "type": "array"}}',
        '"type": "array", "contains": false',
        '"type": "array", "contains": {"const": 1}, "items": {"const": 2}',
        '"type": "array", "prefixItems": [{}, false], "minItems": 2',
        '"type": "string", "pattern": "^a+$", "allOf": [{"pattern": "^b+$"}]',
        '"type": "string", "pattern": "^a$", "maxLength": 0',
    ],
)
def test_what_allows_nothing_is_refused(backend, schema):
    document = {**OBJECT, **json.loads(f"{{{schema}}}")}
    with pytest.raises(UnsatisfiableSpecError):
        backend.compile(OutputSpec.json_schema(document, strict=False))


ABC = {name: {"const": 1} for name in "abc"}
# A property that nothing satisfies, which is found out only when the grammar is
# written.
NEVER = {"a": {"const": 1}, "b": {"type": "string", "pattern": "^a", "format": "ipv4"}}


@pytest.mark.parametrize(
    ("properties", "counts", "text", "shown"),
    [
        (ABC, {}, '{"c":1,"a":1', {",", "}"}),
        (ABC, {}, '{"c":1,"a":1,"b":1', {"}"}),
        (ABC, {"maxProperties": 2}, '{"b":1', {",", "}"}),
        (ABC, {"maxProperties": 2}, '{"b":1,"c":1', {"}"}),
        (ABC, {"required": ["c"], "maxProperties": 2}, '{"b":1', {","}),
        (ABC, {"required": ["c"], "maxProperties": 2}, '{"b":1,"c":1', {"}"}),
        (NEVER, {}, '{"a":1', {"}"}),
    ],
)
def test_a_comma_comes_only_before_a_property_that_is_possible(
    backend, properties, counts, text, shown
):
    closed = {"properties": properties, "additionalProperties": False}
    spec = OutputSpec.json_schema({**OBJECT, **closed, **counts}, strict=False)
    matcher = backend.start(backend.compile(spec), VOCABULARY.stop_token_ids)
    assert matcher.accept_text(text.encode())
    assert allowed(backend, [matcher])[0] & {*b",}"} == {*map(ord, shown)}


INTEGER = {"type": "integer"}


def naming(demanded, described):
    """One property whose name matches a pattern of each demand."""
    demands = [
        {"not": {"patternProperties": {source: {"not": value}}}}
        for source, value in demanded.items()
    ]
    closed = {"patternProperties": described, "additionalProperties": False}
    return {**OBJECT, **closed, "maxProperties": 1, "allOf": demands}


@pytest.mark.parametrize(
    ("demanded", "described"),
    [
        (dict.fromkeys(("a", "b", "cd"), True), {"f": INTEGER, "b": True}),
        (dict.fromkeys("abcde", INTEGER), dict.fromkeys(("^[a-f]+$", "f", "a"), True)),
    ],
)
def test_one_name_may_have_to_match_many_patterns(backend, demanded, described):
    schema = naming(demanded, described)
    spec = OutputSpec.json_schema(schema, strict=False)
    start = backend.start(backend.compile(spec), VOCABULARY.stop_token_ids)
    valid = oracle(schema)
    assert valid({"abcdef": 1})
    for length in range(1, 7):
        for letters in itertools.combinations("abcdef", length):
            name = "".join(letters)
            for value in ({name: 1}, {name: "x"}, {name[::-1]: 1}):
                matcher = start.fork()
                taken = matcher.accept_text(text_of(value).encode())
                assert (taken and matcher.complete) == valid(value), value


def test_too_many_patterns_that_one_name_may_match_are_refused(backend):
    texts = {c: {"type": "string", "minLength": ord(c)} for c in "efgijk"}
    schema = naming(dict.fromkeys("abc", INTEGER), {**texts, "h": INTEGER})
    assert oracle(schema)({"abch": 1})
    with pytest.raises(UnsupportedSpecError, match="too many patterns"):
        backend.compile(OutputSpec.json_schema(schema, strict=False))
