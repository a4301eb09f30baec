"""`LLM` with several prompts: their specs compile together, and the engine is asked for all at once."""

import json
import threading
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

from vllm import LLM, SamplingParams
from vllm.exceptions import GracefulHTTPError, VLLMValidationError
from vllm_support import SMALL, VOCABULARY, config

import guided_plugin as gp
from guided_plugin.errors import BusyError, SpecError
from guided_plugin.hosts.vllm import admission as vllm_admission
from guided_plugin.hosts.vllm import together as vllm_together
from guided_plugin.hosts.vllm.admission import Gate
from guided_plugin.hosts.vllm.asked import Admitted
from guided_plugin.hosts.vllm.common import GUIDED, HEALTH, PREPARE, RETRY_AFTER
from guided_plugin.hosts.vllm.names import When
from guided_plugin.hosts.vllm.patches import patch
from guided_plugin.hosts.vllm.together import Ahead


class Compiler:
    """In place of the gate's. Specs that say `refused` are; `together` compiles that run at a time are waited
    for."""

    vocabulary = VOCABULARY

    def __init__(self, together=1):
        self._all_run = threading.Barrier(together)
        self.lock = threading.Lock()
        self.begun, self.running, self.most = [], 0, 0

    def admit(self, spec, *, deadline):
        with self.lock:
            self.begun.append(spec.text)
            self.running += 1
            self.most = max(self.most, self.running)
        try:
            self._all_run.wait(30)
            if "refused" in spec.text:
                raise SpecError("is refused here", where="regex")
            time.sleep(0.005)
        finally:
            with self.lock:
                self.running -= 1

    def kept(self, spec):
        return None

    cached = kept


class Engine:
    """An engine of two ranks. Its second has no spec ready before it was asked for so many."""

    def __init__(self, monkeypatch, compiler, needs=1, options=SMALL):
        monkeypatch.setattr(Gate, "compiler", property(lambda gate: compiler))
        self.gate = self._guided_gate = Gate(config({"compile_processes": 4, **(options or {})}))
        self.calls, self.made, self._needs, self.refusal = [], {}, needs, ""

    def collective_rpc(self, method, args=()):
        if method == HEALTH:
            return ["", self.refusal]
        if method == RETRY_AFTER:
            return [0.0, 1.0]
        assert method == PREPARE
        (questions,) = args
        assert json.dumps(questions, default=dict)  # it goes to another process
        self.calls.append([key for key, _ in questions])
        for key, made in questions:
            assert (made is None) == (key in self.made)  # the spec itself comes once
            self.made.setdefault(key, made)
        ready = len(self.made) >= self._needs
        return [[True] * len(questions), [ready] * len(questions)]


def params_of(*texts):
    return [SamplingParams(extra_args={"guided": {"regex": text}}) for text in texts]


@pytest.fixture(autouse=True)
def parts(monkeypatch):
    monkeypatch.delenv("GUIDED_PLUGIN", raising=False)
    monkeypatch.setattr(vllm_admission, "vocabulary_of", lambda config: VOCABULARY)


def test_specs_of_several_prompts_compile_at_the_same_time(monkeypatch):
    compiler = Compiler(together=4)  # one after the other, none would ever end
    engine = Engine(monkeypatch, compiler)
    texts = [f"a{number}" for number in range(8)]
    params = list(Ahead(engine, params_of(*texts)))
    assert sorted(compiler.begun) == texts
    assert 4 <= compiler.most <= 4 + vllm_together._SPARE
    assert len(engine.made) == 8
    for text, each in zip(texts, params, strict=True):
        admitted = engine.gate.admit(each).extra_args[GUIDED]
        assert admitted.spec.text == text
        assert admitted.prepared  # `add_request` asks the engine nothing
    assert len(compiler.begun) == 8


def test_vllm_adds_the_prompts_through_it(monkeypatch):
    compiler = Compiler(together=3)
    engine = Engine(monkeypatch, compiler)
    patch(When.LOADED)
    added = []
    llm = SimpleNamespace(
        llm_engine=engine,
        _resolve_mm_lora=lambda prompt, lora: lora,
        _add_request=lambda prompt, params, **rest: added.append((prompt, params)) or prompt,
    )
    params = [*params_of("x", "y", "z"), SamplingParams()]
    assert LLM._render_and_add_requests(llm, iter("abcd"), params) == list("abcd")
    assert [prompt for prompt, _ in added] == list("abcd")
    assert added[3][1] is params[3]
    assert sorted(compiler.begun) == ["x", "y", "z"]


