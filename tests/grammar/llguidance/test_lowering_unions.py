"""Unions whose branches something next to them tells apart: no branch is worked into
the others' grammar.

What their grammars take is in test_language_equality.py.
"""

import pytest
from schema_families import FAMILIES

from guided_plugin.errors import UnsupportedSpecError
from guided_plugin.grammar.llguidance.lark import schema_to_lark

KIND = {"required": ["kind"]}
OBJECT = {"type": "object"}
BOTH = OBJECT | KIND


def size(schema, **options):
    return len(
        schema_to_lark(
            schema, whitespace="compact", **{"strict": False, **options}
        ).text
    )


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
    "allOf": lambda union: {"allOf": [union, OBJECT, KIND]},
    "deep": lambda union: {
        "allOf": [{"allOf": [{"allOf": [union]}]}, {"allOf": [BOTH]}]
    },
    "reference": lambda union: {"$ref": "#/$defs/u", **BOTH, "$defs": {"u": union}},
    "anyOf": lambda union: {"anyOf": [{"allOf": [union, BOTH]}, {"type": "null"}]},
    "property": lambda union: {
        "allOf": [{"properties": {"x": BOTH}}, {"properties": {"x": union}}]
    },
    "items": lambda union: {"items": union, "allOf": [{"items": BOTH}]},
    "outer": lambda union: {
        **BOTH,
        "oneOf": [union, {"properties": {"kind": {"const": 1}}}],
    },
    "counted": lambda union: {
        **OBJECT,
        "minProperties": 1,
        "propertyNames": {"const": "kind"},
        **union,
    },
}


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("kinds", [constant, pattern])
@pytest.mark.parametrize("place", PLACES)
def test_a_grammar_grows_with_the_branches_and_not_with_their_products(
    place, kinds, strict
):
    sizes = [
        size(PLACES[place]({"oneOf": branches(n, kinds)}), strict=strict)
        for n in (6, 12, 24)
    ]
    assert sizes[2] < 2.5 * sizes[1] < 6.25 * sizes[0]
    # A union that needs no telling apart is as large.
    assert sizes[1] < 1.5 * size(
        PLACES[place]({"anyOf": branches(12, kinds)}), strict=strict
    )


def test_that_of_geojson_is_small():
    assert all(size(case.schema) < 10_000 for case in FAMILIES["unions"].values())


@pytest.mark.parametrize("kinds", [constant, pattern])
def test_branches_that_nothing_tells_apart_are_refused_with_what_would(kinds):
    with pytest.raises(UnsupportedSpecError, match="too many alternatives") as caught:
        size({**OBJECT, "oneOf": branches(12, kinds)})
    assert caught.value.where == "#/oneOf"
    assert "required" in caught.value.hint
    assert size({**BOTH, "oneOf": branches(12, kinds)})
