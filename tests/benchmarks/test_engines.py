"""Engines of vLLM side by side: what is asked of them, what is made of their answers; and models."""

import json

import pytest

import guided_plugin as gp
from benchmarks import engines as bench
from benchmarks import models


def answer(options):
    """What an engine of the child would say: guided steps take 10% longer than unguided ones."""
    figures = [
        {
            "rows": rows,
            "way": way,
            "schema": schema,
            "ms_per_step": 2.0 * rows * (1.1 if way != "unguided" else 1.0),
            "steady_ms": 1.5 * rows * (1.2 if way != "unguided" else 1.0),
            "tokens_per_second": 500,
            "all_ms": [2.0],
            "wrong_outputs": 0,
        }
        for rows in options["rows"]
        for way in options["ways"]
        for schema in (["none"] if way in ("unguided", "logit_bias") else options["schemas"])
    ]
    mixed = {
        "way": "unguided",
        "requests": 7,
        "tokens_per_second": 900,
        "inter_token_ms": {"p50": 2.0, "p99": 3.25},
        "first_token_ms": {"p50": 9.0, "p99": 11.5},
        "wrong_outputs": 0,
    }
    return {
        "environment": {"device": options["device"]},
        "figures": figures,
        "first_token_ms": {},
        "mixed": [mixed] if options["mixed"] else [],
    }


@pytest.fixture
def engines(monkeypatch):
    asked = []

    def run(options, runner, timeout):
        asked.append((runner, options))
        return answer(options)

    monkeypatch.setattr(bench, "_run", run)
    return asked


def asked(*arguments):
    return bench.parsed(["--rows", "1", "--schema", "plain", "--runner", "v2", *arguments])


def test_every_figure_is_set_against_the_same_runner_without_the_plugin(engines):
    done = []
    options = asked("--model", "folder/model", "--rows", "1,4", "--runner", "v1,v2")
    result = bench.measure(options, progress=lambda: done.append(1))
    assert [(runner, options["plugin"]) for runner, options in engines] == [
        ("v1", False),
        ("v1", True),
        ("v2", False),
        ("v2", True),
    ]
    assert len(done) == 4
    assert engines[0][1]["ways"] == ["unguided", "logit_bias", "built-in"]
    assert engines[1][1]["ways"] == ["unguided", "logit_bias", "extra_args", "take_over"]
    ratios = {(f["runner"], f["rows"], f["way"]): f["ratio"] for f in result["figures"]}
    assert len(ratios) == 2 * 2 * 7
    assert ratios["v1", 4, "unguided"] == ratios["v2", 1, "loaded"] == 1.0
    assert ratios["v2", 4, "take_over"] == pytest.approx(1.1)
    assert {f["steady_ratio"] for f in result["figures"]} == {1.0, 1.2}
    assert result["model"] == "model"


def test_the_command_prints_and_writes_what_every_engine_answered(engines, tmp_path, capsys):
    out = tmp_path / "vllm.json"
    mixed = ("--mixed", "5", "--rate", "8", "--no-built-in")
    bench.main(["--rows", "1", "--runner", "v2", *mixed, "--out", str(out)])
    assert [options["mixed"] for _, options in engines] == [{"seconds": 5.0, "rate": 8.0}] * 2
    assert engines[0][1]["ways"] == ["unguided", "logit_bias"]
    result = json.loads(out.read_text())
    assert [(figure["runner"], figure["way"]) for figure in result["mixed"]] == [
        ("v2", "unguided"),
        ("v2", "loaded"),
    ]
    printed = capsys.readouterr().out
    assert all(part in printed for part in ("take_over", "1.100", "between tokens", "3.25"))


def test_an_engine_that_does_not_start_is_told_in_its_own_words(monkeypatch):
    with pytest.raises(gp.GuidedError) as failure:
        bench.measure(asked("--model", "/nowhere"), timeout=120)
    assert str(failure.value).startswith(
        "benchmarks.engines, runner v2: the engine ended with exit code 1 and no result: "
        "ModuleNotFoundError: No module named 'vllm' ("
    )


def test_an_engine_that_never_answers_is_ended(monkeypatch, tmp_path):
    script = tmp_path / "child"
    script.write_text("#!/bin/sh\necho loading the weights\nsleep 60\n")
    script.chmod(0o755)
    monkeypatch.setattr(bench.sys, "executable", str(script))
    with pytest.raises(gp.GuidedError, match=r"gave no result within 0\.3 s: loading the weights"):
        bench.measure(asked(), timeout=0.3)


@pytest.mark.parametrize(("what", "names"), [("loop", {None}), ("generate", {"eager", "static"})])
def test_models_are_measured_printed_and_written(tmp_path, capsys, what, names):
    out = tmp_path / "models.json"
    models.main([what, "--rows", "1,2", "--steps", "8", "--repetitions", "1", "--out", str(out)])
    result = json.loads(out.read_text())
    assert json.loads(capsys.readouterr().out) == result
    assert {figure.get("forward") for figure in result["figures"]} == names
    ratios = [figure[name] for figure in result["figures"] for name in figure if name.endswith("ratio")]
    assert len(ratios) == (2 if what == "loop" else 8)
    assert all(ratio > 0 for ratio in ratios)
