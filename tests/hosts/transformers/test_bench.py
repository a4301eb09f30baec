"""`guided-plugin bench transformers` at a tiny size."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from guided_plugin.bench import transformers as bench_module
from guided_plugin.cli import main
from guided_plugin.errors import RequestError
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.spec import OutputSpec

SHORT = ("--steps", "8", "--repetitions", "1", "--rows", "2")


def _bench(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["guided-plugin", "bench", "transformers", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0)


def test_it_prints_a_table_and_writes_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = tmp_path / "new" / "figures.json"
    assert _bench(monkeypatch, *SHORT, "--schema", "plain", "--out", str(out)) == 0
    result: dict[str, Any] = json.loads(out.read_text())
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
    printed = capsys.readouterr().out
    assert "xgrammar ms" in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_without_the_comparison(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (*SHORT, "--schema", "maxlength", "--forward", "eager", "--no-compare", "--json")
    assert _bench(monkeypatch, *arguments) == 0
    (figure,) = json.loads(capsys.readouterr().out)["figures"]
    assert figure["xgrammar_ms"] is figure["xgrammar_ratio"] is None


def test_ways_take_turns_in_going_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    order = []
    run = bench_module._Loop.run

    def noted(self: Any, kwargs: dict[str, Any]) -> Any:
        order.append("guided" if kwargs else "unguided")
        return run(self, kwargs)

    monkeypatch.setattr(bench_module._Loop, "run", noted)
    arguments = "--steps 8 --repetitions 3 --rows 1 --schema plain --forward eager --no-compare --json"
    assert _bench(monkeypatch, *arguments.split()) == 0
    assert order == ["unguided", "guided", "guided", "unguided"] * 2 + ["unguided", "guided"]
    (figure,) = json.loads(capsys.readouterr().out)["figures"]
    unguided, guided = figure["runs_ms"]["unguided"], figure["runs_ms"]["guided"]
    first, reverse, again = (g / u for g, u in zip(guided, unguided, strict=True))
    assert figure["ratio"] == pytest.approx(((first + again) / 2 + reverse) / 2, rel=1e-3)


def test_wrong_forward(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert _bench(monkeypatch, "--forward", "statik") == 2
    assert "did you mean 'static'?" in capsys.readouterr().err


def test_a_wrong_output_is_no_figure(demo_vocabulary: Vocabulary) -> None:
    spec = OutputSpec.choice(["yes"])
    with pytest.raises(RequestError, match="fresh matcher refuses"):
        bench_module._check(demo_vocabulary, spec, torch.tensor([[300, 301]]))
