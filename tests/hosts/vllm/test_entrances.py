"""Every way in which a request reaches an engine: what comes out is constrained, or refused, never free.

With LLM in this process; docs/vllm-versions.md lists all entrances.
"""

import re

import pytest

pytest.importorskip("vllm")

from vllm import LLM, PoolingParams, SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import BeamSearchParams, StructuredOutputsParams
from vllm_support import TAKES_OVER, config, runner, runner_config

import guided_plugin as gp
from guided_plugin.demo import MODEL_DIR
from guided_plugin.hosts.vllm.admission import Gate
from guided_plugin.hosts.vllm.engine import Engine
from guided_plugin.hosts.vllm.entrance import passed_by

PATTERN = "[xyz]{6,14}"
TEMPLATE = "{% for message in messages %}{{ message.content }} {% endfor %}"
MESSAGES = [{"role": "user", "content": "Write"}]
OPTIONS = {"take_over": True, "mode": "inline", "threads": 1, "worker_grammar_ms": 60_000}
ENGINE = {
    "max_model_len": 256,
    "max_num_seqs": 4,
    "enforce_eager": True,
    "additional_config": {"guided_plugin": OPTIONS},
}


def ours(**options):
    return SamplingParams(
        max_tokens=30, temperature=1.0, extra_args={"guided": {"regex": PATTERN}}, **options
    )


def theirs(**options):
    asked = StructuredOutputsParams(regex=PATTERN)
    return SamplingParams(max_tokens=30, temperature=1.0, structured_outputs=asked, **options)


def guided(text):
    return re.fullmatch(PATTERN, text) is not None


@pytest.fixture(scope="module")
def llm():
    made = LLM(str(MODEL_DIR), **ENGINE)
    yield made
    runner(made).engine.close()


@pytest.mark.parametrize("make", [ours, theirs])
def test_offline_entrances_guide(llm, make):
    for output in (
        *llm.generate(["Write: "] * 2, make(), use_tqdm=False),
        *llm.generate(["Write: "], make(n=2), use_tqdm=False),
        *llm.chat(MESSAGES, make(), use_tqdm=False, chat_template=TEMPLATE),
    ):
        assert all(guided(completion.text) for completion in output.outputs), output
    beams = BeamSearchParams(beam_width=2, max_tokens=6)
    beams.extra_args, beams.structured_outputs = make().extra_args, make().structured_outputs
    with pytest.raises(VLLMValidationError, match="beam search can't be guided"):
        llm.beam_search([{"prompt": "Write: "}], beams)


def test_a_pooled_request_has_nothing_to_guide(monkeypatch):
    assert not Gate(config({"take_over": True, "enabled": False})).concerns(PoolingParams())


@pytest.mark.usefixtures("byte_tokenizer")
def test_with_the_rust_frontend_nothing_is_silent(monkeypatch):
    monkeypatch.setenv("VLLM_USE_RUST_FRONTEND", "1")
    with pytest.raises(gp.GuidedError, match=r"take_over.*Rust frontend.*unset VLLM_USE_RUST_FRONTEND"):
        Engine(runner_config(take_over=True), None, 4)
    reason = Engine(runner_config(), None, 4).unsupported_reason
    assert "Rust frontend" in str(reason)
    with pytest.raises(gp.GuidedError, match="Rust frontend"):
        Gate(config(TAKES_OVER)).admit(ours())
    forged = ours()
    forged.extra_args["guided_admitted"] = True
    assert "past the plugin" in str(passed_by(forged, config()))
    assert passed_by(theirs(), config()) is None  # vLLM's own, as without the plugin
    monkeypatch.setenv("VLLM_USE_RUST_FRONTEND", "0")
    assert passed_by(forged, config()) is None
    assert "past the plugin" in str(passed_by(theirs(), config(TAKES_OVER)))
