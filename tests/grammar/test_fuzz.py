"""Random schemas: grammars allow what the oracle allows, and always have a way to the
end."""

import json
from pathlib import Path
from random import Random

import pytest
from fuzz import SERIOUS, Fault, fuzz
from oracle import OracleError, oracle, read_exactly
from subjects import Mode, check

SEED = 20
COUNT = 60
ORACLE = json.loads(Path(__file__).with_name("oracle.json").read_bytes())


def test_random_schemas():
    report = fuzz(range(COUNT), SEED)
    print(*report.lines(), sep="\n")
    assert report.totals["checked"] > 30
    assert report.totals["valid instances"] > 200
    assert [
        fault.line() for fault in report.faults if fault.finding.kind in SERIOUS
    ] == []


@pytest.mark.parametrize("case", ORACLE, ids=lambda case: case["schema"])
def test_the_oracle_is_exact_and_reads_as_the_standard_does(case):
    check = oracle(read_exactly(case["schema"]))
    assert [one for one in case["valid"] if not check(read_exactly(one))] == []
    assert [one for one in case["invalid"] if check(read_exactly(one))] == []


@pytest.mark.parametrize(
    "schema", [{"type": 5}, {"$ref": "http://elsewhere.test/x"}, {"pattern": "("}]
)
def test_the_oracle_says_what_it_cannot_judge(schema):
    with pytest.raises(OracleError):
        oracle(schema)("x")


@pytest.mark.parametrize("tag", ["", "tag", "triggered_tags"])
@pytest.mark.parametrize(
    ("allowed", "kind"), [(True, "wrong refusal"), (False, "wrong accept")]
)
def test_a_fault_is_found(monkeypatch, allowed, kind, tag):
    # An oracle that allows everything, or nothing, is at odds with every grammar.
    monkeypatch.setattr("subjects.oracle", lambda schema: lambda value: allowed)
    items = {"type": "boolean"}
    schema = {"type": "array", "items": items, "maxItems": 2, "title": "t"}
    mode = Mode(tag=tag)
    found = [one for one in check(schema, mode, Random(3)).findings if one.kind == kind]
    assert kind in Fault(0, mode, schema, found[0]).line()
