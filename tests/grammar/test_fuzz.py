"""Random schemas: grammars allow what the oracle allows, and always have a way to the
end."""

from __future__ import annotations

from random import Random

import pytest
from fuzz import SERIOUS, Fault, fuzz, shrink, smallest
from oracle import oracle, read_exactly
from subjects import Finding, Mode, Subject, check, is_whole

SEED = 20
COUNT = 60


def test_random_schemas() -> None:
    report = fuzz(range(COUNT), SEED)
    print(*report.lines(), sep="\n")
    assert report.totals["checked"] > 30
    assert report.totals["valid instances"] > 200
    assert [
        fault.line() for fault in report.faults if fault.finding.kind in SERIOUS
    ] == []


DRAFT_4 = {"$schema": "http://json-schema.org/draft-04/schema#"}


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"multipleOf": 1}, "9007199254740993.0", "11238123536985124437638.125"),
        ({"multipleOf": 0.1}, "11238123536985124437638.1", "0.15"),
        ({"maximum": 9007199254740993}, "9007199254740993", "9007199254740993.5"),
        (
            DRAFT_4 | {"minimum": 1, "exclusiveMinimum": True},
            "1.0000000000000000000001",
            "1",
        ),
        ({"enum": [0.1]}, "0.10", "0.1000000000000000000001"),
        ({"uniqueItems": True}, "[9007199254740993, 9007199254740992.0]", "[1, 1.0]"),
        ({"pattern": r"^\w(?!x)$"}, '"a"', '"\u98f5"'),
        ({"type": "string"}, r'"\ud83d\ude00"', r'"\ud83d"'),
    ],
)
def test_the_oracle_is_exact(schema, valid, invalid) -> None:
    assert oracle(schema)(read_exactly(valid))
    assert not oracle(schema)(read_exactly(invalid))


def test_the_same_seed_gives_the_same_schemas() -> None:
    runs = [fuzz(range(12), seed, instances=10) for seed in (1, 1, 2)]
    totals = [run.totals for run in runs]
    assert totals[0] == totals[1] != totals[2]


@pytest.mark.parametrize("tag", ["", "tag", "triggered_tags", "lark"])
@pytest.mark.parametrize(
    ("allowed", "kind"), [(True, "wrong refusal"), (False, "wrong accept")]
)
def test_a_fault_is_found_and_made_small(
    monkeypatch: pytest.MonkeyPatch, allowed, kind, tag
) -> None:
    # An oracle that allows everything, or nothing, is at odds with every grammar.
    monkeypatch.setattr("subjects.oracle", lambda schema: lambda value: allowed)
    schema = {
        "type": "array",
        "items": {"type": "boolean"},
        "maxItems": 2,
        "title": "t",
    }
    mode = Mode(tag=tag)
    found = [one for one in check(schema, mode, Random(3)).findings if one.kind == kind]
    assert found
    fault = smallest(Fault(0, mode, schema, found[0]))
    assert len(fault.schema) < len(schema)
    assert kind in fault.line()


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        (b"", True),
        (b"free text", True),
        (b'<f>{"a": "</f>"}</f>', True),
        (b"<f>1</f> and <f>2</f>", True),
        (b"<f>1", False),
        (b"<f>[1</f>", False),
        (b"<f>1</f><f>", False),
    ],
)
def test_whole_outputs_of_tags(text, whole) -> None:
    assert is_whole(text) is whole


def test_a_position_without_a_token_is_stuck() -> None:
    subject = Subject({"type": "array", "items": {"type": "boolean"}}, Mode())
    assert not subject.stuck(b"[tru")
    assert subject.takes("[true]")
    assert not subject.takes("[true")


def test_shrinking_keeps_what_fails() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"minimum": 17, "title": "x"}, "b": {}},
        "required": ["b"],
    }
    assert shrink(schema, lambda value: "minimum" in str(value)) == {"minimum": 0}
    assert shrink(schema, lambda value: value == schema) == schema


def test_findings_say_where_they_come_from() -> None:
    fault = Fault(7, Mode(), {"type": "null"}, Finding("dead end", "[1"))
    assert (
        fault.line()
        == 'dead end: {"type": "null"}  \'[1\'  (standard, compact, no tag; #7)'
    )
