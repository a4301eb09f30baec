"""Grammars take exactly what their schemas allow: small schemas with every keyword,
against the oracle.

What is refused and needn't be is listed here, with why; and of strict schemas, what is
closed and ordered.
"""

from __future__ import annotations

import functools
import json
import re
from random import Random

import pytest
from instances import near, respelt, text_of
from oracle import OracleError, oracle
from schema_families import FAMILIES
from subjects import Finding, Outcome, Subject

from guided_plugin import OutputSpec
from guided_plugin.errors import (
    GrammarError,
    UnsatisfiableSpecError,
    UnsupportedSpecError,
)
from guided_plugin.grammar.base import Prepared
from guided_plugin.grammar.llguidance.lark import schema_to_lark

CASES = [(family, name) for family, cases in FAMILIES.items() for name in cases]

# For each family the schemas that don't compile. It can only shrink.
REFUSED: dict[str, set[str]] = {}

# Texts that are refused and needn't be: for which schemas, which texts, and why.
NARROWER: list[tuple[str, str, str]] = []


@functools.cache
def found(family: str, name: str) -> Outcome | None:
    """What grammar and oracle see differently; None where the schema is refused."""
    case = FAMILIES[family][name]
    outcome = Outcome()
    try:
        Subject(case.schema).compare(
            near(case.schema, case.seeds, count=300), Random(name), outcome
        )
    except GrammarError:
        return None
    return outcome


def findings(family: str, name: str, kind: str) -> list[str]:
    outcome = found(family, name)
    return [one.text for one in outcome.findings if one.kind == kind] if outcome else []


@pytest.mark.parametrize(("family", "name"), CASES)
def test_nothing_is_taken_that_the_schema_forbids(family, name):
    assert findings(family, name, "wrong accept") == []


@pytest.mark.parametrize(("family", "name"), CASES)
def test_what_is_refused_is_on_the_list(family, name):
    refused = findings(family, name, "wrong refusal")
    assert [text for text in refused if not _reasons(f"{family}: {name}", text)] == []


def test_every_listed_reason_is_needed():
    used = {
        reason
        for family, name in CASES
        for text in findings(family, name, "wrong refusal")
        for reason in _reasons(f"{family}: {name}", text)
    }
    assert [reason for reason in NARROWER if reason not in used] == []


@pytest.mark.parametrize("family", FAMILIES)
def test_which_schemas_are_refused(family):
    refused = {name for name in FAMILIES[family] if found(family, name) is None}
    assert refused == REFUSED.get(family, set())


def _reasons(case: str, text: str) -> list[tuple[str, str, str]]:
    return [
        reason
        for reason in NARROWER
        if re.search(reason[0], case) and re.search(reason[1], text)
    ]


@pytest.mark.parametrize(("family", "name"), CASES)
def test_the_instances_are_of_both_kinds(family, name):
    outcome = found(family, name)
    everything = FAMILIES[family][name].schema in (True, {}) or name == "if in draft 6"
    assert outcome is None or (
        outcome.valid >= 2 and (everything or outcome.invalid >= 5)
    )


def test_a_wrong_grammar_is_found():
    subject = Subject(
        {"type": ["integer", "object"], "maximum": 10, "properties": {"a": {}, "b": {}}}
    )
    subject.valid = oracle({"type": ["integer", "string"], "minimum": 4})
    outcome = Outcome()
    subject.compare(
        [1, 5, 20, "x", {"b": 1, "a": 2}, {"a": 1, "b": 2}], Random(0), outcome
    )
    for kind, text in (
        ("wrong accept", "1"),
        ("wrong accept", '{"a":1,"b":2}'),
        ("wrong refusal", '"x"'),
    ):
        assert Finding(kind, text) in outcome.findings
    assert "5" not in {finding.text for finding in outcome.findings}


def test_instances_are_the_same_for_the_same_seed():
    schema = {"type": "object", "properties": {"a": {"pattern": "^x+$"}}}
    texts = [
        [json.dumps(value) for value in near(schema, [{"a": "x"}], seed=seed)]
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            {"é": [1.0, 1e-7, 1e20, -0.0]},
            '{"é":[1.0,0.0000001,100000000000000000000,-0.0]}',
        ),
        ('"\n\x7f', '"\\"\\n\x7f"'),
        ([True, None, {}], "[true,null,{}]"),
    ],
)
def test_texts_are_plain(value, text):
    assert text_of(value) == text
    assert json.loads(text) == value


