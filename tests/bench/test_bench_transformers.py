"""`guided-plugin bench transformers` at a tiny size."""

import json

import pytest
import torch

from guided_plugin.bench import transformers as bench_module
from guided_plugin.errors import RequestError
from guided_plugin.spec import OutputSpec

SHORT = ("--steps", "8", "--repetitions", "1", "--rows", "2")


@pytest.fixture
def bench(run):
    return lambda *arguments: run("bench", "transformers", *arguments)


def test_it_prints_a_table_and_writes_json(bench, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "80")
    out = tmp_path / "new" / "figures.json"
    printed = bench(*SHORT, "--schema", "plain", "--out", out)
    assert printed.code == 0
    result = json.loads(out.read_text())
    assert (result["benchmark"], result["model"], result["compiled"]) == ("transformers", "demo", False)
    assert [(f["rows"], f["schema"], f["forward"]) for f in result["figures"]] == [
        (2, "plain", "eager"),
        (2, "plain", "static"),
    ]
    for figure in result["figures"]:
        assert figure["unguided_ms"] > 0
        assert figure["ratio"] == pytest.approx(figure["guided_ms"] / figure["unguided_ms"], rel=2e-3)
        assert figure["xgrammar_ratio"] == pytest.approx(
            figure["xgrammar_ms"] / figure["unguided_ms"], rel=2e-3
        )
        assert figure["checked_tokens"] == 2 * (8 + 8)
        assert figure["backend"] == "llguidance"
        assert figure["main_thread_us"] > 0
        assert {who: len(times) for who, times in figure["runs_ms"].items()} == dict.fromkeys(
            ("unguided", "guided", "xgrammar"), 1
        )
    assert "xgrammar ms" in printed.out
    assert max(map(len, printed.out.splitlines())) <= 80


def test_without_the_comparison(bench, tmp_path):
    out = tmp_path / "figures.json"
    printed = bench(*SHORT, "--schema", "maxlength", "--forward", "eager", "--no-compare", "--out", out)
    assert printed.code == 0
    assert "guided ms" in printed.out
    assert "xgrammar" not in printed.out
    (figure,) = json.loads(out.read_text())["figures"]
    assert figure["xgrammar_ms"] is figure["xgrammar_ratio"] is None


def test_ways_take_turns_in_going_first(bench, monkeypatch):
    order = []
    run = bench_module._Loop.run

    def noted(self, kwargs):
        order.append("guided" if kwargs else "unguided")
        return run(self, kwargs)

    monkeypatch.setattr(bench_module._Loop, "run", noted)
    arguments = "--steps 8 --repetitions 3 --rows 1 --schema plain --forward eager --no-compare --json"
    (figure,) = bench(*arguments.split()).json["figures"]
    assert order == ["unguided", "guided", "guided", "unguided"] * 2 + ["unguided", "guided"]
    unguided, guided = figure["runs_ms"]["unguided"], figure["runs_ms"]["guided"]
    first, reverse, again = (g / u for g, u in zip(guided, unguided, strict=True))
    assert figure["ratio"] == pytest.approx(((first + again) / 2 + reverse) / 2, rel=1e-3)


def test_wrong_forward(bench):
    bench("--forward", "statik").is_error(2, "--forward", "did you mean 'static'?")


def test_a_wrong_output_is_no_figure(demo_vocabulary):
    spec = OutputSpec.choice(["yes"])
    with pytest.raises(RequestError, match="fresh matcher refuses"):
        bench_module._check(demo_vocabulary, spec, torch.tensor([[300, 301]]))
