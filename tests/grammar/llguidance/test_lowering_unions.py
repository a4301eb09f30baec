"""Unions whose branches something next to them tells apart: no branch is worked into
the others' grammar.

What their grammars take is in test_language_equality.py.
"""

import pytest
from schema_families import CASES

from guided_plugin.errors import UnsupportedSpecError
from guided_plugin.grammar.llguidance.lark import schema_to_lark

KIND = {"required": ["kind"]}
OBJECT = {"type": "object"}
BOTH = OBJECT | KIND


def size(schema, strict=False):
    return len(schema_to_lark(schema, whitespace="compact", strict=strict).text)


def branches(count, kinds):
    """Each describes its kind, and properties that others describe in another way; none
    requires a kind."""
    return [
        {
            "properties": {
                "kind": kinds(chr(97 + i)),
                **{f"f{k}": {"const": i - k} for k in range(i, i + 4)},
            }
        }
        for i in range(count)
    ]


def constant(name):
    return {"const": name}


def pattern(name):
    return {"type": "string", "pattern": f"^{name}"}


PLACES = {
    "beside": lambda union: {**BOTH, **union},
    "before": lambda union: {**union, **BOTH},
    "deep": lambda union: {
        "allOf": [{"allOf": [{"allOf": [union]}]}, {"allOf": [BOTH]}]
    },
    "reference": lambda union: {"$ref": "#/$defs/u", **BOTH, "$defs": {"u": union}},
    "anyOf": lambda union: {"anyOf": [{"allOf": [union, BOTH]}, {"type": "null"}]},
    "property": lambda union: {
        "allOf": [{"properties": {"x": BOTH}}, {"properties": {"x": union}}]
    },
    "items": lambda union: {"items": union, "allOf": [{"items": BOTH}]},
    "counted": lambda union: {**BOTH, "minProperties": 1, **union},
}


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("kinds", [constant, pattern])
@pytest.mark.parametrize("place", PLACES)
def test_a_grammar_grows_with_the_branches_and_not_with_their_products(
    place, kinds, strict
):
    wrap = PLACES[place]
    small, medium, large = (
        size(wrap({"oneOf": branches(count, kinds)}), strict) for count in (6, 12, 24)
    )
    assert large < 2.5 * medium < 6.25 * small
    # A union that needs no telling apart is as large.
    assert medium < 1.5 * size(wrap({"anyOf": branches(12, kinds)}), strict)


def test_that_of_geojson_is_small():
    unions = [case.schema for (family, _), case in CASES.items() if family == "unions"]
    assert all(size(schema) < 10_000 for schema in unions)


@pytest.mark.parametrize("kinds", [constant, pattern])
def test_branches_that_nothing_tells_apart_are_refused_with_what_would(kinds):
    with pytest.raises(UnsupportedSpecError, match="too many alternatives") as caught:
        size({**OBJECT, "oneOf": branches(12, kinds)})
    assert caught.value.where == "#/oneOf"
    assert "required" in caught.value.hint
    assert size({**BOTH, "oneOf": branches(12, kinds)})
