"""The gate in vLLM's frontend, and the options of an engine, without an engine."""

import json
import pathlib
from types import SimpleNamespace

import pytest
from vllm import SamplingParams
from vllm.reasoning import ReasoningParserManager
from vllm.sampling_params import StructuredOutputsParams
from vllm_support import SMALL, TAKES_OVER, config, engine_request, parallel, params_of

import guided_plugin as gp
from guided_plugin import errors
from guided_plugin.hosts.vllm import common as vllm_common
from guided_plugin.hosts.vllm import patches
from guided_plugin.hosts.vllm import specs as vllm_specs
from guided_plugin.hosts.vllm.admission import Gate
from guided_plugin.hosts.vllm.common import settings_of
from guided_plugin.hosts.vllm.names import Part
from guided_plugin.hosts.vllm.reasoning import Said
from guided_plugin.hosts.vllm.specs import Admitted, may_leave
from guided_plugin.spec.triggers import Trigger
from guided_plugin.vllm import GuidedLogitsProcessor

END = 256
THINK_END = 257
VOCABULARY = gp.Vocabulary.from_tokens(
    [*(bytes([byte]) for byte in range(256)), b"</s>", b"</think>"], [END], [THINK_END]
)


class Parser:
    """A reasoning parser, as far as the gate looks at one."""

    end_token_id = THINK_END
    reasoning_end_str = None

    def __init__(self, tokenizer, **kwargs):
        self.thinks = kwargs.get("thinks", True)

    def is_reasoning_end(self, tokens):
        return not self.thinks or THINK_END in tokens

    def is_reasoning_end_streaming(self, tokens, delta):
        return THINK_END in delta


class TextParser(Parser):
    end_token_id = None
    reasoning_end_str = "</think>"


class SilentParser(Parser):
    end_token_id = None


@pytest.fixture(autouse=True)
def parts(monkeypatch):
    monkeypatch.delenv("GUIDED_PLUGIN", raising=False)
    monkeypatch.setattr(vllm_specs, "vocabulary_of", lambda config: VOCABULARY)
    monkeypatch.setattr(
        "vllm.tokenizers.cached_tokenizer_from_config", lambda model_config: None
    )
    parsers = {"tags": Parser, "text": TextParser, "silent": SilentParser}
    find = classmethod(lambda cls, name: parsers[name])
    monkeypatch.setattr(ReasoningParserManager, "get_reasoning_parser", find)


THEIRS = StructuredOutputsParams(regex="[ab]+")


def guided_in(params):
    return params.extra_args["guided"]


def spec_in(params):
    """The spec of a request that the gate has admitted, or completed."""
    guided = guided_in(params)
    return guided.spec if isinstance(guided, Admitted) else guided.read()


@pytest.mark.parametrize(
    ("token", "complaint"),
    [(10**9, "outside"), (-1, "outside"), (ord("a"), "is text: b'a'")],
)
def test_stop_tokens_and_triggers_that_no_output_has_are_refused(token, complaint):
    """Outside the vocabulary they break the row that a failure closes; as text they cut
    the output off."""
    gate = Gate(config(SMALL))
    guided = {"regex": "[ab]+"}
    own = {**guided, "stop_token_ids": [token] if token >= 0 else [END, 258]}
    trigger = {**guided, "start_after": [THINK_END, 258]}
    stopped = params_of(guided, stop_token_ids=[END, token])
    for params, says in (
        (stopped, f"^stop_token_ids: stop token {token} .*{complaint}"),
        (stopped, "^stop_token_ids"),  # its spec is remembered
        (params_of(own), r"^guided\.stop_token_ids: stop token"),
        (params_of(trigger), "start_after: token 258 is outside the vocabulary"),
    ):
        with pytest.raises(gp.GuidedError, match=says):
            gate.admit(params)
        assert gate.admit(params_of(guided, stop_token_ids=[END, THINK_END]))


def test_no_client_can_claim_that_its_spec_was_admitted():
    gate = Gate(config(SMALL))
    fields = {"kind": "regex", "text": "(a"}
    forged_text = [f"{json.dumps({'kind': 'regex'})}\0(a"]
    told = vllm_common.EngineSpec(forged_text[0], None, None)
    for claim in (fields, json.dumps(fields), list(told), told):
        forged = SamplingParams(extra_args={"guided": claim})
        with pytest.raises(gp.GuidedError):
            gate.admit(forged)
        assert gate.specs.known(gate.asked(forged)) is None
    carried = gate.admit(params_of({"regex": "a"}))
    carried.structured_outputs = THEIRS
    with pytest.raises(gp.GuidedError, match="together with"):
        gate.admit(carried)


