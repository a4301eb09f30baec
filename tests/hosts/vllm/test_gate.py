"""The gate in vLLM's frontend, and the options of an engine, without an engine."""

import asyncio
import contextlib
import dataclasses
import enum
import json
import threading
import time
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

import msgspec
from vllm import SamplingParams
from vllm.exceptions import GracefulHTTPError
from vllm.reasoning import ReasoningParserManager
from vllm.sampling_params import StructuredOutputsParams
from vllm_support import SMALL, TAKES_OVER, config, parallel, params_of

import guided_plugin as gp
from guided_plugin.grammar.base import Prepared
from guided_plugin.hosts.vllm import common as vllm_common
from guided_plugin.hosts.vllm import engine as vllm_engine
from guided_plugin.hosts.vllm import gate as vllm_gate
from guided_plugin.hosts.vllm import patches as vllm_contract
from guided_plugin.hosts.vllm import specs as vllm_specs
from guided_plugin.hosts.vllm import telling
from guided_plugin.hosts.vllm.admission import Gate
from guided_plugin.hosts.vllm.common import options_of
from guided_plugin.hosts.vllm.names import Name, Part
from guided_plugin.hosts.vllm.reasoning import Said
from guided_plugin.hosts.vllm.specs import Admitted
from guided_plugin.spec.memo import ENTRY_BYTES, texts_bytes
from guided_plugin.spec.triggers import Trigger
from guided_plugin.vllm import GuidedLogitsProcessor

END, THINK_END = 256, 257
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
    monkeypatch.setattr("vllm.tokenizers.cached_tokenizer_from_config", lambda model_config: None)
    parsers = {"tags": Parser, "text": TextParser, "silent": SilentParser}
    find = classmethod(lambda cls, name: parsers[name])
    monkeypatch.setattr(ReasoningParserManager, "get_reasoning_parser", find)


THEIRS = StructuredOutputsParams(regex="[ab]+")


def guided_in(params):
    return params.extra_args["guided"]


def spec_in(params):
    """The spec of a request that the gate has admitted, or completed."""
    guided = guided_in(params)
    return guided.spec if isinstance(guided, Admitted) else gp.OutputSpec(**guided)


def admitted(gate, form):
    return guided_in(gate.admit(params_of(form)))


def test_unguided_requests_are_no_concern_of_it():
    assert not Gate(config(SMALL)).concerns(SamplingParams())
    assert not Gate(config(SMALL)).concerns(SamplingParams(extra_args={"other": 1}))
    assert not Gate(config(SMALL)).concerns(SamplingParams(structured_outputs=THEIRS))
    assert Gate(config(TAKES_OVER)).concerns(SamplingParams(structured_outputs=THEIRS))


def test_a_request_goes_on_as_a_copy_that_carries_its_spec():
    params = SamplingParams(extra_args={"guided": {"choice": ["a"]}, "mine": 3})
    carried = Gate(config(SMALL)).admit(params)
    assert spec_in(carried) == gp.OutputSpec.choice(["a"])
    assert carried.extra_args["mine"] == 3
    assert params.extra_args == {"guided": {"choice": ["a"]}, "mine": 3}


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


def test_types_and_typed_specs_are_specs():
    typed = gp.TypedSpec(list[Colour])
    for given, spec in ((Colour, gp.OutputSpec.choice(["red", "blue"])), (typed, typed.spec)):
        params = params_of(given).clone()
        assert spec_in(Gate(config(SMALL)).admit(params)) == spec


