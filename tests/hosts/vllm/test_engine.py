"""The real vLLM on the CPU: what comes out is checked with fresh matchers of the spec
that was asked for."""

import copy
import json
import pathlib
import re

import pytest
from compilers import compiler_of, start
from vllm.exceptions import VLLMValidationError
from vllm_support import params_of, processors, runner, stepped

import guided_plugin as gp

FORMS = json.loads(pathlib.Path(__file__).with_name("forms.json").read_text())


@pytest.fixture(scope="module")
def checker(llm):
    vocabulary = gp.Vocabulary.from_tokenizer(llm.get_tokenizer())
    compiler = compiler_of(vocabulary)

    def check(form, completion):
        matcher = start(compiler, gp.OutputSpec.parse(form))
        tokens = completion.token_ids
        assert all(map(matcher.accept, tokens)), (form, completion.text)
        if completion.finish_reason == "stop" and completion.stop_reason is None:
            assert tokens[-1] in vocabulary.stop_token_ids

    return check


def figures(llm):
    return llm.collective_rpc("guided_metrics")[0][0]


def texts(llm, asked, prompts="One: "):
    """What the first outputs of some requests say."""
    outputs = llm.generate(
        [prompts] * len(asked),
        asked,
        use_tqdm=False,
    )
    return [output.outputs[0].text for output in outputs]


def test_installed_and_passed_at_once_one_of_them_works(llm):
    assert sorted(one.runner is not None for one in processors(llm)) == [False, True]


def test_an_engine_is_ready_when_it_is_made(started):
    """Its first guided request waits for no worker and starts no process."""
    _, called, processes = started
    assert (called, processes) == (["guided_health"], [])


def test_a_mixed_batch_preempted_and_in_chunks(llm, checker):
    asked = []
    for turn in range(2):
        for theirs, kind in enumerate(("ours", "theirs")):
            asked += [(form, params_of(form, theirs=theirs)) for form in FORMS[kind]]
        asked.append((None, params_of(None, max_tokens=40 + turn)))
    first = figures(llm)
    before = copy.deepcopy([params for _, params in asked])
    prompts = ["Write down who it is: " * (6 + at % 6) for at in range(len(asked))]
    outputs = llm.generate(
        prompts,
        [params for _, params in asked],
        use_tqdm=False,
    )
    for (form, _), output in zip(
        asked,
        outputs,
        strict=True,
    ):
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


def test_other_parameters_keep_working(llm, checker):
    asked = [params_of(form, **more) for form, more in FORMS["with parameters"]]
    asked.append(params_of(FORMS["ours"][0], logit_bias={5: 2.0}))
    outputs = llm.generate(
        ["Someone: "] * len(asked),
        asked,
        use_tqdm=False,
    )
    assert len(outputs[0].outputs) == 3
    for params, output in zip(
        asked,
        outputs,
        strict=True,
    ):
        for completion in output.outputs:
            checker(params.extra_args["guided"], completion)
    assert len(outputs[1].outputs[0].logprobs) == len(outputs[1].outputs[0].token_ids)
    assert outputs[6].outputs[0].stop_reason == "STOP"
    assert outputs[7].outputs[0].text in ("alpha", "beta")
    assert outputs[7].outputs[0].finish_reason == "stop"
    assert len(outputs[8].outputs[0].token_ids) >= 30


def test_what_separates_cached_prefixes_separates_what_outputs_teach(llm, monkeypatch):
    runtime = runner(llm).engine.pipeline.runtime
    salts = {}
    original = runtime.add

    def add(slot, request_id, spec, tokens):
        salts[spec.text] = spec.salt
        original(
            slot,
            request_id,
            spec,
            tokens,
        )

    monkeypatch.setattr(
        runtime,
        "add",
        add,
    )
    given = ["mine", "mine", "yours", None]
    prompts = [{"prompt": "x", **({"cache_salt": one} if one else {})} for one in given]
    every = [params_of({"choice": [f"{number}"]}) for number in range(4)]
    llm.generate(
        prompts,
        every,
        use_tqdm=False,
    )
    mine, same, yours, none = (salts[f'["{number}"]'] for number in range(4))
    assert none is None
    assert mine == same != yours
    assert not {"mine", "yours"} & {mine, yours}


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

    monkeypatch.setattr(
        pipeline,
        "schedule_update",
        spoil,
    )
    for name in ("bad", "good"):
        llm.llm_engine.add_request(
            name,
            "Once ",
            params_of(form, max_tokens=80),
        )
    _, done = stepped(llm.llm_engine)
    assert done["bad"].finish_reason == "error"
    assert "breaks the grammar" in done["bad"].stop_reason
    assert len(done["bad"].token_ids) < 20
    assert done["good"].finish_reason == "stop"
    checker(form, done["good"])
    # it is told once
    assert len(re.findall(r"request bad-\S*: output cut off: ", caplog.text)) == 1


PATTERN = {"json": {"enum": ["a", "b"]}, "whitespace_pattern": "[.]"}
"""vLLM takes it, and drops the pattern, which demands what JSON can't have."""


def test_what_is_refused_goes_to_vllms_manager_and_is_counted(
    llm, reconfigured, caplog
):
    reconfigured(refused="vllm")

    forms = PATTERN, {"json": PATTERN["json"]}, PATTERN, {"choice": ["x"]}
    asked = [params_of(form, theirs=True) for form in forms]
    before = figures(llm)["added"]
    *found, last = texts(llm, asked)
    assert figures(llm)["added"] - before == 2
    assert last == "x"
    assert all(json.loads(text) in ("a", "b") for text in found)
    (line,) = [line for line in caplog.messages if line.startswith("left to vLLM")]
    assert "whitespace_pattern" in line
    with pytest.raises((VLLMValidationError, ValueError)):  # vLLM refuses it too
        texts(llm, [params_of({"grammar": "root ::= ("}, theirs=True)])
    # asked for as the plugin's
    with pytest.raises(VLLMValidationError, match="whitespace_pattern"):
        texts(llm, [params_of(PATTERN)])
