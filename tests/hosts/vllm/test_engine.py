"""The real vLLM on the CPU, one engine for all: installed and passed at once, with everything switched on.

Small cache blocks force preemption, a small batch limit splits prompts. What comes out is checked with fresh
matchers of the spec that was asked for.
"""

import copy
import json
import os
import signal
import time

import pytest

pytest.importorskip("vllm")

from vllm import LLM, SamplingParams
from vllm.exceptions import GracefulHTTPError, VLLMValidationError
from vllm.sampling_params import BeamSearchParams, StructuredOutputsParams
from vllm_support import params_of, processors, runner

import guided_plugin as gp
from guided_plugin.demo import MODEL_DIR
from guided_plugin.hosts.vllm import questions as vllm_health
from guided_plugin.vllm import GuidedLogitsProcessor

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 120}},
    "required": ["name", "age"],
}
TAG = {
    "format": {
        "type": "triggered_tags",
        "triggers": ["<call>"],
        "tags": [
            {"begin": "<call>", "content": {"type": "json_schema", "json_schema": SCHEMA}, "end": "</call>"}
        ],
    }
}
OURS = [
    {"json_schema": SCHEMA},
    json.dumps({"regex": "[a-f]{20}[0-9]{10}"}),
    {"choice": ["alpha", "beta"]},
    {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}},
    {"grammar": 'root ::= "(" root ")" | "x"'},
]
THEIRS = [
    {"json": SCHEMA},
    {"json": json.dumps(SCHEMA)},
    {"regex": "[xyz]{4,40}"},
    {"choice": ["one", "two", "three"]},
    {"grammar": 'root ::= "a" root "b" | "ab"'},
    {"json_object": True},
    {"structural_tag": json.dumps({"type": "structural_tag", **TAG})},
]


@pytest.fixture(scope="module")
def llm():
    made = LLM(
        str(MODEL_DIR),
        max_model_len=512,
        max_num_seqs=6,
        enforce_eager=True,
        async_scheduling=True,
        enable_chunked_prefill=True,
        max_num_batched_tokens=32,
        num_gpu_blocks_override=7,
        disable_log_stats=False,
        logits_processors=[GuidedLogitsProcessor],
        additional_config={
            "guided_plugin": {
                "take_over": True,
                "mode": "process",
                "worker_step_ms": 60_000,
                "worker_grammar_ms": 60_000,
            }
        },
    )
    yield made
    runner(made).engine.close()


@pytest.fixture(scope="module")
def checker(llm):
    vocabulary = gp.Vocabulary.from_tokenizer(llm.get_tokenizer())
    compiler = gp.GrammarCompiler(vocabulary, config=gp.GuidedConfig(threads=1))

    def check(form, completion):
        spec = gp.OutputSpec.parse(form)
        grammar = compiler.compile(spec)
        matcher = compiler.backend(grammar.backend).start(grammar, vocabulary.stop_token_ids)
        tokens = completion.token_ids
        accepted = [matcher.accept(token) for token in tokens]
        assert all(accepted), (form, completion.text)
        if completion.finish_reason == "stop" and completion.stop_reason is None:
            assert tokens[-1] in vocabulary.stop_token_ids

    return check


def test_installed_and_passed_at_once_one_of_them_works(llm):
    assert sorted(one.runner is not None for one in processors(llm)) == [False, True]


def test_a_mixed_batch_preempted_and_in_chunks(llm, checker):
    asked = []
    for turn in range(2):
        asked += [(form, params_of(form)) for form in OURS]
        asked += [(form, params_of(form, theirs=True)) for form in THEIRS]
        asked.append((None, params_of(None, max_tokens=40 + turn)))
    before = copy.deepcopy([params for _, params in asked])
    prompts = ["Write down who it is: " * (6 + at % 6) for at in range(len(asked))]
    outputs = llm.generate(prompts, [params for _, params in asked], use_tqdm=False)
    for (form, _), output in zip(asked, outputs, strict=True):
        if form is not None:
            checker(form, output.outputs[0])
    assert [repr(params) for _, params in asked] == [repr(params) for params in before]
    preemptions = {m.name: m for m in llm.get_metrics()}["vllm:num_preemptions"].value
    assert preemptions > 0
    figures = llm.collective_rpc("guided_metrics")[0][0]
    assert figures["failed"] == 0
    assert figures["mode"] == "process"
    assert figures["added"] >= 24
    assert set(figures["backends"]) == {"xgrammar", "llguidance"}


