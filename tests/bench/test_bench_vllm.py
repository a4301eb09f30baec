"""`bench vllm` around its engines: what is asked of them, what is made of their answers, how they fail."""

import json

import pytest

import guided_plugin as gp
from guided_plugin.bench import vllm as bench
from guided_plugin.cli import app
from guided_plugin.cli.loading import InputError


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


def test_every_figure_is_set_against_the_same_runner_without_the_plugin(engines):
    done = []
    result = bench.bench_vllm(
        "folder/model", "tokenizer", rows=[1, 4], schemas=["plain"], progress=lambda: done.append(1)
    )
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


def test_without_the_built_in_it_is_not_asked_for(engines):
    bench.bench_vllm("m", "t", rows=[1], schemas=["plain"], runners=["v2"], built_in=False)
    assert engines[0][1]["ways"] == ["unguided", "logit_bias"]


def test_a_mixed_run_is_asked_of_every_engine_and_told(engines, capsys):
    result = bench.bench_vllm("m", "t", rows=[1], schemas=["plain"], runners=["v2"], mixed=5.0, rate=8.0)
    assert [options["mixed"] for _, options in engines] == [{"seconds": 5.0, "rate": 8.0}] * 2
    assert [(figure["runner"], figure["way"]) for figure in result["mixed"]] == [
        ("v2", "unguided"),
        ("v2", "loaded"),
    ]
    app(["bench", "vllm", "--rows", "1", "--runner", "v2", "--mixed", "5"], standalone_mode=False)
    printed = capsys.readouterr().out
    assert "between tokens" in printed
    assert "3.25" in printed


def test_a_missing_vllm_is_told_before_any_engine_starts(monkeypatch):
    monkeypatch.setattr(bench.subprocess, "Popen", None)
    with pytest.raises(gp.GuidedError, match=r"No module named 'vllm' \(pip install 'guided-plugin\[vllm\]'"):
        bench.bench_vllm("m", "t", rows=[1], schemas=["plain"])


def test_an_engine_that_does_not_start_is_told_in_its_own_words(monkeypatch):
    monkeypatch.setattr(bench, "_needs_vllm", lambda: None)
    with pytest.raises(gp.GuidedError) as failure:
        bench.bench_vllm("/nowhere", "/nowhere", rows=[1], schemas=["plain"], runners=["v2"], timeout=120)
    assert str(failure.value).startswith(
        "bench vllm, runner v2: the engine ended with exit code 1 and no result: ModuleNotFoundError: "
        "No module named 'vllm' ("
    )


def test_an_engine_that_never_answers_is_ended(monkeypatch, tmp_path):
    script = tmp_path / "child"
    script.write_text("#!/bin/sh\necho loading the weights\nsleep 60\n")
    script.chmod(0o755)
    monkeypatch.setattr(bench.sys, "executable", str(script))
    monkeypatch.setattr(bench, "_needs_vllm", lambda: None)
    with pytest.raises(gp.GuidedError, match=r"gave no result within 0\.3 s: loading the weights"):
        bench.bench_vllm("m", "t", rows=[1], schemas=["plain"], runners=["v2"], timeout=0.3)


def test_the_last_words_are_the_errors_also_behind_the_heads_of_log_lines():
    log = """
INFO 11-22 [core.py:1] starting
ERROR 11-22 [core.py:2] Traceback (most recent call last):
ERROR 11-22 [core.py:3] ValueError: no weights in /nowhere
Traceback (most recent call last):
RuntimeError: Engine core initialization failed. See root cause above.
RuntimeError: Engine core initialization failed. See root cause above.
"""
    assert bench._last_words(log) == (
        "ValueError: no weights in /nowhere; "
        "RuntimeError: Engine core initialization failed. See root cause above."
    )
    assert bench._last_words("a\n\nb\nc\nKilled\n") == "b; c; Killed"
    assert bench._last_words("") == "it said nothing"


def test_the_command_prints_a_table_and_writes_json(engines, tmp_path, capsys):
    out = tmp_path / "vllm.json"
    app(["bench", "vllm", "--rows", "2", "--runner", "v2", "--out", str(out)], standalone_mode=False)
    printed = capsys.readouterr().out
    assert "take_over" in printed
    assert "1.100" in printed
    assert {figure["runner"] for figure in json.loads(out.read_text())["figures"]} == {"v2"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--runner", "v3"], "unknown runner 'v3'"),
        (["--engine", "{"], "--engine: is not JSON"),
        (["--engine", "[]"], "must be a JSON object"),
        (["--schema", "plane"], "plain"),
    ],
)
def test_wrong_options_are_named(engines, arguments, says):
    with pytest.raises(InputError, match=says):
        app(["bench", "vllm", *arguments], standalone_mode=False)
    assert engines == []


@pytest.mark.parametrize("runners", ["v2", "v1,v2"])
def test_the_ratios_are_drawn_where_asked(engines, tmp_path, capsys, runners):
    png = tmp_path / "ratios.png"
    app(["bench", "vllm", "--rows", "1,4", "--runner", runners, "--png", str(png)], standalone_mode=False)
    assert png.read_bytes()[:4] == b"\x89PNG"


def test_a_picture_that_cannot_be_written_stops_before_any_engine(engines, capsys):
    with pytest.raises(InputError, match=r"--png: can't write /proc/none/a\.png"):
        app(["bench", "vllm", "--png", "/proc/none/a.png"], standalone_mode=False)
    assert engines == []
