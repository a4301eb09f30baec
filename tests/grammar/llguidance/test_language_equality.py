"""Grammars take exactly what their schemas allow: small schemas with every keyword,
against the oracle.

And of strict schemas, what is closed and ordered.
"""

import json
from random import Random

import pytest
from compilers import taken_of
from instances import near, respelt, text_of
from schema_families import CASES
from subjects import COMPILER, Mode, Outcome, Subject

from guided_plugin import OutputSpec


@pytest.mark.parametrize(("family", "name"), CASES)
def test_a_grammar_takes_exactly_what_its_schema_allows(family, name):
    schema, seeds = CASES[family, name]
    chance = Random(name)
    outcome = Outcome()
    in_tags = Mode(tag="triggered_tags", whitespace="flexible")
    for mode, count in ((Mode(), 300), (in_tags, 40)):
        subject = Subject(schema, mode)
        for _ in range(2):
            subject.walk(chance, outcome)
        subject.compare(near(schema, seeds, count=count), chance, outcome)
    assert outcome.findings == []
    anything = schema in (True, {}) or name == "if in draft 6"
    assert outcome.valid >= 1
    assert outcome.invalid >= 5 or anything


@pytest.mark.parametrize(
    "text",
    ['{"é":[1.0,0.0000001,100000000000000000000,-0.0]}', '"\\"\\n😀\x7f"', "[-7,{}]"],
)
def test_texts_are_plain_and_other_spellings_say_the_same(text):
    value = json.loads(text)
    assert text_of(value) == text
    others = respelt(value)
    assert others
    assert all(json.loads(other) == value != other for other in others)
    assert text not in others


OPTIONAL = """{"type": "object", "properties": {"a": {}, "b": {}, "c": {}},
    "required": ["b"], "not": {"type": "null"}}"""
PARTS = """{"allOf": [{"properties": {"a": {}}},
    {"properties": {"b": {"type": "integer"}}}]}"""


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (
            PARTS,
            '{"a":1,"b":2} {"b":2} {} []',
            '{"b":2,"a":1} {"c":1} {"a":1,} {"b":1.0}',
        ),
        (
            OPTIONAL,
            '{"b":1} {"a":1,"b":1} {"a":1,"b":1,"c":1} {"b":1,"c":1}',
            '{"a":1} {"b":1,"a":1} {"b":1,"d":1} {}',
        ),
    ],
)
def test_strict_closes_and_orders(schema, good, bad):
    spec = OutputSpec.json_schema(schema, whitespace="compact")
    assert taken_of(COMPILER, spec, good.split()) == good.split()
    assert taken_of(COMPILER, spec, bad.split()) == []
