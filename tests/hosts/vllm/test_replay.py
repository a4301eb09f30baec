"""`benchmarks.replay` with a real vLLM: what its engines answer."""

import pytest

pytest.importorskip("vllm")

from vllm_support import PATIENT

from benchmarks.harness import Engine, ask
from benchmarks.replay.__main__ import leg
from benchmarks.replay.documents import Document
from guided_plugin.cli.loading import load_vocabulary
from guided_plugin.demo import MODEL_DIR


def document(name, text, spec):
    vocabulary = load_vocabulary(MODEL_DIR)
    tokens = [*vocabulary.encode(text), vocabulary.stop_token_ids[0]]
    return Document(name, spec, tokens, [False] * len(tokens), len(tokens))


def test_an_engine_answers_with_documents_and_those_that_the_grammar_refuses_are_counted(
    tmp_path, monkeypatch
):
    spec = {"json_schema": {"type": "array", "items": {"enum": ["ab", "cd"]}}}
    texts = ['["ab","cd"]', '["cd"]', '["ab","xy"]']
    legs = [
        leg(kind, "compact", [document(text, text, guide) for text in texts], 7)
        for kind, guide in (("tools", spec), ("free", None))
    ]
    question = {
        "model": str(MODEL_DIR),
        "legs": legs,
        "guided": True,
        "new": True,
        "engine": {"dtype": "float32", "enforce_eager": True},
        "device": "cpu",
        "longest": 64,
        "rows": [1, 2],
        "queue": 3,
        "least": 3,
        "repetitions": 1,
        "turns": str(tmp_path / "turns"),
    }
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    plugin = {"take_over": True, **PATIENT}
    engine = Engine("guided", "benchmarks.replay.child", question, plugin, v2=False)
    result = ask(engine, 240)
    # Three documents and a batch of one; six and a batch of two. The grammar refuses
    # every third document.
    assert [
        (one["kind"], one["rows"], one["outputs"], one["wrong"])
        for one in result["figures"]
    ] == [
        ("tools", 1, 4, 1),
        ("free", 1, 4, 0),
        ("tools", 2, 8, 2),
        ("free", 2, 8, 0),
    ]
    assert {
        (one["forwards_per_token"], one["unforced"]) for one in result["figures"]
    } == {(1.0, 0)}
