"""Every way in which a request reaches an engine: what comes out is constrained, or
refused, never free.

AsyncLLM with its core in another process, and LLM in this one. The endpoints are in
`test_entrances_server.py`; docs/operations.md lists all entrances.
"""

import asyncio
import re
import time

import pytest
from vllm import PoolingParams, SamplingParams
from vllm.engine.protocol import StreamingInput
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import (
    BeamSearchParams,
    RequestOutputKind,
    StructuredOutputsParams,
)
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.output_processor import RequestOutputCollector
from vllm_support import TAKES_OVER, config, runner_config, told

import guided_plugin as gp
from guided_plugin.hosts.vllm.admission import Gate
from guided_plugin.hosts.vllm.engine import Engine
from guided_plugin.hosts.vllm.hold import passed_by
from guided_plugin.hosts.vllm.names import Part

PATTERN = "[xyz]{6,14}"
TEMPLATE = "{% for message in messages %}{{ message.content }} {% endfor %}"
MESSAGES = [{"role": "user", "content": "Write"}]


def ours(**options):
    return SamplingParams(
        max_tokens=30,
        temperature=1.0,
        extra_args={"guided": {"regex": PATTERN}},
        **options,
    )


def theirs(**options):
    asked = StructuredOutputsParams(regex=PATTERN)
    return SamplingParams(
        max_tokens=30, temperature=1.0, structured_outputs=asked, **options
    )


KINDS = {"ours": ours(), "theirs": theirs(), "free": SamplingParams(max_tokens=9)}


def guided(text):
    return re.fullmatch(PATTERN, text) is not None


def ready(params, name):
    """A request that is ready for an engine, and that no gate has seen."""
    params = params.clone()
    params.update_from_generation_config({}, 0)
    return EngineCoreRequest(
        request_id=name,
        prompt_token_ids=[5, 6, 7],
        mm_features=None,
        sampling_params=params,
        pooling_params=None,
        arrival_time=time.time(),
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
    )


async def past(engine, request):
    """The outputs of a request that is sent as a frontend without the plugin sends
    it."""
    engine.input_processor.assign_request_id(request)
    queue = RequestOutputCollector(request.params.output_kind, request.request_id)
    engine._run_output_handler()
    engine.output_processor.add_request(request, "Write: ", None, 0, queue)
    await engine.engine_core.add_request_async(request)
    finished = False
    while not finished:
        output = await asyncio.wait_for(queue.get(), 120)
        finished = output.finished
        yield output


async def in_parts(params):
    """A prompt that comes in two parts."""
    for text in ("Write: ", "more "):
        yield StreamingInput(prompt=text, sampling_params=params)


def entrances_of(engine, params, name):
    """The ways into an AsyncLLM, by their names."""
    streamed = params.clone()
    streamed.output_kind = RequestOutputKind.DELTA
    return {
        "generate": engine.generate("Write: ", params, name),
        "in parts": engine.generate(in_parts(streamed), streamed, f"parts {name}"),
        "ready": engine.generate(
            ready(params, f"ready {name}"), params, f"ready {name}"
        ),
        "past": past(engine, ready(params, f"past {name}")),
    }


@pytest.fixture(scope="module")
def asynchronous(async_llm):
    """What the ways into an AsyncLLM answer, one after the other: the outputs, or the
    error."""
    engine, run = async_llm
    answers = {}

    async def ask():
        for name, params in KINDS.items():
            for entrance, outputs in entrances_of(engine, params, name).items():
                try:
                    answers[entrance, name] = [
                        output.outputs[0] async for output in outputs
                    ]
                except Exception as error:
                    answers[entrance, name] = error

    run(ask())
    return answers


@pytest.mark.parametrize("name", ["ours", "theirs"])
def test_async_llm_guides(asynchronous, name):
    assert guided(asynchronous["generate", name][-1].text)
    texts = [""]
    for output in asynchronous["in parts", name]:
        texts[-1] += output.text
        if output.finish_reason == "stop":
            texts.append("")
    # one for each part, and nothing after
    assert [guided(text) for text in texts] == [True, True, False]
    assert texts[-1] == ""


