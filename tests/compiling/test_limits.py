"""What is refused before it is compiled, each with its own message, and what counts as
small."""

from __future__ import annotations

import json
import time

import pytest

from guided_plugin.compiling.limits import check_limits, check_size, is_small, unrolled
from guided_plugin.config import GuidedConfig
from guided_plugin.errors import CompileLimitError
from guided_plugin.spec import OutputSpec


def nested(depth):
    schema = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return OutputSpec.json_schema(schema)


def schema(**keywords):
    return OutputSpec.json_schema(keywords)


def tag(content):
    return OutputSpec.structural_tag(
        {"format": {"type": "tag", "begin": "<a>", "content": content, "end": "</a>"}}
    )


OVER = [
    (
        {"max_spec_bytes": 20},
        OutputSpec.regex("é" * 11),
        r"regex: a spec of 22 bytes is over the limit of 20",
    ),
    (
        {"max_spec_depth": 9},
        nested(5),
        r"#: is nested more than 9 deep \(flatten it, or raise max_spec_depth",
    ),
    (
        {"max_spec_depth": 9},
        schema(const=[[[[[[[[[[]]]]]]]]]]),
        "nested more than 9 deep",
    ),
    (
        {"max_spec_depth": 3},
        OutputSpec.regex("((((a))))"),
        "regex: has brackets nested more than 3 deep",
    ),
    (
        {"max_spec_depth": 3},
        OutputSpec.grammar('root ::= (((("a"))))'),
        "grammar: has brackets nested",
    ),
    (
        {"max_enum": 2},
        schema(items={"enum": [1, 2, 3]}),
        "#/items/enum: an enum of 3 values is over .* of 2",
    ),
    (
        {"max_enum": 2},
        OutputSpec.choice(["a", "b", "c"]),
        "choice: a choice of 3 texts",
    ),
    (
        {"max_spec_properties": 2},
        schema(properties={"a": {}, "b": {}, "c": {}}),
        "`properties` of 3 members",
    ),
    (
        {"max_spec_properties": 1},
        OutputSpec.json_schema({"$defs": {"a": {}, "b": {}}}),
        r"#/\$defs: .* raise max_spec_pro",
    ),
    (
        {"max_repetition": 9},
        OutputSpec.regex("(a{3}b?){3}"),
        "written out, of 15 characters .* max_repetition",
    ),
    (
        {"max_repetition": 9},
        schema(pattern="^a{2,10}$"),
        "#/pattern: a pattern, .* of 12 characters",
    ),
    (
        {"max_repetition": 9},
        schema(patternProperties={"a{10}": {}}),
        r"#/patternProperties/a\{10\}: a pattern",
    ),
    (
        {"max_repetition": 9},
        schema(maxItems=10),
        "#/maxItems: `maxItems` of 10 is over the limit of 9",
    ),
    (
        {"max_repetition": 9},
        schema(maxLength=1e30),
        r"`maxLength` of more than 10\^18 is over",
    ),
    (
        {"max_repetition": 9},
        schema(minItems=10**200),
        r"`minItems` of more than 10\^18 is over",
    ),
    (
        {"max_repetition": 9},
        OutputSpec.regex("a{" + "9" * 5000 + "}"),
        r"more than 10\^18 characters",
    ),
    (
        {"max_repetition": 99},
        OutputSpec.grammar('root ::= "a" "b"{100}'),
        "grammar: a pattern",
    ),
    (
        {"max_repetition": 99},
        OutputSpec.grammar("start: /(a{10}){10}/", "lark"),
        "grammar: .* of 1[0-9][0-9] char",
    ),
    (
        {"max_repetition": 9},
        tag({"type": "json_schema", "json_schema": {"maxItems": 10}}),
        "#/format/content/json_schema/maxItems: `maxItems` of 10",
    ),
    (
        {"max_repetition": 9},
        tag({"type": "regex", "pattern": "a{10}"}),
        "#/format/content/pattern: a pattern",
    ),
    (
        {"max_spec_depth": 2},
        tag({"type": "json_schema", "json_schema": {}}),
        "#: is nested",
    ),
    (
        {"max_nodes": 9},
        schema(prefixItems=[{}] * 8),
        "#: a spec of 10 JSON values is over",
    ),
    (
        {"max_nodes": 8},
        tag({"type": "json_schema", "json_schema": {}}),
        "a spec of 9 JSON values",
    ),
]


