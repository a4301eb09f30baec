"""Which objects take names that nothing describes: those that describe none, with each
backend."""

import itertools
import json

import pytest
from compilers import takes, unbounded
from instances import near, text_of
from llguidance_specs import VOCABULARY
from oracle import oracle

from guided_plugin import OutputSpec
from guided_plugin.errors import UnsupportedSpecError

OPEN = {"type": "object"}
CLOSED = {"additionalProperties": False}
NULL = {"type": "null"}
LIST = {"type": "array", "items": OPEN}


def of(properties, **more):
    return {"type": "object", "properties": properties, **more}


# With `strict`, what each means as the standard reads it.
MEANINGS = [
    (OPEN, OPEN),
    (of({}), OPEN),
    ({**OPEN, "additionalProperties": NULL}, {**OPEN, "additionalProperties": NULL}),
    (of({"a": NULL}), of({"a": NULL}, **CLOSED)),
    (of({"a": OPEN}), of({"a": OPEN}, **CLOSED)),
    (
        of({"a": NULL}, required=["b"]),
        of({"a": NULL, "b": {}}, required=["b"], **CLOSED),
    ),
    ({"type": "array", "items": {"$ref": "#/$defs/a"}, "$defs": {"a": OPEN}}, LIST),
]
SAME = json.loads("""[
    {"type": "object", "minProperties": 2, "maxProperties": 3},
    {"type": "object", "required": ["a", "b"], "minProperties": 3},
    {"type": "object", "propertyNames": {"enum": ["a", "b"]}},
    {"type": "object", "not": {"type": "object", "properties": {"a": {"type": "null"}}}}]""")
PATTERN = {"patternProperties": {"^x": NULL}}
LLGUIDANCE = [
    *MEANINGS,
    *((schema, schema) for schema in SAME),
    ({**OPEN, **PATTERN}, {**OPEN, **PATTERN, **CLOSED}),
    (
        {**OPEN, **PATTERN, "required": ["x", "b"]},
        of({"b": {}}, **PATTERN, required=["x", "b"], **CLOSED),
    ),
    (
        of({"a": NULL}, dependentRequired={"a": ["b"]}),
        {
            "anyOf": [
                of({}, **CLOSED),
                of({"a": NULL, "b": {}}, required=["a", "b"], **CLOSED),
            ]
        },
    ),
    # A name that only a negation asks for is not described.
    (
        {"oneOf": [of({name: NULL}, required=[name]) for name in "ab"]},
        {"anyOf": [of({name: NULL}, required=[name], **CLOSED) for name in "ab"]},
    ),
    (of({"a": {}}, anyOf=[OPEN, of({"b": {}})]), of({"a": {}, "b": {}}, **CLOSED)),
]


def in_tag(schema):
    content = {"type": "json_schema", "json_schema": schema}
    return OutputSpec.structural_tag({"format": content}, strict=True)


def in_lark(schema):
    return OutputSpec.grammar(f"start: %json {json.dumps(schema)}", "lark", strict=True)


@pytest.fixture(scope="module")
def compiler():
    return unbounded(VOCABULARY)


def orders(value):
    """With `strict` the names of an object may have one order only."""
    if not isinstance(value, dict) or len(value) > 4:
        return [value]
    return [dict(items) for items in itertools.permutations(value.items())]


SEEDS = json.loads("""[{}, {"a": 1}, {"b": [{"c": 2}]}, {"a": null}, {"a": null, "b": null},
    {"x": null, "b": 1}, {"a": {"b": 1}}, {"a": 1, "b": 2, "c": 3}]""")


def compare(compiler, spec, means):
    valid = oracle(means)
    seen = set()
    seeds = [*SEEDS, *([seed] for seed in SEEDS)]
    for value in near(means, seeds, count=150, seed=1):
        texts = [text_of(order) for order in orders(value)]
        if texts[0].isprintable():
            taken = any(takes(compiler, spec, text) for text in texts)
            assert taken is valid(value), (spec.summary(), value)
            seen.add(taken)
    assert seen == {True, False}


@pytest.mark.parametrize("form", [OutputSpec.json_schema, in_tag, in_lark])
@pytest.mark.parametrize(("schema", "means"), LLGUIDANCE)
def test_with_strict_an_object_is_closed_where_it_describes_properties(
    compiler, form, schema, means
):
    counts = schema.get("minProperties", 0) > len(schema.get("required", ())) + 1
    if form is in_lark and counts:
        with pytest.raises(UnsupportedSpecError, match="inside a grammar"):
            compiler.compile(form(schema))
    else:
        compare(compiler, form(schema), means)


def test_no_text_of_an_open_object_has_spaces_that_were_not_asked_for(compiler):
    spec = OutputSpec.json_schema(of({"a": OPEN}), whitespace="compact")
    assert takes(compiler, spec, '{"a":{"b":1,"c":[1,2]}}')
    assert not takes(compiler, spec, '{"a":{"b":1, "c":[1,2]}}')