@pytest.mark.parametrize("name", ["ours", "theirs"])
def test_a_request_that_is_ready_and_was_never_admitted_is_refused(asynchronous, name):
    error = asynchronous["ready", name]
    assert isinstance(error, VLLMValidationError)
    assert "without the plugin's check" in str(error)


@pytest.mark.parametrize("name", ["ours", "theirs"])
def test_what_comes_past_the_gate_is_refused_by_the_engine(asynchronous, name):
    answer = asynchronous["past", name]
    if isinstance(answer, Exception):  # since 0.33
        assert "without the plugin's check" in str(answer)
    else:
        assert [
            (output.finish_reason, list(output.token_ids)) for output in answer
        ] == [("error", [])]


@pytest.mark.parametrize("entrance", ["generate", "in parts", "ready", "past"])
def test_requests_without_a_constraint_are_served_after_those_that_were_refused(
    asynchronous, entrance
):
    assert asynchronous[entrance, "free"][-1].finish_reason in ("length", "stop")


@pytest.mark.parametrize("make", [ours, theirs])
def test_offline_entrances_guide(llm, make):
    for output in (
        *llm.generate(["Write: "] * 2, make(), use_tqdm=False),
        *llm.chat(MESSAGES, make(), use_tqdm=False, chat_template=TEMPLATE),
    ):
        assert guided(output.outputs[0].text), output
    beams = BeamSearchParams(beam_width=2, max_tokens=6)
    (output,) = llm.beam_search([{"prompt": "Write: "}], beams)
    assert len(output.sequences) == 2
    beams.extra_args, beams.structured_outputs = (
        make().extra_args,
        make().structured_outputs,
    )
    with pytest.raises(
        VLLMValidationError,
        match=r"^beam_search: beam search can't be guided.*leave out",
    ):
        llm.beam_search([{"prompt": "Write: "}], beams)


@pytest.mark.parametrize("make", [ours, theirs])
def test_an_engine_in_the_same_process_refuses_what_was_never_admitted(
    llm, make, monkeypatch
):
    engine = llm.llm_engine
    compiled = []
    manager = engine.engine_core.engine_core.structured_output_manager
    monkeypatch.setattr(manager, "grammar_init", compiled.append)
    with pytest.raises(VLLMValidationError, match="without the plugin's check"):
        engine.add_request("one", ready(make(), "one"), make())
    with pytest.raises(VLLMValidationError, match="without the plugin's check"):
        engine.engine_core.add_request(ready(make(), "two"))
    assert not engine.has_unfinished_requests()
    assert not compiled


def test_a_pooled_request_has_nothing_to_guide(monkeypatch):
    assert not Gate(config({"take_over": True, "enabled": False})).concerns(
        PoolingParams()
    )


@pytest.mark.usefixtures("byte_tokenizer")
def test_with_the_rust_frontend_nothing_is_silent(monkeypatch):
    monkeypatch.setenv("VLLM_USE_RUST_FRONTEND", "1")
    with pytest.raises(
        gp.GuidedError, match=r"take_over.*Rust frontend.*unset VLLM_USE_RUST_FRONTEND"
    ):
        Engine(runner_config(take_over=True), None, 4, Part.V1)
    reason = Engine(runner_config(), None, 4, Part.V1).unsupported_reason
    assert "Rust frontend" in str(reason)
    with pytest.raises(gp.GuidedError, match="Rust frontend"):
        Gate(config(TAKES_OVER)).admit(ours())
    forged = ours()
    forged.extra_args = told(gp.OutputSpec.choice(["a"]))
    assert passed_by(theirs(), config()) is None  # vLLM's own, as without the plugin
    monkeypatch.setenv("VLLM_USE_RUST_FRONTEND", "0")
    assert passed_by(forged, config()) is None
    # as a client's numbers; what can't be read would end the scheduler
    text, *rest = forged.extra_args["guided"]
    for claim in ([text, *[0] * 5], ["{}", *rest]):
        forged.extra_args["guided"] = claim
        assert "without the plugin" in str(passed_by(forged, config()))
    assert "without the plugin" in str(passed_by(theirs(), config(TAKES_OVER)))
