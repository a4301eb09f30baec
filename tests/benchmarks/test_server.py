"""The judges of `make soak` and `make chaos`: that each can say no. Servers are in
`tests/hosts/vllm/test_load.py`."""

import pytest

from benchmarks.server import judges
from benchmarks.server.tally import Outcome, figures

SCHEMA = {"type": "object", "properties": {"a": {"maximum": 3}}, "required": ["a"]}
CALLS = judges.of_calls({"save": SCHEMA}, required=True)


@pytest.mark.parametrize(
    ("judge", "right", "wrong"),
    [
        (judges.of_schema(SCHEMA), '{"a":3}', '{"a":4}'),
        (judges.of_object, "{}", "[]"),
        (judges.of_pattern("[ab]{2}"), "ab", "abc"),
        (judges.of_texts(["left"]), "left", "lef"),
        (lambda call, _: CALLS("", [("save", call)]), '{"a":1}', "{}"),
        (lambda name, _: CALLS("", [(name, '{"a":1}')]), "save", "load"),
        (lambda name, _: CALLS("", [(name, '{"a":1}')] * bool(name)), "save", ""),
    ],
)
def test_a_judge(judge, right, wrong):
    assert judge(right, []) == ""
    assert judge(wrong, []) != ""


def test_figures_count_what_was_lost_and_how_long_streams_stood_still():
    made = [
        ("long", True, "valid", [1.0, 1.1, 3.1]),
        ("plain", False, "cut", [1.0]),
        ("long", True, "told", [1.0]),
        ("new schema", True, "invalid", [2.0]),
    ]
    outcomes = [
        Outcome(
            kind,
            guided,
            0.0,
            end,
            "why",
            times,
        )
        for kind, guided, end, times in made
    ]
    outcomes.append(Outcome("long", True, 1.8, "valid", "", [2.8]))
    found = figures(outcomes, kills=[1.3])
    lost = found["guided_lost"], found["unguided_lost"], found["ends"]["invalid"]
    assert lost == (1, 1, 1)
    spreads = [found[f"{what}_ms"]["max"] for what in ("gaps", "back")]
    assert spreads == pytest.approx([2000, 1500])
    assert found["new_schema_first_token_ms"]["p99"] == pytest.approx(2000)