def test_the_engines_params_are_completed_without_writing_to_what_they_share():
    gate = Gate(config(SMALL, reasoning="tags"))
    carried = gate.admit(params_of({"regex": "a"}))
    shared = carried.extra_args
    shared["guided_reasoning"] = Said(None, {})
    before = dict(shared)
    gate.complete(engine_request(carried, [1]))
    assert shared == before
    assert spec_in(carried).start_after == (Trigger((THINK_END,)),)


def reasoned(reasoning, *tokens, note=None, too=False, **spec):
    """Where the constrained part begins. `too`: the reasoning is constrained as
    well."""
    outputs = SimpleNamespace(enable_in_reasoning=too, reasoning_parser=reasoning)
    gate = Gate(config(SMALL, structured_outputs_config=outputs))
    carried = gate.admit(params_of({"regex": "[ab]+", **spec}))
    if note is not None:
        carried.extra_args["guided_reasoning"] = note
    gate.complete(engine_request(carried, tokens))
    assert "guided_reasoning" not in carried.extra_args
    found = spec_in(carried).start_after
    return None if found is None else [(*one.tokens, one.kept) for one in found]


def test_a_spec_begins_after_the_reasoning():
    begun = [(THINK_END, False)]
    own = {"start_after": [7]}
    for reasoning, tokens, options, start in (
        ("", [1], {}, None),
        ("tags", [1], {}, begun),
        ("text", [1], {}, begun),
        ("tags", [1, THINK_END], {}, None),  # the prompt ends it
        ("tags", [1], {"note": Said(True, {})}, None),
        ("tags", [1, THINK_END], {"note": Said(False, {})}, begun),
        ("tags", [1], {"note": Said(None, {"thinks": False})}, None),
        ("tags", [1], own, [(7, False)]),
        ("tags", [1], {"too": True}, None),
    ):
        assert reasoned(reasoning, *tokens, **options) == start
    with pytest.raises(gp.GuidedError, match="start_after"):
        reasoned("silent", 1)


@pytest.mark.parametrize("reasoning", ["", "tags"])
def test_the_engine_is_told_how_many_tokens_an_output_may_have(reasoning):
    """Within `max_tokens` and what the prompt leaves of 200."""
    form = {"regex": "[ab]{20}", "close_before_length": True}
    gate = Gate(config(SMALL, reasoning=reasoning))

    def room(limit, prompt, embeds=None):
        params = gate.admit(params_of(form, max_tokens=limit))
        gate.complete(engine_request(params, prompt, embeds))
        spec = spec_in(params)
        assert (spec.start_after is not None) == (reasoning != "")
        return spec.room

    assert [room(70, [1] * 10), room(195, [1] * 10), room(195, None, [[0.5]] * 40)] == [
        70,
        190,
        160,
    ]
    least = 21 + (reasoning != "")  # the end of the reasoning
    assert [room(least, [1]), room(70, [1] * (200 - least))] == [least, least]
    for limit, prompt in ((least - 1, [1]), (70, [1] * (201 - least))):
        with pytest.raises(
            gp.GuidedError,
            match=rf"^max_tokens: leaves {least - 1} .* takes {least}, .*allow at least {least}",
        ):
            room(limit, prompt)


@pytest.mark.parametrize(
    ("says", "options", "ranks", "parts"),
    json.loads(
        pathlib.Path(__file__).with_name("unsupported.json").read_text(),
        object_hook=lambda fields: SimpleNamespace(**fields),
    ),
)
def test_what_an_engine_cannot_serve_is_refused_and_their_own_is_left_to_vllm(
    says, options, ranks, parts
):
    options = {**TAKES_OVER, **vars(options)}
    ranks = parallel(**vars(ranks))
    gate = Gate(config(options, parallel_config=ranks, **vars(parts)))
    with pytest.raises(gp.GuidedError, match=says):
        gate.admit(params_of({"regex": "a"}))
    assert not gate.concerns(SamplingParams(structured_outputs=THEIRS))


def test_a_vllm_that_lacks_something_is_refused_by_its_name_and_its_own_is_left_to_it(
    monkeypatch,
):
    error = gp.GuidedError("is not supported: no AsyncLLM.gone")
    monkeypatch.setattr(
        vllm_common, "broken", lambda *parts: error if Part.FRONTEND in parts else None
    )
    gate = Gate(config(TAKES_OVER))
    with pytest.raises(gp.GuidedError, match=r"no AsyncLLM\.gone"):
        gate.admit(params_of({"regex": "a"}))
    assert not gate.concerns(SamplingParams(structured_outputs=THEIRS))


