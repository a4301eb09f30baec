"""`benchmarks.replay` and `benchmarks.near_end` with a real vLLM: which documents are
chosen, and what is measured."""

import gzip
import json

import pytest
from vllm_support import PATIENT

from benchmarks.near_end import main as near_end
from benchmarks.replay.__main__ import main

SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["ab", "cd"]}},
    "required": ["name"],
}
FILES = {
    "BFCL_simple_1": [{"name": "ab"}, {"name": "ab", "extra": 1}],
    "Github_easy---b": [{"name": "cd"}],
}
ENGINE = {"dtype": "float32", "enforce_eager": True}
SIZES = "--longest 64 --rows 1,2 --queue 3 --repetitions 1"


def written_sample(folder):
    """A folder with these files."""
    sample = folder / "sample"
    sample.mkdir()
    for name, documents in FILES.items():
        tests = [{"valid": True, "data": data} for data in documents]
        file = {"schema": SCHEMA, "tests": [*tests, {"valid": False, "data": {}}]}
        (sample / f"{name}.json").write_text(json.dumps(file))
    return sample


def test_documents_are_replayed_in_engines(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    sample = written_sample(tmp_path)
    out = tmp_path / "replay.json.gz"
    common = ["--sample", str(sample), *SIZES.split(), "--out", str(out)]
    where = ["--device", "cpu", "--engine", json.dumps(ENGINE)]
    with pytest.raises(SystemExit, match="2"):
        main([*common, *where, "--ways", "gided"])
    assert "'gided' (did you mean 'guided'?)" in capsys.readouterr().err
    words = ["--ways", "guided+new", "--plugin", json.dumps(PATIENT)]
    assert main([*common, *where, *words]) == 0, capsys.readouterr().err
    written = json.loads(gzip.decompress(out.read_bytes()))
    # That with a member which the closed schema doesn't name is no document.
    assert written["left_out"] == {"tools compact": 1, "real compact": 1}
    found = {(one["kind"], one["rows"]): one for one in written["figures"]}
    assert sorted(found) == [("real", 1), ("real", 2), ("tools", 1), ("tools", 2)]
    for one in found.values():
        assert (one["outputs"], one["wrong"]) == (2 * 16, 0)
        assert one["tokens_per_second"] > 0
    assert "forwards" in capsys.readouterr().out


def test_steps_near_a_limit_are_measured(tmp_path):
    sample = written_sample(tmp_path)
    out = tmp_path / "near.json"
    words = f"--sample {sample} --rows 2 --tokens 96 --repetitions 1 --out {out}"
    where = ["--device", "cpu", "--engine", json.dumps(ENGINE)]
    assert near_end([*words.split(), *where]) == 0
    (found,) = json.loads(out.read_text())["figures"]
    assert (found["closed"], found["invalid"]) == (2 * 2, 0)
    assert all(ratio > 0 for ratio in found["ratios"].values())
