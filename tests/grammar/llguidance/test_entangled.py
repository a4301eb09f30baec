"""Texts that must meet several demands at once: each output can be ended, or goes over
a limit, which its error names."""

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
)
from guided_plugin.spec import OutputSpec


def assert_sound(schema, chance, walks, steps):
    """Whether it compiles; then walks come to an end, and to valid ones."""
    try:
        grammar = COMPILER.compile(OutputSpec.json_schema(schema))
        valid = oracle(schema)
    except (GuidedError, OracleError):
        return False
    for _ in range(walks):
        walk = WALKER.wander(grammar, chance, steps, finish=300)
        assert not walk.stuck, (schema, walk.text)
        assert not walk.accepted or valid(json.loads(walk.text)), (schema, walk.text)
    return True


def test_random_entangled_schemas_have_no_dead_ends():
    checked = 0
    for number in range(50):
        chance = Random(f"entangled:{number}")
        checked += assert_sound(entangled_schema(chance), chance, walks=2, steps=40)
    assert checked > 24


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
def test_opposites_of_patterns_next_to_formats_are_enforced(name, demand):
    schema = {"type": "string", "format": name, **demand}
    if name == "date-time" and "a-f" in str(demand):
        with pytest.raises(UnsatisfiableSpecError):
            COMPILER.compile(OutputSpec.json_schema(schema))
    else:
        assert assert_sound(schema, Random(0), walks=5, steps=20)


def test_parts_that_take_any_bytes_take_no_other_strings():
    for pattern in ("^(?!a)", '^(?!.*(\\\\|"))x', "^(?!.*b$)"):
        subject = Subject({"type": "string", "pattern": pattern})
        for broken in ('"x', '"x"b"', '"x\x01"', '"\\x"'):
            assert not subject.takes(broken)


def test_patterns_with_lookahead_compile_where_they_are_tried():
    assert not is_small(OutputSpec.regex("a(?!b).*"), "llguidance")
    assert not is_small(OutputSpec.json_schema({"pattern": "^(?=a)"}), "llguidance")
    assert is_small(OutputSpec.regex("ab.*"), "llguidance")
