"""Judges of answers: which are right, which are valid, what they have of lists."""

import json

import pytest

from benchmarks.answers.judges import Verdict, first_json, judged

CALL = {
    "f": {
        "city": ["New York", "NYC"],
        "days": [3, 4],
        "unit": ["C", ""],
        "tags": [["a", "b"]],
    }
}


def call(name="f", **changes):
    arguments = {
        "city": "new-york",
        "days": 3,
        "tags": ["A", "b"],
        **changes,
    }
    return {
        "name": name,
        "arguments": {
            key: value for key, value in arguments.items() if value is not None
        },
    }


@pytest.mark.parametrize(
    ("answer", "expected", "right"),
    [
        (call(), {"calls": [CALL]}, True),
        (call(unit="c."), {"calls": [CALL]}, True),
        ([call()], {"calls": [CALL]}, True),
        (call(days=4.0), {"calls": [CALL]}, True),
        (call(days="3"), {"calls": [CALL]}, False),
        (call(days=True), {"calls": [{"f": {**CALL["f"], "days": [1]}}]}, False),
        (call(days=None), {"calls": [CALL]}, False),
        (call(unit="F"), {"calls": [CALL]}, False),
        (call(more=1), {"calls": [CALL]}, False),
        (call(tags=["b", "a"]), {"calls": [CALL]}, False),
        (call(name="g"), {"calls": [CALL]}, False),
        ([call(), call()], {"calls": [CALL]}, False),
        (
            [call(city="Rome"), call()],
            {"calls": [CALL, {"f": {**CALL["f"], "city": ["Rome"]}}]},
            True,
        ),
        (
            [call(), call()],
            {"calls": [CALL, {"f": {**CALL["f"], "city": ["Rome"]}}]},
            False,
        ),
        (
            {"name": "f", "arguments": {"at": {"x": 1}}},
            {"calls": [{"f": {"at": [{"x": [1, 2]}]}}]},
            True,
        ),
        (
            {"name": "f", "arguments": {"at": {"x": 3}}},
            {"calls": [{"f": {"at": [{"x": [1, 2]}]}}]},
            False,
        ),
        (
            {"name": "f", "arguments": {"op": "<"}},
            {"calls": [{"f": {"op": [">"]}}]},
            False,
        ),
        ({"name": "f", "arguments": None}, {"calls": [{"f": {}}]}, False),
        ("f", {"calls": [CALL]}, False),
        ({"a": 1, "b": ["X"]}, {"equals": {"b": ["x"], "a": 1}}, True),
        ({"a": 1}, {"equals": {"a": True}}, False),
        ({"a": 1, "b": 2}, {"equals": {"a": 1}}, False),
        (
            {"all": ["Tea", "cake"]},
            {"items": [{"name": "tea"}, {"name": "cake"}]},
            True,
        ),
        (
            {"all": ["tea", "cake", "pie"]},
            {"items": [{"name": "tea"}, {"name": "cake"}]},
            False,
        ),
        ({"all": ["tea"]}, {"items": [{"name": "tea"}, {"name": "cake"}]}, False),
        (
            {"all": [{"name": "tea", "n": 2}]},
            {"items": [{"name": "tea", "n": 2}]},
            True,
        ),
        (
            {"all": [{"name": "tea", "n": 3}]},
            {"items": [{"name": "tea", "n": 2}]},
            False,
        ),
        (3, {"items": [{"name": "tea"}]}, False),
    ],
)
def test_judges(answer, expected, right):
    assert (
        judged(
            json.dumps(answer),
            {},
            expected,
        ).right
        is right
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a":1}', ({"a": 1},)),
        ('Sure! Here it is:\n```json\n[1, 2]\n``` {"b":2}', ([1, 2],)),
        ("\n null ", (None,)),
        ("12 apples", (12,)),
        ('{not json} {"a": []}', ({"a": []},)),
        ('{"a":1', None),
        ("no", None),
        ("[" * 100_000, None),
    ],
)
def test_the_first_json_value_of_a_text_is_read(text, value):
    assert first_json(text) == value


def test_a_verdict_tells_items_and_empty_lists_and_validity():
    schema = {"type": "object", "properties": {"all": {"type": "array", "maxItems": 1}}}
    expected = {"items": [{"name": "tea"}, {"name": "pie"}]}
    assert judged('{"all":["tea","x"],"o":{"l":[[],1]}}', schema, expected) == Verdict(
        False, False, 1, 1, True
    )
    assert judged('{"all":[]}', schema, expected) == Verdict(False, True, 0, 1, True)
    assert judged('{"all":', schema, expected) == Verdict()
    assert judged("{}", schema, {"valid": True}).right
    assert not judged("[]", schema, {"valid": True}).right