def test_a_version_that_was_not_tested_is_served_with_a_line_in_the_log(
    monkeypatch, caplog
):
    monkeypatch.setattr(patches, "version", lambda package: "0.99.0rc1+cu140")
    assert Gate(config(TAKES_OVER)).unsupported_reason is None
    assert caplog.messages == ["vLLM 0.99.0rc1+cu140 is not among the tested versions"]


def test_options_come_from_the_flag_or_the_environment(monkeypatch):
    def takes_over(options=None):
        return settings_of(config(options))[0].take_over

    assert not takes_over()
    assert settings_of(config({"take_over": True, "threads": 3}))[0].threads == 3
    assert settings_of(config(True))[0].enabled is True
    monkeypatch.setenv("GUIDED_PLUGIN", json.dumps({"take_over": True}))
    given = (None, {"threads": 3}, {"take_over": False})
    assert [*map(takes_over, given)] == [True, True, False]
    with pytest.raises(gp.GuidedError, match=r"additional_config\.guided_plugin"):
        settings_of(config("yes"))
    with pytest.raises(gp.GuidedError, match="did you mean 'guided_plugin'"):
        settings_of(config(additional_config={"guided_plugn": {}}))


def test_a_request_that_misspells_the_key_is_refused_and_other_keys_are_not_ours(
    monkeypatch,
):
    gate = Gate(config(SMALL))
    asked = SamplingParams(extra_args={"other": 1, "giuded": '{"regex": "a"}'})
    assert gate.concerns(asked)
    with pytest.raises(
        gp.GuidedError,
        match=r"^extra_args: unknown key 'giuded' \(did you mean 'guided'",
    ):
        gate.admit(asked)
    for other in (
        {"guided_json": 1},
        {"guidance": 1},
        dict.fromkeys(map(str, range(99))) | {"giuded": 1},
    ):
        assert not gate.concerns(SamplingParams(extra_args=other))
    assert gate.admit(
        SamplingParams(extra_args={"giuded": 1, "guided": {"regex": "a"}})
    )
    monkeypatch.setenv("GUIDED_PLUGIN", "0")
    assert not Gate(config(SMALL)).concerns(asked)


def test_a_misspelt_keyword_of_a_schema_is_told_once_in_the_log_of_the_frontend(caplog):
    gate = Gate(config(TAKES_OVER))
    schema = {"type": "object", "propertes": {"a": {}}}
    for _ in range(2):
        gate.admit(params_of({"json": schema}, theirs=True))
    assert (
        caplog.text.count(
            "#/propertes: unknown keyword, ignored (did you mean 'properties'?)"
        )
        == 1
    )
    with pytest.raises(
        gp.GuidedError, match=r"no keyword of JSON Schema.*did you mean 'properties'"
    ):
        gate.admit(params_of({"json_schema": {"propertes": {"a": {}}}}))


def test_the_kill_switch_leaves_all_to_vllm_and_the_start_line_says_so(
    monkeypatch, caplog
):
    caplog.set_level("INFO")
    Gate(config({"threads": 3})).warm_up()
    assert "take_over off; threads = 3 (additional_config.guided_plugin)" in caplog.text
    monkeypatch.setenv("GUIDED_PLUGIN", "0")
    gate = Gate(config(TAKES_OVER))
    assert not gate.concerns(SamplingParams(structured_outputs=THEIRS))
    with pytest.raises(
        gp.GuidedError, match=r"switched off \(unset GUIDED_PLUGIN=0, or set enabled\)"
    ):
        gate.admit(params_of({"regex": "a"}))
    gate.warm_up()
    assert caplog.text.strip().endswith(
        "take_over off; enabled = false (GUIDED_PLUGIN=0)"
    )


def test_a_processor_for_an_unknown_runner_says_so():
    with pytest.raises(gp.GuidedError, match="with 5 arguments"):
        GuidedLogitsProcessor(config(SMALL), 1, 2, 3, 4)


def test_refused_specs_are_left_and_limits_and_troubles_of_the_server_are_not():
    left = errors.GrammarError, errors.SpecError, errors.UnsupportedSpecError
    kept = errors.CompileLimitError, errors.PipelineError, errors.VocabularyError
    assert [may_leave(kind("no")) for kind in (*left, *kept)] == [True] * 3 + [
        False
    ] * 3
