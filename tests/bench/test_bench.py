"""`guided-plugin bench loop` and what it says of the machine it ran on."""

import datetime
import json
import platform
from importlib.metadata import version

import pytest

import guided_plugin
from guided_plugin.bench import environment as environment_module
from guided_plugin.bench.environment import environment
from guided_plugin.bench.loop import SHAPES, bench_loop
from guided_plugin.bench.schemas import SCHEMAS
from guided_plugin.errors import GuidedError

SHORT = ("--steps", "8", "--repetitions", "1")
TINY = (32, 1, 32, 2, 1)
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


@pytest.fixture
def bench(run):
    return lambda *arguments: run("bench", "loop", *arguments)


def _check(result):
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


def test_bench_loop_prints_a_table_and_writes_json(bench, monkeypatch, tmp_path, demo_vocabulary):
    monkeypatch.setenv("COLUMNS", "80")
    out = tmp_path / "new" / "figures.json"
    printed = bench("--rows", "1,2", *SHORT, "--out", out)
    assert (printed.code, printed.err.strip()) == (0, "")
    result = json.loads(out.read_text())
    _check(result)
    assert [(f["rows"], f["schema"]) for f in result["figures"]] == [(1, "plain"), (2, "plain")]
    assert result["vocabulary"] == demo_vocabulary.size
    for heading in ("rows", "schema", "backend", "unguided ms", "guided ms", "ratio", "plugin us", "share"):
        assert heading in printed.out
    for figure in result["figures"]:
        assert f"{figure['guided_ms']:.3f}" in printed.out
        assert f"{figure['ratio']:.3f}" in printed.out


def test_bench_loop_json_alone_is_on_stdout(bench):
    result = bench("--rows", "1", "--schema", "maxlength,plain", *SHORT, "--json").json
    _check(result)
    assert [f["schema"] for f in result["figures"]] == ["maxlength", "plain"]


def test_progress_is_called_once_a_run(demo_model, demo_vocabulary):
    calls = []
    bench_loop(
        demo_model,
        demo_vocabulary,
        rows=[1],
        schemas=["plain"],
        steps=8,
        repetitions=2,
        progress=lambda: calls.append(None),
    )
    assert len(calls) == 2 * (2 + 1)  # unguided and guided; one repetition warms up


def test_an_output_that_fails_stops_the_benchmark(demo_model, demo_vocabulary, monkeypatch):
    monkeypatch.setitem(SCHEMAS, "plain", False)
    with pytest.raises(GuidedError):
        bench_loop(demo_model, demo_vocabulary, rows=[1], schemas=["plain"], steps=8, repetitions=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(
            (("--rows", text), f"--rows: must be numbers separated by commas, not {text!r} (8,64)")
            for text in ("1,x", "", "0", "-1", "1,,2")
        ),
        (("--schema", "plain,maxlenght"), "--schema: unknown schema 'maxlenght' (did you mean 'maxlength'?)"),
        (("--shape", "gpt"), f"--shape: unknown shape 'gpt' (known: {', '.join(sorted(SHAPES))})"),
        (("--graph",), "--graph: graphs are CUDA's (add --device cuda)"),
        (("--rows", "1", *SHORT, "--backend", "xgramar"), "xgramar"),
        (("--shape", "tiny", "--width", "10", "--rows", "1", *SHORT), "10 columns"),
    ],
)
def test_wrong_options_are_named(bench, monkeypatch, arguments, message):
    if "tiny" in arguments:
        monkeypatch.setitem(SHAPES, "tiny", TINY)
    bench(*arguments).is_error(2, message)


def test_a_random_model_of_a_known_shape(bench, monkeypatch, demo_vocabulary):
    monkeypatch.setitem(SHAPES, "tiny", TINY)
    width = demo_vocabulary.size + 60
    result = bench("--shape", "tiny", "--width", width, "--rows", "2", *SHORT, "--json").json
    assert (result["model"], result["vocabulary"]) == ("tiny", demo_vocabulary.size)
    assert [figure["rows"] for figure in result["figures"]] == [2]


def test_out_is_tried_before_anything_is_measured(bench, monkeypatch, tmp_path):
    def too_late(*_, **__):
        pytest.fail("measured before it was known where the figures go")

    monkeypatch.setattr("guided_plugin.bench.loop.bench_loop", too_late)
    bench("--out", tmp_path).is_error(2, f"error: --out: can't write {tmp_path}: Is a directory")


def test_out_keeps_an_older_file_until_there_are_new_figures(bench, tmp_path):
    out = tmp_path / "figures.json"
    out.write_text("older")
    assert bench("--out", out, "--shape", "gpt").code == 2
    assert out.read_text() == "older"


def test_environment_tells_versions():
    found = environment()
    assert list(found) == ["date", "guided_plugin", "python", "versions", "cpus", "device"]
    assert found["guided_plugin"] == guided_plugin.__version__
    assert found["python"] == platform.python_version()
    for package in ("torch", "xgrammar", "transformers"):
        assert found["versions"][package] == version(package)
    today = datetime.datetime.now(datetime.UTC).date()
    assert abs((datetime.date.fromisoformat(found["date"]) - today).days) <= 1
    assert found["cpus"] >= 1


def test_environment_leaves_out_what_is_not_installed(monkeypatch):
    monkeypatch.setattr(environment_module, "_PACKAGES", ("torch", "no-such-package-here"))
    assert list(environment()["versions"]) == ["torch"]


def test_environment_names_the_device_that_was_measured(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"name of {device}")
    assert environment("cpu")["device"] == "cpu"  # also on a machine with a GPU
    assert environment("cuda:1")["device"] == "name of cuda:1"
