"""Bounds where a schema has none: each at its edge, what gives way to the schema, and
no bounds at all."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import re

import pytest
from distinct_walks import wander
from instances import near, text_of
from jsonschema import Draft202012Validator
from schemas import random_schema
from vocabularies import BYTES

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import BOUNDS, UNBOUNDED, GuidedConfig
from guided_plugin.diagnose.check import check_spec
from guided_plugin.errors import CompileLimitError, GuidedError
from guided_plugin.plugins import Plugins
from guided_plugin.spec import OutputSpec

INT = {"type": "integer"}
STR = {"type": "string"}
LIST = {"type": "array", "items": INT}
MAP = {"type": "object", "additionalProperties": INT}
TREE = {
    "type": "object",
    "properties": {"v": INT, "c": {"type": "array", "items": {"$ref": "#"}}},
    "required": ["v"],
}


def compiler_of(**options):
    config = GuidedConfig(threads=1, isolate_compiles=False, **options)
    return GrammarCompiler(BYTES, config=config, plugins=Plugins(entry_points=False))


COMPILER = compiler_of()
FREE = compiler_of(**vars(UNBOUNDED))


def takes(spec, text, compiler=COMPILER):
    grammar = compiler.compile(spec)
    matcher = compiler.backend(grammar.backend).start(
        grammar, compiler.vocabulary.stop_token_ids
    )
    return matcher.accept_text(text.encode()) and matcher.complete


def written(value):
    return json.dumps(value, separators=(",", ":"))


def names(count):
    return written({chr(97 + i): 1 for i in range(count)})


EDGES = [
    # an option, its value, a schema, what is allowed, what is not
    ("max_digits", 3, INT, ["0", "-999", "100"], ["1000", "-1000"]),
    (
        "max_digits",
        3,
        {"type": "number"},
        ["999.999", "1e300", "-1.5E-100"],
        ["1000", "0.1234", "1e999"],
    ),
    ("max_digits", 1, {"type": "number"}, ["9.9", "-1e9"], ["10", "0.01", "1e10"]),
    ("max_digits", 2, {**INT, "minimum": 50}, ["50", "99"], ["49", "100"]),
    ("max_digits", 2, {**INT, "maximum": -5}, ["-5", "-99"], ["-4", "-100"]),
    ("max_digits", 2, {**INT, "exclusiveMinimum": 99}, ["100", "999"], ["99", "1000"]),
    (
        "max_digits",
        2,
        {**INT, "minimum": 0, "maximum": 5000},
        ["0", "4999", "5000"],
        ["5001"],
    ),
    (
        "max_digits",
        2,
        {**INT, "multipleOf": 7000, "minimum": 1},
        ["7000"],
        ["0", "14000"],
    ),
    (
        "max_digits",
        2,
        {"type": "number", "multipleOf": 0.001},
        ["0.125", "99.5"],
        ["0.0001", "100"],
    ),
    (
        "max_digits",
        2,
        {"type": "number", "minimum": 0, "maximum": 1},
        ["0.33", "1.0"],
        ["0.333", "1.1"],
    ),
    (
        "max_digits",
        1,
        {"type": "number", "minimum": 1e-4, "maximum": 1.5e-4},
        ["0.00012"],
        ["0.0001222"],
    ),
    (
        "max_digits",
        2,
        {"enum": [12345, 0.12345]},
        ["12345", "0.12345"],
        ["1234", "0.123450"],
    ),
    (
        "max_digits",
        3,
        {"const": [0.5, 1]},
        ["[0.5,1]", "[0.500,1]"],
        ["[0.5000,1]", "[0.5,1.0]"],
    ),
]


@pytest.mark.parametrize(
    ("name", "most", "schema", "good", "bad"), EDGES, ids=range(len(EDGES))
)
@pytest.mark.parametrize("strict", [True, False])
def test_each_bound_at_its_edge(name, most, schema, good, bad, strict):
    asked = OutputSpec.json_schema(schema, strict=strict, **{name: most})
    configured = compiler_of(**{name: most})
    strict = strict or schema is True
    for text in [*good, *bad] if strict else good:
        if schema is not True:
            valid = Draft202012Validator(schema).is_valid(json.loads(text))
            assert valid or text in bad, "the table itself"
        assert takes(asked, text) is (text in good), text
        assert takes(OutputSpec.json_schema(schema), text, configured) is (
            text in good
        ), text
        nested = OutputSpec.json_schema(
            {"type": "array", "items": schema}, strict=True, **{name: most}
        )
        assert takes(nested, f"[{text}]") is (text in good) or "$ref" in written(schema)


def inside(text, bounds):
    """Whether a text keeps to bounds, as its characters tell."""
    n = bounds["max_digits"]
    number = re.compile(rf"-?\d{{1,{n}}}(\.\d{{1,{n}}})?([eE][-+]?\d{{1,{n}}})?")
    outside = re.sub(r'"(?:[^"\\]|\\.)*"', '""', text)
    if not all(
        number.fullmatch(found) for found in re.findall(r"-?\d[\d.eE+-]*", outside)
    ):
        return False

    space = re.compile(rf" {{0,2}}(\r?\n[\t ]{{0,{bounds['max_whitespace']}}})?")
    return all(map(space.fullmatch, re.findall(r"\s+", outside)))


def anything(rng, depth=0):
    match rng.randrange(4 if depth > 3 else 6):
        case 0:
            return rng.choice([True, None, "", "a", "ab", 'a"b', "abcd"])
        case 1 | 2 | 3:
            return (
                round(rng.uniform(-1, 1) * 10 ** rng.randrange(5), rng.randrange(5))
                or 0
            )
        case 4:
            return [anything(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {
        rng.choice(["a", "bc", "def", "ghij"]): anything(rng, depth + 1)
        for _ in range(rng.randrange(4))
    }


@pytest.mark.parametrize("whitespace", ["compact", "spaced", "flexible"])
def test_values_that_nothing_describes(whitespace):
    rng = random.Random(whitespace)
    verdicts = set()
    for _ in range(25):
        bounds = {name: rng.randrange(1, 5) for name in BOUNDS}
        spec = OutputSpec.json_schema(True, whitespace=whitespace, **bounds)
        for _ in range(40):
            value = anything(rng)
            layout = {"compact": (",", ":"), "spaced": (", ", ": ")}.get(whitespace)
            text = json.dumps(value, separators=layout, ensure_ascii=False)
            if layout is None:
                text = json.dumps(value, indent=rng.randrange(3), ensure_ascii=False)
            assert takes(spec, text, FREE) is inside(text, bounds), (text, bounds)
            verdicts.add(inside(text, bounds))
    assert verdicts == {True, False}


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
        for value in itertools.islice(near(schema, seed=seed), 50):
            text = text_of(value)
            if text.isprintable():
                verdict = takes(free, text, FREE)
                assert takes(spec, text) in (
                    {verdict} if inside(text, bounds) else {verdict, False}
                ), text
                same += verdict and inside(text, bounds)
    assert same > 200


GAPS = [
    '{"a":[1, "x"],%s"b":1}',
    '{%s"a":[],"b":1}',
    '{"a":[1%s,2],"b":1}',
    '{"a":[1,2],"b":1%s}',
    '{"a":[1]%s,"b":1}',
]
AB = {"type": "object", "properties": {"a": {"type": "array", "items": {}}, "b": INT}}


@pytest.mark.parametrize("around", ["", "tag", "lark"])
def test_whitespace_at_its_edge(around):
    options = {"whitespace": "flexible", "max_whitespace": 4}
    spec = OutputSpec.json_schema(AB, **options)
    if around == "tag":
        content = {"type": "json_schema", "json_schema": AB}
        tag = {"type": "tag", "begin": "<a>", "content": content, "end": "</a>"}
        spec = OutputSpec.structural_tag({"format": tag}, **options)
    elif around:
        spec = OutputSpec.grammar(
            f'start: "<a>" %json {json.dumps(AB)} "</a>"', "lark", **options
        )
    for gap in GAPS:
        for space, good in [
            ("", True),
            ("  \r\n \t  ", True),
            ("\n     ", False),
            ("\n\n", False),
            ("   ", False),
            ("\t", False),
        ]:
            text = gap % space
            assert takes(spec, f"<a>{text}</a>" if around else text) is good, text
    empty = [
        takes(spec, f"<a>{text}</a>" if around else text)
        for text in ('{"a":[    ]}', '{"a":[     ]}')
    ]
    assert empty == [True, False]


def test_tags_and_their_parameters_in_xml():
    described = {
        "type": "object",
        "properties": {"q": STR, "n": INT},
        "required": ["q", "n"],
    }
    for style, form in [
        ("json", '{{"q":"{}","n":{}}}'),
        ("qwen_xml", "<parameter=q>{}</parameter><parameter=n>{}</parameter>"),
    ]:
        part = {"type": "json_schema", "json_schema": described, "style": style}
        spec = OutputSpec.structural_tag({"format": part}, max_digits=2)
        for text, number in [("abc", 12), ("", 1), ("abc", 123)]:
            assert takes(spec, form.format(text, number)) is (number < 100), (
                style,
                text,
                number,
            )
            settled = spec.settled(GuidedConfig(**vars(UNBOUNDED)))
            assert takes(settled, form.format(text, number)) is (number < 100)


@pytest.mark.parametrize("vocabulary", ["special", "crossing"])
def test_outputs_of_distinct_items_come_to_their_end(vocabulary):
    rng = random.Random(5)
    ended = 0
    closed = {"type": "object", "properties": {"a": LIST, "b": INT}}
    for items in (
        INT,
        LIST,
        closed,
        {"type": "number", "minimum": 95},
        {"type": ["string", "boolean"]},
    ):
        for _ in range(12):
            bounds = {name: rng.randrange(1, 4) for name in BOUNDS}
            schema = {
                "type": "array",
                "items": items,
                "uniqueItems": True,
                "minItems": rng.randrange(4),
            }
            spec = OutputSpec.json_schema(schema, **bounds)
            text = wander(vocabulary, spec, rng, steps=60)
            assert text is None or takes(spec, text.decode())
            ended += text is not None
    assert ended > 30


def test_zero_sets_no_bound():
    off = OutputSpec.json_schema(True, whitespace="flexible", **vars(UNBOUNDED))
    assert takes(off, "[" * 50 + " " * 500 + "1" * 500 + "]" * 50)


def test_what_is_too_large_is_refused():
    for spec, says in [
        (
            OutputSpec.json_schema(True, max_digits=10**7),
            "max_digits of 10000000 .* max_repetition",
        ),
    ]:
        with pytest.raises(CompileLimitError, match=says):
            COMPILER.compile(spec)


def test_check_names_the_bounds_that_hold():
    for spec, bounds in [
        (OutputSpec.json_object(), {"max_whitespace": 40, "max_digits": 20}),
        (OutputSpec.json_object(whitespace="compact"), {"max_digits": 20}),
        (OutputSpec.json_object(max_whitespace=0, max_digits=3), {"max_digits": 3}),
        (
            OutputSpec.grammar('start: "a" %json {}', "lark"),
            {"max_whitespace": 40, "max_digits": 20},
        ),
        (OutputSpec.grammar('start: "a"', "lark"), {}),
        (OutputSpec.regex("%json", max_digits=3), {}),
    ]:
        assert check_spec(COMPILER, spec).to_dict()["bounds"] == bounds, spec
