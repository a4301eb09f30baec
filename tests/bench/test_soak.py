"""The soak benchmark: random requests, every output checked again; and that the check can fail."""

import json

import pytest
from typer.testing import CliRunner

from guided_plugin import StepPipeline, Vocabulary
from guided_plugin.bench.soak import soak
from guided_plugin.cli import app
from guided_plugin.cli.loading import load_tokenizer
from guided_plugin.demo import MODEL_DIR


@pytest.fixture(scope="module")
def vocabulary():
    return Vocabulary.from_tokenizer(load_tokenizer(MODEL_DIR))


def test_nothing_is_taken_that_a_fresh_matcher_refuses(vocabulary):
    heard = []
    found = soak(vocabulary, seconds=4, slots=6, mode="inline", seed=3, progress=heard.append)
    assert found["mismatches"] == []
    assert found["failed"] == 0
    assert found["stopped"] > 20
    assert found["aborted"] > 5
    assert found["added"] >= found["stopped"] + found["ended"] + found["aborted"]
    assert found["tokens"] > found["steps"] > 50
    assert len(found["memory_mb"]["engine"]) == 4
    assert all(size > 50 for size in found["memory_mb"]["engine"])
    assert heard[0] < 1


def test_a_pipeline_that_masks_nothing_is_found_out(vocabulary, monkeypatch):
    monkeypatch.setattr(StepPipeline, "apply_mask", lambda self, logits: logits)
    found = soak(vocabulary, seconds=2, slots=4, mode="inline")
    assert found["failed"] > 0
    assert any("refused by a fresh matcher" in line for line in found["mismatches"])


def test_the_command(tmp_path):
    out = tmp_path / "soak.json"
    arguments = ["bench", "soak", "--seconds", "2", "--slots", "3", "--mode", "inline", "--out", str(out)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "mismatches: 0" in result.output
    assert json.loads(out.read_text())["benchmark"] == "soak"


def test_the_command_fails_where_an_output_is_wrong(monkeypatch):
    monkeypatch.setattr(StepPipeline, "apply_mask", lambda self, logits: logits)
    result = CliRunner().invoke(app, ["bench", "soak", "--seconds", "2", "--slots", "3", "--mode", "inline"])
    assert result.exit_code == 1
    assert "is refused by a fresh matcher" in result.output


def test_bench_kernel_needs_a_device(monkeypatch, tmp_path):
    def refuse(*arguments, **options):
        raise RuntimeError("no NVIDIA driver")

    monkeypatch.setattr("torch.empty", refuse)
    result = CliRunner().invoke(app, ["bench", "kernel", "--out", str(tmp_path / "kernel.json")])
    assert result.exit_code != 0
    assert "can't be used" in str(result.exception)
