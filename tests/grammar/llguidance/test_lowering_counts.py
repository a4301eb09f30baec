"""Counts of items and properties: nothing is begun that cannot end.

What their grammars take is in test_language_equality.py.
"""

import json

import pytest
from llguidance_specs import VOCABULARY, allowed

from guided_plugin import OutputSpec
from guided_plugin.errors import UnsatisfiableSpecError, UnsupportedSpecError

OBJECT = {"type": "object"}


@pytest.mark.parametrize(
    "schema",
    [
        '"required": ["a", "b"], "maxProperties": 1',
        '"required": ["a"], "propertyNames": {"maxLength": 0}',
        '"minProperties": 3, "propertyNames": {"enum": ["a", "b"]}',
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


ONE = {"contains": {"const": 1}}
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
        ({**OBJECT, "not": {"propertyNames": {"maxLength": 1}}}, "#/not/propertyNames"),
        (
            {**OBJECT, "not": {"patternProperties": {"^x": {"const": 1}}}},
            "#/not/patternProperties",
        ),
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
