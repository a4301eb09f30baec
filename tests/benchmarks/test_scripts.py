"""The scripts in benchmarks/: random requests, every output checked again; and that the check can fail."""

import json

import pytest
from script_files import load_script

from guided_plugin import StepPipeline


@pytest.fixture(scope="module")
def script():
    return load_script("benchmarks/soak.py")


def test_soak_prints_and_writes_that_no_output_is_refused_by_a_fresh_matcher(script, tmp_path, capsys):
    out = tmp_path / "soak.json"
    arguments = ["--seconds", "3", "--slots", "6", "--mode", "inline", "--seed", "3", "--out", str(out)]
    assert script.main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads(out.read_text())
    assert (found["benchmark"], found["slots"], found["mode"], found["seed"]) == ("soak", 6, "inline", 3)
    assert found["mismatches"] == []
    assert found["failed"] == 0
    assert found["stopped"] > 20
    assert found["aborted"] > 5
    assert found["added"] >= found["stopped"] + found["ended"] + found["aborted"]
    assert found["tokens"] > found["steps"] > 50
    assert len(found["memory_mb"]["engine"]) == 4
    assert all(size > 50 for size in found["memory_mb"]["engine"])


def test_soak_finds_a_pipeline_that_masks_nothing(script, monkeypatch, capsys):
    monkeypatch.setattr(StepPipeline, "apply_mask", lambda self, logits: logits)
    assert script.main(["--seconds", "1.5", "--slots", "3", "--mode", "inline"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["failed"] > 0
    assert any("refused by a fresh matcher" in line for line in found["mismatches"])


def test_kernel_needs_a_device(monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit) as stop:
        load_script("benchmarks/kernel.py").main([])
    assert stop.value.code == 2
    assert "finds no CUDA device" in capsys.readouterr().err


def test_many_specs_are_used_and_growth_is_an_exit_code(tmp_path, capsys):
    script = load_script("benchmarks/many_specs.py")
    out = tmp_path / "many.json"
    arguments = [
        "--specs",
        "20",
        "--bytes",
        "20000",
        "--cache-mb",
        "1",
        "--growth-mb",
        "1000",
        "--out",
        str(out),
    ]
    assert script.main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads(out.read_text())
    assert list(found)[:2] == ["command", "date"]
    assert (found["specs"], found["worker_restarts"]) == (20, 0)
    assert {name: len(sizes) for name, sizes in found["memory_mb"].items()} == {
        "frontend_and_engine": 10,
        "worker": 10,
    }
    assert all(size > 20 for sizes in found["memory_mb"].values() for size in sizes)
    assert script.main([*arguments, "--growth-mb", "-1"]) == 1