def test_other_parameters_keep_working(llm, checker):
    form = {"json_schema": SCHEMA}
    asked = [
        params_of(form, n=3),
        params_of(form, logprobs=2),
        params_of(form, presence_penalty=0.5, frequency_penalty=0.5, repetition_penalty=1.2),
        params_of(form, top_k=5, top_p=0.9, min_p=0.05),
        params_of(form, temperature=0.0),
        params_of(form, bad_words=["zq"]),
        params_of({"regex": "[ab]{5}STOP[ab]{5}"}, stop=["STOP"]),
        params_of({"choice": ["alpha", "beta"]}, min_tokens=30),
        params_of({"regex": "[ab]{5,60}"}, min_tokens=30),
        params_of(form, theirs=False, logit_bias={5: 2.0}),
    ]
    outputs = llm.generate(["Someone: "] * len(asked), asked, use_tqdm=False)
    assert len(outputs[0].outputs) == 3
    for params, output in zip(asked, outputs, strict=True):
        for completion in output.outputs:
            checker(params.extra_args["guided"], completion)
    assert len(outputs[1].outputs[0].logprobs) == len(outputs[1].outputs[0].token_ids)
    assert outputs[6].outputs[0].stop_reason == "STOP"
    assert outputs[7].outputs[0].text in ("alpha", "beta")
    assert outputs[7].outputs[0].finish_reason == "stop"
    assert len(outputs[8].outputs[0].token_ids) >= 30


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"extra_args": {"guided": {"json_schema": {"type": "nonsense"}}}}, r"guided\.#/type: unknown type"),
        ({"extra_args": {"guided": "[a-z"}}, "must be JSON"),
        ({"extra_args": {"guided": {"regex": "(?=a)b"}}}, "[Ll]ook"),
        ({"extra_args": {"guided": {"type": "text"}}}, "plain text"),
        ({"structured_outputs": StructuredOutputsParams(json={"type": 3})}, "type"),
        (
            {
                "extra_args": {"guided": {"regex": "a"}},
                "structured_outputs": StructuredOutputsParams(regex="b"),
            },
            "together with structured_outputs",
        ),
    ],
)
def test_a_bad_spec_is_its_clients_error_alone(llm, checker, options, says):
    with pytest.raises(VLLMValidationError, match=says):
        llm.generate(["x"], SamplingParams(max_tokens=5, **options), use_tqdm=False)
    good = {"choice": ["yes", "no"]}
    output = llm.generate(["x"], params_of(good), use_tqdm=False)[0]
    checker(good, output.outputs[0])


def test_requests_that_are_aborted_leave_nothing_behind(llm, checker):
    engine = llm.llm_engine
    form = {"regex": "[a-z]{200}"}
    for number in range(6):
        engine.add_request(f"gone-{number}", "Once ", params_of(form, max_tokens=150))
    for _ in range(6):
        engine.step()
    engine.abort_request([f"gone-{number}" for number in range(6)])
    while engine.has_unfinished_requests():
        engine.step()
    assert (
        checker(
            {"choice": ["k"]}, llm.generate(["x"], params_of({"choice": ["k"]}), use_tqdm=False)[0].outputs[0]
        )
        is None
    )
    assert llm.collective_rpc("guided_metrics")[0][0]["running"] <= 1


def test_a_spec_that_compiles_slowly_is_ready_before_its_request(llm, checker, monkeypatch):
    called = []
    original = type(llm.llm_engine).collective_rpc

    def spy(self, method, *args, **kwargs):
        called.append(method)
        return original(self, method, *args, **kwargs)

    monkeypatch.setattr(type(llm.llm_engine), "collective_rpc", spy)
    monkeypatch.setattr("guided_plugin.hosts.vllm.admission._SLOW_SECONDS", -1.0)
    form = {"regex": "[q-w]{7}"}
    output = llm.generate(["x"], params_of(form), use_tqdm=False)[0]
    checker(form, output.outputs[0])
    assert "guided_prepare" in called


def test_a_worker_that_dies_takes_no_request_with_it(llm, checker):
    engine = llm.llm_engine
    form = {"regex": "[a-d]{60}"}
    for number in range(4):
        engine.add_request(f"kept-{number}", "Once ", params_of(form, max_tokens=80))
    done = {}
    for step in range(400):
        if step == 8:
            os.kill(runner(llm).engine.pipeline.runtime.supervisor.worker_pid, signal.SIGKILL)
        for output in engine.step():
            if output.finished:
                done[output.request_id] = output.outputs[0]
        if not engine.has_unfinished_requests():
            break
    assert len(done) == 4
    for completion in done.values():
        assert len(completion.text) == 60
        checker(form, completion)
    assert runner(llm).engine.pipeline.metrics().worker.restarts == 1


