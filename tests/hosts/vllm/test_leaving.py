"""`refused: "vllm"`: what the plugin refuses goes to vLLM's manager in the same engine, and is counted."""

import asyncio
import json

import pytest

pytest.importorskip("vllm")

from vllm import LLM
from vllm.exceptions import VLLMValidationError
from vllm_support import TAKES_OVER, config, params_of, runner

from guided_plugin.demo import MODEL_DIR
from guided_plugin.errors import (
    CompileLimitError,
    GrammarError,
    PipelineError,
    SpecError,
    UnsatisfiableSpecError,
    UnsupportedSpecError,
    VocabularyError,
)
from guided_plugin.hosts.vllm.admission import Gate
from guided_plugin.hosts.vllm.asked import LEFT, may_leave
from guided_plugin.vllm import GuidedLogitsProcessor

SCHEMA = {"enum": ["a", "b"]}
REFUSED = {"json": SCHEMA, "whitespace_pattern": "[.]"}
"""vLLM takes it, and drops the pattern, which demands what JSON can't have."""


def test_refused_specs_are_left_and_limits_and_troubles_of_the_server_are_not():
    for kind in (GrammarError, SpecError, UnsatisfiableSpecError, UnsupportedSpecError):
        assert may_leave(kind("no"))
    for kind in (CompileLimitError, PipelineError, VocabularyError):
        assert not may_leave(kind("no"))


def test_guided_is_never_left(caplog):
    caplog.set_level("WARNING", "guided_plugin")
    gate, theirs = Gate(config({**TAKES_OVER, "refused": "vllm"})), params_of(REFUSED, theirs=True)
    for _ in range(2):  # the second time it is remembered
        for admit in (gate.admit, lambda params: asyncio.run(gate.admit_async(params))):
            carried = admit(theirs)
            assert carried.extra_args["guided"] is LEFT
            assert gate.admit(carried) is carried
            assert carried.structured_outputs is theirs.structured_outputs
            with pytest.raises(SpecError):
                admit(params_of({**REFUSED, "disable_any_whitespace": False}))
    assert len(caplog.records) == 1
    gate.complete(carried, None)
    assert carried.extra_args == {"guided_left": True}
    with pytest.raises(SpecError):
        Gate(config(TAKES_OVER)).admit(theirs)


@pytest.fixture(scope="module")
def llm():
    made = LLM(
        str(MODEL_DIR),
        max_model_len=256,
        max_num_seqs=6,
        enforce_eager=True,
        logits_processors=[GuidedLogitsProcessor],
        additional_config={"guided_plugin": {**TAKES_OVER, "mode": "inline", "refused": "vllm"}},
    )
    yield made
    runner(made).engine.close()


def figures(llm):
    ((metrics,),) = llm.collective_rpc("guided_metrics")
    return metrics["left_to_vllm"], metrics["added"]


def test_one_engine_serves_both(llm, caplog):
    asked = [params_of(form, theirs=True) for form in (REFUSED, {"json": SCHEMA}, REFUSED, {"choice": ["x"]})]
    before = figures(llm)
    texts = [one.outputs[0].text for one in llm.generate(["One: "] * 4, asked, use_tqdm=False)]
    after = figures(llm)
    assert [after[0] - before[0], after[1] - before[1]] == [2, 2]
    assert texts[3] == "x"
    for text in texts[:3]:
        assert json.loads(text) in ("a", "b")
    lines = [record.message for record in caplog.records if "left to vLLM" in record.message]
    assert len(lines) == 1
    assert "whitespace_pattern" in lines[0]


def test_what_vllm_refuses_too_is_refused(llm):
    with pytest.raises((VLLMValidationError, ValueError)):
        llm.generate("One: ", params_of({"grammar": "root ::= ("}, theirs=True), use_tqdm=False)


def test_guided_is_refused_as_ever(llm):
    with pytest.raises(VLLMValidationError, match="whitespace_pattern"):
        llm.generate("One: ", params_of(REFUSED), use_tqdm=False)
