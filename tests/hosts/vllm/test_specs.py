"""Specs on their way through vLLM's frontend: read once, compiled once, bounded, ready
in the engine in time. No engine: a compiler and an engine that a test plays, and vLLM's
own `LLM` around them."""

import asyncio
import dataclasses
import threading
import time
from types import SimpleNamespace
from typing import Literal
from unittest.mock import Mock

import msgspec
import pytest
from vllm import LLM, SamplingParams
from vllm.exceptions import GracefulHTTPError, VLLMValidationError
from vllm_support import (
    SMALL,
    TAKES_OVER,
    VOCABULARY,
    config,
    engine_request,
    params_of,
)

import guided_plugin as gp
from guided_plugin import errors
from guided_plugin.grammar.base import Prepared
from guided_plugin.hosts.vllm import admission, specs
from guided_plugin.hosts.vllm.admission import Ahead, Gate, gate_of
from guided_plugin.hosts.vllm.common import (
    GUIDED,
    HEALTH,
    engine_spec,
)
from guided_plugin.hosts.vllm.gate import add_request, add_request_async
from guided_plugin.hosts.vllm.metrics import metrics
from guided_plugin.hosts.vllm.names import When
from guided_plugin.hosts.vllm.patches import patch
from guided_plugin.hosts.vllm.refusals import refusal
from guided_plugin.hosts.vllm.specs import LEFT
from guided_plugin.spec.triggers import Trigger


@pytest.fixture(autouse=True)
def parts(byte_tokenizer):
    patch(When.SERVING)


class Compiler:
    """In place of the gate's: specs that say `slow` need a helper, and wait until they
    may `go_on`; of those that say `bad` nothing comes."""

    vocabulary = VOCABULARY

    def __init__(self, go_on):
        self.go_on = go_on
        self.begun = []

    def why_quick(self, spec):
        return "" if "slow" in spec.text else "small"

    def admit(self, spec, *, deadline, here):
        if self.why_quick(spec):
            return None
        self.begun.append(spec.text)
        self.go_on.wait(30)
        if "bad" in spec.text:
            raise errors.SpecError("is refused here", where="regex")
        return self.kept(spec)

    def compile(self, spec):
        return Prepared(
            spec,
            "xgrammar",
            None,
        )

    def refusal(self, spec):
        return None

    def kept(self, spec):
        return (
            Prepared(
                spec,
                "xgrammar",
                b"made",
                reason="because",
            )
            if "slow" in spec.text
            else None
        )


def waiting_gate(*, go_on=None, **options):
    """A gate with such a compiler. Without `go_on` nothing waits."""
    gate = Gate(config({**SMALL, **options}))
    gate.specs._compiler = Compiler(go_on or SimpleNamespace(wait=lambda seconds: True))
    return gate, gate.specs._compiler


class Engine:
    """An engine of two ranks. Its second may refuse guided requests."""

    vllm_config = None

    def __init__(self, gate):
        self.input_processor = SimpleNamespace(_guided_gate=gate)
        self.calls = []
        self.refusal = ""
        self.abort_request = lambda ids, internal: None

    def collective_rpc(self, method, args=()):
        self.calls.append(method)
        return [["", 0.0], [self.refusal, 1.0 * bool(self.refusal)]]

    def add(self, prompt, params):
        """As vLLM's: what it adds is made of the admitted params."""
        gate = gate_of(self)
        return gate.admit(params) if gate.concerns(params) else params


class AsyncEngine(Engine):
    """The same behind an event loop."""

    async def collective_rpc(self, method, args=()):
        return super().collective_rpc(method, args)

    async def add(self, params):
        async def added(self, request_id, params):
            return "added"

        return await add_request_async(
            self,
            "one",
            params,
            original=added,
        )


def regex(text):
    return params_of({"regex": text})


def admitted(gate, form):
    return gate.admit(params_of(form)).extra_args[GUIDED]


def ways(gate):
    """How a frontend admits a request, on an event loop and without one."""
    return gate.admit, lambda params: asyncio.run(gate.admit_async(params))


