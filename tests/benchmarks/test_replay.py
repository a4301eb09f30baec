"""Documents replayed: which are chosen, which tokens are forced, and what is made of
engines' answers. `tests/hosts/vllm/test_replay.py` has an engine."""

import gzip
import json

from benchmarks import harness
from benchmarks.replay import __main__ as bench
from guided_plugin.demo import MODEL_DIR
from guided_plugin.errors import PipelineError

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
    "description": "plain words " * 200,
}
FILES = {
    "BFCL_simple_1": [{"name": "x"}, {"name": "y", "extra": 1}],
    "Github_easy---b": [{"name": "w"}],
}


def answer(pace, wrong):
    run = {
        "kind": "tools",
        "form": "compact",
        "rows": 2,
        "tokens_per_second": pace,
        "batch_ms": 5000 / pace,
        "document_ms": 9.0,
        "ms_per_step": 1.0,
        "p99_step_ms": 2.5,
        "forwards_per_token": 1.0,
        "bound": 0.5,
        "alone": 0.6,
        "unforced": 0,
        "wrong": wrong,
    }
    environment = {"date": "today"}
    return {"environment": environment, "figures": [{**run, "runs": [run]}]}


def test_ways_are_run_shown_and_written(tmp_path, monkeypatch, capsys):
    sample = tmp_path / "sample"
    sample.mkdir()
    for name, documents in FILES.items():
        tests = [{"valid": True, "data": data} for data in documents]
        file = {"schema": SCHEMA, "tests": [*tests, {"valid": False, "data": {}}]}
        (sample / f"{name}.json").write_text(json.dumps(file))
    asked = {}

    def ask(engine, limit):
        asked[engine.name] = engine
        if "jump" in engine.name:
            raise PipelineError("unknown option", where=engine.name)
        wrong = "speculative_config" in engine.question["engine"]
        return answer(250 if engine.question["guided"] else 200, int(wrong))

    monkeypatch.setattr(
        harness,
        "ask",
        ask,
    )
    out = tmp_path / "replay.json.gz"
    words = f"--device cpu --tokenizer {MODEL_DIR} --sample {sample} --rows 2 --ways"
    common = words.split()
    assert bench.main([*common, "unguided,guided+new", "--out", str(out)]) == 0
    assert asked["unguided"].plugin is None
    assert asked["guided+new"].plugin == {"take_over": True}
    assert asked["guided+new"].question["new"]
    written = json.loads(gzip.decompress(out.read_bytes()))
    ratios = {one["way"]: one["ratio"] for one in written["figures"]}
    assert ratios == {"unguided": 1.0, "guided+new": 0.8}
    # That with a member which the closed schema doesn't name is no document.
    assert written["left_out"] == {"tools compact": 1, "real compact": 1}
    legs = asked["unguided"].question["legs"]
    assert [len(leg["documents"]) for leg in legs] == [1, 2]
    flags = legs[0]["documents"][0]["forced"]
    assert (flags[0], all(flags), flags[-1]) == (True, False, True)
    assert "2.500" in capsys.readouterr().out
    assert bench.main([*common, "jump"]) == 1
    assert "jump: unknown option" in capsys.readouterr().err
    assert bench.main([*common, "unguided+ngram"]) == 1  # a wrong output
    assert bench.main([*common, "fast"]) == 2
    assert bench.main([*common, ""]) == 0
    assert "taught" in capsys.readouterr().out