def test_guided_beam_search_is_refused_and_unguided_served(llm):
    theirs = BeamSearchParams(
        beam_width=2, max_tokens=6, structured_outputs=StructuredOutputsParams(regex="[0-9]{3}")
    )
    ours = BeamSearchParams(beam_width=2, max_tokens=6)
    ours.extra_args = {"guided": {"regex": "[0-9]{3}"}}
    for params in (theirs, ours):
        with pytest.raises(
            VLLMValidationError, match=r"^beam_search: beam search can't be guided.*leave out"
        ):
            llm.beam_search([{"prompt": "A record: "}], params)
    (output,) = llm.beam_search([{"prompt": "A record: "}], BeamSearchParams(beam_width=2, max_tokens=6))
    assert len(output.sequences) == 2


def test_a_request_whose_options_leave_no_token_ends_as_an_error(llm, checker, caplog):
    token = llm.get_tokenizer().encode("q", add_special_tokens=False)[-1]
    cut = params_of({"choice": ["alpha", "beta"]}, allowed_token_ids=[token], n=2)
    fine = params_of({"choice": ["alpha", "beta"]}, min_tokens=20)
    outputs = llm.generate(["x", "x", "x"], [fine, cut, params_of(None, max_tokens=9)], use_tqdm=False)
    assert [one.finish_reason for one in outputs[1].outputs] == ["error", "error"]
    assert "allowed_token_ids leave no token that the grammar allows" in outputs[1].outputs[0].stop_reason
    assert outputs[0].outputs[0].finish_reason == "stop"
    checker({"choice": ["alpha", "beta"]}, outputs[0].outputs[0])
    assert outputs[2].outputs[0].finish_reason in ("stop", "length")
    assert f"output cut off: request 0_{outputs[1].request_id}-" in caplog.text
    assert caplog.text.count("output cut off") == 2
    assert llm.generate(["x"], fine, use_tqdm=False)[0].outputs[0].finish_reason == "stop"


def test_a_request_that_its_grammar_fails_ends_as_an_error(llm, checker, caplog, monkeypatch):
    """Something changes its tokens after they were sampled from the mask."""
    engine, pipeline = llm.llm_engine, runner(llm).engine.pipeline
    given, calls = pipeline.schedule_update, []

    def spoil(tokens):
        calls.append(tokens)
        guided = [row for row, request in runner(llm)._rows.items() if request.guided.request_id[:3] == "bad"]
        tokens = tokens.clone()
        if guided and len(calls) > 4:
            tokens[guided[0]] = ord("?")
        given(tokens)

    monkeypatch.setattr(pipeline, "schedule_update", spoil)
    for name in ("bad", "good"):
        engine.add_request(name, "Once ", params_of({"regex": "[a-d]{60}"}, max_tokens=80))
    done = {}
    while engine.has_unfinished_requests():
        done |= {output.request_id: output.outputs[0] for output in engine.step() if output.finished}
    assert done["bad"].finish_reason == "error"
    assert "breaks the grammar" in done["bad"].stop_reason
    assert len(done["bad"].token_ids) < 20
    assert done["good"].finish_reason == "stop"
    checker({"regex": "[a-d]{60}"}, done["good"])
    assert "output cut off: request bad-" in caplog.text


def test_while_nothing_can_be_guided_running_requests_fail_and_new_ones_get_503(llm, checker):
    engine, supervisor = llm.llm_engine, runner(llm).engine.pipeline.runtime.supervisor
    client = runner(llm).engine.pipeline.runtime.client
    supervisor._deaths.clear()  # of other tests
    for number in range(3):
        engine.add_request(f"cut-{number}", "Once ", params_of({"regex": "[a-d]{400}"}, max_tokens=450))
    engine.add_request("free", "Once ", params_of(None, max_tokens=60))
    done, killed = {}, set()
    while engine.has_unfinished_requests():
        done |= {output.request_id: output.outputs[0] for output in engine.step() if output.finished}
        pid = supervisor.worker_pid
        if not client.refusing and pid is not None and pid not in killed:
            killed.add(pid)
            os.kill(pid, signal.SIGKILL)
    assert [done[f"cut-{number}"].finish_reason for number in range(3)] == ["error"] * 3
    assert "guided requests are refused" in done["cut-0"].stop_reason
    assert done["free"].finish_reason in ("stop", "length")
    time.sleep(vllm_health._FRESH_SECONDS)
    with pytest.raises(GracefulHTTPError, match=r"cannot be served now.*refused") as caught:
        llm.generate(["x"], params_of({"choice": ["yes"]}), use_tqdm=False)
    assert caught.value.http_status == 503
    assert llm.generate(["x"], params_of(None), use_tqdm=False)[0].outputs[0].finish_reason != "error"
    client._refused_until = time.monotonic()  # the minute is over
    time.sleep(vllm_health._FRESH_SECONDS)
    checker({"choice": ["yes"]}, llm.generate(["x"], params_of({"choice": ["yes"]}))[0].outputs[0])
    assert llm.collective_rpc("guided_health") == [""]
