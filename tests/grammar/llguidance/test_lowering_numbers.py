"""Numbers in grammars, against exact arithmetic.

That outputs come to an end is in test_language_equality.py, what is refused in
test_lowering.py.
"""

import json
import random
import re
from fractions import Fraction

import pytest
from compilers import compiler_of, takes
from compilers import start as start_of
from oracle import oracle, read_exactly
from vocabularies import BYTES

from guided_plugin.errors import UnsatisfiableSpecError
from guided_plugin.spec import OutputSpec
from guided_plugin.spec.arithmetic import exact, plain

COMPILER = compiler_of(BYTES, backend="llguidance", max_digits=0, whitespace="flexible")


def start(schema, *, strict=False):
    """A matcher at the beginning of a schema's grammar."""
    return start_of(COMPILER, OutputSpec.json_schema(schema, strict=strict))


def taken(matcher, text):
    return takes(COMPILER, matcher, text)


def numbers_of(schema):
    texts = re.findall(r"(?<=[ \[])-?[\d.e+-]+", json.dumps(schema))
    return [exact(json.loads(text)) for text in texts]


STEPS = [Fraction(sign, part) for part in (1, 2, 10, 100, 10**9) for sign in (1, -1)]


def around(schema):
    """Numbers near those in a schema: multiples, neighbours, and any others."""
    chance = random.Random(0)
    named = numbers_of(schema) or [Fraction(1, 2), Fraction(3)]
    values = {Fraction(0), *named}
    values |= {one + step for one in named for step in STEPS}
    values |= {one // two * two for one in named for two in named if two}
    for _ in range(40):
        one = chance.choice(named)
        values.add(one * chance.randint(-99, 99))
        values.add(one + chance.choice(named) * chance.randint(-9, 9))
        any_other = chance.randint(-(10**6), 10**6)
        values.add(Fraction(any_other, 10 ** chance.randint(0, 3)))
    return sorted(values)


MANTISSAS = """0 0.0 0.5 0.001 1 1.0 1.25 9.99 10 12 12345.678 50036.0 5 5.0036 7.50
    1.0000000100 1.23456780 100 123456789012345 1234567890123456.5"""
POWERS = "e0 e1 e2 e6 e10 e11 e+6 E10 e00 e010 e20 e300 e-1 e-2 e-10 e-01 e-300"
SPELT = [
    sign + digits + power
    for sign in ("", "-")
    for digits in MANTISSAS.split()
    for power in ("", *POWERS.split())
]
NONE = "01 - 1. .5 +1 1e 0x1 1e1.5 --1 NaN -05 10e 00 1,0 -.5"


def holds(valid, text):
    return valid(read_exactly(text))


def assert_exact(schema, *, strict=False):
    """Only what is valid is taken, and all of it that is written out; what may be
    written and is valid may end."""
    matcher = start(schema, strict=strict)
    valid = oracle(schema)
    for value in around(schema):
        text = plain(value)
        good = holds(valid, text)
        assert taken(matcher, text) == good, text
        zeros = text + ("00" if "." in text else ".0")
        if not strict:
            assert taken(matcher, zeros) == good, zeros
        elif schema["type"] == "integer":
            assert not taken(matcher, zeros), zeros
    unsigned = schema.get("minimum", schema.get("exclusiveMinimum", -1)) >= 0
    for text in SPELT:
        fork = matcher.fork()
        if fork.accept_text(text.encode()):
            assert fork.complete == holds(valid, text), text
            assert not (fork.complete and "e" in text.lower()), text
            assert not (unsigned and text.startswith("-")), text
    assert not any(taken(matcher, text) for text in NONE.split())


def has_any(schema):
    valid = oracle(schema)
    return any(holds(valid, plain(value)) for value in around(schema))


BOUNDS = json.loads("""[0, 1, -1, 10, 99, -199, 12345, 0.5, -19.95, 9.99, 2.0, -0.0, 1e-7,
    -100.01, 9223372036854775808, 1e22, 123456789012345678901, 1e300, 1e-300]""")
RANGES = json.loads(
    "[[-5, 5], [0.5, 0.75], [9.5, 101], [-1000, -1], [-0.25, 1e-7], [3, 3]]"
)
DIVISORS = json.loads("""[1, 10, 1000, 0.01, 1e-7, 2, 3, 6, 7, 15, 60, 365, 1024, 3600,
    86400, 0.25, 0.05, 0.3, 2.5, 3.14, 4.0]""")
KEYWORDS = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]
VALUES = [0, -1, 1.5, 100, 1e-7, 1e22, 2.0]
DEMANDS = [
    *({keyword: value} for keyword in KEYWORDS for value in BOUNDS),
    *({"minimum": low, "maximum": high} for low, high in RANGES),
    *({"multipleOf": divisor} for divisor in DIVISORS),
    *({"not": {"multipleOf": divisor}} for divisor in (10, 0.01, 7, 0.25)),
    *({"enum": [value]} for value in VALUES),
    *({"not": {"enum": [value]}} for value in VALUES),
]
BETWEEN = json.loads("""[{"minimum": 0}, {"exclusiveMinimum": 12.5}, {"maximum": -3},
    {"minimum": -1000, "exclusiveMaximum": 100000}, {"minimum": 0, "maximum": 1e10},
    {"minimum": 9223372036854774808, "maximum": 9223372036854775808}]""")
