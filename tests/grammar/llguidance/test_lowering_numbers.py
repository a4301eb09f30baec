"""Numbers in grammars, against exact arithmetic: what is taken, what is refused, and no
dead ends."""

import random
import re
import time
from fractions import Fraction

import numpy as np
import pytest
from distinct_walks import BYTES, walker

from guided_plugin.errors import SpecError, UnsatisfiableSpecError, UnsupportedSpecError
from guided_plugin.grammar.llguidance.lark import schema_to_lark
from guided_plugin.spec import OutputSpec
from guided_plugin.spec.arithmetic import exact, plain

COMPILER, _ = walker("bytes")
DIVISORS = [
    2,
    3,
    5,
    6,
    7,
    15,
    60,
    100,
    365,
    1024,
    3600,
    86400,
    0.25,
    0.05,
    0.3,
    2.5,
    0.125,
    3.14,
    1e-3,
    4.0,
]


def start(schema, *, strict=False):
    """A matcher at the beginning of a schema's grammar."""
    spec = OutputSpec.json_schema(
        schema, strict=strict, backend="llguidance", max_digits=0
    )
    compiled = COMPILER.compile(spec)
    return COMPILER.backend("llguidance").start(compiled, BYTES.stop_token_ids)


def taken(matcher, text):
    fork = matcher.fork()
    return fork.accept_text(text.encode()) and fork.complete


def holds(schema, number):
    """Whether a number satisfies a schema, in exact arithmetic."""
    checks = {
        "type": lambda value: value == "number" or number.denominator == 1,
        "minimum": lambda value: number >= exact(value),
        "maximum": lambda value: number <= exact(value),
        "exclusiveMinimum": lambda value: number > exact(value),
        "exclusiveMaximum": lambda value: number < exact(value),
        "multipleOf": lambda value: number % exact(value) == 0,
        "enum": lambda value: number in map(exact, value),
        "not": lambda value: not holds(value, number),
        "anyOf": lambda value: any(holds(one, number) for one in value),
        "oneOf": lambda value: sum(holds(one, number) for one in value) == 1,
    }
    return all(checks[keyword](value) for keyword, value in schema.items())


def numbers_of(schema):
    if isinstance(schema, dict):
        return [found for value in schema.values() for found in numbers_of(value)]
    if isinstance(schema, list):
        return [found for value in schema for found in numbers_of(value)]
    return [] if isinstance(schema, str) else [exact(schema)]