def test_what_an_operator_leaves_unenforced_goes_with_the_request(monkeypatch):
    told = []
    monkeypatch.setattr(telling, "tell_unenforced", told.append)
    monkeypatch.setattr(telling.listener, "admitted", lambda backend, keywords: told.append(keywords))
    gate = Gate(config({**SMALL, "unenforced_keywords": ["uniqueItems"]}))
    for schema in ({"type": "array", "uniqueItems": True}, {"type": "boolean"}):
        params = params_of({"json_schema": schema})
        for _ in range(2):  # the second one is remembered
            gate.complete(gate.admit(params), None)
    left = ("uniqueItems",)
    assert told == [left, left, left, left, (), (), (), ()]


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"json": {"type": "integer"}}, gp.OutputSpec.json_schema({"type": "integer"})),
        ({"json": '{"type": "integer"}'}, gp.OutputSpec.json_schema({"type": "integer"})),
        ({"json_object": True}, gp.OutputSpec.json_object()),
        ({"regex": "a+"}, gp.OutputSpec.regex("a+")),
        ({"choice": ["x", "y"]}, gp.OutputSpec.choice(["x", "y"])),
        ({"grammar": 'root ::= "a"'}, gp.OutputSpec.grammar('root ::= "a"')),
        ({"grammar": 'start: "a"'}, gp.OutputSpec.grammar('start: "a"', "lark")),
        (
            {"structural_tag": '{"format": {"type": "const_string", "value": "a"}}'},
            gp.OutputSpec.structural_tag({"format": {"type": "const_string", "value": "a"}}),
        ),
    ],
)
def test_every_constraint_of_vllm_is_taken_over(theirs, ours):
    params = params_of(theirs, theirs=True)
    carried = Gate(config(TAKES_OVER)).admit(params)
    assert spec_in(carried) == ours
    assert carried.structured_outputs is None
    assert params.structured_outputs is not None
    assert params.extra_args is None


@pytest.mark.parametrize(
    ("token", "complaint"), [(10**9, "outside"), (-1, "outside"), (ord("a"), "is text: b'a'")]
)
def test_stop_tokens_and_triggers_that_no_output_has_are_refused(token, complaint):
    """Outside the vocabulary they break the row that a failure closes; as text they cut the output off."""
    gate = Gate(config(SMALL))
    guided = {"guided": {"regex": "[ab]+"}}
    for _ in range(2):  # the second time its spec is remembered
        with pytest.raises(gp.GuidedError, match=f"^stop_token_ids: stop token {token} .*{complaint}"):
            gate.admit(SamplingParams(extra_args=guided, stop_token_ids=[END, token]))
        assert gate.admit(SamplingParams(extra_args=guided, stop_token_ids=[END, THINK_END]))
    own = {"regex": "[ab]+", "stop_token_ids": [token] if token >= 0 else [END, 258]}
    with pytest.raises(gp.GuidedError, match=r"^guided\.stop_token_ids: stop token"):
        gate.admit(params_of(own))
    with pytest.raises(gp.GuidedError, match=r"start_after: token 258 is outside the vocabulary"):
        gate.admit(params_of({"regex": "a", "start_after": [THINK_END, 258]}))


def test_what_was_admitted_once_is_not_read_again(monkeypatch):
    gate = Gate(config(TAKES_OVER))
    read = []
    parse = vllm_specs.read_spec
    monkeypatch.setattr(vllm_specs, "read_spec", lambda form: read.append(form) or parse(form))
    asked = {"choice": ["a"]}
    forms = [
        SamplingParams(extra_args={"guided": asked, "mine": [3]}),
        SamplingParams(extra_args={"guided": json.dumps(asked, separators=(",", ":"))}),
        params_of({"choice": ["a"]}, theirs=True),
        params_of(gp.OutputSpec.choice(["a"])),
    ]
    first = [gate.admit(params) for params in forms]
    again = [gate.admit(params) for params in forms]
    assert len(read) == 4
    assert [spec_in(carried) for carried in first + again] == [gp.OutputSpec.choice(["a"])] * 8
    assert [a.extra_args["guided"] is b.extra_args["guided"] for a, b in zip(first, again, strict=True)]
    assert again[0].extra_args["mine"] == [3]
    assert all(gate.admit(carried) is carried for carried in again)
    both = SamplingParams(extra_args={"guided": asked}, structured_outputs=THEIRS)
    with pytest.raises(gp.GuidedError, match="together with"):
        gate.admit(both)
    asked["choice"] = ["b"]  # the caller's object may change
    assert spec_in(gate.admit(forms[0])) == gp.OutputSpec.choice(["b"])


@pytest.mark.parametrize("refused", ["error", "vllm"])
@pytest.mark.parametrize(
    "params",
    [
        params_of({"choice": ["a"] * 600_000}, theirs=True),
        params_of({"json": {"enum": [{}, "x" * 1_100_000]}}, theirs=True),
        params_of({"json": "[" * 1_100_000}, theirs=True),
        SamplingParams(extra_args={"guided": '{"regex": "' + "a" * 1_100_000 + '"}'}),
    ],
    ids=range(4),
)
def test_a_spec_that_is_too_large_is_refused_before_anything_is_made_of_it(params, refused, monkeypatch):
    gate = Gate(config({**TAKES_OVER, "refused": refused}))
    made = []
    for name in ("digest_of", "read_spec"):
        monkeypatch.setattr(vllm_specs, name, made.append)
    assert gate.concerns(params)
    with pytest.raises(gp.errors.CompileLimitError, match=r"over the limit.*max_spec_bytes"):
        gate.admit(params)
    with pytest.raises(gp.errors.CompileLimitError):
        asyncio.run(gate.admit_async(params))
    assert not made


