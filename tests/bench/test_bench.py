"""`guided-plugin bench loop` and what it says of the machine it ran on."""

from __future__ import annotations

import datetime
import json
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import guided_plugin
from guided_plugin.bench import environment as environment_module
from guided_plugin.bench.environment import environment
from guided_plugin.bench.loop import SHAPES, bench_loop
from guided_plugin.bench.schemas import SCHEMAS
from guided_plugin.cli import main
from guided_plugin.errors import GuidedError
from guided_plugin.grammar.vocabulary import Vocabulary

SHORT = ("--steps", "8", "--repetitions", "1")
FIGURE_KEYS = [
    "rows",
    "schema",
    "backend",
    "unguided_ms",
    "guided_ms",
    "ratio",
    "main_thread_us",
    "share",
    "calls_us",
]


def _bench(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["guided-plugin", "bench", "loop", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0)


def _check(result: dict[str, Any]) -> None:
    assert list(result) == [
        "benchmark",
        "environment",
        "steps",
        "repetitions",
        "graph",
        "vocabulary",
        "figures",
        "model",
    ]
    assert (result["benchmark"], result["steps"], result["repetitions"]) == ("loop", 8, 1)
    assert result["model"] == "demo"
    for figure in result["figures"]:
        assert list(figure) == FIGURE_KEYS
        assert figure["backend"] == "llguidance"
        assert figure["unguided_ms"] > 0
        # One repetition: the median of the ratios is the ratio of the medians.
        assert figure["ratio"] == pytest.approx(figure["guided_ms"] / figure["unguided_ms"], rel=2e-3)
        share = figure["main_thread_us"] / 1e3 / figure["guided_ms"]
        assert figure["share"] == pytest.approx(share, rel=2e-3, abs=1e-4)
        assert 0 < figure["share"] < 1


def test_bench_loop_prints_a_table_and_writes_json(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    demo_vocabulary: Vocabulary,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = tmp_path / "new" / "figures.json"
    assert _bench(monkeypatch, "--rows", "1,2", *SHORT, "--out", str(out)) == 0
    result = json.loads(out.read_text())
    _check(result)
    assert [(f["rows"], f["schema"]) for f in result["figures"]] == [(1, "plain"), (2, "plain")]
    assert result["vocabulary"] == demo_vocabulary.size
    printed = capsys.readouterr()
    for heading in ("rows", "schema", "backend", "unguided ms", "guided ms", "ratio", "plugin us", "share"):
        assert heading in printed.out
    for figure in result["figures"]:
        assert f"{figure['guided_ms']:.3f}" in printed.out
        assert f"{figure['ratio']:.3f}" in printed.out
    assert printed.err.strip() == ""


def test_bench_loop_json_alone_is_on_stdout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _bench(monkeypatch, "--rows", "1", "--schema", "maxlength,plain", *SHORT, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    _check(result)
    assert [f["schema"] for f in result["figures"]] == ["maxlength", "plain"]


def test_progress_is_told_once_a_run(demo_model: Any, demo_vocabulary: Vocabulary) -> None:
    told: list[None] = []
    bench_loop(
        demo_model,
        demo_vocabulary,
        rows=[1],
        schemas=["plain"],
        steps=8,
        repetitions=2,
        progress=lambda: told.append(None),
    )
    assert len(told) == 2 * (2 + 1)  # unguided and guided; one repetition warms up


def test_an_output_that_fails_stops_the_benchmark(
    demo_model: Any, demo_vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SCHEMAS, "plain", False)  # type: ignore[arg-type]
    with pytest.raises(GuidedError):
        bench_loop(demo_model, demo_vocabulary, rows=[1], schemas=["plain"], steps=8, repetitions=1)


@pytest.mark.parametrize("text", ["1,x", "", "0", "-1", "1,,2"])
def test_bad_rows(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str) -> None:
    assert _bench(monkeypatch, "--rows", text) == 2
    expected = f"error: --rows: must be numbers separated by commas, not {text!r} (8,64)\n"
    assert capsys.readouterr().err == expected


def test_unknown_schema(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert _bench(monkeypatch, "--schema", "plain,maxlenght") == 2
    expected = "error: --schema: unknown schema 'maxlenght' (did you mean 'maxlength'?)\n"
    assert capsys.readouterr().err == expected


def test_unknown_backend(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert _bench(monkeypatch, "--rows", "1", *SHORT, "--backend", "xgramar") == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert "xgramar" in message
    assert message.count("\n") == 1


def test_unknown_shape(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert _bench(monkeypatch, "--shape", "gpt") == 2
    expected = f"error: --shape: unknown shape 'gpt' (known: {', '.join(sorted(SHAPES))})\n"
    assert capsys.readouterr().err == expected


def test_a_random_model_narrower_than_its_tokenizer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(SHAPES, "tiny", (32, 1, 32, 2, 1))
    assert _bench(monkeypatch, "--shape", "tiny", "--width", "10", "--rows", "1", *SHORT) == 2
    message = capsys.readouterr().err
    assert "10 columns" in message
    assert message.count("\n") == 1


def test_a_random_model_of_a_known_shape(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], demo_vocabulary: Vocabulary
) -> None:
    monkeypatch.setitem(SHAPES, "tiny", (32, 1, 32, 2, 1))
    width = str(demo_vocabulary.size + 60)
    assert _bench(monkeypatch, "--shape", "tiny", "--width", width, "--rows", "2", *SHORT, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["model"], result["vocabulary"]) == ("tiny", demo_vocabulary.size)
    assert [figure["rows"] for figure in result["figures"]] == [2]


def test_out_is_tried_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def too_late(*_: Any, **__: Any) -> Any:
        pytest.fail("measured before it was known where the figures go")

    monkeypatch.setattr("guided_plugin.bench.loop.bench_loop", too_late)
    assert _bench(monkeypatch, "--out", str(tmp_path)) == 2
    assert capsys.readouterr().err == f"error: --out: can't write {tmp_path}: Is a directory\n"


def test_out_keeps_an_older_file_until_there_are_new_figures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "figures.json"
    out.write_text("older")
    assert _bench(monkeypatch, "--out", str(out), "--shape", "gpt") == 2
    assert out.read_text() == "older"


def test_environment_tells_versions() -> None:
    found = environment()
    assert list(found) == ["date", "guided_plugin", "python", "versions", "cpus", "device"]
    assert found["guided_plugin"] == guided_plugin.__version__
    assert found["python"] == platform.python_version()
    for package in ("torch", "xgrammar", "transformers"):
        assert found["versions"][package] == version(package)
    today = datetime.datetime.now(datetime.UTC).date()
    assert abs((datetime.date.fromisoformat(found["date"]) - today).days) <= 1
    assert found["cpus"] >= 1


def test_environment_leaves_out_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment_module, "_PACKAGES", ("torch", "no-such-package-here"))
    assert list(environment()["versions"]) == ["torch"]


def test_environment_names_the_device_that_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"name of {device}")
    assert environment("cpu")["device"] == "cpu"  # also on a machine with a GPU
    assert environment("cuda:1")["device"] == "name of cuda:1"
