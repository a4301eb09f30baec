"""`refused: "vllm"`: what the plugin refuses goes to vLLM's manager in the same engine, and is counted."""

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
from guided_plugin.hosts.vllm.leaving import Leaving
from guided_plugin.spec.memo import ENTRY_BYTES
from guided_plugin.vllm import GuidedLogitsProcessor

SCHEMA = {"enum": ["a", "b"]}
REFUSED = {"json": SCHEMA, "whitespace_pattern": "[.]"}
"""vLLM takes it, and drops the pattern, which demands what JSON can't have."""


@pytest.mark.parametrize("kind", [GrammarError, SpecError, UnsatisfiableSpecError, UnsupportedSpecError])
def test_refused_specs_are_left(kind):
    leaving = Leaving(wanted=True)
    assert not leaving.holds(b"spec")
    assert leaving.takes(b"spec", kind("no"))
    assert leaving.holds(b"spec")
    assert not leaving.holds(b"other")
    assert not Leaving(wanted=False).takes(b"spec", kind("no"))


@pytest.mark.parametrize("kind", [CompileLimitError, PipelineError, VocabularyError])
def test_limits_and_troubles_of_the_server_are_not(kind):
    leaving = Leaving(wanted=True)
    assert not leaving.takes(b"spec", kind("no"))
    assert not leaving.holds(b"spec")


def test_each_spec_has_a_line_and_no_minute_has_many(caplog):
    leaving = Leaving(wanted=True)
    for number in range(50):
        leaving.takes(f"spec {number}".encode(), SpecError(f"wrong {number}"))
    assert len(caplog.records) == 20
    leaving._logged.clear()
    leaving.takes(b"spec", SpecError("wrong", where="regex"))
    assert "left to vLLM's own structured output: regex: wrong (30 more specs" in caplog.records[-1].message


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr("guided_plugin.hosts.vllm.leaving._KNOWN_BYTES", 3 * ENTRY_BYTES)
    leaving = Leaving(wanted=True)
    for number in range(5):
        leaving.takes(b"%d" % number, SpecError("wrong"))
    assert [leaving.holds(b"%d" % number) for number in range(5)] == [False, False, True, True, True]


def test_guided_is_never_left():
    gate = Gate(config({**TAKES_OVER, "refused": "vllm"}))
    error = SpecError("wrong")
    assert not gate.left(params_of(REFUSED), error)
    assert gate.left(params_of(REFUSED, theirs=True), error)
    assert not Gate(config(TAKES_OVER)).left(params_of(REFUSED, theirs=True), error)


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
