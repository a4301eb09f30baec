"""What `unevaluatedProperties` and `unevaluatedItems` see: all that describes a value and holds."""

import json

import pytest
from llguidance_specs import takes

from guided_plugin import OutputSpec
from guided_plugin.errors import UnsupportedSpecError
from guided_plugin.grammar.llguidance.lark import reader

NONE = {"unevaluatedProperties": False}
NO_ITEMS = {"unevaluatedItems": False}
A = {"properties": {"a": True}, "required": ["a"]}
B = {"properties": {"b": True}, "required": ["b"]}

CASES = [
    ({"const": {"a": 1}, **NONE}, [], ['{"a":1}', "null"]),
    ({"const": {}, **NONE}, ["{}"], ['{"a":1}']),
    ({"const": {"a": 1}, "properties": {"a": {}}, **NONE}, ['{"a":1}'], ['{"a":2}', "{}"]),
    ({"enum": [{"a": 1}, {}, 5], **NONE}, ["{}", "5"], ['{"a":1}']),
    ({"enum": [[1, 2], [], 5], **NO_ITEMS}, ["[]", "5"], ["[1,2]"]),
    ({"const": [[1]], "items": {"unevaluatedItems": False}}, [], ["[[1]]", "[[]]"]),
    ({"not": {"not": A}, **NONE}, ["null", "5"], ['{"a":1}', "{}"]),
    ({"not": {"not": {"prefixItems": [True]}}, **NO_ITEMS}, ["[]"], ["[1]"]),
    ({"not": {"anyOf": [{"not": A}]}, **NONE}, [], ['{"a":1}']),
    ({"anyOf": [A, B], **NONE}, ['{"a":1}', '{"b":1}', '{"a":1,"b":2}', '{"b":1,"a":2}'], ["{}", '{"c":1}']),
    ({"anyOf": [True, A], **NONE}, ["{}", '{"a":1}'], ['{"b":1}', '{"a":1,"b":1}']),
    ({"anyOf": [True, {"items": {"type": "string"}}], **NO_ITEMS}, ["[]", '["a","b"]'], ['["a",1]']),
    ({"anyOf": [True, {"prefixItems": [{"const": 1}]}], **NO_ITEMS}, ["[1]"], ["[2]", "[1,2]"]),
    ({"oneOf": [A, B], **NONE}, ['{"a":1}', '{"b":1}'], ['{"a":1,"b":2}', "{}"]),
    ({"if": A, **NONE}, ["{}", '{"a":1}'], ['{"b":1}']),
    ({"if": {"prefixItems": [{"const": 1}]}, **NO_ITEMS}, ["[]", "[1]"], ["[2]", "[1,1]"]),
    ({"contains": {"const": 1}, "unevaluatedItems": {"type": "string"}}, ["[1]", '["a",1]'], ["[2,1]"]),
    ({"contains": {"const": 1}, "minContains": 0, **NO_ITEMS}, ["[]", "[1,1]"], ["[1,2]", "[2]"]),
    ({"not": {**A, **NONE}}, ['{"b":1}', '{"a":1,"b":1}', "{}"], ['{"a":1}', "5"]),
    ({"not": {"prefixItems": [True], **NO_ITEMS}}, ["[1,2]"], ["[]", "[1]", "5"]),
    ({"not": {"anyOf": [A, B], **NONE}}, ["{}", '{"a":1,"c":1}'], ['{"a":1}', '{"a":1,"b":1}']),
    ({"not": {"contains": {"const": 1}, **NO_ITEMS}}, ["[]", "[2]", "[1,2]"], ["[1]", "[1,1]"]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "good", "bad"), CASES, ids=lambda case: json.dumps(case)[:60])
def test_what_is_evaluated(backend, schema, good, bad):
    # Alone, some of these allow nothing, which is refused.
    whole = {"anyOf": [schema, {"const": "other"}]}
    for text in [*good, *bad, '"other"']:
        valid = text in (*good, '"other"')
        assert takes(backend, OutputSpec.json_schema(whole, strict=False), text) is valid, text


def test_too_many_branches_that_may_hold_together_are_refused(backend, monkeypatch):
    branches = [{"properties": {name: {}}, "required": [name]} for name in "ab"]
    schema = {"type": "object", "anyOf": branches, "unevaluatedProperties": False}
    assert takes(backend, OutputSpec.json_schema(schema, strict=False), '{"a":1,"b":1}')
    monkeypatch.setattr(reader, "_MAX_TOGETHER", 1)
    with pytest.raises(UnsupportedSpecError, match="too many branches") as caught:
        backend.compile(OutputSpec.json_schema(schema, strict=False))
    assert caught.value.where == "#/anyOf"


@pytest.mark.parametrize(
    ("inner", "keyword"),
    [
        ({"not": {"patternProperties": {"x": False}}, **NONE}, "unevaluatedProperties"),
        ({"items": True, "not": {"uniqueItems": True}, **NO_ITEMS}, "unevaluatedItems"),
    ],
)
def test_what_is_not_negated_is_refused_with_its_place(backend, inner, keyword):
    with pytest.raises(UnsupportedSpecError, match="under not") as caught:
        backend.compile(OutputSpec.json_schema({"not": inner}, strict=False))
    assert caught.value.where.startswith(f"#/not/{keyword}")
