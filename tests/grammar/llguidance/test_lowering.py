"""Schemas as grammars: which are refused, where a comma may come, and how large the
grammars are. The schemas are in lowering.json.

What their grammars take is in test_language_equality.py.
"""

import json
import time
from pathlib import Path

import pytest
from compilers import start, takes, tokens_of, unbounded
from schema_families import CASES
from vocabularies import BYTES

from guided_plugin.errors import SpecError, UnsatisfiableSpecError, UnsupportedSpecError
from guided_plugin.grammar.llguidance.lark import schema_to_lark
from guided_plugin.spec import OutputSpec

TABLES = json.loads(Path(__file__).with_name("lowering.json").read_bytes())
COMPILER = unbounded(BYTES)


def open_spec(schema):
    return OutputSpec.json_schema(schema, strict=False)


@pytest.mark.parametrize(("schema", "where", "says"), TABLES["unsupported"])
def test_what_hardly_any_schema_asks_for_is_refused_with_its_place(schema, where, says):
    with pytest.raises(UnsupportedSpecError, match=says) as caught:
        COMPILER.compile(open_spec(schema))
    assert caught.value.where == where
    assert caught.value.hint


@pytest.mark.parametrize("number", [-(10**400), 10**400 - 1])
def test_numbers_beyond_every_double_are_refused(number):
    with pytest.raises(UnsupportedSpecError, match="too large") as caught:
        COMPILER.compile(open_spec({"items": {"minimum": number}}))
    assert caught.value.where == "#/items/minimum"


@pytest.mark.parametrize("schema", TABLES["unsatisfiable"])
def test_what_allows_nothing_is_refused(schema):
    with pytest.raises((UnsatisfiableSpecError, SpecError)):
        COMPILER.compile(open_spec(schema))
    # As a property it can be left out, and must not be begun.
    property_of = {"properties": {"a": schema}, "additionalProperties": False}
    matcher = start(COMPILER, open_spec(property_of))
    assert takes(COMPILER, matcher, "{}")
    assert not matcher.accept_text(b'{"')


@pytest.mark.parametrize("schema", TABLES["undecided"])
def test_what_decides_nothing_is_no_trouble(schema):
    assert takes(COMPILER, open_spec(schema), '"a"')


@pytest.mark.parametrize(("schema", "text", "shown"), TABLES["commas"])
def test_a_comma_comes_only_before_a_property_that_is_possible(schema, text, shown):
    closed = {"type": "object", "additionalProperties": False, **schema}
    matcher = start(COMPILER, open_spec(closed))
    assert matcher.accept_text(text.replace("'", '"').encode())
    allowed = tokens_of(matcher.row()[None])[0]
    assert set(allowed) & {*b",}"} == {*map(ord, shown)}


def size(schema, strict=False):
    return len(schema_to_lark(schema, whitespace="compact", strict=strict).text)


@pytest.mark.parametrize(("schema", "most"), TABLES["sizes"])
def test_the_text_of_a_grammar_with_many_remainders_is_bounded(schema, most):
    assert size(schema) < most


def test_long_lists_of_numbers_take_time_in_proportion():
    def seconds(count):
        begin = time.process_time()
        size({"type": "integer", "minimum": 1, "enum": list(range(count))})
        return time.process_time() - begin

    seconds(10)
    assert seconds(8_000) < 40 * max(seconds(800), 0.01)


def constant(name):
    return {"const": name}


def pattern(name):
    return {"type": "string", "pattern": f"^{name}"}


def branches(count, kinds):
    """Each describes its kind, and properties that others describe in another way; none
    requires a kind."""
    found = []
    for number in range(count):
        others = range(number, number + 4)
        described = {f"f{other}": {"const": number - other} for other in others}
        kind = kinds(chr(ord("a") + number))
        found.append({"properties": {"kind": kind, **described}})
    return found


def union(place, count, kinds):
    text = json.dumps(TABLES["unions"][place])
    return json.loads(text.replace('"BRANCHES"', json.dumps(branches(count, kinds))))


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("kinds", [constant, pattern])
@pytest.mark.parametrize("place", TABLES["unions"])
def test_a_grammar_grows_with_the_branches_and_not_with_their_products(
    place, kinds, strict
):
    """What stands next to a union tells its branches apart."""
    small, medium, large = (
        size(union(place, count, kinds), strict) for count in (6, 12, 24)
    )
    assert large < 2.5 * medium < 6.25 * small
    assert medium < 20_000


def test_that_of_geojson_is_small():
    unions = [case.schema for (family, _), case in CASES.items() if family == "unions"]
    assert all(size(schema) < 10_000 for schema in unions)


@pytest.mark.parametrize("kinds", [constant, pattern])
def test_branches_that_nothing_tells_apart_are_refused_with_what_would(kinds):
    with pytest.raises(UnsupportedSpecError, match="too many alternatives") as caught:
        size({"type": "object", "oneOf": branches(12, kinds)})
    assert caught.value.where == "#/oneOf"
    assert "required" in caught.value.hint
