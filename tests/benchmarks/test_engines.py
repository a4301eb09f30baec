"""Engines in processes of their own: what is asked of them, and what is made of their
answers."""

import json

import pytest

from benchmarks import engines, harness


def answer(engine, limit):
    """What an engine would say: guided steps take 10% longer than unguided ones."""
    rows = engine.question["rows"][: None if limit > 9 else 1]
    figures = [
        {
            "rows": count,
            "way": way,
            "schema": "plain",
            "ms_per_step": 2.0 * count * slower,
            "steady_ms": 1.5 * count * slower,
            "p99_ms": 2.5 * count * slower,
            "thread_us": 1234,
            "wrong_outputs": 0,
        }
        for count in rows
        for way, slower in (("unguided", 1.0), ("guided", 1.1))
    ]
    here = {
        "device": engine.question["device"],
        "date": "2026-11-26",
    }
    return {
        "environment": here,
        "figures": figures,
        "refused": 0,
    }


@pytest.mark.parametrize("limit", [99, 9])
def test_every_figure_is_set_against_the_unguided_one_of_the_same_engine(
    monkeypatch, tmp_path, capsys, limit
):
    asked = []

    def ask(engine, seconds):
        asked.append(engine)
        return answer(engine, seconds)

    monkeypatch.setattr(
        harness,
        "ask",
        ask,
    )
    out = tmp_path / "vllm.json"
    words = f"""--rows 1,4 --runner v1,v2 --engines plugin,xgrammar --limit {limit}
        --engine {{"tensor_parallel_size":2}} --out {out}"""
    assert engines.main(words.split()) == int(limit == 9)
    own = {"tensor_parallel_size": 2}
    theirs = {"structured_outputs_config": {"backend": "xgrammar"}}
    chosen = [list(engine.variables().values()) for engine in asked]
    assert chosen[1:3] == [["1", '{"take_over": true}'], ["0", "0"]]
    assert [engine.question["engine"] for engine in asked[1:3]] == [own, own | theirs]
    result = json.loads(out.read_text())
    found = {(one["way"], one["ratio"]) for one in result["figures"]}
    assert found == {("unguided", 1.0), ("guided", 1.1)}
    assert len(result["figures"]) == 4 * 2 * (2 if limit > 9 else 1)
    assert "benchmarks.engines --rows 1,4 " in result["command"]
    told = capsys.readouterr()
    assert "1.100" in told.out
    assert ("not all of it was measured within 9 s" in told.err) is (limit == 9)


def test_an_engine_that_does_not_start_is_told_in_its_own_words(capsys):
    words = "--rows 1 --model /nowhere --engines plugin,guidance --limit 120"
    assert engines.main(words.split()) == 1
    told = capsys.readouterr().err
    assert told.count("the engine ended with exit code 1 and no result") == 2
    assert "ModuleNotFoundError: No module named 'vllm'" in told
