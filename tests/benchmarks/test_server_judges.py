"""The judges of `make soak` and `make chaos`, and their figures: that each can say
no."""

import pytest

from benchmarks.server import judges
from benchmarks.server.tally import Outcome, figures

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "maximum": 3}},
    "required": ["a"],
}


@pytest.mark.parametrize(
    ("judge", "right", "wrong"),
    [
        (judges.of_schema(SCHEMA), '{"a":3}', '{"a":4}'),
        (judges.of_object, "{}", "[]"),
        (judges.of_pattern("[ab]{2}"), "ab", "abc"),
        (judges.of_texts(["left"]), "left", "lef"),
    ],
)
def test_a_judge_of_texts(judge, right, wrong):
    assert judge(right, []) == ""
    assert judge(wrong, []) != ""


def test_a_judge_of_calls():
    judge = judges.of_calls({"save": SCHEMA}, required=True)
    assert judge("", [("save", '{"a":1}')]) == ""
    for calls in (
        [],
        [("load", '{"a":1}')],
        [("save", '{"a":"1"}')],
        [("save", '{"a":1}'), ("save", "")],
    ):
        assert judge("", calls) != ""
    assert judges.of_calls({"save": SCHEMA}, required=False)("words", []) == ""


def test_figures_count_what_was_lost_and_how_long_streams_stood_still():
    outcomes = [
        Outcome(
            "long",
            True,
            0.0,
            "valid",
            "",
            [1.0, 1.1, 3.1, 3.2],
        ),
        Outcome(
            "long",
            True,
            0.0,
            "told",
            "status 500",
            [1.0],
        ),
        Outcome(
            "plain",
            False,
            0.0,
            "cut",
            "",
            [1.0, 1.2],
        ),
        Outcome(
            "new schema",
            True,
            0.0,
            "invalid",
            "wrong",
            [2.0],
        ),
    ]
    found = figures(outcomes, kills=[1.3])
    assert (
        found["guided_lost"] == found["unguided_lost"] == found["ends"]["invalid"] == 1
    )
    assert found["gaps_ms"]["max"] == pytest.approx(2000)
    assert found["new_schema_first_token_ms"]["p99"] == pytest.approx(2000)
    assert found["back_ms"]["count"] == 0
    later = [
        Outcome(
            "long",
            True,
            sent,
            "valid",
            "",
            [sent + 1.0],
        )
        for sent in (1.2, 1.8, 2.0)
    ]
    assert figures([*outcomes, *later], kills=[1.3, 1.9])["back_ms"][
        "max"
    ] == pytest.approx(1500)
