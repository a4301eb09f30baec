"""`benchmarks.replay` with a real vLLM: what its engines answer, and V2's sampler when
it verifies drafts."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("vllm")

from vllm.v1.worker.gpu.sample.sampler import Sampler
from vllm_support import PATIENT

import guided_plugin as gp
from benchmarks.harness import Engine, ask
from benchmarks.replay import force
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


@pytest.fixture
def sampler(monkeypatch):
    """V2's own, as far as its own code calls it here, with the tokens of two requests
    behind prompts of 3."""
    force.install(monkeypatch.setattr)
    sampler = Sampler.__new__(Sampler)
    sampler.logits_processors = []
    lengths = SimpleNamespace(np=np.full(4, 3))
    sampler.req_states = SimpleNamespace(
        max_num_reqs=4, max_model_len=16, device=torch.device("cpu"), prompt_len=lengths
    )
    force._make_table(sampler)
    for index, tokens in ((2, [10, 11, 12]), (0, [20, 21, 22, 23])):
        force._enter(
            sampler,
            index,
            SimpleNamespace(extra_args={"replay": {"tokens": tokens, "rows": 2}}),
        )
    force._enter(sampler, 1, SimpleNamespace(extra_args=None))
    sampler.needs_logits_processing = np.zeros(4, dtype=bool)
    return sampler


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_v2_each_row_of_logits_is_forced_by_its_own_place(sampler, dtype):
    # The request at 2 has two drafts behind its prompt, the one at 0 none behind its
    # second token.
    rows = torch.tensor([2, 2, 2, 0], dtype=torch.int32)
    pos = torch.tensor([2, 3, 4, 4])
    logits = torch.randn(4, 64).to(dtype)
    logits[1, 11] = -torch.inf  # as a mask leaves it
    before = logits.clone()
    order = np.array([2, 0])
    sampled = sampler.apply_sampling_params(
        logits, rows, None, order, pos, None, None, None
    )
    assert sampled.argmax(1).tolist() == [10, before[1].argmax(), 12, 22]
    assert (sampled != before).sum() == 3


def test_v1_says_that_it_replays_no_drafts():
    with pytest.raises(gp.GuidedError, match="--runner v2"):
        force._force_v1(None, None, object())