def test_a_form_is_read_once(monkeypatch):
    """Whichever form it has; also where it takes longer, and where it is large."""
    gate, compiler = waiting_gate(take_over=True)
    read = []
    parse = specs.read_spec
    monkeypatch.setattr(
        specs, "read_spec", lambda form: read.append(form) or parse(form)
    )
    asked = {"choice": ["a"]}
    spec = gp.OutputSpec.choice(["a"])
    mine = params_of(asked)
    mine.extra_args["mine"] = [3]
    forms = [
        mine,
        params_of('{"choice":["a"]}'),
        params_of({"choice": ["a"]}, theirs=True),
        params_of(spec),
        regex("slow"),
        regex("slow" * 20_000),
    ]
    first, again = ([*map(admit, forms)] for admit in ways(gate))
    assert len(read) == len(forms)
    assert len(compiler.begun) == 2
    assert [one.extra_args[GUIDED].spec for one in first[:4]] == [spec] * 4
    assert first[2].structured_outputs is None
    for given in (Literal["a"], gp.TypedSpec(Literal["a"])):
        assert admitted(gate, given).spec == spec
    for one, other in zip(
        first,
        again,
        strict=True,
    ):
        assert one.extra_args[GUIDED] is other.extra_args[GUIDED]
        assert gate.admit(one) is one
    assert again[0].extra_args["mine"] == [3]
    asked["choice"] = ["b"]  # the caller's object may change
    assert admitted(gate, asked).spec == gp.OutputSpec.choice(["b"])


def test_triggers_are_tokenised_once_for_all_requests_of_a_form(monkeypatch):
    encoded = []
    vocabulary = dataclasses.replace(
        VOCABULARY, encode=lambda text: encoded.append(text) or list(text.encode())
    )
    monkeypatch.setattr(
        specs,
        "vocabulary_of",
        lambda config: vocabulary,
    )
    gate = Gate(config(SMALL))
    for _ in range(3):
        found = admitted(gate, {"regex": "a", "start_after": ["xy"]}).spec
        assert found.start_after == (Trigger((ord("x"), ord("y"))),)
    assert encoded == ["xy"]


def test_what_is_remembered_has_bounds(monkeypatch):
    monkeypatch.setattr(
        specs,
        "_ADMITTED_BYTES",
        20_000,
    )
    gate = Gate(config(SMALL))
    texts = [f"{number}".ljust(1000, "y") for number in range(30)]
    for text in texts:
        gate.admit(regex(text))
    kept = [gate.specs.known(gate.asked(regex(text))) is not None for text in texts]
    # each is kept as a spec and as a text for the engine
    assert kept == sorted(kept)
    assert 2 < sum(kept) < 10
    assert gate.specs._admitted.size_bytes <= 20_000


@pytest.mark.parametrize("refused", ["error", "vllm"])
@pytest.mark.parametrize(
    "params",
    [
        params_of({"choice": ["a"] * 600_000}, theirs=True),
        params_of({"json": {"enum": [{}, "x" * 1_100_000]}}, theirs=True),
        params_of({"json": "[" * 1_100_000}, theirs=True),
        params_of('{"regex": "' + "a" * 1_100_000 + '"}'),
    ],
    ids=range(4),
)
def test_a_spec_that_is_too_large_is_refused_before_anything_is_made_of_it(
    params, refused, monkeypatch
):
    gate = Gate(config({**TAKES_OVER, "refused": refused}))
    made = []
    for name in ("digest_of", "read_spec"):
        monkeypatch.setattr(
            specs,
            name,
            made.append,
        )
    for admit in ways(gate):
        with pytest.raises(
            errors.CompileLimitError, match=r"over the limit.*max_spec_bytes"
        ):
            admit(params)
    assert not made


REFUSED = {"json": {"enum": ["a", "b"]}, "whitespace_pattern": "[.]"}
"""vLLM takes it, and drops the pattern, which demands what JSON can't have."""


