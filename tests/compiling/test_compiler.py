"""One compile per language, for any number of callers; a cache bounded in bytes."""

import gc
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from worker_runs import until

from guided_plugin.compiling import compiler as compiler_module
from guided_plugin.compiling.compiler import GrammarCompiler, shared_compiler
from guided_plugin.config import GuidedConfig
from guided_plugin.errors import (
    BusyError,
    CompileLimitError,
    GrammarError,
    GuidedError,
    PipelineError,
    PluginError,
    UnsupportedSpecError,
)
from guided_plugin.grammar.base import Grammar
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.hookspecs import hookimpl
from guided_plugin.plugins import Plugins
from guided_plugin.spec import OutputSpec

A, B, C, D, E = (OutputSpec.choice([letter]) for letter in "ABCDE")


class FakeBackend:
    """Compiles to a note of what it was asked; runs nothing."""

    def __init__(self, name, compiling):
        self.name = name
        self.asked = []
        self._compiling = compiling

    def compile(self, spec):
        self.asked.append(spec)
        return Grammar(spec, self.name, object(), self._compiling(spec), 0.0)

    def start(self, grammar, stop_token_ids):
        raise NotImplementedError

    def batch(self, matchers):
        raise NotImplementedError


class FakePlugin:
    """Registers one backend that always is the same object, whatever asks for it."""

    def __init__(
        self,
        name,
        compiling=lambda spec: 10,
        *languages,
    ):
        self.backend = FakeBackend(name, compiling)
        self.languages = frozenset(languages or ("choice", "regex", "json_schema"))
        self.made = []

    @hookimpl
    def register_backends(self, register):
        def make(vocabulary, config):
            self.made.append((vocabulary, config))
            return self.backend

        make.languages = self.languages
        register(self.backend.name, make)


def compiler_with(vocabulary, *fakes, config=None):
    plugins = Plugins(disabled=["xgrammar", "llguidance"], entry_points=False)
    for fake in fakes:
        plugins.register(fake, f"plugin-{fake.backend.name}")
    return GrammarCompiler(vocabulary, config=config, plugins=plugins)


def refuse(spec):
    raise UnsupportedSpecError("not mine", where=spec.kind)


@pytest.mark.parametrize(
    ("limit", "wanted", "compiled", "kept"),
    [
        (30, "ABCAD", "ABCD", "ACD"),  # the second A makes B the oldest
        (30, "ABCADACB", "ABCDB", "ABC"),
        (30, "ABCE", "ABCE", "E"),  # a large one makes room for itself
        (9, "AA", "AA", ""),  # what never fits is given out but not kept
        (0, "AA", "AA", ""),
    ],
)
def test_bounded_in_bytes_and_the_longest_unused_goes_first(
    byte_vocabulary, limit, wanted, compiled, kept
):
    fake = FakePlugin("fake", lambda spec: 25 if spec == E else 10)
    compiler = compiler_with(
        byte_vocabulary, fake, config=GuidedConfig(cache_bytes=limit)
    )
    specs = dict(zip("ABCDE", (A, B, C, D, E), strict=True))
    for letter in wanted:
        compiler.compile(specs[letter])
    assert fake.backend.asked == [specs[letter] for letter in compiled]
    assert [letter for letter, spec in specs.items() if compiler.cached(spec)] == list(
        kept
    )
    assert compiler._cache.size_bytes <= limit


class Gate:
    """A compile that starts when asked and ends when the test says so."""

    def __init__(self, outcome=lambda spec: 10):
        self.opened = threading.Event()
        self.entered = threading.Event()
        self._outcome = outcome

    def __call__(self, spec):
        self.entered.set()
        assert self.opened.wait(30), "the gate stayed closed"
        return self._outcome(spec)


THREADS = 16


def run(monkeypatch, compiler, gate, spec):
    """What `compile` gives each of many threads, all of which ask before the first
    has an answer."""
    waiting = []
    awaited = compiler_module._awaited
    monkeypatch.setattr(
        compiler_module, "_awaited", lambda *it: waiting.append(it) or awaited(*it)
    )
    with ThreadPoolExecutor(THREADS) as pool:
        futures = [pool.submit(compiler.compile, spec) for _ in range(THREADS)]
        try:
            assert gate.entered.wait(30)
            futures.append(compiler.begun(spec))
            until(lambda: waiting[THREADS - 2 :])
        finally:
            gate.opened.set()
        return [future.exception(30) or future.result() for future in futures]