def test_no_client_can_claim_that_its_spec_was_admitted():
    gate = Gate(config(SMALL))
    fields = {"kind": "regex", "text": "(a"}
    for claim in (json.dumps({"regex": "(a"}), fields, json.dumps(fields)):
        forged = SamplingParams(extra_args={"guided": claim, vllm_common.ADMITTED: True})
        with pytest.raises(gp.GuidedError):
            gate.admit(forged)
        assert gate.specs.look_up(gate.asked(forged)) is None
    carried = gate.admit(params_of({"regex": "a"}))
    carried.structured_outputs = THEIRS
    with pytest.raises(gp.GuidedError, match="together with"):
        gate.admit(carried)


def test_what_the_engine_gets_is_plain_data_that_it_need_not_parse(monkeypatch):
    gate = Gate(config(SMALL))
    carried = gate.admit(params_of({"json_schema": {"type": "integer"}}))
    cloned = carried.clone()
    assert cloned.extra_args["guided"] is carried.extra_args["guided"]
    gate.complete(cloned, [1])
    received = msgspec.msgpack.decode(msgspec.msgpack.encode(cloned.extra_args))
    monkeypatch.setattr(gp.OutputSpec, "parse", None)
    engine_params = SamplingParams(extra_args=received)
    assert vllm_common.spec_of(engine_params) == gp.OutputSpec.json_schema({"type": "integer"})
    engine_params.extra_args["guided"] = "{}"
    with pytest.raises(gp.GuidedError, match="is not what the gate writes"):
        vllm_common.spec_of(engine_params)


def test_what_is_remembered_has_bounds(monkeypatch):
    one = 2 * ENTRY_BYTES + texts_bytes("a")
    monkeypatch.setattr(vllm_specs, "_ADMITTED_BYTES", 3 * one + 2)
    gate = Gate(config(SMALL))

    def remembers(form):
        return gate.specs.look_up(gate.asked(params_of(form))) is not None

    for letter in "abcd":
        gate.admit(params_of({"regex": letter}))
    assert [remembers({"regex": letter}) for letter in "abcd"] == [False, True, True, True]
    gate.admit(params_of({"regex": "x" * 80}))
    assert remembers({"regex": "x" * 80})
    assert not remembers({"regex": "b"})
    gate.admit(params_of({"regex": "y" * 4000}))
    assert not remembers({"regex": "y" * 4000})
    assert remembers({"regex": "d"})
    assert gate.specs._admitted.size_bytes <= 3 * one + 2


def test_until_an_engine_has_compiled_a_spec_every_spec_is_prepared_there(monkeypatch):
    gate = Gate(config(SMALL))
    one, two = (admitted(gate, {"regex": text}) for text in "ab")
    assert not one.prepared
    assert not two.prepared
    assert not gate.specs.answered([one], [[True], [False]])  # of two workers one
    assert gate.specs.answered([one], [[True], [True]])
    assert one.prepared
    assert admitted(gate, {"regex": "c"}).prepared
    monkeypatch.setattr(vllm_specs, "_SLOW_SECONDS", -1.0)
    assert not admitted(gate, {"regex": "d"}).prepared


def test_the_engines_params_are_completed_without_writing_to_what_they_share():
    gate = Gate(config(SMALL, reasoning="tags"))
    carried = gate.admit(params_of({"regex": "a"}))
    shared = carried.extra_args
    shared["guided_reasoning"] = Said(None, {})
    before = dict(shared)
    gate.complete(carried, [1])
    assert shared == before
    assert spec_in(carried).start_after == (Trigger((THINK_END,)),)