def test_guided_is_never_left(caplog, monkeypatch):
    caplog.set_level("WARNING", "guided_plugin")
    gate = Gate(config({**TAKES_OVER, "refused": "vllm"}))
    theirs = params_of(REFUSED, theirs=True)
    for _ in range(2):  # the second time it is remembered
        for admit in ways(gate):
            carried = admit(theirs)
            assert carried.extra_args["guided"] is LEFT
            assert gate.admit(carried) is carried
            assert carried.structured_outputs is theirs.structured_outputs
            with pytest.raises(errors.SpecError):
                admit(params_of({**REFUSED, "disable_any_whitespace": False}))
    assert len(caplog.records) == 1
    count = Mock()
    monkeypatch.setattr(metrics(), "count", count)
    gate.complete(engine_request(carried, None))
    assert (carried.extra_args, count.call_count) == ({"guided_left": True}, 1)
    with pytest.raises(errors.SpecError):
        Gate(config(TAKES_OVER)).admit(theirs)


def test_guided_is_not_left_either_where_it_waits_beside_one_of_vllms_own():
    gate, compiler = waiting_gate(
        go_on=threading.Event(), take_over=True, refused="vllm"
    )

    async def both():
        waiting = [
            gate.admit_async(params_of({"regex": "slow bad"}, theirs=one))
            for one in (True, False)
        ]
        asyncio.get_running_loop().call_later(0.2, compiler.go_on.set)
        return await asyncio.gather(*waiting, return_exceptions=True)

    theirs, ours = asyncio.run(both())
    assert theirs.extra_args[GUIDED] is LEFT
    assert isinstance(ours, errors.SpecError)


def test_quick_specs_are_admitted_while_slow_ones_wait_and_a_full_queue_is_no_fault_of_theirs():
    gate, compiler = waiting_gate(
        go_on=threading.Event(), compile_processes=1, compile_queue=2
    )

    async def flood():
        slow = [
            asyncio.ensure_future(gate.admit_async(regex(f"slow{i % 3}")))
            for i in range(12)
        ]
        bad = asyncio.ensure_future(gate.admit_async(regex("slow bad")))
        for number in range(50):
            await gate.admit_async(regex(f"quick{number}"))
        assert not any(task.done() for task in slow)
        with pytest.raises(
            errors.BusyError, match=r"3 specs are compiling or w.*compile_queue"
        ) as caught:
            await bad
        assert refusal(caught.value).http_status == 503
        slow[0].cancel()  # a client that hangs up
        compiler.go_on.set()
        carried = await asyncio.gather(*slow[1:])
        with pytest.raises(gp.GuidedError, match="is refused here"):
            await gate.admit_async(regex("slow bad"))
        return carried

    carried = asyncio.run(flood())
    assert sorted(compiler.begun) == ["slow bad", "slow0", "slow1", "slow2"]
    assert all(one.extra_args[GUIDED].made for one in carried)
    assert not gate.specs._waiting


def test_a_request_waits_for_its_spec_so_long_and_no_longer(monkeypatch):
    gate, compiler = waiting_gate(go_on=threading.Event())
    gate.specs.patience = 0.2
    engine = AsyncEngine(gate)
    with pytest.raises(GracefulHTTPError, match=r"not ready within 0\.2 s"):
        asyncio.run(engine.add(regex("slow")))
    compiler.go_on.set()
    assert asyncio.run(engine.add(regex("slow"))) == "added"
    assert compiler.begun == ["slow"]


def test_what_the_engine_gets_is_plain_data_that_it_need_not_parse(monkeypatch):
    """With what was made of the spec."""
    gate, _ = waiting_gate()
    carried = gate.admit(regex("slow"))
    cloned = carried.clone()
    assert cloned.extra_args[GUIDED] is carried.extra_args[GUIDED]
    gate.complete(engine_request(cloned, [1]))
    received = msgspec.msgpack.decode(msgspec.msgpack.encode(cloned.extra_args))
    monkeypatch.setattr(
        gp.OutputSpec,
        "parse",
        None,
    )
    told = engine_spec(SamplingParams(extra_args=received))
    spec = told.read()
    assert spec == gp.OutputSpec.regex("slow").settled(gp.GuidedConfig())
    made = Prepared.received(spec, told.made)
    assert made == Prepared(spec, "xgrammar", b"made", reason="because")