def test_identical_specs_that_arrive_together_compile_once(
    byte_vocabulary, monkeypatch
):
    gate = Gate()
    fake = FakePlugin("fake", gate)
    grammars = run(monkeypatch, compiler_with(byte_vocabulary, fake), gate, A)
    assert len({id(grammar) for grammar in grammars}) == 1
    assert isinstance(grammars[0], Grammar)
    assert fake.backend.asked == [A]


@pytest.mark.parametrize(
    "error", [UnsupportedSpecError("not mine", where="choice"), MemoryError("full")]
)
def test_an_error_reaches_everyone_who_waited_and_a_refusal_is_remembered(
    byte_vocabulary, monkeypatch, error
):
    def fail(spec):
        raise error

    gate = Gate(fail)
    fake = FakePlugin("fake", gate)
    compiler = compiler_with(byte_vocabulary, fake)
    errors = run(monkeypatch, compiler, gate, A)
    assert {(type(one), str(one)) for one in errors} == {(type(error), str(error))}
    with pytest.raises(type(error)):
        compiler.compile(A)
    assert len(fake.backend.asked) == (1 if isinstance(error, GrammarError) else 2)
    assert len(compiler._cache) == 0


def test_what_says_nothing_of_the_spec_is_not_remembered(byte_vocabulary, monkeypatch):
    errors = [
        PipelineError("no helper"),
        BusyError("full"),
        MemoryError("no more"),
        OSError("torn"),
    ]
    todo = list(errors)

    def fail(spec):
        if todo:
            raise todo.pop()
        return 10

    fake = FakePlugin("fake", fail)
    compiler = compiler_with(byte_vocabulary, fake)
    for error in reversed(errors[:3]):
        if error is errors[2]:
            # A plugin's defect is remembered for a while, since each try may cost
            # seconds.
            for _ in range(2):
                with pytest.raises(PluginError, match="torn"):
                    compiler.compile(A)
            assert len(fake.backend.asked) == 1
            later = time.monotonic() + 61
            monkeypatch.setattr(compiler_module.time, "monotonic", later.__float__)
        with pytest.raises(type(error)):
            compiler.compile(A)
    assert compiler.compile(A).spec == A
    assert len(fake.backend.asked) == 5


def test_a_slow_spec_does_not_hold_up_another(byte_vocabulary):
    gate = Gate()
    fake = FakePlugin("fake", lambda spec: gate(spec) if spec == A else 10)
    compiler = compiler_with(byte_vocabulary, fake)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(compiler.compile, A)
        try:
            assert gate.entered.wait(30)
            assert compiler.compile(B).spec == B
            assert compiler.compile(B).spec == B
            assert not slow.done()
        finally:
            gate.opened.set()
        assert slow.result(30).spec == A


@pytest.mark.parametrize(
    ("config", "spec", "taken"),
    [
        ("first", "second", "second"),
        ("first", "auto", "first"),
        ("second", "auto", "second"),
    ],
)
def test_the_spec_decides_over_the_config_and_that_over_auto(
    byte_vocabulary, config, spec, taken
):
    plugins = (FakePlugin("first"), FakePlugin("second"))
    compiler = compiler_with(
        byte_vocabulary, *plugins, config=GuidedConfig(backend=config)
    )
    assert compiler.compile(OutputSpec.regex("a", backend=spec)).backend == taken
    assert [plugin.backend.name for plugin in plugins if plugin.made] == [taken]


def test_auto_falls_through_to_one_that_can(byte_vocabulary):
    can = FakePlugin("can")
    cannot = FakePlugin("cannot", refuse)
    for order in ((can, cannot), (cannot, can)):
        assert compiler_with(byte_vocabulary, *order).compile(A).backend == "can"
    assert cannot.backend.asked == [A]