def around(schema, *, seed=0):
    """Numbers near those in a schema: multiples, neighbours, and any others."""
    source = random.Random(seed)
    named = numbers_of(schema) or [Fraction(1, 2), Fraction(3)]
    steps = (
        0,
        1,
        -1,
        *(sign * Fraction(1, part) for part in (2, 10, 100, 10**9) for sign in (1, -1)),
    )
    values = {
        Fraction(0),
        *(n + step for n in named for step in steps),
        *(n / 10 for n in named),
    }
    values |= {one // two * two for one in named for two in named if two}
    for _ in range(40):
        one = source.choice(named)
        two = source.choice(named)
        values |= {one * source.randint(-99, 99), one + two * source.randint(-9, 9)}
        values.add(
            Fraction(source.randint(-(10**6), 10**6), 10 ** source.randint(0, 3))
        )
    return sorted(values)


def texts(value, source):
    """Spellings of a number; the plain one first."""
    plainly = plain(value)
    power = source.randint(-3, 3)
    zeros = plainly + ("00" if "." in plainly else ".0")
    return [plainly, zeros, f"{plain(value / Fraction(10) ** power)}e{power}"]


def assert_exact(schema, *, strict=False):
    """Only what is valid is taken, and all of it that is written out; walks meet no
    dead end."""
    matcher = start(schema, strict=strict)
    source = random.Random(1)
    valid = 0
    for value in around(schema):
        good = holds(schema, value)
        plainly, zeros, scientific = texts(value, source)
        assert taken(matcher, plainly) == good, (schema, plainly)
        assert strict or taken(matcher, zeros) == good, (schema, zeros)
        assert good or not any(taken(matcher, text) for text in (zeros, scientific)), (
            schema,
            value,
        )
        valid += good
    assert valid
    for _ in range(6):
        wander(matcher, schema, source)


def wander(matcher, schema, source):
    """Characters at random, of those that the masks allow."""
    matcher = matcher.fork()
    text = b""
    batch = COMPILER.backend("llguidance").batch([matcher])
    row = np.zeros((1, BYTES.words), np.int32)
    for _ in range(30):
        batch.fill(row, [0])
        allowed = np.flatnonzero(
            np.unpackbits(row.view(np.uint8), bitorder="little")
        ).tolist()
        assert allowed, (schema, text)
        if 256 in allowed and not re.search(rb"[eE][+-]?0*[1-9][0-9]{2}", text):
            assert holds(schema, Fraction(text.decode())), (schema, text)
        characters = [character for character in allowed if character != 256]
        if not characters:
            return
        character = source.choice(characters)
        assert batch.accept([character])[0]
        text += bytes([character])


BOUNDS = [
    0,
    1,
    -1,
    9,
    10,
    99,
    100,
    -199,
    12345,
    0.5,
    -19.95,
    0.001,
    9.99,
    2.0,
    -0.0,
    1e-7,
    99.9,
    -100.01,
]
BOUNDS += [2**63, -(2**63), 10**22, 1e22, 123456789012345678901]
KEYWORDS = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]
RANGES = [(-5, 5), (0.5, 0.75), (9.5, 101), (-1000, -1), (-0.25, 1e-7), (3, 3)]
TENS = [1, 10, 100, 1000, 0.1, 0.01, 0.001, 1.0, 1e-7, 1e5]
VALUES = [0, 1, -1, 1.5, -0.25, 100, 1e-7, 1e22, 2.0]


@pytest.mark.parametrize(
    "demand",
    [
        *({keyword: value} for keyword in KEYWORDS for value in BOUNDS),
        *({"minimum": low, "maximum": high} for low, high in RANGES),
        *(
            {"type": "integer", "minimum": low, "maximum": high}
            for low, high in RANGES[::2]
        ),
        *(
            {"type": "integer", keyword: value}
            for keyword in KEYWORDS
            for value in (-19.95, 99, 2.0, 2**63)
        ),
        *({"multipleOf": divisor} for divisor in TENS),
        *({"not": {"multipleOf": divisor}} for divisor in TENS),
        *({"enum": [value]} for value in VALUES),
        *({"not": {"enum": [value]}} for value in VALUES),
        {"not": {"type": "integer"}},
    ],
    ids=str,
)
def test_numbers_under_one_demand(demand):
    assert_exact({"type": "number", **demand})


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("divisor", DIVISORS)
def test_multiples(divisor, strict):
    assert_exact({"type": "number", "multipleOf": divisor}, strict=strict)


