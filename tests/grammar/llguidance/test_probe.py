"""Texts that must meet several demands at once: each output can be ended, or the spec
is refused."""

from __future__ import annotations

import json
from random import Random

import pytest
from oracle import OracleError, oracle
from schemas import entangled_schema
from subjects import COMPILER, WALKER, Subject

from guided_plugin.compiling.limits import is_small
from guided_plugin.errors import (
    GuidedError,
    UnsatisfiableSpecError,
    UnsupportedSpecError,
)
from guided_plugin.grammar.llguidance.lark import schema_to_lark
from guided_plugin.spec import OutputSpec


def compiled(schema):
    return COMPILER.compile(OutputSpec.json_schema(schema))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", range(2))
def test_random_entangled_schemas_have_no_dead_ends(part) -> None:
    checked = 0
    for number in range(25 * part, 25 * part + 25):
        chance = Random(f"entangled:{number}")
        schema = entangled_schema(chance)
        try:
            grammar = compiled(schema)
            valid = oracle(schema)
        except (GuidedError, OracleError):
            continue
        checked += 1
        for _ in range(2):
            walk = WALKER.wander(grammar, chance, 40, finish=200)
            assert not walk.stuck, (schema, walk.text)
            if walk.accepted:
                assert valid(json.loads(walk.text)), (schema, walk.text)
    assert checked > 12


@pytest.mark.parametrize("name", ["hostname", "email", "uri", "ipv6", "date-time"])
@pytest.mark.parametrize(
    "demand",
    [
        {"pattern": "^(?!a)"},
        {"pattern": "^(?!.*--)(?=.*[a-f])"},
        {"not": {"pattern": "aa|b$"}},
        {"allOf": [{"not": {"pattern": "^x"}}, {"not": {"pattern": "y"}}]},
    ],
)
def test_opposites_of_patterns_next_to_formats_are_enforced(name, demand) -> None:
    schema = {"type": "string", "format": name, **demand}
    try:
        grammar = compiled(schema)
    except UnsatisfiableSpecError:
        assert name == "date-time"  # which has no letters from a to f
        return
    valid = oracle(schema)
    for seed in range(5):
        walk = WALKER.wander(grammar, Random(seed), 20, finish=300)
        assert not walk.stuck, walk.text
        assert not walk.accepted or valid(json.loads(walk.text)), walk.text


@pytest.mark.parametrize(
    ("schema", "texts"),
    [
        ({"pattern": "^(?!a)", "format": "hostname"}, ["b.c", "a.c", "", "ba"]),
        ({"pattern": '^(?!.*(\\\\|"))x'}, ["x", "x\\", 'x"', "y", "xn", 'x\\"']),
        ({"not": {"pattern": "n"}}, ["\n", "n", "\\n", "", '"', "\\"]),
        ({"not": {"pattern": "b$"}, "pattern": "^a"}, ["a", "ab", "abc", "a\nb", "b"]),
        (
            {"allOf": [{"pattern": "a"}, {"pattern": "b"}, {"pattern": '"$'}]},
            ['ab"', 'ba"', 'a"', "ab"],
        ),
        ({"pattern": "^(?:(?!x).)*$", "minLength": 2}, ["ab", "ax", "a", "xx", "éé"]),
    ],
)
def test_parts_that_take_any_bytes_take_no_other_strings(schema, texts) -> None:
    subject = Subject({"type": "string", **schema})
    for text in texts:
        literal = json.dumps(text, ensure_ascii=False)
        assert subject.takes(literal) == subject.allows(literal), text
    for broken in ('"a', '"a"b"', '"a\x01"', '"\\x"'):
        assert not subject.takes(broken)


HARD = {
    "^((\\w+x-[^a]{2}){0,60}.*|@?)+$": {"type": "integer"},
    "^(([a-z][A-Z0-9]*){2}|é{2}(_|@{2}a*)[a-z]{0,60})x-(((?:ab){2}|[A-Z0-9]\\w{0,60}){3,}_.{0,60}){2}$": True,
    "b$": {"type": "string"},
}


def test_what_runs_out_of_fuel_is_refused_with_its_place() -> None:
    inner = {"type": "object", "patternProperties": HARD}
    schema = {"properties": {"a": inner, "b": {"pattern": "c"}}}
    with pytest.raises(UnsupportedSpecError) as caught:
        COMPILER.compile(OutputSpec.json_schema(schema, backend="llguidance"))
    assert "need too much work for a mask" in caught.value.what
    assert caught.value.where == "#/properties/a"
    assert "use fewer of them" in caught.value.hint


def test_patterns_with_lookahead_compile_where_they_are_tried() -> None:
    for spec in (
        OutputSpec.regex("a(?!b).*"),
        OutputSpec.json_schema({"pattern": "^(?=a)"}),
    ):
        assert not is_small(spec, "llguidance")
    assert is_small(OutputSpec.regex("ab.*"), "llguidance")


def test_grammars_without_intersections_are_not_probed() -> None:
    schema = {
        "properties": {
            "a": {"format": "hostname"},
            "b": {"pattern": "x"},
            "c": {"maxLength": 9},
        }
    }
    for strict in (False, True):
        assert not schema_to_lark(schema, strict=strict, whitespace="compact").probes
    entangled = {"properties": {"a": {"format": "hostname", "pattern": "x"}}}
    assert schema_to_lark(entangled, strict=True, whitespace="compact").probes


@pytest.mark.parametrize(
    ("schema", "tried"),
    [
        ({"pattern": "^[a-z]+$", "not": {"enum": ["a", 'b"&~(']}}, False),
        ({"not": {"pattern": "^[a-z]+$"}}, False),
        ({"pattern": "^[a-z]+$", "maxLength": 9, "not": {"enum": ["a"]}}, True),
        ({"pattern": "^[a-z]+$", "not": {"pattern": "x"}}, True),
        ({"not": {"pattern": "^(?=a)(?!.*b)"}}, True),
    ],
)
def test_only_what_must_meet_several_demands_is_tried(schema, tried):
    grammar = schema_to_lark(
        {"type": "string", **schema}, strict=True, whitespace="compact"
    )
    assert bool(grammar.probes) == tried
