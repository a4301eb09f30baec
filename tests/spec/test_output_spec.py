"""Specs: constructors, the forms that clients send, options, and what is refused."""

import dataclasses
import inspect
import itertools
import json
import pickle
import re
import sys
import tracemalloc
from pathlib import Path

import pytest
from pydantic import BaseModel

from guided_plugin import GuidedConfig, OutputSpec
from guided_plugin.config import BOUNDS
from guided_plugin.errors import SpecError, shown
from guided_plugin.spec.output_spec import _packed, _unpacked, language_of

TABLES = json.loads(Path(__file__).with_name("output_spec.json").read_bytes())
SCHEMA = {
    "type": "object",
    "properties": {"b": {"type": "string"}, "a": {}},
    "required": ["a"],
}
TAG = {"type": "structural_tag", "format": {"type": "any_text"}}
EVERY = [
    OutputSpec.json_schema(SCHEMA),
    OutputSpec.json_object(whitespace="flexible"),
    OutputSpec.regex("[a-z]+", stop_token_ids=[3, 4]),
    OutputSpec.choice(["yes", "no"], start_after="</think>"),
    OutputSpec.grammar('root ::= "a"', backend="xgrammar"),
    OutputSpec.grammar('start: "a"', "lark", start_after=[7]),
    OutputSpec.structural_tag(TAG),
    OutputSpec.json_schema(SCHEMA, strict=False),
    OutputSpec.regex(
        "a", start_after=["</think>", [7, 8], {"text": "<tool_call>", "kept": True}]
    ),
    OutputSpec.regex('\0["é]', start_after={"tokens": [3], "kept": True}),
]


CLOSED = OutputSpec.json_schema(SCHEMA, strict=True)


class Person(BaseModel):
    name: str


@pytest.mark.parametrize("spec", EVERY, ids=OutputSpec.summary)
def test_specs_are_values(spec):
    for one in (spec, spec.within(9)):
        assert pickle.loads(pickle.dumps(one)) == one
    assert OutputSpec.parse(spec) is spec
    assert OutputSpec.parse(spec.to_dict()) == spec
    assert OutputSpec.parse(json.dumps(spec.to_dict())) == spec
    assert hash(OutputSpec.parse(spec.to_dict())) == hash(spec)
    assert len({*EVERY, spec}) == len(EVERY)


def test_what_is_remembered_of_packed_specs_is_bounded_by_their_triggers_too():
    for number in range(40):
        spec = OutputSpec.regex("a", start_after=[range(number, number + 10_000)])
        assert language_of(pickle.loads(pickle.dumps(spec))) == OutputSpec.regex("a")
    assert all(
        memo.cache_info().currsize < 25 for memo in (_packed, _unpacked, language_of)
    )


@pytest.mark.parametrize(
    ("form", "spec"),
    [*TABLES["forms"], (Person, {"json_schema": Person.model_json_schema()})],
)
def test_forms_that_clients_send(form, spec):
    expected = spec and OutputSpec.parse(spec)
    assert OutputSpec.parse(form) == expected
    if isinstance(form, dict):
        assert OutputSpec.parse(json.dumps(form)) == expected


def test_order_of_properties_is_kept_and_choices_are_made_unique():
    assert list(EVERY[0].document()["properties"]) == ["b", "a"]
    assert OutputSpec.choice(["a", "b", "a"]).document() == ["a", "b"]


@pytest.mark.parametrize(
    ("make", "arguments", "options", "says"),
    [
        *TABLES["wrong"],
        ("json_schema", [type("Own", (), {})], {}, "no JSON Schema of it"),
        ("json_schema", [b"\xff"], {}, "utf-8"),
        ("regex", ["a"], {"start_after": iter(str, "")}, "start_after"),
        ("regex", ["a"], {"start_after": list(map(str, range(129)))}, "start_after"),
        ("regex", ["a"], {"start_after": ["a" * 9_000, [1] * 9_000]}, "start_after"),
        ("regex", ["a"], {"start_after": "é" * 9_000}, "start_after"),
    ],
)
def test_what_is_wrong_is_said_with_place_and_way_out(make, arguments, options, says):
    with pytest.raises(SpecError, match=says.replace("$", r"\$").replace("{", r"\{")):
        getattr(OutputSpec, make)(*arguments, **options)