def run(engine, params):
    """What vLLM does: it adds the prompts one after the other."""
    added = []
    llm = SimpleNamespace(
        llm_engine=engine,
        _resolve_mm_lora=lambda prompt, lora: lora,
        _add_request=lambda prompt, params, **rest: added.append(
            add_request(engine, prompt, params=params, original=Engine.add)
        ),
    )
    LLM._render_and_add_requests(
        llm,
        iter("abcdefgh"[: len(params)]),
        params,
    )
    return added


def texts_added(engine, *texts):
    return [
        one.extra_args[GUIDED].spec.text for one in run(engine, list(map(regex, texts)))
    ]


@pytest.mark.parametrize(
    ("together", "options", "given"),
    [
        (4, {}, [f"slow{number}" for number in range(8)]),
        (
            2,
            {"compile_processes": 1, "compile_queue": 1},
            ["slow", "slow?", "slow!", "slow0"],
        ),
        (1, {}, ["slow", "slow", "small", "slow"]),
    ],
)
def test_specs_of_several_prompts_compile_at_the_same_time_each_once(
    together, options, given
):
    """There is never too little room for them. One after the other, none would ever
    end."""
    gate, compiler = waiting_gate(go_on=threading.Barrier(together), **options)
    engine = Engine(gate)
    for _ in range(2):
        assert texts_added(engine, *given) == given
    assert sorted(compiler.begun) == sorted({*given} - {"small"})
    assert engine.calls == [HEALTH]


def test_a_spec_that_was_made_since_it_was_looked_up_does_not_compile_again():
    gate, compiler = waiting_gate()
    late = gate.asked(regex("slow"))
    assert gate.specs.known(late) is None
    made = gate.specs.begin(gate.asked(regex("slow"))).result()
    while gate.specs._waiting:
        time.sleep(0.001)
    assert gate.specs.begin(late) is made
    assert compiler.begun == ["slow"]


def test_what_is_refused_is_left_to_its_own_request():
    engine = Engine(waiting_gate()[0])
    first = regex("slow")
    last = regex("slow too")
    for wrong, what in (
        (regex("slow bad"), "is refused here"),
        (params_of({"regx": "a"}), "no constraint"),
    ):
        with pytest.raises((gp.GuidedError, VLLMValidationError), match=what):
            run(engine, [first, wrong, last])
    assert len(run(engine, [first, last])) == 2


def test_an_engine_that_cannot_guide_is_asked_for_nothing(caplog):
    engine = Engine(waiting_gate()[0])
    engine.refusal = "the engine has not loaded the logits processor"
    caplog.set_level("INFO", "guided_plugin.requests")
    with pytest.raises(GracefulHTTPError, match="has not loaded"):
        run(engine, [regex("a"), regex("slow")])
    assert "has not loaded" in caplog.text
    assert engine.calls == [HEALTH]


def test_it_looks_ahead_no_further_than_needed_and_passes_on_all_else(monkeypatch):
    gate, compiler = waiting_gate()
    monkeypatch.setattr(
        admission,
        "_AHEAD",
        3,
    )
    ahead = Ahead(gate, given := [regex(f"slow{number}") for number in range(50)])
    assert (len(ahead), ahead[0]) == (50, given[0])
    assert set(compiler.begun) <= {"slow0", "slow1", "slow2"}
    assert ahead[-1] is ahead[49:][0]
    given = [SamplingParams(), object(), SamplingParams(extra_args={"other": 1})]
    engine = Engine(gate)
    assert run(engine, given) == given
    assert engine.calls == []


def test_small_specs_of_several_prompts_compile_in_helpers():
    gate = Gate(config({**SMALL, "isolate_compiles": True}))
    ahead = Ahead(gate, [regex(f"a{{{number}}}b") for number in range(1, 9)])
    begun = [ahead[number] for number in range(8)]
    compiler = gate.specs.compiler
    admitted = [gate.admit(params).extra_args[GUIDED] for params in begun]
    assert [one.spec.text for one in admitted] == [f"a{{{n}}}b" for n in range(1, 9)]
    assert compiler._pool.processes()
    compiler.close()
