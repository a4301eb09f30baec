"""Engines in processes of their own: what is asked of them, what is made of their
answers, and how they end; and models."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks import engines, harness, models

ROOT = Path(engines.__file__).parents[1]


def answer(engine, limit):
    """What an engine would say: guided steps take 10% longer than unguided ones."""
    rows = engine.question["rows"][: None if limit > 9 else 1]
    figures = [
        {
            "rows": count,
            "way": way,
            "schema": "plain",
            "ms_per_step": 2.0 * count * slower,
            "steady_ms": 1.5 * count * slower,
            "thread_us": 1234,
            "wrong_outputs": 0,
        }
        for count in rows
        for way, slower in (("unguided", 1.0), ("guided", 1.1))
    ]
    here = {
        "device": engine.question["device"],
        "date": "2026-11-26",
    }
    return {
        "environment": here,
        "figures": figures,
        "refused": 0,
    }


@pytest.mark.parametrize("limit", [99, 9])
def test_every_figure_is_set_against_the_unguided_one_of_the_same_engine(
    monkeypatch, tmp_path, capsys, limit
):
    asked = []

    def ask(engine, seconds):
        asked.append(engine)
        return answer(engine, seconds)

    monkeypatch.setattr(
        harness,
        "ask",
        ask,
    )
    out = tmp_path / "vllm.json"
    words = f"--rows 1,4 --executor uni,mp --tensor-parallel 1,2 --limit {limit}"
    kinds = [
        "--engines",
        "plugin,xgrammar",
        "--out",
        str(out),
    ]
    assert engines.main([*words.split(), *kinds]) == int(limit == 9)
    own = {"distributed_executor_backend": "mp", "tensor_parallel_size": 2}
    theirs = {"structured_outputs_config": {"backend": "xgrammar"}}
    assert [engine.plugin for engine in asked] == [{"take_over": True}, None] * 3
    assert [engine.question["engine"] for engine in asked[-2:]] == [own, own | theirs]
    result = json.loads(out.read_text())
    found = {(one["way"], one["ratio"]) for one in result["figures"]}
    assert found == {("unguided", 1.0), ("guided", 1.1)}
    assert len(result["figures"]) == 6 * 2 * (2 if limit > 9 else 1)
    assert result["command"].startswith("python -m benchmarks.engines --rows 1,4 ")
    told = capsys.readouterr()
    assert "1.100" in told.out
    assert ("not all of it was measured within 9 s" in told.err) is (limit == 9)


def test_an_engine_that_does_not_start_is_told_in_its_own_words(capsys):
    words = "--rows 1 --model /nowhere --engines plugin,guidance --limit 120"
    assert engines.main(words.split()) == 1
    told = capsys.readouterr().err
    assert told.count("the engine ended with exit code 1 and no result") == 2
    assert "ModuleNotFoundError: No module named 'vllm'" in told


@pytest.mark.parametrize("said", ["loading the weights", "AssertionError"])
def test_an_engine_that_never_answers_is_ended(monkeypatch, tmp_path, said):
    script = tmp_path / "child"
    script.write_text(f"#!/bin/sh\necho ERROR 11-27 {said}\necho over\nsleep 60\n")
    script.chmod(0o755)
    monkeypatch.setattr(
        harness.sys,
        "executable",
        str(script),
    )
    words = said if said == "AssertionError" else f"ERROR 11-27 {said}; over"
    with pytest.raises(harness.PipelineError, match=f"within 0.3 s: {words}"):
        harness.ask(
            harness.Engine(
                "slow",
                "child",
                {},
                None,
            ),
            0.3,
        )


ASKED = """
import sys, time
from benchmarks.harness import serve
sys.argv[1:] = ["question", "answer"]
serve(lambda question, tell: (print(1), time.sleep(99)))
"""
ASKS = "import subprocess, sys; subprocess.run([sys.executable, '-uc', sys.argv[1]], start_new_session=True)"


def test_an_engine_ends_with_the_process_that_asked_it(tmp_path):
    (tmp_path / "question").write_text('{"device": "cpu"}')
    where = {
        "cwd": tmp_path,
        "env": {
            **os.environ,
            "PYTHONPATH": str(ROOT),
        },
    }
    with subprocess.Popen(
        [
            sys.executable,
            "-c",
            ASKS,
            ASKED,
        ],
        stdout=subprocess.PIPE,
        **where,
    ) as asks:
        assert asks.stdout.readline() == b"1\n"
        asks.kill()
        # the child has this pipe too
        assert asks.communicate(timeout=20) == (b"", None)


def test_engines_work_one_at_a_time_and_take_turns(tmp_path):
    worked = []

    def work(name):
        for _ in range(3):
            with harness.turn(tmp_path / "turns"):
                worked.append(name)
                time.sleep(0.02)
                assert worked[-1] == name

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, "ab"))
    assert len(worked) == 6
    assert worked not in ([*"aaabbb"], [*"bbbaaa"])  # either may begin


def test_models_are_measured_printed_and_written(tmp_path, capsys):
    out = tmp_path / "models.json"
    words = f"--rows 1,2 --steps 8 --repetitions 1 --forward eager --out {out}"
    models.main(words.split())
    result = json.loads(out.read_text())
    assert json.loads(capsys.readouterr().out) == result
    assert [one["rows"] for one in result["figures"]] == [1, 2]
    for one in result["figures"]:
        assert one["ratio"] > 0
        assert one["xgrammar_ratio"] > 0