@pytest.mark.parametrize("name", [*BOUNDS, "stop_token_ids", "start_after", 5**9])
def test_a_number_that_python_does_not_write_is_refused(name):
    with pytest.raises(SpecError, match=r"<int>|has the key"):
        OutputSpec.parse({"regex": "a", name: 10**5000})


def nested(depth, wrap):
    value = {}
    for _ in range(depth):
        value = {wrap: value} if wrap else [value]
    return value


@pytest.mark.parametrize(
    "form",
    [
        {"structural_tag": {"format": nested(20_000, "content")}},
        {"json_schema": nested(20_000, "not")},
        {"regex": "a", "stop_token_ids": nested(3_000, "")},
        {"regex": "a", "strict": 10**5000},
        {"json_schema": {"type": nested(3_000, "")}},
        {"json_schema": {"dependentRequired": "boolean"}},
        {"json_schema": {"dependencies": {"a": ["b", 3]}}},
        {"choice": {"a": 1}},
        {"choice": b"ab"},
    ],
    ids=lambda form: shown(form)[:40],
)
def test_any_value_is_a_spec_or_an_error_of_one_line(form):
    with pytest.raises(SpecError) as error:
        OutputSpec.parse(form)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 2_000
    assert error.value.where


def test_a_document_that_is_too_deep_where_it_is_read_is_an_error():
    spec = OutputSpec.json_schema(nested(900, "not"))

    def deeper(frames):
        return spec.document() if frames == 0 else deeper(frames - 1)

    limit = sys.getrecursionlimit()
    frames = len(inspect.stack())
    with pytest.raises(SpecError, match=r"json_schema: is nested too deep"):
        deeper(limit - frames - 400)


def test_a_callers_own_texts_and_numbers_become_plain():
    class Text(str):
        pass

    class Token(int):
        pass

    spec = OutputSpec.regex(
        Text("a"), backend=Text("b"), stop_token_ids=[Token(3)], start_after=[Token(4)]
    )
    assert [
        type(value)
        for value in (
            spec.text,
            spec.backend,
            *spec.stop_token_ids,
            *spec.start_after[0].tokens,
        )
    ] == [str, str, int, int]


@pytest.mark.parametrize("refers", [False, True])
def test_deep_paths_take_no_more_memory_than_their_document(refers):
    document = {"properties": {f"k{i}": {} for i in range(60_000)}}
    if refers:
        document["properties"]["r"] = {"$ref": "#"}
    for _ in range(800):
        document = {"not": document}
    tracemalloc.start()
    try:
        OutputSpec.json_schema(document)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100 << 20


def test_summaries_are_printable():
    assert (
        OutputSpec.grammar('root ::= "a"\n\x1b[31m').summary()
        == r'grammar root ::= "a"\n\x1b[31m'
    )
    assert len(OutputSpec.regex("a" * 10_000).summary()) < 80


@pytest.mark.parametrize(
    ("form", "where"),
    [
        ({"regex": "a\n[b\ud800]"}, "regex, line 2, column 3"),
        ({"choice": ["a", "\udfff"]}, "choice[1], line 1, column 1"),
        ({"grammar": 'start: "\ud83d"', "syntax": "lark"}, "grammar, line 1, column 9"),
        (
            {"regex": "a", "start_after": ["x", "b\ud800"]},
            "start_after, line 1, column 2",
        ),
        (
            {"regex": "a", "start_after": {"text": "\udc00", "kept": True}},
            "start_after, line 1, column 1",
        ),
    ],
)
def test_lone_surrogates_are_refused_with_their_place(form, where):
    with pytest.raises(SpecError, match="lone surrogate") as caught:
        OutputSpec.parse(form)
    assert caught.value.where == where
    str(caught.value).encode()


# Patterns for whitespace: `re` says which texts a pattern matches.

TEXTS = [
    "".join(text)
    for count in range(4)
    for text in itertools.product(" \n\t\r", repeat=count)
]

ANY = [
    r"\s*",
    r"[\s]*",
    r"[ \n\t\r]*",
    "[ \n\t\r]*",
    r"[\r\t\n ]*",
    r"[\s ]*",
]
NONE = [
    "",
    r"[ ]?",
    r"[\n\t ]*",
    r" *",
    r"\s?",
    r"[ \n\t\r]{0,5}",
    r"[ \n]{0,2}",
]
REFUSED = [" ", r"\s+", r"\n", r"[ \n\t\r]+", r"( |\t){1,2}", "x", "x*", r"[^ ]*"]


