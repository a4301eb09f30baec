"""The real vLLM on the CPU: what comes out is checked with fresh matchers of the spec
that was asked for."""

import copy
import dataclasses
import json
import os
import re
import signal
import time

import pytest

pytest.importorskip("vllm")

import jsonschema
from instances import laid_out
from vllm import SamplingParams
from vllm.exceptions import GracefulHTTPError, VLLMValidationError
from vllm.sampling_params import StructuredOutputsParams
from vllm_support import SCHEMA, params_of, processors, runner

import guided_plugin as gp
from guided_plugin.hosts.vllm import questions as vllm_health
from guided_plugin.hosts.vllm.jump import DraftsBySize

TAG = {
    "format": {
        "type": "triggered_tags",
        "triggers": ["<call>"],
        "tags": [
            {
                "begin": "<call>",
                "content": {"type": "json_schema", "json_schema": SCHEMA},
                "end": "</call>",
            }
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
YES = {"choice": ["yes", "no"]}


@pytest.fixture(scope="module")
def checker(llm):
    vocabulary = gp.Vocabulary.from_tokenizer(llm.get_tokenizer())
    compiler = gp.GrammarCompiler(vocabulary, config=gp.GuidedConfig(threads=1))

    def check(form, completion):
        spec = gp.OutputSpec.parse(form)
        grammar = compiler.compile(spec)
        matcher = compiler.backend(grammar.backend).start(
            grammar, vocabulary.stop_token_ids
        )
        tokens = completion.token_ids
        accepted = [matcher.accept(token) for token in tokens]
        assert all(accepted), (form, completion.text)
        if completion.finish_reason == "stop" and completion.stop_reason is None:
            assert tokens[-1] in vocabulary.stop_token_ids

    return check


@pytest.fixture
def serves(llm, checker):
    """Asks for something that must be served, whatever was before."""

    def serve(form=YES, **options):
        (output,) = llm.generate(["x"], params_of(form, **options), use_tqdm=False)
        assert output.outputs[0].finish_reason == "stop"
        checker(form, output.outputs[0])

    return serve


def figures(llm):
    return llm.collective_rpc("guided_metrics")[0][0]


def finish(llm, meanwhile=lambda step: None):
    """The completions of all requests that were added, by id. `meanwhile` is called
    after each step."""
    engine = llm.llm_engine
    done = {}
    step = 0
    while engine.has_unfinished_requests():
        done |= {
            output.request_id: output.outputs[0]
            for output in engine.step()
            if output.finished
        }
        meanwhile(step)
        step += 1
    return done


def test_installed_and_passed_at_once_one_of_them_works(llm):
    assert sorted(one.runner is not None for one in processors(llm)) == [False, True]


def test_an_engine_is_ready_when_it_is_made(started):
    """Its first guided request waits for no worker and starts no process."""
    _, called, processes = started
    assert (called, processes) == (["guided_health"], [])


def test_requests_that_do_not_say_are_laid_out_as_the_operator_set(
    llm, checker, reconfigured
):
    """The engine itself has other options: it gets specs that are settled."""
    reconfigured(whitespace="spaced", strict=False)
    call = {
        "type": "structural_tag",
        "format": TAG["format"]["tags"][0] | {"type": "tag"},
    }
    closed = {**OURS[0], "strict": True}
    said = {**OURS[0], "whitespace": "compact", "strict": True}
    asked = [
        (OURS[3], False),
        (THEIRS[0], True),
        ({"structural_tag": json.dumps(call)}, True),
    ]
    every = [
        params_of(form, theirs=theirs)
        for form, theirs in [*asked, (closed, False), (said, False)]
    ]
    *outputs, last, compact = (
        output.outputs[0] for output in llm.generate(["x"] * 5, every, use_tqdm=False)
    )
    for (form, _), completion in zip(asked, outputs, strict=True):
        settled = dataclasses.replace(
            gp.OutputSpec.parse(form), whitespace="spaced", strict=False
        )
        checker(settled, completion)
        assert '": ' in completion.text
    checker({**closed, "whitespace": "spaced"}, last)
    checker(said, compact)
    for text, whitespace in ((last.text, "spaced"), (compact.text, "compact")):
        assert json.loads(text).keys() == {"name", "age"}
        assert text == laid_out(text, whitespace)


def test_a_mixed_batch_preempted_and_in_chunks(llm, checker):
    asked = []
    for turn in range(2):
        asked += [(form, params_of(form)) for form in OURS]
        asked += [(form, params_of(form, theirs=True)) for form in THEIRS]
        asked.append((None, params_of(None, max_tokens=40 + turn)))
    first = figures(llm)
    before = copy.deepcopy([params for _, params in asked])
    prompts = ["Write down who it is: " * (6 + at % 6) for at in range(len(asked))]
    outputs = llm.generate(prompts, [params for _, params in asked], use_tqdm=False)
    for (form, _), output in zip(asked, outputs, strict=True):
        if form is not None:
            checker(form, output.outputs[0])
    assert [repr(params) for _, params in asked] == [repr(params) for params in before]
    preemptions = {m.name: m for m in llm.get_metrics()}["vllm:num_preemptions"].value
    assert preemptions > 0
    now = figures(llm)
    assert now["failed"] == first["failed"]
    assert now["mode"] == "process"
    assert now["added"] >= first["added"] + 24
    assert set(now["backends"]) == {"xgrammar", "llguidance"}


def test_outputs_are_complete_at_their_limit(llm, reconfigured):
    """Whatever form asks; preempted, in chunks, several of a prompt."""
    reconfigured(close_before_length=True)
    schema = {"type": "array", "items": {"type": "string"}, "minItems": 1}
    tag = {
        "type": "tag",
        "begin": "<f>",
        "content": {"type": "json_schema", "json_schema": schema},
    }
    tag = {
        "structural_tag": json.dumps(
            {"type": "structural_tag", "format": {**tag, "end": "</f>"}}
        )
    }
    forms = [
        ({"json": schema, "close_before_length": True}, False),
        ({"json": schema}, True),
        (tag, True),
    ]
    with pytest.raises(
        VLLMValidationError, match=r"leaves 4 tokens; .* takes \d+"
    ) as refused:
        llm.generate(["x"], params_of(tag, theirs=True, max_tokens=4), use_tqdm=False)
    least = int(re.search(r"takes (\d+)", str(refused.value))[1])
    rooms = [least, least + 2, 40, 80]
    every = [
        params_of(form, theirs=own, max_tokens=room, n=2)
        for room in rooms
        for form, own in forms
    ]
    prompts = ["Write down who it is: " * (6 + at % 6) for at in range(len(every))]
    outputs = llm.generate(prompts, every, use_tqdm=False)
    ended = [completion for output in outputs for completion in output.outputs]
    assert {completion.finish_reason for completion in ended} == {"stop"}
    for completion in ended:
        text = completion.text.removeprefix("<f>").removesuffix("</f>")
        jsonschema.validate(json.loads(text), schema)
    led = sum(completion.stop_reason == "close_before_length" for completion in ended)
    assert figures(llm)["worker"]["led_outputs"] >= led > 4


def test_reasoning_that_would_leave_no_room_is_led_to_an_answer(
    llm, reconfigured, monkeypatch
):
    """The model never ends it, and its end has 17 tokens."""
    outputs = llm.llm_engine.vllm_config.structured_outputs_config
    monkeypatch.setattr(outputs, "reasoning_parser", "kimi_k3")
    reconfigured(close_before_length=True)
    schema = {"type": "array", "items": {"type": "string"}, "minItems": 1}
    never = {"logit_bias": {1: -100}}
    with pytest.raises(VLLMValidationError, match="leaves 20 tokens") as refused:
        llm.generate("x", params_of({"json_schema": schema}, max_tokens=20, **never))
    least = int(re.search(r"takes (\d+)", str(refused.value))[1])
    every = [
        params_of(form, theirs=own, max_tokens=least + more, n=3, **never)
        for more in (0, 1, 30, 90)
        for form, own in (({"json": schema}, True), ({"json_schema": schema}, False))
    ]
    prompts = ["Write down who it is: " * (1 + at % 6) for at in range(len(every))]
    outputs = llm.generate(prompts, every, use_tqdm=False)
    for completion in (one for output in outputs for one in output.outputs):
        _, _, answer = completion.text.partition("<|close|>think<|sep|>")
        jsonschema.validate(json.loads(answer), schema)
        assert completion.finish_reason == "stop"
        assert completion.stop_reason == "close_before_length"


def test_other_parameters_keep_working(llm, checker):
    form = {"json_schema": SCHEMA}
    asked = [
        params_of(form, n=3),
        params_of(form, logprobs=2),
        params_of(
            form, presence_penalty=0.5, frequency_penalty=0.5, repetition_penalty=1.2
        ),
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
        (
            {"extra_args": {"guided": {"json_schema": {"type": "nonsense"}}}},
            r"extra_args\.guided\.json_schema#/type: unknown type",
        ),
        (
            {"extra_args": {"guided": "[a-z"}},
            r"extra_args\.guided: a text must be JSON",
        ),
        (
            {"structured_outputs": StructuredOutputsParams(json={"type": 3})},
            r"structured_outputs\.json#/type",
        ),
        (
            {
                "extra_args": {"guided": YES},
                "structured_outputs": StructuredOutputsParams(regex="b"),
            },
            r"extra_args\.guided: is given together with another",
        ),
    ],
)
def test_a_bad_spec_is_its_clients_error_alone(llm, serves, options, says):
    with pytest.raises(VLLMValidationError, match=rf"^{says}[^=]*$") as caught:
        llm.generate(["x"], SamplingParams(max_tokens=5, **options), use_tqdm=False)
    assert caught.value.parameter == next(iter(options))
    serves()


def test_requests_that_are_aborted_leave_nothing_behind(llm, serves):
    engine = llm.llm_engine
    names = [f"gone-{number}" for number in range(6)]
    for name in names:
        engine.add_request(
            name, "Once ", params_of({"regex": "[a-z]{200}"}, max_tokens=150)
        )
    for _ in range(6):
        engine.step()
    engine.abort_request(names)
    finish(llm)
    serves({"choice": ["k"]})
    assert figures(llm)["running"] <= 1


def test_what_separates_cached_prefixes_separates_what_outputs_teach(llm, monkeypatch):
    runtime = runner(llm).engine.pipeline.runtime
    salts = {}
    original = runtime.add

    def add(slot, request_id, spec, tokens):
        salts[spec.text] = spec.salt
        original(slot, request_id, spec, tokens)

    monkeypatch.setattr(runtime, "add", add)
    given = ["mine", "mine", "yours", None]
    prompts = [{"prompt": "x", **({"cache_salt": one} if one else {})} for one in given]
    every = [params_of({"choice": [f"{number}"]}) for number in range(4)]
    llm.generate(prompts, every, use_tqdm=False)
    mine, same, yours, none = (salts[f'["{number}"]'] for number in range(4))
    assert none is None
    assert mine == same != yours
    assert not {"mine", "yours"} & {mine, yours}


def test_a_worker_that_dies_takes_no_request_with_it(llm, checker):
    metrics = runner(llm).engine.pipeline.metrics
    form = {"regex": "[a-d]{60}"}
    before = metrics().worker.restarts
    for number in range(4):
        llm.llm_engine.add_request(
            f"kept-{number}", "Once ", params_of(form, max_tokens=80)
        )

    def kill(step):
        if step == 8:
            os.kill(
                runner(llm).engine.pipeline.runtime.supervisor.worker_pid,
                signal.SIGKILL,
            )

    done = finish(llm, kill)
    assert len(done) == 4
    for completion in done.values():
        assert len(completion.text) == 60
        checker(form, completion)
    assert metrics().worker.restarts == before + 1


def test_a_request_whose_options_leave_no_token_ends_as_an_error(
    llm, checker, serves, caplog
):
    token = llm.get_tokenizer().encode("q", add_special_tokens=False)[-1]
    cut = params_of(YES, allowed_token_ids=[token], n=2)
    fine = params_of(YES, min_tokens=20)
    outputs = llm.generate(
        ["x", "x", "x"], [fine, cut, params_of(None, max_tokens=9)], use_tqdm=False
    )
    assert [one.finish_reason for one in outputs[1].outputs] == ["error", "error"]
    assert (
        "allowed_token_ids leave no token that the grammar allows"
        in outputs[1].outputs[0].stop_reason
    )
    assert outputs[0].outputs[0].finish_reason == "stop"
    checker(YES, outputs[0].outputs[0])
    assert outputs[2].outputs[0].finish_reason in ("stop", "length")
    assert re.search(
        rf"request 0_{outputs[1].request_id}-\S*: output cut off: ", caplog.text
    )
    assert caplog.text.count("output cut off") == 2
    serves(min_tokens=20)


def test_a_request_that_its_grammar_fails_ends_as_an_error(
    llm, checker, caplog, monkeypatch
):
    """Something changes its tokens after they were sampled from the mask."""
    pipeline = runner(llm).engine.pipeline
    given = pipeline.schedule_update
    calls = []
    form = {"regex": "[a-d]{60}"}

    def spoil(tokens):
        calls.append(tokens)
        guided = [
            row
            for row, request in runner(llm)._rows.items()
            if request.guided.request_id[:3] == "bad"
        ]
        tokens = tokens.clone()
        if guided and len(calls) > 4:
            tokens[guided[0]] = ord("?")
        given(tokens)

    monkeypatch.setattr(pipeline, "schedule_update", spoil)
    for name in ("bad", "good"):
        llm.llm_engine.add_request(name, "Once ", params_of(form, max_tokens=80))
    done = finish(llm)
    assert done["bad"].finish_reason == "error"
    assert "breaks the grammar" in done["bad"].stop_reason
    assert len(done["bad"].token_ids) < 20
    assert done["good"].finish_reason == "stop"
    checker(form, done["good"])
    assert re.search(r"request bad-\S*: output cut off: ", caplog.text)


def test_while_nothing_can_be_guided_running_requests_fail_and_new_ones_get_503(
    llm, serves
):
    supervisor = runner(llm).engine.pipeline.runtime.supervisor
    client = runner(llm).engine.pipeline.runtime
    supervisor._deaths.clear()  # of other tests
    for number in range(3):
        form = {"regex": "[a-d]{400}"}
        llm.llm_engine.add_request(
            f"cut-{number}", "Once ", params_of(form, max_tokens=450)
        )
    llm.llm_engine.add_request("free", "Once ", params_of(None, max_tokens=60))
    killed = set()

    def kill(step):
        pid = supervisor.worker_pid
        if not client.refusing and pid is not None and pid not in killed:
            killed.add(pid)
            os.kill(pid, signal.SIGKILL)

    done = finish(llm, kill)
    assert [done[f"cut-{number}"].finish_reason for number in range(3)] == ["error"] * 3
    assert "guided requests are refused" in done["cut-0"].stop_reason
    assert done["free"].finish_reason in ("stop", "length")
    time.sleep(vllm_health._FRESH_SECONDS)
    with pytest.raises(
        GracefulHTTPError, match=r"cannot be served now.*refused"
    ) as caught:
        llm.generate(["x"], params_of(YES), use_tqdm=False)
    assert caught.value.http_status == 503
    assert (
        llm.generate(["x"], params_of(None), use_tqdm=False)[0].outputs[0].finish_reason
        != "error"
    )
    client._refused_until = time.monotonic()  # the minute is over
    time.sleep(vllm_health._FRESH_SECONDS)
    serves()
    assert llm.collective_rpc("guided_health") == [""]


def test_steps_may_have_drafts_while_guided_requests_are_there(llm, monkeypatch):
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    asked = []

    class Asked(DraftsBySize):
        """Answers 0: this model runner has no drafts."""

        def __getitem__(self, rows):
            asked.append(super().__getitem__(rows))
            return 0

    lookup = Asked([7] * 100)
    monkeypatch.setattr(scheduler, "dynamic_sd_lookup", lookup)
    for form, drafts in ((None, 0), (YES, 7), (None, 0)):
        asked.clear()
        params = params_of(form, max_tokens=3)
        llm.generate(["x"] * 3, params, use_tqdm=False)
        assert set(asked) == {drafts}
