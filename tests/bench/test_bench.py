"""`guided-plugin bench` of the reference loop and transformers, and what figures say of
the machine."""

import datetime
import json
import platform
from importlib.metadata import version

import pytest

import guided_plugin
from guided_plugin.bench import (
    SCHEMAS,
    Plan,
    bench_loop,
    check_outputs,
    compared,
    environment,
    in_turns,
)
from guided_plugin.cli.results import show_table
from guided_plugin.errors import GuidedError, RequestError
from guided_plugin.spec import OutputSpec

SHORT = ("--rows", "1,2", "--steps", "8", "--repetitions", "1")


@pytest.mark.parametrize("host", ["loop", "transformers"])
def test_it_prints_a_table_and_writes_json(
    run, monkeypatch, tmp_path, demo_vocabulary, host
):
    monkeypatch.setenv("COLUMNS", "80")
    out = tmp_path / "new" / "figures.json"
    printed = run("bench", host, *SHORT, "--out", out)
    assert (printed.code, printed.err.strip()) == (0, "")
    assert max(map(len, printed.out.splitlines())) <= 80
    result = json.loads(out.read_text())
    assert (result["benchmark"], result["steps"], result["repetitions"]) == (host, 8, 1)
    assert (result["model"], result["vocabulary"]) == ("demo", demo_vocabulary.size)
    assert [(f["rows"], f["schema"], f["backend"]) for f in result["figures"]] == [
        (1, "plain", "llguidance"),
        (2, "plain", "llguidance"),
    ]
    for figure in result["figures"]:
        assert figure["unguided_ms"] > 0
        # One repetition: the median of the ratios is the ratio of the medians.
        assert figure["ratio"] == pytest.approx(
            figure["guided_ms"] / figure["unguided_ms"], rel=2e-3
        )
        assert {way: len(times) for way, times in figure["runs_ms"].items()} == {
            "unguided": 1,
            "guided": 1,
        }
        assert f"{figure['guided_ms']:.3f}" in printed.out
        assert f"{figure['ratio']:.3f}" in printed.out


def test_json_alone_is_on_stdout(run):
    result = run("bench", "loop", *SHORT, "--schema", "maxlength,plain", "--json").json
    assert [f["schema"] for f in result["figures"]] == ["maxlength", "plain"] * 2


def test_an_output_that_fails_stops_the_benchmark(
    demo_model, demo_vocabulary, monkeypatch
):
    monkeypatch.setitem(SCHEMAS, "plain", False)
    with pytest.raises(GuidedError):
        bench_loop(demo_model, demo_vocabulary, Plan([1], ["plain"], 8, 1))


def test_a_wrong_output_is_no_figure(demo_vocabulary):
    with pytest.raises(RequestError, match="row 0, token 0: a fresh matcher refuses"):
        check_outputs(demo_vocabulary, OutputSpec.choice(["yes"]), [[300, 301]])


def test_ways_take_turns_in_going_first():
    order = []
    times = iter(range(1, 99))

    def way(name):
        return lambda: (order.append(name), float(next(times)))[1]

    found = in_turns(
        {"unguided": way("u"), "guided": way("g")}, 3, lambda: order.append(".")
    )
    assert "".join(order) == "u.g.g.u.u.g."
    assert found == {"unguided": [1, 4, 5], "guided": [2, 3, 6]}
    figure = compared({**found, "other": [1, 4, 5]})
    assert (figure["unguided_ms"], figure["guided_ms"]) == (4, 3)
    assert figure["ratio"] == pytest.approx(((2 + 1.2) / 2 + 0.75) / 2)
    assert figure["other_ratio"] == 1.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(
            (
                ("--rows", text),
                f"--rows: must be numbers separated by commas, not {text!r} (8,64)",
            )
            for text in ("1,x", "", "0", "-1", "1,,2")
        ),
        (
            ("--schema", "plain,maxlenght"),
            "--schema: unknown schema 'maxlenght' (did you mean 'maxlength'?)",
        ),
    ],
)
@pytest.mark.parametrize("host", ["loop", "transformers", "vllm"])
def test_wrong_options_are_named(run, host, arguments, message):
    run("bench", host, *arguments).is_error(2, message)


def test_options_of_one_host(run):
    run("bench", "transfomers").is_error(
        2, "unknown host 'transfomers' (did you mean 'transformers'?)"
    )
    run("bench", "vllm", "--engine", "{").is_error(2, "--engine: is not JSON")
    run("bench", "vllm", "--engine", "[]").is_error(2, "must be a JSON object")
    run("bench", "vllm").is_error(
        2, "No module named 'vllm' (pip install 'guided-plugin[vllm]'"
    )


def test_out_is_tried_before_anything_is_measured_and_kept_until_then(
    run, monkeypatch, tmp_path
):
    def too_late(*_, **__):
        pytest.fail("measured before it was known where the figures go")

    monkeypatch.setattr("guided_plugin.bench.bench_loop", too_late)
    run("bench", "loop", "--out", tmp_path).is_error(
        2, f"error: --out: can't write {tmp_path}: Is a directory"
    )
    out = tmp_path / "figures.json"
    out.write_text("older")
    assert run("bench", "loop", "--out", out, "--model", "/nowhere").code == 2
    assert out.read_text() == "older"


def test_environment_tells_versions():
    found = environment()
    assert list(found) == [
        "date",
        "guided_plugin",
        "python",
        "versions",
        "cpus",
        "device",
    ]
    assert found["guided_plugin"] == guided_plugin.__version__
    assert found["python"] == platform.python_version()
    for package in ("torch", "xgrammar", "transformers"):
        assert found["versions"][package] == version(package)
    today = datetime.datetime.now(datetime.UTC).date()
    assert abs((datetime.date.fromisoformat(found["date"]) - today).days) <= 1
    assert found["cpus"] >= 1


def test_a_narrow_console_cuts_no_figure(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "24")
    figures = [{"backend": "llguidance", "times": "12.5/1234/123456", "count": 7}]
    show_table(
        figures,
        [("backend", "{backend}"), ("avg/p99/max us", "{times}"), ("files", "{count}")],
    )
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.split() == ["llguidance", "12.5/1234/123456", "7"]
