"""Bounds where a schema has none: each at its edge, what gives way to the schema, and
no bounds at all."""

import dataclasses
import itertools
import json
import random
import re

import pytest
from compilers import compiler_of, start, taken_of, takes, unbounded
from instances import near, text_of
from oracle import oracle
from schemas import random_schema
from vocabularies import BYTES

from guided_plugin.config import BOUNDS, UNBOUNDED
from guided_plugin.diagnose.check import check_spec
from guided_plugin.errors import CompileLimitError, GuidedError
from guided_plugin.spec import OutputSpec

COMPILER = compiler_of(BYTES)
FREE = unbounded(BYTES)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("most", "schema", "good", "bad"),
    [
        (3, '{"type": "integer"}', "0 -999 100", "1000 -1000"),
        (3, '{"type": "number"}', "999.999 1e300 -1.5E-100", "1000 0.1234 1e999"),
        (1, '{"type": "number"}', "9.9 -1e9", "10 0.01 1e10"),
        (2, '{"type": "integer", "minimum": 50}', "50 99", "49 100"),
        (2, '{"type": "integer", "maximum": -5}', "-5 -99", "-4 -100"),
        (2, '{"type": "integer", "exclusiveMinimum": 99}', "100 999", "99 1000"),
        (2, '{"type": "integer", "minimum": 0, "maximum": 5000}', "0 5000", "5001"),
        (2, '{"type": "integer", "multipleOf": 7000, "minimum": 1}', "7000", "0 14000"),
        (2, '{"type": "number", "multipleOf": 0.001}', "0.125 99.5", "0.0001 100"),
        (2, '{"type": "number", "minimum": 0, "maximum": 1}', "0.33 1.0", "0.333 1.1"),
        (
            1,
            '{"type": "number", "minimum": 1e-4, "maximum": 1.5e-4}',
            "0.00012",
            "0.0001222",
        ),
        (3, "{}", '[999.999,{"a":-1e300}]', '[1000] {"a":0.1234} {"1000":1e999}'),
        (2, '{"enum": [12345, 0.12345]}', "12345 0.12345", "1234 0.123450"),
        (3, '{"const": [0.5, 1]}', "[0.5,1] [0.500,1]", "[0.5000,1] [0.5,1.0]"),
    ],
)
def test_the_number_of_digits_at_its_edge(most, schema, good, bad, strict):
    """Asked for, set by the operator, and inside of an array."""
    document = json.loads(schema)
    good = good.split()
    bad = bad.split() if strict else []
    asked = OutputSpec.json_schema(document, strict=strict, max_digits=most)
    items = {"type": "array", "items": document}
    nested = OutputSpec.json_schema(items, max_digits=most)
    configured = compiler_of(BYTES, max_digits=most)
    assert all(map(oracle(document), map(json.loads, good)))
    assert taken_of(COMPILER, asked, good + bad) == good
    assert taken_of(configured, OutputSpec.json_schema(document), good + bad) == good
    in_arrays = [f"[{text}]" for text in good + bad]
    assert taken_of(COMPILER, nested, in_arrays) == in_arrays[: len(good)]


def inside(text, bounds):
    """Whether a text keeps to bounds, as its characters tell."""
    n = bounds["max_digits"]
    number = re.compile(rf"-?\d{{1,{n}}}(\.\d{{1,{n}}})?([eE][-+]?\d{{1,{n}}})?")
    space = re.compile(rf" {{0,2}}(\r?\n[\t ]{{0,{bounds['max_whitespace']}}})?")
    outside = re.sub(r'"(?:[^"\\]|\\.)*"', '""', text)
    numbers = re.findall(r"-?\d[\d.eE+-]*", outside)
    spaces = re.findall(r"\s+", outside)
    return all(map(number.fullmatch, numbers)) and all(map(space.fullmatch, spaces))


def test_within_all_bounds_nothing_changes_and_beyond_them_nothing_is_added():
    same = 0
    for seed in range(40):
        rng = random.Random(seed)
        schema = random_schema(rng)
        bounds = {name: rng.randrange(1, 5) for name in BOUNDS}
        try:
            free = OutputSpec.json_schema(schema, strict=rng.random() < 0.5)
            FREE.compile(free)
        except GuidedError:
            continue
        spec = dataclasses.replace(free, **bounds)
        texts = map(text_of, itertools.islice(near(schema, seed=seed), 50))
        for text in filter(str.isprintable, texts):
            verdict = takes(FREE, free, text)
            bounded = takes(COMPILER, spec, text)
            if inside(text, bounds):
                assert bounded == verdict, text
                same += verdict
            else:
                assert verdict or not bounded, text
    assert same > 200


SCHEMA = """{"type": "object",
    "properties": {"a": {"type": "array", "items": {}}, "b": {"type": "integer"}}}"""
TAG = f"""{{"type": "tag", "begin": "<a>", "end": "</a>",
    "content": {{"type": "json_schema", "json_schema": {SCHEMA}}}}}"""
EDGE = {"whitespace": "flexible", "max_whitespace": 4}


@pytest.mark.parametrize(
    ("spec", "around"),
    [
        (OutputSpec.json_schema(SCHEMA, **EDGE), "%s"),
        (OutputSpec.structural_tag({"format": json.loads(TAG)}, **EDGE), "<a>%s</a>"),
    ],
    ids=["schema", "tag"],
)
def test_whitespace_at_its_edge(spec, around):
    matcher = start(COMPILER, spec)
    for gap in (
        '{"a":[1, "x"],%s"b":1}',
        '{%s"a":[],"b":1}',
        '{"a":[1%s,2],"b":1}',
        '{"a":[1,2],"b":1%s}',
        '{"a":[1]%s,"b":1}',
    ):
        text = around % gap
        for space in ("", "  \r\n \t  "):
            assert takes(COMPILER, matcher, text % space), (gap, space)
        for space in ("\n     ", "\n\n", "   ", "\t"):
            assert not takes(COMPILER, matcher, text % space), (gap, space)
    assert takes(COMPILER, matcher, around % '{"a":[    ]}')
    assert not takes(COMPILER, matcher, around % '{"a":[     ]}')


def test_zero_sets_no_bound():
    off = OutputSpec.json_schema(True, whitespace="flexible", **vars(UNBOUNDED))
    assert takes(COMPILER, off, "[" * 50 + " " * 500 + "1" * 500 + "]" * 50)
    assert takes(COMPILER, off, "-8E33333333333333333333")


def test_what_is_too_large_is_refused():
    says = "max_digits of 10000000 .* max_repetition"
    with pytest.raises(CompileLimitError, match=says):
        COMPILER.compile(OutputSpec.json_schema(True, max_digits=10**7))


@pytest.mark.parametrize(
    ("spec", "whitespace", "digits"),
    [
        (OutputSpec.json_object(), 40, 20),
        (OutputSpec.json_object(whitespace="compact"), None, 20),
        (OutputSpec.json_object(max_whitespace=0, max_digits=3), None, 3),
        (OutputSpec.grammar('start: "a"', "lark"), None, None),
        (OutputSpec.regex("a", max_digits=3), None, None),
    ],
)
def test_check_names_the_bounds_that_hold(spec, whitespace, digits):
    bounds = check_spec(COMPILER, spec).to_dict()["bounds"]
    assert bounds.get("max_whitespace") == whitespace
    assert bounds.get("max_digits") == digits