MIXED = json.loads("""[
    {"type": "number", "not": {"type": "integer"}},
    {"type": "number", "not": {"multipleOf": 3}, "minimum": 0.5, "exclusiveMaximum": 20},
    {"type": "number", "not": {"multipleOf": 7}, "exclusiveMinimum": 0},
    {"type": "integer", "multipleOf": 3, "not": {"multipleOf": 5}},
    {"type": "integer", "multipleOf": 3, "not": {"enum": [0, 9, 12]}},
    {"type": "number", "multipleOf": 5, "not": {"enum": [10, 50.0, 500]}},
    {"type": "number", "multipleOf": 2.5, "not": {"type": "integer"}},
    {"type": "integer", "multipleOf": 6, "minimum": 1, "maximum": 10000,
        "not": {"multipleOf": 4}},
    {"type": "number", "multipleOf": 0.75, "not": {"enum": [1.5, 3]}, "minimum": 0,
        "maximum": 9},
    {"type": "integer", "oneOf": [{"multipleOf": 3}, {"multipleOf": 5}]},
    {"type": "number", "anyOf": [{"multipleOf": 0.3}, {"multipleOf": 7, "maximum": 100}]},
    {"type": "integer", "multipleOf": 0.75},
    {"type": "integer", "minimum": 0, "maximum": 1000000000, "multipleOf": 86400},
    {"type": "integer", "multipleOf": 86400000}]""")
SCHEMAS = [
    *({"type": "number", **demand} for demand in DEMANDS),
    *({"type": "integer", **demand} for demand in DEMANDS[::5]),
    *({"type": "number", "multipleOf": 0.25, **bounds} for bounds in BETWEEN),
    *({"type": "integer", "multipleOf": 7, **bounds} for bounds in BETWEEN),
    *MIXED,
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_numbers_are_those_of_exact_arithmetic(schema):
    if has_any(schema):
        assert_exact(schema)
    else:
        with pytest.raises(UnsatisfiableSpecError):
            start(schema)


@pytest.mark.parametrize("kind", ["integer", "number"])
@pytest.mark.parametrize("demand", [*DEMANDS[::7], {"multipleOf": 7}], ids=str)
def test_strict_numbers_too_and_they_are_canonical(demand, kind):
    schema = {"type": kind, **demand}
    if has_any(schema):
        assert_exact(schema, strict=True)


def test_any_number_is_what_json_calls_one():
    matcher = start({"type": "number"})
    assert all(taken(matcher, text) for text in SPELT)