@pytest.mark.parametrize("value", [1, "aé😀", [0, {"k": "v"}], -7])
def test_other_spellings_say_the_same(value):
    texts = respelt(value)
    assert texts
    assert all(json.loads(text) == value and text != text_of(value) for text in texts)


@pytest.mark.parametrize(
    "schema", [{"type": 5}, {"$ref": "http://elsewhere.test/x"}, {"pattern": "("}]
)
def test_the_oracle_says_what_it_cannot_judge(schema):
    with pytest.raises(OracleError):
        oracle(schema)("x")


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"multipleOf": 0.01}, [19.99, 0.07], [0.001]),
        ({"pattern": "^a$"}, ["a"], ["a\n"]),
        ({"pattern": r"^[^]\d\s"}, ["\n1\ufeff"], ["a٣ ", "a1\x1c"]),
        (
            {"uniqueItems": True},
            [[1, True], [[1], [True]]],
            [[1, 1.0], [[1], [True], [1]]],
        ),
        (
            {"items": [{"type": "null"}], "additionalItems": False},
            [[], [None]],
            [[1], [None, 1]],
        ),
        ({"dependencies": {"a": ["b"]}}, [{"b": 1}, {"a": 1, "b": 1}], [{"a": 1}]),
        (
            {"format": "uuid", "$schema": "http://json-schema.org/draft-07/schema#"},
            [1],
            ["x"],
        ),
    ],
)
def test_the_oracle_reads_as_the_standard_does(schema, valid, invalid):
    check = oracle(schema)
    assert [value for value in valid if not check(value)] == []
    assert [value for value in invalid if check(value)] == []


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (
            {
                "allOf": [
                    {"properties": {"a": {}}},
                    {"properties": {"b": {"type": "integer"}}},
                ]
            },
            ['{"a":1,"b":2}', '{"b":2}', "{}", "[]"],
            ['{"b":2,"a":1}', '{"c":1}', '{"a":1,}', '{"b":1.0}'],
        ),
        (
            {
                "type": "object",
                "properties": {"a": {}, "b": {}, "c": {}},
                "required": ["b"],
                "not": {"type": "null"},
            },
            ['{"b":1}', '{"a":1,"b":1}', '{"a":1,"b":1,"c":1}', '{"b":1,"c":1}'],
            ['{"a":1}', '{"b":1,"a":1}', '{"b":1,"d":1}', "{}"],
        ),
    ],
)
def test_strict_closes_and_orders(backend, schema, good, bad):
    spec = OutputSpec.json_schema(schema)
    grammar = backend.load(
        Prepared(
            spec,
            "llguidance",
            schema_to_lark(schema, strict=True, whitespace="compact").packed(),
        )
    )
    for text in [*good, *bad]:
        matcher = backend.start(grammar, (256,))
        assert (matcher.accept_text(text.encode()) and matcher.complete) is (
            text in good
        ), text


@pytest.mark.parametrize(
    ("schema", "error", "says"),
    [
        ({"items": {"not": {"uniqueItems": True}}}, UnsupportedSpecError, "#/items/not/uniqueItems"),
        ({"$ref": "http://example.com/x"}, UnsupportedSpecError, "never fetched"),
        ({"$ref": "#/nothing"}, UnsupportedSpecError, "points at nothing"),
        ({"allOf": [{"$ref": "#"}]}, UnsupportedSpecError, "in place"),
        ({"type": "string", "pattern": "a\\b"}, UnsupportedSpecError, "word boundary"),
        ({"type": "string", "pattern": "(a)\\1"}, UnsupportedSpecError, "backreference"),
        ({"type": "number", "multipleOf": 99991}, UnsupportedSpecError, "#/multipleOf"),
        ({"type": "string", "enum": [1]}, UnsatisfiableSpecError, "no output"),
        (
            {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
            UnsatisfiableSpecError,
            "no output",
        ),
    ],
)  # fmt: skip
def test_what_it_refuses(schema, error, says):
    with pytest.raises(error, match=says):
        schema_to_lark(schema, strict=False, whitespace="flexible")
