"""What is refused before it is compiled, each with its own message, and what counts as
small."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from guided_plugin.compiling import limits
from guided_plugin.compiling.limits import check_limits, check_size, is_small, unrolled
from guided_plugin.config import GuidedConfig
from guided_plugin.errors import CompileLimitError
from guided_plugin.spec import OutputSpec

TABLES = json.loads(Path(__file__).with_name("limits.json").read_bytes())


def nested(depth):
    schema = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return OutputSpec.json_schema(schema)


def schema(**keywords):
    return OutputSpec.json_schema(keywords)


@pytest.mark.parametrize(("options", "form", "says"), TABLES["over"])
def test_each_limit_has_its_message_and_its_option(options, form, says):
    spec = OutputSpec.parse(form)
    with pytest.raises(CompileLimitError, match=says) as caught:
        check_limits(spec, GuidedConfig(**options))
    (option,) = options
    assert option in caught.value.hint
    # The default, like any larger limit, lets it through.
    if "10^18" not in str(caught.value):
        check_limits(spec, GuidedConfig())


CIRCLE: list = [1]
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize(
    "form",
    [
        "x" * 15_000,
        {"regex": "x" * 15_000},
        {"choice": ["x"] * 5_000},
        {"choice": [""] * 10**6},
        {"json_schema": {"properties": {f"p{number}": {} for number in range(2_000)}}},
        {"json_schema": {"x" * 15_000: 1}},
        OutputSpec.regex("x" * 15_000),
        CIRCLE,
    ],
    ids=range(8),
)
def test_a_form_that_is_certainly_too_large_is_refused_unread(form):
    with pytest.raises(
        CompileLimitError, match=r"more than 10000 bytes.*max_spec_bytes"
    ):
        check_size(form, GuidedConfig(max_spec_bytes=10_000))


@pytest.mark.parametrize(
    "wrap",
    [lambda s: s, lambda s: {"json_schema": s}, lambda s: {"json": json.dumps(s)}],
)
def test_a_form_of_too_many_values_is_refused_unread(wrap):
    config = GuidedConfig(max_nodes=1_000)
    check_size(wrap({"prefixItems": [{}] * 950, "description": "a,b" * 5_000}), config)
    for tiny in ({}, [], 1, True):
        with pytest.raises(
            CompileLimitError, match=r"more than 1000 JSON values.*max_nodes"
        ):
            check_size(wrap({"prefixItems": [tiny] * 1_100}), config)
    with pytest.raises(CompileLimitError, match="max_nodes"):
        check_size(
            wrap({"properties": {f"p{number}": {} for number in range(1_100)}}), config
        )


@pytest.mark.parametrize(
    "value",
    [
        ["x" * 96] * 100,
        [1] * 4_990,
        {f"{number:04}": 1 for number in range(1_100)},
        {"a": {"b": [None, True, 1.5, "é" * 1_600]}},
        [[]] * 3_000,
        "x" * 9_990,
    ],
    ids=range(6),
)
def test_no_form_of_a_spec_within_the_limit_is_too_large(value):
    config = GuidedConfig(max_spec_bytes=10_000)
    spec = OutputSpec.json_schema({"const": value})
    assert 8_900 < len(spec.text.encode()) <= 10_020
    check_size({"json_schema": {"const": value}}, config)
    check_size(
        {
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": {"const": value}},
        },
        config,
    )
    check_size(spec.text, config)


@pytest.mark.parametrize(
    "spec",
    [
        nested(99),
        OutputSpec.json_schema(True),
        OutputSpec.regex("a" * 1_000_001),
        schema(default={"maxItems": 10**9, "pattern": "a{99999999}"}),
        schema(const={"enum": list(range(20_001))}),
        schema(properties={"pattern": {"const": "a{99999999}"}, "maxItems": {}}),
        OutputSpec.grammar(
            "root ::= " + " | ".join('"f("' for _ in range(300)) + ' ")"'
        ),
        schema(maxLength=1_000_000),
    ],
    ids=range(8),
)
def test_what_looks_like_too_much_and_is_not(spec):
    check_limits(spec, GuidedConfig())


@pytest.mark.parametrize(
    ("pattern", "size", "depth"),
    TABLES["patterns_are_measured_as_written_out"],
)
def test_patterns_are_measured_as_written_out(pattern, size, depth):
    assert unrolled(pattern) == (size, depth)


def test_classes_can_be_counted_alone():
    assert unrolled(r"abc[a-z]{3}d.\d{2}(xy){9}", letter=0)[0] == 6


def test_texts_of_a_grammar_are_no_brackets():
    assert unrolled('root ::= "(" "a"{3} "(" [(] (("b"))', grammar=True)[1] == 2


@pytest.mark.parametrize("character", [*'("[{\\)', "a{9}", "{1", "[]"])
def test_a_megabyte_of_anything_is_measured_in_linear_time(character):
    def seconds(count):
        best = float("inf")
        for _ in range(3):
            start = time.thread_time()
            unrolled(character * count)
            best = min(best, time.thread_time() - start)
        return best

    # Quadratic would be a factor of 100 in time for this factor of 10 in length.
    assert seconds(100_000) < 40 * max(seconds(10_000), 1e-4)


def test_places_are_written_for_what_is_refused_alone(monkeypatch):
    # Each may be as long as the spec, and there are thousands.
    monkeypatch.setattr(limits, "pointer", None)
    spec = schema(
        items={"maxLength": 9, "pattern": "a", "patternProperties": {"b": {}}}
    )
    check_limits(spec, GuidedConfig())


SMALL = list(map(OutputSpec.parse, TABLES["small"]))
NOT_SMALL = [
    *map(OutputSpec.parse, TABLES["not_small"]),
    OutputSpec.choice(["x" * 5000]),
    OutputSpec.grammar('root ::= "' + "a" * 2000 + '"'),
    schema(description="x" * 5000),
]


def test_small_is_what_llguidance_compiles_in_a_moment():
    assert [spec.summary() for spec in SMALL if not is_small(spec, "llguidance")] == []
    assert [spec.summary() for spec in NOT_SMALL if is_small(spec, "llguidance")] == []


def test_xgrammar_compiles_little_and_third_parties_nothing_in_process():
    assert is_small(OutputSpec.grammar('root ::= "a" [^b]'), "xgrammar")
    assert not is_small(OutputSpec.grammar("root ::= [^a]{250}"), "xgrammar")
    assert not any(is_small(spec, "third-party") for spec in SMALL)