@pytest.mark.parametrize("kind", ["integer", "number"])
@pytest.mark.parametrize("divisor", [7, 0.25, 60, 1024])
@pytest.mark.parametrize(
    "bounds",
    [
        {"minimum": 0},
        {"exclusiveMinimum": 12.5},
        {"maximum": -3},
        {"minimum": -1000, "exclusiveMaximum": 100000},
        {"minimum": 0, "maximum": 1e10},
        {"minimum": 2**63 - 1000, "maximum": 2**63},
        {"exclusiveMinimum": -2000, "maximum": 2000},
    ],
)
def test_multiples_between_bounds(kind, divisor, bounds):
    schema = {"type": kind, "multipleOf": divisor, **bounds}
    try:
        assert_exact(schema)
    except UnsatisfiableSpecError:
        assert not any(holds(schema, exact(divisor) * n) for n in range(-5000, 5000))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "not": {"multipleOf": 7}},
        {"type": "number", "not": {"multipleOf": 0.25}},
        {
            "type": "number",
            "not": {"multipleOf": 3},
            "minimum": 0.5,
            "exclusiveMaximum": 20,
        },
        {"type": "number", "not": {"multipleOf": 7}, "exclusiveMinimum": 0},
        {"type": "integer", "not": {"multipleOf": 10}},
        {"type": "integer", "multipleOf": 3, "not": {"multipleOf": 5}},
        {"type": "integer", "multipleOf": 3, "not": {"enum": [0, 9, 12]}},
        {"type": "number", "multipleOf": 5, "not": {"enum": [10, 50.0, 500]}},
        {"type": "number", "multipleOf": 2.5, "not": {"type": "integer"}},
        {
            "type": "integer",
            "multipleOf": 6,
            "minimum": 1,
            "maximum": 10000,
            "not": {"multipleOf": 4},
        },
        {
            "type": "number",
            "multipleOf": 0.75,
            "not": {"enum": [1.5, 3]},
            "minimum": 0,
            "maximum": 9,
        },
        {"type": "integer", "oneOf": [{"multipleOf": 3}, {"multipleOf": 5}]},
        {
            "type": "number",
            "anyOf": [{"multipleOf": 0.3}, {"multipleOf": 7, "maximum": 100}],
        },
        {"type": "integer", "multipleOf": 0.75},
        {"type": "integer", "minimum": 0, "maximum": 1000000000, "multipleOf": 86400},
        {"type": "integer", "multipleOf": 86400000},
    ],
)
def test_multiples_next_to_other_demands(schema):
    assert_exact(schema)


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"multipleOf": 4294967296}, "#/multipleOf"),
        ({"multipleOf": 10**400 - 1}, "#/multipleOf"),
        (
            {"properties": {"a": {"multipleOf": 12345678901}}},
            "#/properties/a/multipleOf",
        ),
        ({"items": {"not": {"multipleOf": 0.123456789}}}, "#/items/not/multipleOf"),
        (
            {"multipleOf": 3, "anyOf": [{"type": "null"}, {"multipleOf": 99991}]},
            "#/anyOf/1/multipleOf",
        ),
    ],
)
def test_too_many_remainders_are_refused_with_their_place(schema, place):
    with pytest.raises(UnsupportedSpecError, match="multipleOf") as caught:
        start(schema)
    assert caught.value.where == place
    assert "maximum" in caught.value.hint


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 4},
        {"type": "integer", "minimum": 1, "maximum": 6, "multipleOf": 7},
        {"type": "number", "minimum": 0.1, "maximum": 0.2, "multipleOf": 0.25},
        {"type": "integer", "minimum": 1, "maximum": 3, "not": {"enum": [1, 2, 3]}},
        {
            "type": "integer",
            "minimum": 1,
            "maximum": 3,
            "multipleOf": 2,
            "not": {"const": 2.0},
        },
        {"type": "integer", "multipleOf": 6, "not": {"multipleOf": 3}},
        {"type": "number", "multipleOf": 3, "not": {"type": "integer"}},
        {"const": 1e23, "not": {"const": 100000000000000000000000}},
        {"type": "number", "exclusiveMinimum": 5, "maximum": 5},
    ],
)
def test_nothing_is_left(schema):
    with pytest.raises((UnsatisfiableSpecError, SpecError)):
        start(schema)
    # As a property it can be left out, and must not be begun.
    matcher = start(
        {"type": "object", "properties": {"a": schema}, "additionalProperties": False}
    )
    assert taken(matcher, "{}")
    assert not matcher.fork().accept_text(b'{"')


@pytest.mark.parametrize("text", ["7.0", "7e3", "70E1"])
def test_strict_output_is_canonical(text):
    assert not taken(start({"type": "integer", "multipleOf": 7}, strict=True), text)
    assert not taken(start({"type": "integer", "minimum": 0}, strict=True), text)