def test_auto_gives_a_spec_to_no_backend_that_does_not_say_it_enforces_its_language(
    byte_vocabulary,
):
    cannot = FakePlugin("cannot", refuse)
    other = FakePlugin("other", lambda spec: 10, "ebnf")
    compiler = compiler_with(byte_vocabulary, other, cannot)
    with pytest.raises(UnsupportedSpecError, match="not mine"):
        compiler.compile(A)
    with pytest.raises(
        GrammarError, match=r"enforces lark \(name one of other, cannot\)"
    ):
        compiler.compile(OutputSpec.grammar("start: x", "lark"))
    assert other.made == []
    assert compiler.compile(OutputSpec.grammar("root ::= x")).backend == "other"


def test_a_named_backend_is_never_replaced(byte_vocabulary):
    can = FakePlugin("can")
    cannot = FakePlugin("cannot", refuse)
    compiler = compiler_with(byte_vocabulary, can, cannot)
    with pytest.raises(UnsupportedSpecError, match="not mine"):
        compiler.compile(OutputSpec.regex("a", backend="cannot"))
    assert can.backend.asked == []


@pytest.mark.parametrize(
    "kind", [CompileLimitError, UnsupportedSpecError, GrammarError]
)
def test_the_first_that_refuses_gives_the_error_its_kind_and_place(
    byte_vocabulary, kind
):
    def limit(spec):
        raise kind("took too long", where="here", hint="smaller")

    compiler = compiler_with(
        byte_vocabulary, FakePlugin("one", limit), FakePlugin("two", refuse)
    )
    with pytest.raises(GrammarError) as caught:
        compiler.compile(A)
    assert type(caught.value) is kind
    assert str(caught.value) == "here: took too long (smaller)"


@pytest.mark.parametrize(
    ("fakes", "backend", "says"),
    [
        (["fake"], "fakke", r"no backend named 'fakke' \(did you mean 'fake'\?"),
        (["fake"], "xgrammar", "disabled plugins: llguidance, xgrammar"),
        ([], "auto", r"no enabled backend enforces choice \(enable"),
    ],
)
def test_no_such_backend(byte_vocabulary, fakes, backend, says):
    compiler = compiler_with(byte_vocabulary, *map(FakePlugin, fakes))
    with pytest.raises(GuidedError, match=says):
        compiler.compile(OutputSpec.choice(["a"], backend=backend))


def test_one_for_equal_vocabularies_and_configs():
    def vocabulary(*tokens):
        return Vocabulary.from_tokens([b"</s>", *tokens], [0])

    first = shared_compiler(vocabulary(b"a", b"b"))
    assert shared_compiler(vocabulary(b"a", b"b"), GuidedConfig()) is first
    assert shared_compiler(vocabulary(b"a", b"c")) is not first
    other = shared_compiler(vocabulary(b"a", b"b"), GuidedConfig(threads=1))
    assert other is not first
    assert other.config.threads == 1


def test_released_with_its_last_user():
    import weakref

    compiler = shared_compiler(Vocabulary.from_tokens([b"only here", b"</s>"], [1]))
    gone = weakref.ref(compiler)
    del compiler
    gc.collect()
    assert gone() is None


WITHOUT_XGRAMMAR = """
import sys
import guided_plugin as gp

tokens = [*(bytes([byte]) for byte in range(256)), b"</s>"]
compiler = gp.GrammarCompiler(gp.Vocabulary.from_tokens(tokens, [256]), config=gp.GuidedConfig(threads=1))
compiler.warm_up()
for spec in (
    gp.OutputSpec.json_schema({"type": "string", "maxLength": 3}),
    gp.OutputSpec.regex("[a-z]+"),
    gp.OutputSpec.choice(["a"]),
    gp.OutputSpec.grammar('start: "a"', "lark"),
    gp.OutputSpec.structural_tag({"format": {"type": "const_string", "value": "a"}}),
):
    assert compiler.compile(spec).backend == "llguidance"
print({"torch", "xgrammar"} & sys.modules.keys())
compiler.compile(gp.OutputSpec.grammar('root ::= "a"'))
print("xgrammar" in sys.modules)
"""


def test_xgrammar_and_torch_are_imported_by_the_first_spec_that_needs_them():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_XGRAMMAR],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split("\n")[:2] == ["set()", "True"]