def reasoned(reasoning, tokens, note=None, too=False, **spec):
    """Where the constrained part begins. `too`: the reasoning is constrained as well."""
    outputs = SimpleNamespace(enable_in_reasoning=too, reasoning_parser=reasoning)
    gate = Gate(config(SMALL, structured_outputs_config=outputs))
    carried = gate.admit(params_of({"regex": "[ab]+", **spec}))
    if note is not None:
        carried.extra_args["guided_reasoning"] = note
    gate.complete(carried, tokens)
    assert "guided_reasoning" not in carried.extra_args
    found = spec_in(carried).start_after
    return None if found is None else [(*one.tokens, one.kept) for one in found]


def test_a_spec_begins_after_the_reasoning():
    assert reasoned("", [1]) is None
    assert reasoned("tags", [1]) == [(THINK_END, False)]
    assert reasoned("text", [1]) == [(THINK_END, False)]
    assert reasoned("tags", [1, THINK_END]) is None  # the prompt ends it
    assert reasoned("tags", [1], Said(True, {})) is None
    assert reasoned("tags", [1, THINK_END], Said(False, {})) == [(THINK_END, False)]
    assert reasoned("tags", [1], Said(None, {"thinks": False})) is None
    assert reasoned("tags", [1], start_after=[7]) == [(7, False)]
    assert reasoned("tags", [1], too=True) is None
    with pytest.raises(gp.GuidedError, match="start_after"):
        reasoned("silent", [1])


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"options": {"enabled": False}}, "switched off"),
        ({"speculative_config": SimpleNamespace()}, "V1 model runner"),
        (
            {
                "speculative_config": SimpleNamespace(rejection_sample_method="synthetic"),
                "use_v2_model_runner": True,
            },
            "synthetic",
        ),
        ({"parallel_config": parallel(prefill_context_parallel_size=2)}, "prefill context"),
        ({"model_config": SimpleNamespace(skip_tokenizer_init=True)}, "tokenizer"),
    ],
)
def test_what_an_engine_cannot_serve_is_refused_and_their_own_is_left_to_vllm(parts, says):
    gate = Gate(config(**{"options": {**TAKES_OVER}, **parts}))
    with pytest.raises(gp.GuidedError, match=says):
        gate.admit(params_of({"regex": "a"}))
    assert not gate.concerns(SamplingParams(structured_outputs=THEIRS))


def test_a_vllm_that_lacks_something_is_refused_by_its_name_and_its_own_is_left_to_it(monkeypatch):
    gone = Name("vllm.v1.engine.async_llm:AsyncLLM.gone", Part.FRONTEND)
    monkeypatch.setattr(vllm_contract, "NAMES", (*vllm_contract.NAMES, gone))
    vllm_contract._broken.cache_clear()
    gate = Gate(config(TAKES_OVER))
    vllm_contract._broken.cache_clear()
    with pytest.raises(
        gp.GuidedError, match=r"is not supported: no vllm\.v1\.engine\.async_llm:AsyncLLM\.gone"
    ):
        gate.admit(params_of({"regex": "a"}))
    assert not gate.concerns(SamplingParams(structured_outputs=THEIRS))


def test_options_come_from_the_flag_or_the_environment(monkeypatch):
    assert options_of(config()).take_over is False
    assert options_of(config({"take_over": True, "threads": 3})).threads == 3
    assert options_of(config(True)).enabled is True
    monkeypatch.setenv("GUIDED_PLUGIN", json.dumps({"take_over": True}))
    assert options_of(config()).take_over is True
    assert options_of(config({"threads": 3})).take_over is False
    with pytest.raises(gp.GuidedError, match=r"unknown option 'takeover'.*did you mean 'take_over'"):
        options_of(config({"takeover": True}))
    with pytest.raises(gp.GuidedError, match=r"additional_config\.guided_plugin"):
        options_of(config("yes"))
    monkeypatch.setenv("GUIDED_PLUGIN", "0")
    assert options_of(config()).enabled is False


def test_a_processor_for_an_unknown_runner_says_so():
    with pytest.raises(gp.GuidedError, match="with 5 arguments"):
        GuidedLogitsProcessor(config(SMALL), 1, 2, 3, 4)


