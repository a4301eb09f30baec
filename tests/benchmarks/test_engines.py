"""Engines of vLLM side by side: what is asked of them, what is made of their answers;
and models."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import engines as bench
from benchmarks import models

ROOT = Path(bench.__file__).parents[1]


def answer(options):
    """What an engine of the child would say: guided steps take 10% longer than unguided
    ones."""
    figures = [
        {
            "rows": rows,
            "way": way,
            "schema": schema,
            "ms_per_step": 2.0 * rows * (1.1 if way == "guided" else 1.0),
            "steady_ms": 1.5 * rows * (1.2 if way == "guided" else 1.0),
            "tokens_per_second": 500,
            "thread_us": 1234,
            "wrong_outputs": 0,
        }
        for rows in options["rows"]
        for way, schemas in (("unguided", ["none"]), ("guided", options["schemas"]))
        for schema in schemas
    ]
    times = {
        "inter_token_ms": {"p50": 2.0, "p99": 3.25},
        "first_token_ms": {"p50": 9.0, "p99": 11.5},
    }
    mixed = {
        "way": "unguided",
        "requests": 7,
        "tokens_per_second": 900,
        "wrong_outputs": 0,
        **times,
    }
    return {
        "environment": {"device": options["device"], "date": "2026-11-26"},
        "figures": figures,
        "starts": {"first_ms": 20.0, "warm_ms": 10.0},
        "mixed": [mixed] if options["mixed"] else [],
    }


@pytest.fixture
def engines(monkeypatch):
    asked = []

    def run(options, leg, limit):
        asked.append((leg, options))
        return answer(options)

    monkeypatch.setattr(bench, "_run", run)
    return asked


def asked(*arguments):
    return bench.parsed(["--rows", "1", "--schema", "plain", *arguments])


def test_every_figure_is_set_against_the_unguided_one_of_the_same_engine(engines):
    done = []
    matrix = (
        "--executor",
        "uni,mp",
        "--tensor-parallel",
        "1,2",
        "--engines",
        "plugin,xgrammar",
    )
    options = asked("--model", "folder/model", "--rows", "1,4", *matrix)
    result = bench.measure(options, progress=lambda: done.append(1))
    legs = [(leg["executor"], leg["gpus"], leg["engine"]) for leg, _ in engines]
    kinds = ("uni", 1), ("mp", 1), ("mp", 2)
    assert legs == [
        (*kind, engine) for kind in kinds for engine in ("plugin", "xgrammar")
    ]
    assert len(done) == 6
    assert [options["plugin"] for _, options in engines] == [True, False] * 3
    asked_for = [options["engine"] for _, options in engines]
    own = {"distributed_executor_backend": "mp", "tensor_parallel_size": 2}
    assert asked_for[-1] == own | {"structured_outputs_config": {"backend": "xgrammar"}}
    assert "structured_outputs_config" not in asked_for[0]
    ratios = {
        (f["executor"], f["gpus"], f["engine"], f["rows"], f["way"]): f
        for f in result["figures"]
    }
    assert len(ratios) == 6 * 2 * 2
    found = {(f["way"], f["ratio"], f["steady_ratio"]) for f in ratios.values()}
    assert found == {("unguided", 1.0, 1.0), ("guided", 1.1, 1.2)}
    assert [start["first_ms"] for start in result["starts"]] == [20.0] * 6
    assert result["model"] == "model"


def test_the_command_prints_and_writes_what_every_engine_answered(
    engines, tmp_path, capsys
):
    out = tmp_path / "vllm.json"
    mixed = ("--mixed", "5", "--rate", "8", "--engines", "plugin,guidance")
    assert bench.main(["--rows", "1", *mixed, "--out", str(out)]) == 0
    assert [options["mixed"] for _, options in engines] == [
        {"seconds": 5.0, "rate": 8.0}
    ] * 2
    result = json.loads(out.read_text())
    assert [one["engine"] for one in result["mixed"]] == ["plugin", "guidance"]
    assert result["command"].startswith("python -m benchmarks.engines --rows 1 ")
    printed = capsys.readouterr().out
    assert all(
        part in printed
        for part in ("guidance", "1.100", "1234", "between tokens", "3.25")
    )


def test_what_an_engine_measured_before_its_time_was_up_counts_and_the_rest_is_told(
    engines, monkeypatch
):
    full = bench._run
    monkeypatch.setattr(
        bench, "_run", lambda options, *leg: full({**options, "rows": [1]}, *leg)
    )
    result = bench.measure(
        asked("--rows", "1,4", "--engines", "plugin", "--limit", "9")
    )
    assert {figure["rows"] for figure in result["figures"]} == {1}
    assert result["failed"] == ["plugin on v2: not all of it was measured within 9 s"]


def test_an_engine_that_does_not_start_is_told_in_its_own_words_and_the_others_go_on(
    capsys,
):
    given = [
        "--rows",
        "1",
        "--model",
        "/nowhere",
        "--engines",
        "plugin,guidance",
        "--limit",
        "120",
    ]
    assert bench.main(given) == 1
    told = [
        line
        for line in capsys.readouterr().err.splitlines()
        if line.startswith("benchmarks.engines,")
    ]
    assert len(told) == 2
    assert told[0].startswith(
        "benchmarks.engines, plugin on v2: the engine ended with exit code 1 and no "
    )
    assert "ModuleNotFoundError: No module named 'vllm' (" in told[0]


@pytest.mark.parametrize("said", ["loading the weights", "AssertionError"])
def test_an_engine_that_never_answers_is_ended(monkeypatch, tmp_path, said):
    script = tmp_path / "child"
    script.write_text(f"#!/bin/sh\necho ERROR 11-27 {said}\necho over\nsleep 60\n")
    script.chmod(0o755)
    monkeypatch.setattr(bench.sys, "executable", str(script))
    result = bench.measure(asked("--engines", "plugin", "--limit", "0.3"))
    assert len(result["failed"]) == 1
    words = said if said == "AssertionError" else f"ERROR 11-27 {said}; over"
    assert f"gave no result within 0.3 s: {words}" in result["failed"][0]


@pytest.mark.parametrize(
    ("what", "names"), [("loop", {None}), ("generate", {"eager", "static"})]
)
def test_models_are_measured_printed_and_written(tmp_path, capsys, what, names):
    out = tmp_path / "models.json"
    models.main(
        [what, "--rows", "1,2", "--steps", "8", "--repetitions", "1", "--out", str(out)]
    )
    result = json.loads(out.read_text())
    assert json.loads(capsys.readouterr().out) == result
    assert {figure.get("forward") for figure in result["figures"]} == names
    ratios = [
        figure[name]
        for figure in result["figures"]
        for name in figure
        if name.endswith("ratio")
    ]
    assert len(ratios) == (2 if what == "loop" else 8)
    assert all(ratio > 0 for ratio in ratios)


ASKED = """
import time
from benchmarks.measuring import question_in
question_in("options")
print(1)
time.sleep(99)
"""
ASKS = "import subprocess, sys; subprocess.run([sys.executable, '-uc', sys.argv[1]], start_new_session=True)"


def test_an_engine_ends_with_the_process_that_asked_it(tmp_path):
    (tmp_path / "options").write_text("{}")
    where = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(ROOT)}}
    with subprocess.Popen(
        [sys.executable, "-c", ASKS, ASKED], stdout=subprocess.PIPE, **where
    ) as asks:
        assert asks.stdout.readline() == b"1\n"
        asks.kill()
        # the child has this pipe too
        assert asks.communicate(timeout=20) == (b"", None)