@pytest.mark.parametrize(
    "text",
    [
        "[7,14]",
        "[7.0 ,14]",
        "[-7,0]",
        "[700000000000007,7]",
        "[7,21,28]",
        "[ 7,14 ]",
        "[7\n]",
    ],
)
def test_a_number_ends_where_the_next_item_begins(text):
    schema = {"type": "array", "items": {"type": "integer", "multipleOf": 7}}
    spec = OutputSpec.json_schema(
        schema, strict=False, whitespace="flexible", backend="llguidance"
    )
    compiled = COMPILER.compile(spec)
    matcher = COMPILER.backend("llguidance").start(compiled, BYTES.stop_token_ids)
    assert taken(matcher, text)
    assert not taken(matcher, text.replace("7", "8"))
    assert not taken(matcher, text.replace("7", "7 0", 1))


def test_numbers_of_alternatives_that_begin_alike_are_told_apart():
    many = {"type": "integer", "multipleOf": 7}
    large = {"type": "integer", "minimum": 100}
    matcher = start(
        {"anyOf": [{"type": "array", "items": many}, {"type": "array", "items": large}]}
    )
    assert [
        text
        for text in ("[14]", "[101]", "[14,7]", "[700,101]", "[105,7]")
        if not taken(matcher, text)
    ] == []
    assert [
        text for text in ("[15]", "[14,101]", "[101,7]") if taken(matcher, text)
    ] == []


@pytest.mark.parametrize("number", [10**400, -(10**2000) + 7])
def test_numbers_beyond_every_double_are_refused(number):
    with pytest.raises(UnsupportedSpecError, match="too large") as caught:
        start({"items": {"minimum": number}})
    assert caught.value.where == "#/items/minimum"


def test_the_time_and_text_of_a_grammar_with_many_remainders_are_bounded():
    for divisor in (101, 86400, 1024, 3.14, 365):
        text = schema_to_lark(
            {"type": "number", "multipleOf": divisor},
            strict=False,
            whitespace="compact",
        ).text
        assert len(text) < 300_000
    usual = {"type": "integer", "multipleOf": 5, "minimum": 0}
    assert len(schema_to_lark(usual, strict=False, whitespace="compact").text) < 4_000


MANTISSAS = [
    *(
        "0",
        "0.0",
        "0.5",
        "0.001",
        "1",
        "1.0",
        "1.25",
        "1.50",
        "9.99",
        "10",
        "12",
        "12345.678",
        "50036.0",
    ),
    *(
        "5",
        "5.0036",
        "7.50",
        "1.0000000100",
        "1.23456780",
        "100",
        "123456789012345",
        "1234567890123456.5",
    ),
]
POWERS = [
    *(
        "",
        "e0",
        "e1",
        "e2",
        "e3",
        "e6",
        "e9",
        "e10",
        "e11",
        "e+6",
        "E10",
        "e00",
        "e06",
        "e010",
        "e20",
    ),
    *("e300", "e-1", "e-2", "e-3", "e-10", "e-01", "e-300"),
]
EVERY_NUMBER = [
    sign + digits + power
    for sign in ("", "-")
    for digits in MANTISSAS
    for power in POWERS
]
DEMANDS = [
    {keyword: value}
    for keyword in KEYWORDS
    for value in (
        0,
        1,
        -1,
        1e10,
        -1e10,
        50036000000,
        0.5,
        -0.5,
        9.99,
        1e-7,
        12345,
        1e22,
        1e300,
        1e-300,
    )
]
DEMANDS += [
    {"minimum": low, "maximum": high}
    for low, high in ((0, 100), (-5, 1e10), (1, 50), (0.5, 1.75))
]
DEMANDS += [
    {"multipleOf": step} for step in (1, 10, 100, 0.01, 0.5, 3, 7, 0.25, 1e-6, 2.5, 12)
]
DEMANDS += [{"multipleOf": step, "minimum": 0} for step in (1, 10, 0.5, 7)]
DEMANDS += [
    {"multipleOf": step, "minimum": 0, "maximum": 1000} for step in (1, 10, 0.5, 7)
]
DEMANDS += [{"multipleOf": 7, "minimum": 0, "maximum": 70000}]
DEMANDS += [
    {"not": {"enum": [1e10]}},
    {"not": {"multipleOf": 10}},
    {"not": {"type": "integer"}},
]


