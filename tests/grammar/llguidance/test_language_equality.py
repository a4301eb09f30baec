"""Grammars take exactly what their schemas allow: `equality` on small schemas with every keyword.

A text that is taken and shouldn't be always fails. What is refused and needn't be is listed here, with why.
"""

from __future__ import annotations

import functools
import json
import re

import pytest
from equality import Disagreement, Judge, judge, near, respelt, text_of
from equality_oracle import OracleError, oracle
from equality_schemas import FAMILIES, Case

from guided_plugin.errors import GrammarError

CASES = [(family, name) for family, cases in FAMILIES.items() for name in cases]

# For each family the schemas that don't compile. It can only shrink.
REFUSED: dict[str, set[str]] = {}

# Texts that are refused and needn't be: for which schemas, which texts, and why.
NARROWER: list[tuple[str, str, str]] = []


@functools.cache
def found(family: str, name: str) -> tuple[Disagreement, ...] | None:
    """The disagreements on one schema; None where it is refused."""
    case = FAMILIES[family][name]
    try:
        return tuple(judge(case.schema, near(case.schema, case.seeds, count=300)))
    except GrammarError:
        return None


@pytest.mark.parametrize(("family", "name"), CASES)
def test_nothing_is_taken_that_the_schema_forbids(family, name):
    wrong = [str(one) for one in found(family, name) or () if one.kind == "wrong accept"]
    assert wrong == []


@pytest.mark.parametrize(("family", "name"), CASES)
def test_what_is_refused_is_on_the_list(family, name):
    refused = [one for one in found(family, name) or () if one.kind == "wrong refusal"]
    unexplained = [one.text for one in refused if not _reasons(f"{family}: {name}", one.text)]
    assert unexplained == []


def test_every_listed_reason_is_needed():
    used = set()
    for family, name in CASES:
        for one in found(family, name) or ():
            if one.kind == "wrong refusal":
                used.update(_reasons(f"{family}: {name}", one.text))
    assert [reason for reason in NARROWER if reason not in used] == []


@pytest.mark.parametrize("family", FAMILIES)
def test_which_schemas_are_refused(family):
    refused = {name for name in FAMILIES[family] if found(family, name) is None}
    assert refused == REFUSED.get(family, set())


def test_keys_come_in_any_order():
    wrong = [
        (family, name, one.text)
        for family, name in CASES
        for one in found(family, name) or ()
        if one.kind == "order"
    ]
    assert wrong == []


def _reasons(case: str, text: str) -> list[tuple[str, str, str]]:
    return [reason for reason in NARROWER if re.search(reason[0], case) and re.search(reason[1], text)]


@pytest.mark.parametrize(("family", "name"), CASES)
def test_the_instances_are_of_both_kinds(family, name):
    case = FAMILIES[family][name]
    valid = oracle(case.schema)
    verdicts = [valid(value) for value in near(case.schema, case.seeds, count=300)]
    everything = case.schema in (True, {}) or name == "if in draft 6"
    assert sum(verdicts) >= 5
    assert everything or len(verdicts) - sum(verdicts) >= 5


def test_the_judge_finds_what_is_wrong():
    values = [1, 5, 20, "x", {"b": 1, "a": 2}, {"a": 1, "b": 2}]
    judged = Judge({"type": ["integer", "object"], "maximum": 10, "properties": {"a": {}, "b": {}}})
    assert [one for one in judged.disagreements(values) if one.kind != "order"] == []
    judged.valid = oracle({"type": ["integer", "string"], "minimum": 4})
    kinds = {one.text: one.kind for one in judged.disagreements(values)}
    assert kinds["1"] == "wrong accept"
    assert kinds["20"] == kinds['"x"'] == "wrong refusal"
    assert kinds['{"a":1,"b":2}'] == "wrong accept"
    assert "5" not in kinds


def test_the_judge_knows_order_from_refusal():
    schema = {"properties": {"a": {"type": "integer"}, "b": {}}, "additionalProperties": False}
    judged = Judge(schema, "llguidance")
    kinds = {one.text: one.kind for one in judged.disagreements([{"b": 1, "a": 2}, {"a": 1}])}
    judged.valid = lambda value: True
    kinds |= {one.text: one.kind for one in judged.disagreements([{"c": 1}])}
    assert kinds['{"c":1}'] == "wrong refusal"
    assert kinds.get('{"b":1,"a":2}', "order") == "order"


def test_instances_are_the_same_for_the_same_seed():
    case = Case({"type": "object", "properties": {"a": {"pattern": "^x+$"}}}, ({"a": "x"},))
    texts = [[json.dumps(value) for value in near(case.schema, case.seeds, seed=seed)] for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"é": [1.0, 1e-7, 1e20, -0.0]}, '{"é":[1.0,0.0000001,100000000000000000000,-0.0]}'),
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
    "schema", [{"type": 5}, {"$ref": "http://elsewhere.test/x"}, {"pattern": "\\p{Greek}"}]
)
def test_the_oracle_says_what_it_cannot_judge(schema):
    with pytest.raises(OracleError):
        oracle(schema)("x")


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"multipleOf": 0.01}, [19.99, 0.07], [0.001]),
        ({"pattern": "^a$"}, ["a"], ["a\n"]),
        ({"pattern": r"\d\s"}, ["1\ufeff"], ["٣ ", "1\x1c"]),
        ({"uniqueItems": True}, [[1, True], [[1], [True]]], [[1, 1.0], [[1], [True], [1]]]),
        ({"items": [{"type": "null"}], "additionalItems": False}, [[], [None]], [[1], [None, 1]]),
        ({"dependencies": {"a": ["b"]}}, [{"b": 1}, {"a": 1, "b": 1}], [{"a": 1}]),
        ({"format": "uuid", "$schema": "http://json-schema.org/draft-07/schema#"}, [1], ["x"]),
        (
            {"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/a", "maximum": 1}
            | {"definitions": {"a": {"minimum": 3}}},
            [5],
            [1],
        ),
    ],
)
def test_the_oracle_reads_as_the_standard_does(schema, valid, invalid):
    check = oracle(schema)
    assert [value for value in valid if not check(value)] == []
    assert [value for value in invalid if check(value)] == []