@pytest.mark.parametrize(
    ("pattern", "whitespace"),
    [
        *((pattern, "flexible") for pattern in ANY),
        *((pattern, "compact") for pattern in NONE),
    ],
)
def test_a_pattern_of_whitespace_that_may_be_none_is_a_layout(pattern, whitespace):
    matched = {re.fullmatch(pattern, text) is not None for text in TEXTS}
    assert matched == {True} if whitespace == "flexible" else re.fullmatch(pattern, "")
    for form in (
        {"json": {}, "whitespace_pattern": pattern},
        {"json": {}, "whitespace_pattern": pattern},
    ):
        assert OutputSpec.parse(form).whitespace == whitespace


@pytest.mark.parametrize("pattern", REFUSED)
def test_what_demands_some_is_refused(pattern):
    with pytest.raises(
        SpecError, match="whitespace_pattern: is not whitespace that may be left out"
    ):
        OutputSpec.parse({"json": {}, "whitespace_pattern": pattern})


@pytest.mark.parametrize(
    "pattern", [3, ["x"], "(", "(" * 500, " " * 2000, r"(?<=x)", "[", "*"]
)
def test_what_is_no_pattern_is_refused(pattern):
    with pytest.raises(SpecError, match="whitespace_pattern: "):
        OutputSpec.parse({"json": {}, "whitespace_pattern": pattern})


@pytest.mark.parametrize(
    ("options", "whitespace"),
    [
        ({"whitespace": "compact", "whitespace_pattern": r"\s*"}, "compact"),
        ({"whitespace": "flexible", "whitespace_pattern": r"\s*"}, "flexible"),
        ({"whitespace": "spaced", "whitespace_pattern": r"\s*"}, "spaced"),
        ({"disable_any_whitespace": True, "whitespace_pattern": r"\s*"}, "compact"),
        ({"disable_any_whitespace": True, "whitespace_pattern": " ?"}, "compact"),
    ],
)
def test_next_to_other_options_the_narrower_holds(options, whitespace):
    assert OutputSpec.parse({"json": {}, **options}).whitespace == whitespace


@pytest.mark.parametrize("whitespace", ["spaced", "flexible"])
def test_a_pattern_that_allows_less_than_the_option_is_refused(whitespace):
    with pytest.raises(SpecError, match="allows less than the option"):
        OutputSpec.parse(
            {"json": {}, "whitespace": whitespace, "whitespace_pattern": " ?"}
        )


OPERATOR = GuidedConfig(whitespace="spaced", strict=False)


@pytest.mark.parametrize(
    ("form", "settled"), [*TABLES["settled"], (Person, ["spaced", False])]
)
def test_what_a_request_does_not_say_is_the_operators(form, settled):
    asked = OutputSpec.parse(form)
    for spec in (
        asked,
        OutputSpec.parse(asked.to_dict()),
        OutputSpec.parse(json.dumps(asked.to_dict())),
    ):
        found = spec.settled(OPERATOR)
        assert [found.whitespace, found.strict] == settled
        assert OutputSpec.parse(found.to_dict()).settled(GuidedConfig()) == found
    if isinstance(form, dict):
        bounds = {name: at for at, name in enumerate(BOUNDS)}
        spec = OutputSpec.parse({**form, **bounds})
        assert bounds.items() <= dataclasses.asdict(spec).items()
        assert (
            OutputSpec.parse(spec.to_dict())
            == OutputSpec(**dataclasses.asdict(spec))
            == spec
        )
        assert pickle.loads(pickle.dumps(spec)) == spec
        config = GuidedConfig(max_digits=5, max_whitespace=7)
        found = OutputSpec.parse({**form, "max_digits": 0}).settled(config)
        assert (found.max_digits, found.max_whitespace) == (0, 7)


def test_what_is_not_said_is_flexible_and_strict():
    spec = OutputSpec.json_schema(SCHEMA)
    assert (spec.whitespace, spec.strict) == (None, None)
    defaults = {
        "whitespace": "flexible",
        "strict": True,
        "close_before_length": False,
        "max_whitespace": 40,
        "max_digits": 20,
    }
    assert spec.settled(GuidedConfig()) == OutputSpec.json_schema(SCHEMA, **defaults)
