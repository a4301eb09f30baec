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


ROME = {
    "f": {
        **CALL["f"],
        "city": ["Rome"],
    }
}
NESTED = {"f": {"at": [{"x": [1, 2]}]}}
TEA = {"items": [{"name": "tea"}, {"name": "cake"}]}


@pytest.mark.parametrize(
    ("expected", "right", "wrong"),
    [
        (
            {"calls": [CALL]},
            [
                call(),
                call(unit="c."),
                [call()],
                call(days=4.0),
            ],
            [
                call(days="3"),
                call(days=None),
                call(unit="F"),
                call(more=1),
                call(tags=["b", "a"]),
                call(name="g"),
                [call(), call()],
                {"name": "f", "arguments": None},
                "f",
            ],
        ),
        (
            {"calls": [{"f": {"on": [1]}}]},
            [],
            [{"name": "f", "arguments": {"on": True}}],
        ),
        ({"calls": [CALL, ROME]}, [[call(city="Rome"), call()]], [[call(), call()]]),
        (
            {"calls": [NESTED]},
            [
                {
                    "name": "f",
                    "arguments": {"at": {"x": 1}},
                }
            ],
            [
                {
                    "name": "f",
                    "arguments": {"at": {"x": 3}},
                }
            ],
        ),
        ({"equals": {"b": ["x"], "a": 1}}, [{"a": 1, "b": ["X"]}], [{"a": 1}]),
        ({"equals": {"a": 1}}, [], [{"a": True}, {"a": 1, "b": 2}]),
        (
            TEA,
            [{"all": ["Tea", "cake"]}],
            [
                {"all": ["tea", "cake", "pie"]},
                {"all": ["tea"]},
                3,
            ],
        ),
    ],
)
def test_judges(expected, right, wrong):
    for answer in right:
        assert judged(
            json.dumps(answer),
            {},
            expected,
        ).right, answer
    for answer in wrong:
        assert not judged(
            json.dumps(answer),
            {},
            expected,
        ).right, answer


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
    schema = {
        "type": "object",
        "properties": {"all": {"type": "array", "maxItems": 1}},
    }
    expected = {"items": [{"name": "tea"}, {"name": "pie"}]}
    assert judged(
        '{"all":["tea","x"],"o":{"l":[[],1]}}',
        schema,
        expected,
    ) == Verdict(False, False, 1, 1, True)
    assert judged(
        '{"all":[]}',
        schema,
        expected,
    ) == Verdict(
        False,
        True,
        0,
        1,
        True,
    )
    assert (
        judged(
            '{"all":',
            schema,
            expected,
        )
        == Verdict()
    )
    assert judged(
        "{}",
        schema,
        {"valid": True},
    ).right
    assert not judged(
        "[]",
        schema,
        {"valid": True},
    ).right
