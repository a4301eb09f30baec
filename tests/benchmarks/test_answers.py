"""Right answers: a run and a job whose engines are replaced, and a line that is not a
task."""

import json

import pytest

from benchmarks import harness
from benchmarks.answers import __main__ as bench
from benchmarks.answers import job
from guided_plugin.demo import MODEL_DIR

ASKED = {
    "messages": [{"role": "user", "content": "?"}],
    "schema": {"type": ["object", "array"]},
    "prompt": "a is 1: ",
    "max_tokens": 9,
}
CALL = {"city": ["New York", "NYC"], "days": [3, 4], "unit": ["C", ""]}
JUDGED = [
    ({"equals": {"a": 1, "b": ["x"]}}, {"b": ["X"], "a": 1}, {"a": 1}),
    ({"equals": {"a": 1}}, {"a": 1}, {"a": True}),
    (
        {"calls": [{"f": CALL}]},
        {"name": "f", "arguments": {"city": "new-york", "days": 3.0}},
        {"name": "f", "arguments": {"city": "new-york", "days": "3"}},
    ),
    (
        {"items": [{"name": "tea"}, {"name": "cake"}]},
        {"all": ["Tea", "cake"]},
        {"all": ["tea", "cake", "pie"]},
    ),
]
"""What is expected, an answer that is right, and one that is not."""


@pytest.fixture
def tasks(tmp_path):
    path = tmp_path / "own.jsonl"
    lines = [json.dumps({**ASKED, "judge": judge}) for judge, *_ in JUDGED] * 2
    path.write_text("\n".join(lines))
    return path


def test_a_run_judges_what_the_engines_answer(tmp_path, tasks, monkeypatch, capsys):
    """Unguided: right, with text around it. Compact: wrong and valid, once with
    text around it. Of those with an end more than one in a hundred were told
    unprotected."""

    def ask(engine, limit):
        asked = engine.question["tasks"]
        known = [next(one for one in JUDGED if one[0] == a["judge"]) for a in asked]
        right = [f"It is {json.dumps(answer)}." for _, answer, _ in known]
        wrong = [json.dumps(answer) for *_, answer in known]
        compact = ["It is {}", *wrong[1:]]
        said = {"unguided": right, "compact": compact, "spaced+close": wrong}
        cases = [
            {
                "kind": "own",
                "way": way,
                "seconds": 1.0,
                "unprotected": 1,
                "outputs": [
                    {"text": text, "tokens": 3, "finish": "stop", "reason": None}
                    for text in said[way]
                ],
            }
            for way in engine.question["ways"]
        ]
        assert {task["max_tokens"] for task in asked} == {7}
        return {"environment": {"date": "2026-11-28"}, "cases": cases}

    monkeypatch.setattr(
        harness,
        "ask",
        ask,
    )
    out = tmp_path / "out.json"
    words = f"--model {MODEL_DIR} --tasks {tasks} --ways unguided,compact,spaced+close --tokens 7"
    assert bench.main([*words.split(), "--out", str(out)]) == 1
    shown, told = capsys.readouterr()
    assert "own, compact: 1 of 8 finished answers are not JSON that is valid" in told
    assert "spaced+close: 0 failed, 0 were cut, 1 were told unprotected, of 8" in told
    assert "unguided:" not in told
    found = [
        (one["way"], one["right"], one["valid"], one["items"])
        for one in json.loads(out.read_text())["figures"]
    ]
    assert "0.0078" in shown
    assert found[:2] == [("unguided", 8, 8, 4), ("compact", 0, 8, 2)]
    tasks.write_text('\n\n{"judge": {"rihgt": 1}}')
    assert bench.main(words.split()) == 2
    assert "own.jsonl:3" in capsys.readouterr().err


def test_a_job_is_compared_with_the_same_lengths_unguided(tasks, monkeypatch, capsys):
    def ask(engine, limit):
        outputs = [{"text": "{}", "tokens": 2}] * len(engine.question["tasks"])
        turn = {
            way: {
                "seconds": seconds,
                "thread": seconds - 0.5,
                "steps": [0.01, 0.02],
                "outputs": outputs,
            }
            for way, seconds in (
                ("new", 3.0),
                ("unguided", 2.0),
                ("known", 2.5),
                ("closed", 3.5),
            )
        }
        return {"environment": {"date": "today"}, "turns": [turn, turn]}

    monkeypatch.setattr(
        harness,
        "ask",
        ask,
    )
    words = f"--model {MODEL_DIR} --tasks {tasks} --engines plugin"
    assert job.main(words.split()) == 0
    shown = capsys.readouterr().out
    assert "1.75" in shown
    assert "1.667" in shown
    assert "[10.0, 20.0]" in shown