@pytest.mark.parametrize(("options", "spec", "says"), OVER, ids=range(len(OVER)))
def test_each_limit_has_its_message_and_its_option(options, spec, says):
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


def test_a_megabyte_of_tiny_values_is_refused_in_a_moment():
    form = {"json_schema": {"prefixItems": [{} for _ in range(240_000)]}}
    texts = [json.dumps(form), {"json_schema": json.dumps(form["json_schema"])}]
    for one in [form, *texts]:
        start = time.thread_time()
        with pytest.raises(CompileLimitError, match="max_nodes"):
            check_size(one, GuidedConfig())
        assert time.thread_time() - start < 0.1  # 0.05 next to other tests


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
    [
        ("abc", 3, 0),
        ("ab{3}c", 5, 0),
        ("(ab){2,5}c", 11, 1),
        ("a{2,}", 2, 0),
        ("((a{2}){3}){4}", 24, 2),
        ("a{9}{9}", 81, 0),
        ("[]|(a{1000}){1000}[x]", 1_000_003, 1),
        ("[^](a{10}){10}[x]", 102, 1),
        (r"[^\]]{4}", 4, 0),
        (r"\(a{2}\)", 4, 0),
        (r"\d{4}-\d{2}", 7, 0),
        ("a{0}", 1, 0),
        ("a{,3}", 5, 0),
        ("){3}((", 3, 2),
        ("a{" + "9" * 5000 + "}", 10**18, 0),
        ("[" * 100, 1, 0),
        ("a.b", 3, 0),
    ],
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


SMALL = [
    OutputSpec.json_object(),
    OutputSpec.json_schema(True),
    OutputSpec.choice(["yes", "no"]),
    OutputSpec.regex(r"\d{4}-\d{2}-\d{2}"),
    schema(
        type="object",
        properties={"a": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
    ),
    schema(type="array", items={"type": "string", "maxLength": 100}),
    schema(type="string", pattern="^[A-Z]{3}$"),
    schema(**{"$id": "https://example.com/a"}, type="object"),
    OutputSpec.structural_tag({"format": {"type": "any_text", "excludes": ["<x>"]}}),
    tag(
        {
            "type": "json_schema",
            "json_schema": {"type": "object", "properties": {"a": {}}},
        }
    ),
]

NOT_SMALL = [
    OutputSpec.choice(["x" * 5000]),
    OutputSpec.regex("(a|b)*a(a|b){255}"),
    OutputSpec.grammar('start: "a"', "lark", close_before_length=True),
    OutputSpec.grammar("root ::= [^a]{1000}"),
    OutputSpec.grammar('root ::= "' + "a" * 2000 + '"'),
    OutputSpec.structural_tag(
        {"format": {"type": "any_text", "excludes": [f"{i:0100}" for i in range(9)]}}
    ),
    tag({"type": "json_schema", "json_schema": {"not": {"type": "integer"}}}),
    tag({"type": "regex", "pattern": "(a|b)*a(a|b){255}"}),
    schema(description="x" * 5000),
    schema(allOf=[{"type": "integer"}, {"minimum": 3}]),
    schema(multipleOf=99991),
    schema(items={"$id": "https://example.com/a", "type": "object"}),
    schema(items={"pattern": "a.*b", "maxLength": 9}),
    schema(prefixItems=[{"pattern": "a" * 200}, {"pattern": "b" * 200}]),
    schema(anyOf=[{"const": i} for i in range(33)]),
    schema(maxItems=2001),
]


def test_small_is_what_llguidance_compiles_in_a_moment():
    assert [spec.summary() for spec in SMALL if not is_small(spec, "llguidance")] == []
    assert [spec.summary() for spec in NOT_SMALL if is_small(spec, "llguidance")] == []


def test_xgrammar_compiles_little_and_third_parties_nothing_in_process():
    assert is_small(OutputSpec.grammar('root ::= "a" [^b]'), "xgrammar")
    assert not is_small(OutputSpec.grammar("root ::= [^a]{250}"), "xgrammar")
    assert not any(is_small(spec, "third-party") for spec in SMALL)