def test_the_largest_spec_comes_first(monkeypatch):
    compiler = Compiler()
    engine = Engine(monkeypatch, compiler, options={"compile_processes": 1})
    monkeypatch.setattr(vllm_together, "_SPARE", 0)
    list(Ahead(engine, params_of("a", "bb" * 9, "ccc" * 9, "d")))
    assert compiler.begun == ["ccc" * 9, "bb" * 9, "a", "d"]


def test_one_spec_of_many_prompts_compiles_once_and_known_ones_never(monkeypatch):
    compiler = Compiler()
    engine = Engine(monkeypatch, compiler)
    list(Ahead(engine, params_of("a", "a", "b", "a")))
    assert sorted(compiler.begun) == ["a", "b"]
    again = list(Ahead(engine, params_of("b", "a")))
    assert [type(each.extra_args[GUIDED]) for each in again] == [Admitted, Admitted]
    assert len(compiler.begun) == 2
    assert len(engine.made) == 2


def test_an_engine_is_asked_for_all_of_them_at_once(monkeypatch):
    compiler = Compiler(together=4)
    engine = Engine(monkeypatch, compiler, needs=4)
    list(Ahead(engine, params_of("a", "b", "c", "d")))
    assert len(engine.calls[-1]) == 4


def test_what_is_refused_is_left_to_its_own_request(monkeypatch):
    compiler = Compiler()
    engine = Engine(monkeypatch, compiler)
    wrong = SamplingParams(extra_args={"guided": {"regx": "a"}})
    both = SamplingParams(extra_args={"guided": object()})
    given = [*params_of("good", "refused"), wrong, both, *params_of("fine")]
    params = list(Ahead(engine, given))
    assert params[1:4] == given[1:4]
    assert len(engine.made) == 2
    for index, what in ((1, "is refused here"), (2, "no constraint"), (3, "guided")):
        with pytest.raises((gp.GuidedError, VLLMValidationError), match=what):
            engine.gate.admit(params[index])
    assert engine.gate.admit(params[4]).extra_args[GUIDED].prepared


def test_where_there_is_no_room_a_request_waits_for_itself(monkeypatch):
    compiler = Compiler()
    engine = Engine(monkeypatch, compiler)

    def full(asked):
        raise BusyError("full")

    monkeypatch.setattr(engine.gate, "admit_in_background", full)
    given = params_of("a", "b")
    assert list(Ahead(engine, given)) == given
    assert compiler.begun == []


def test_an_engine_that_stays_silent_is_left_to_each_request(monkeypatch):
    engine = Engine(monkeypatch, Compiler(), needs=10**9)
    monkeypatch.setattr(Gate, "patience", 0.05)
    given = params_of("a", "b")
    assert list(Ahead(engine, given)) == given
    assert not engine.gate.admit(given[0]).extra_args[GUIDED].prepared


def test_an_engine_that_cannot_guide_is_asked_for_nothing(monkeypatch):
    engine = Engine(monkeypatch, Compiler())
    engine.refusal = "the engine has not loaded the logits processor"
    given = params_of("a", "b")
    assert list(Ahead(engine, given)) == given
    assert engine.calls == []
    with pytest.raises(GracefulHTTPError, match="has not loaded"):
        engine.gate.health.check(engine.collective_rpc)  # as `add_request` does


def test_it_looks_ahead_no_further_than_needed(monkeypatch):
    compiler = Compiler()
    engine = Engine(monkeypatch, compiler)
    monkeypatch.setattr(vllm_together, "_AHEAD", 3)
    ahead = Ahead(engine, params_of(*(f"a{number}" for number in range(50))))
    assert len(ahead) == 50
    _ = ahead[0]
    assert set(compiler.begun) <= {"a0", "a1", "a2", "a3"}
    assert ahead[-1] is ahead[49:][0]


def test_other_parameters_are_passed_on_as_they_are(monkeypatch):
    compiler = Compiler()
    engine = Engine(monkeypatch, compiler)
    given = [SamplingParams(), object(), SamplingParams(extra_args={"other": 1})]
    assert list(Ahead(engine, given)) == given
    assert engine.calls == []