def test_compiles_that_nobody_asks_for_any_more_are_forgotten(monkeypatch):
    asked, answers = [], {}

    def prepare(spec):
        asked.append(spec.text)
        return answers.setdefault(spec.text, Future())

    clock = [0.0]
    monkeypatch.setattr(vllm_engine, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    engine = object.__new__(vllm_engine.Engine)
    engine._pipeline = SimpleNamespace(compiler=SimpleNamespace(), prepare=prepare)
    engine._preparing, engine._started, engine.leads = {}, False, True

    def ask(text):
        return engine.prepare(text, {"spec": {"kind": "regex", "text": text}, "prepared": None})

    assert not ask("a")
    clock[0] = 40.0
    assert not ask("b")
    assert not engine.prepare("a", None)
    assert asked == ["a", "b"]
    clock[0] = 100.5
    assert not engine.prepare("b", None)
    assert len(engine._preparing) == 1  # the other was forgotten
    assert not ask("a")
    assert asked == ["a", "b", "a"]
    answers["b"].set_result(None)
    assert engine.prepare("b", None)
    assert (len(engine._preparing), engine._started) == (1, True)


class Compiler:
    """In place of the gate's: specs that say they are slow need a helper, and wait for `go_on`."""

    vocabulary = VOCABULARY

    def __init__(self):
        self.go_on = threading.Event()
        self.compiled = []

    def admit_here(self, spec):
        return None if "slow" in spec.text else (None,)

    def admit(self, spec, *, deadline):
        self.compiled.append(spec.text)
        assert self.go_on.wait(30)
        if "bad" in spec.text:
            raise gp.errors.SpecError("no good")
        return Prepared(spec, "xgrammar", b"made", "because")

    def cached(self, spec):
        return None

    def kept(self, spec):
        return Prepared(spec, "xgrammar", b"made", "because") if "slow" in spec.text else None


def gate_with_a_slow_compiler(**options):
    gate = Gate(config({**SMALL, **options}))
    gate.specs._compiler = Compiler()
    return gate, gate.specs._compiler


def test_quick_specs_are_admitted_while_slow_ones_wait_and_a_full_queue_is_no_fault_of_theirs():
    gate, compiler = gate_with_a_slow_compiler(compile_processes=1, compile_queue=2)

    async def flood():
        slow = [
            asyncio.ensure_future(gate.admit_async(params_of({"regex": f"slow{i % 3}"}))) for i in range(12)
        ]
        bad = asyncio.ensure_future(gate.admit_async(params_of({"regex": "slow bad"})))
        for number in range(50):
            quick = guided_in(await gate.admit_async(params_of({"regex": f"quick{number}"})))
            assert gate.specs.question(quick)[1]["prepared"] is None
        assert not any(task.done() for task in slow)
        with pytest.raises(gp.errors.BusyError, match="compile_queue") as caught:
            await bad
        refused = telling.refusal(caught.value)
        assert (type(refused).__name__, refused.http_status) == ("GracefulHTTPError", 503)
        slow[0].cancel()  # a client that hangs up
        compiler.go_on.set()
        carried = await asyncio.gather(*slow[1:])
        with pytest.raises(gp.GuidedError, match="no good"):
            await gate.admit_async(params_of({"regex": "slow bad"}))
        return carried

    carried = asyncio.run(flood())
    assert sorted(compiler.compiled) == ["slow bad", "slow0", "slow1", "slow2"]
    assert not any(one.extra_args["guided"].prepared for one in carried)
    assert not gate.specs._waiting


def test_what_a_helper_made_goes_to_the_engine_with_the_first_question_as_plain_data():
    gate, compiler = gate_with_a_slow_compiler()
    compiler.go_on.set()
    slow = admitted(gate, {"regex": "slow"})
    key, made = msgspec.msgpack.decode(msgspec.msgpack.encode(gate.specs.question(slow)))
    assert key == slow.key
    assert gp.OutputSpec(**made["spec"]) == gp.OutputSpec.regex("slow")
    assert vllm_common.prepared_from(made["prepared"]) == Prepared(
        gp.OutputSpec.regex("slow"), "xgrammar", b"made", "because"
    )


def test_guided_is_never_left_to_vllm_where_it_waits_beside_one_of_vllms_own():
    gate, compiler = gate_with_a_slow_compiler(take_over=True, refused="vllm")

    async def both():
        form = {"regex": "slow bad"}
        waiting = [gate.admit_async(params_of(form, theirs=theirs)) for theirs in (True, False)]
        asyncio.get_running_loop().call_later(0.2, compiler.go_on.set)
        return await asyncio.gather(*waiting, return_exceptions=True)

    theirs, ours = asyncio.run(both())
    assert guided_in(theirs) is vllm_specs.LEFT
    assert isinstance(ours, gp.errors.SpecError)


class Client:
    """An engine that has a spec ready after some questions."""

    vllm_config = None

    def __init__(self, needed):
        self.needed = needed
        self.asked = []

    def collective_rpc(self, method, args=()):
        if method == vllm_common.HEALTH:
            return [""]
        (questions,) = args
        self.asked += questions
        return [[len(self.asked) >= self.needed]]


def add(gate, client, params):
    client.input_processor = SimpleNamespace(_guided_gate=gate)
    return vllm_gate.add_request(lambda self, params: "added")(client, params)


def test_a_request_is_held_back_until_the_engine_is_ready_and_not_for_ever(monkeypatch):
    gate, compiler = gate_with_a_slow_compiler()
    compiler.go_on.set()
    client = Client(needed=4)
    assert add(gate, client, params_of({"regex": "slow"})) == "added"
    assert [made is None for _, made in client.asked] == [False, True, True, True]
    assert add(gate, client, params_of({"regex": "slow"})) == "added"
    assert len(client.asked) == 4
    monkeypatch.setattr(Gate, "patience", 0.05)
    with pytest.raises(GracefulHTTPError, match="not ready within"):
        add(gate, Client(needed=10**9), params_of({"regex": "slow too"}))


class AsyncClient:
    """The same behind an event loop."""

    vllm_config = None

    def __init__(self, gate, ready=True):
        self.input_processor = SimpleNamespace(_guided_gate=gate)
        self.ready = ready

    async def collective_rpc(self, method, args=()):
        return [""] if method == vllm_common.HEALTH else [[self.ready]]

    async def add(self, params):
        async def add_request(self, params):
            return "added"

        return await vllm_gate.add_request_async(add_request)(self, params)


@pytest.mark.parametrize("late", ["its compile", "the engine"])
def test_a_request_has_one_deadline_whatever_it_waits_for(monkeypatch, late):
    gate, compiler = gate_with_a_slow_compiler()
    monkeypatch.setattr(Gate, "patience", 0.2)
    client, sent = AsyncClient(gate, ready=late != "the engine"), []
    if late == "the engine":
        compiler.go_on.set()

    async def stages(scope, receive, send):
        """A stream: its request is admitted before it begins, and comes to the engine when it is read."""
        with contextlib.suppress(GracefulHTTPError):
            async with gate.in_time("one") as deadline:
                await gate.admit_async(params_of({"regex": "slow"}), deadline)
        await asyncio.sleep(0.1)
        with pytest.raises(GracefulHTTPError, match=r"not ready within 0\.2 s"):
            await client.add(params_of({"regex": "slow"}))
        sent.append(time.monotonic())

    start = time.monotonic()
    asyncio.run(telling.RetryAfter(stages)({"type": "http"}, None, None))
    assert 0.19 < sent[0] - start < (0.25 if late == "the engine" else 0.35)
    compiler.go_on.set()
    client.ready = True
    assert asyncio.run(client.add(params_of({"regex": "slow"}))) == "added"
    assert set(compiler.compiled) == {"slow"}


def test_triggers_are_tokenised_once_for_all_requests_of_a_form(monkeypatch):
    encoded = []
    vocabulary = dataclasses.replace(
        VOCABULARY, encode=lambda text: encoded.append(text) or list(text.encode())
    )
    monkeypatch.setattr(vllm_specs, "vocabulary_of", lambda config: vocabulary)
    gate = Gate(config(SMALL, reasoning="tags"))
    for _ in range(3):
        params = params_of({"regex": "a", "start_after": ["xy", "</think>"]})
        carried = gate.admit(params)
        gate.complete(carried, [1])
        assert spec_in(carried).start_after == (Trigger((ord("x"), ord("y"))), Trigger((THINK_END,)))
    assert encoded == ["xy"]


def test_a_form_is_read_once_also_where_it_takes_longer(monkeypatch):
    gate, compiler = gate_with_a_slow_compiler()
    compiler.go_on.set()
    read, parse = [], vllm_specs.read_spec
    monkeypatch.setattr(vllm_specs, "read_spec", lambda form: read.append(form) or parse(form))
    for text in ("slow", "slow" * 20_000):  # in the quick threads, and in that of large forms
        asyncio.run(gate.admit_async(params_of({"regex": text})))
    assert len(read) == 2