@pytest.mark.parametrize("kind", ["number", "integer"])
def test_what_may_be_written_and_is_a_number_of_the_schema_may_end(kind):
    wrong = []
    for demand in DEMANDS:
        schema = {"type": kind, **demand}
        if kind == "integer" and demand == {"not": {"type": "integer"}}:
            continue
        matcher = start(schema)
        unsigned = demand.get("minimum", demand.get("exclusiveMinimum", -1)) >= 0
        for text in EVERY_NUMBER:
            fork = matcher.fork()
            if not fork.accept_text(text.encode()):
                continue
            assert not (unsigned and text.startswith("-")), (schema, text)
            if fork.complete != holds(schema, Fraction(text)):
                wrong.append((schema, text))
    assert wrong == []


def test_in_draft_4_a_value_may_be_written_with_a_fraction_of_zero_and_an_integer_may_not():
    draft = {"$schema": "http://json-schema.org/draft-04/schema#"}
    values = start({**draft, "enum": [0, 1]})
    whole = start({**draft, "type": "integer", "enum": [0, 1]})
    for text in ("0.0", "1.0", "-0.0"):
        assert taken(values, text)
        assert not taken(whole, text)
    assert all(taken(matcher, "1") for matcher in (values, whole))
    assert taken(
        start({**draft, "multipleOf": 12, "minimum": 0, "maximum": 120}), "96.0"
    )
    assert taken(start({**draft, "allOf": [{"enum": [1]}, {"type": "number"}]}), "1.0")


@pytest.mark.parametrize(
    "item", [{"multipleOf": 0.5}, {"multipleOf": 7}, {"not": {"multipleOf": 3}}]
)
def test_multiples_may_be_items_that_differ(item):
    matcher = start(
        {"type": "array", "uniqueItems": True, "items": {"type": "number", **item}}
    )
    assert all(taken(matcher, text) for text in ("[7]", "[]", "[14,7]", "[700,70,7]"))
    assert not any(
        taken(matcher, text) for text in ("[7,7]", "[7,7.0]", "[14,7,14]", "[7,0.7e1]")
    )


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    "demand", [demand for demand in DEMANDS if "enum" not in demand], ids=str
)
def test_numbers_with_constraints_have_no_exponent(demand, strict):
    matcher = start({"type": "number", **demand}, strict=strict)
    assert not any(taken(matcher, text) for text in EVERY_NUMBER if "e" in text.lower())


NUMBERS = ["0", "-0", "1e5", "1E+05", "-1.50e-3", "10.01"]
NONE = [
    "01",
    "-",
    "1.",
    ".5",
    "+1",
    "1e",
    "0x1",
    "1e1.5",
    "",
    "--1",
    "NaN",
    "-05",
    "10e",
    "00",
    "1,0",
    "-.5",
]
OTHERS = [
    {"minimum": 5},
    {"type": "integer"},
    {"not": {"enum": [1]}},
    {"enum": [2.5]},
    {"multipleOf": 10},
]


def test_any_number_is_what_json_calls_one():
    for matcher in (start({"type": "number", **demand}) for demand in ({}, *OTHERS)):
        assert [text for text in NONE if taken(matcher, text)] == []
    assert all(taken(start({"type": "number"}), text) for text in NUMBERS)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e22, "1" + "0" * 22),
        (1e-7, "0.0000001"),
        (2.0, "2"),
        (-0.0, "0"),
        (1.50, "1.5"),
        (0, "0"),
    ],
)
def test_plain_writes_numbers_out(value, text):
    assert plain(value) == text


def test_long_lists_of_numbers_take_time_in_proportion():
    def seconds(count):
        begin = time.process_time()
        start({"type": "integer", "minimum": 1, "enum": list(range(count))})
        return time.process_time() - begin

    seconds(10)
    assert seconds(8_000) < 40 * max(seconds(800), 0.01)
