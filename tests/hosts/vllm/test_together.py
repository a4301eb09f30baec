"""`LLM` with several prompts: their specs compile together, and the engine is asked for all at once."""

import json
import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

from vllm import LLM, SamplingParams
from vllm.exceptions import GracefulHTTPError, VLLMValidationError
from vllm_support import SMALL, VOCABULARY, config

import guided_plugin as gp
from guided_plugin.errors import SpecError
from guided_plugin.hosts.vllm import admission
from guided_plugin.hosts.vllm import specs as vllm_specs
from guided_plugin.hosts.vllm.admission import Ahead, Gate
from guided_plugin.hosts.vllm.common import GUIDED, HEALTH, PREPARE, RETRY_AFTER
from guided_plugin.hosts.vllm.gate import add_request
from guided_plugin.hosts.vllm.names import When
from guided_plugin.hosts.vllm.patches import patch


class Compiler(gp.GrammarCompiler):
    """The gate's. Specs that say `refused` are; `together` compiles that run at a time are waited for."""

    def __init__(self, together=1):
        super().__init__(VOCABULARY, config=gp.GuidedConfig(isolate_compiles=False))
        self._all_run = threading.Barrier(together)
        self.begun = []

    def admit_here(self, spec):
        """All of them wait for a helper."""

    def _made(self, key, deadline):
        self.begun.append(key.text)
        self._all_run.wait(30)
        if "refused" in key.text:
            raise SpecError("is refused here", where="regex")
        return super()._made(key, deadline)


class Engine:
    """An engine of two ranks. Its second has no spec ready before it was asked for so many."""

    vllm_config = None

    def __init__(self, compiler, needs=1, options=SMALL):
        self.gate = self._guided_gate = Gate(config({"compile_processes": 4, **(options or {})}))
        self.gate.specs._compiler = compiler
        self.calls, self.made, self._needs, self.refusal = [], {}, needs, ""
        self.abort_request = lambda ids, internal: None

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
    monkeypatch.setattr(vllm_specs, "vocabulary_of", lambda config: VOCABULARY)
    patch(When.LOADED)


def run(engine, params):
    """What vLLM does: it adds the prompts one after the other."""
    added, add = [], add_request(lambda self, prompt, params: added.append(params))
    llm = SimpleNamespace(
        llm_engine=engine,
        _resolve_mm_lora=lambda prompt, lora: lora,
        _add_request=lambda prompt, params, **rest: add(engine, prompt, params=params),
    )
    LLM._render_and_add_requests(llm, iter("abcdefgh"[: len(params)]), params)
    return added


def test_specs_of_several_prompts_compile_at_the_same_time():
    compiler = Compiler(together=4)  # one after the other, none would ever end
    engine = Engine(compiler)
    texts = [f"a{number}" for number in range(8)]
    added = run(engine, params_of(*texts))
    assert sorted(compiler.begun) == texts  # each once
    assert [each.extra_args[GUIDED].spec.text for each in added] == texts
    assert len(engine.made) >= 4  # each, unless its prompt came before it was known to be expected


def test_an_engine_is_asked_for_all_of_them_at_once():
    engine = Engine(Compiler(together=4), needs=4)
    run(engine, params_of("a", "b", "c", "d"))
    assert max(map(len, engine.calls)) == 4


def test_the_largest_spec_comes_first_and_there_is_never_too_little_room():
    compiler = Compiler()
    engine = Engine(compiler, options={"compile_processes": 1, "compile_queue": 1})
    texts = ["a", "bb" * 9, "ccc" * 9, "d"]
    run(engine, params_of(*texts))
    assert compiler.begun.index("ccc" * 9) < compiler.begun.index("d")
    assert sorted(compiler.begun) == sorted(texts)


def test_one_spec_of_many_prompts_compiles_once_and_known_ones_never():
    compiler = Compiler()
    engine = Engine(compiler)
    for texts in (("a", "a", "b", "a"), ("b", "a")):
        added = run(engine, params_of(*texts))
        assert [each.extra_args[GUIDED].spec.text for each in added] == list(texts)
    assert sorted(compiler.begun) == ["a", "b"]
    assert len(engine.made) <= 2


def test_what_is_refused_is_left_to_its_own_request():
    compiler = Compiler()
    engine = Engine(compiler)
    wrong = SamplingParams(extra_args={"guided": {"regx": "a"}})
    both = SamplingParams(extra_args={"guided": object()})
    given = [*params_of("good", "refused"), wrong, both, *params_of("fine")]
    for index, what in ((1, "is refused here"), (2, "no constraint"), (3, "guided")):
        with pytest.raises((gp.GuidedError, VLLMValidationError), match=what):
            run(engine, [given[0], given[index], given[4]])
    assert len(run(engine, [given[0], given[4]])) == 2


def test_an_engine_that_cannot_guide_is_asked_for_nothing():
    engine = Engine(Compiler())
    engine.refusal = "the engine has not loaded the logits processor"
    with pytest.raises(GracefulHTTPError, match="has not loaded"):
        run(engine, params_of("a", "b"))
    assert engine.calls == []


def test_it_looks_ahead_no_further_than_needed(monkeypatch):
    compiler = Compiler()
    engine = Engine(compiler)
    monkeypatch.setattr(admission, "_AHEAD", 3)
    ahead = Ahead(engine.gate, params_of(*(f"further{number}" for number in range(50))))
    assert len(ahead) == 50
    _ = ahead[0]
    # The gate's threads may still begin what the test before has left.
    assert {value for value in compiler.begun if "further" in value} <= {"further0", "further1", "further2"}
    assert ahead[-1] is ahead[49:][0]


def test_other_parameters_are_passed_on_as_they_are():
    compiler = Compiler()
    engine = Engine(compiler)
    given = [SamplingParams(), object(), SamplingParams(extra_args={"other": 1})]
    assert run(engine, given) == given
    assert engine.calls == []
