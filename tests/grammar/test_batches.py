"""Calls with a deadline: one that takes too long is given up, and its request fails by
itself."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from typing import Any

import numpy as np
import pytest
from grammar_tables import ScriptedBackend, ScriptedMatcher

import guided_plugin as gp
from guided_plugin.errors import BudgetError, CompileLimitError, RequestError
from guided_plugin.grammar.base import Grammar
from guided_plugin.grammar.drafts import fill_with_drafts
from guided_plugin.grammar.forced import ForcedTokens
from guided_plugin.grammar.native import DeadlineCalls, Overdue
from guided_plugin.grammar.table import GrammarTable, Phase

END = 3
VOCABULARY = gp.Vocabulary.from_tokens([b"a", b"b", b"c", b"</s>"], [END])
SPEC = gp.OutputSpec.regex("[abc]*")


def spin(seconds: float) -> None:
    """Use so much processor time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(1000))


class TestDeadlineCalls:
    def test_results_and_errors_come_back_in_order(self) -> None:
        calls: DeadlineCalls[int] = DeadlineCalls(5.0, 5.0)
        for _ in range(3):  # the second time with threads that are there
            one, error, two = calls.run([lambda: 1, lambda: 1 // 0, lambda: 2])
            assert (one, two) == (1, 2)
            assert isinstance(error, ZeroDivisionError)
        assert calls.overdue() == 0.0

    def test_a_call_is_given_up_after_its_processor_time_and_the_others_are_not(
        self,
    ) -> None:
        calls: DeadlineCalls[str | None] = DeadlineCalls(0.1, 60.0)
        released = threading.Event()

        def busy() -> None:
            while not released.is_set():
                spin(0.01)

        overdue, quick = calls.run([busy, lambda: "here"])
        assert isinstance(overdue, Overdue)
        assert quick == "here"
        assert calls.overdue() > 0.0
        assert calls.run([lambda: "again"]) == ["again"]  # another thread
        released.set()
        end = time.monotonic() + 20
        while calls.overdue():
            assert time.monotonic() < end
            time.sleep(0.01)

    def test_a_call_that_waits_is_given_up_by_the_clock(self) -> None:
        calls: DeadlineCalls[bool] = DeadlineCalls(0.05, 0.2)
        released = threading.Event()
        (outcome,) = calls.run([lambda: released.wait(60)])
        assert isinstance(outcome, Overdue)
        released.set()

    def test_a_call_that_holds_the_gil_is_late_when_it_ends(self) -> None:
        calls: DeadlineCalls[int] = DeadlineCalls(0.05, 60.0)
        outcome, quick = calls.run([lambda: sum(range(40_000_000)), lambda: 1])
        assert isinstance(outcome, Overdue)
        assert quick == 1

    def test_a_slow_processor_is_no_fault_of_the_call(self) -> None:
        calls: DeadlineCalls[str] = DeadlineCalls(0.05, 60.0)

        # longer than its deadline by the clock, with hardly any processor time
        def starved() -> str:
            time.sleep(0.3)
            return "done"

        assert calls.run([starved]) == ["done"]

    def test_threads_end_with_their_calls(self) -> None:
        before = set(threading.enumerate())
        calls: DeadlineCalls[int] = DeadlineCalls(5.0, 5.0)
        assert calls.run([lambda: 1, lambda: 2]) == [1, 2]
        for thread in set(threading.enumerate()) - before:
            thread.join(20)
            assert not thread.is_alive()

    def test_calls_that_take_long_are_made_a_few_at_a_time(self) -> None:
        calls: DeadlineCalls[int] = DeadlineCalls(60.0, 60.0)
        together = threading.Barrier(4)
        assert sorted(calls.run([lambda: together.wait(30)] * 4)) == [0, 1, 2, 3]

    def test_no_more_threads_is_an_error_of_the_calls(self, monkeypatch) -> None:
        def refuse(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        calls: DeadlineCalls[int] = DeadlineCalls(5.0, 5.0)
        monkeypatch.setattr(threading.Thread, "start", refuse)
        assert [str(one) for one in calls.run([lambda: 1])] == [
            "no thread is available"
        ]


class Slow(ScriptedBackend):
    """One call of it, for a request named in `slow`, uses the processor for long."""

    def __init__(self) -> None:
        super().__init__()
        self.slow: set[str] = set()
        self.stop = threading.Event()

    def work(self, name: str, what: str) -> None:
        end = time.thread_time() + 30.0
        while (
            f"{what} {name}" in self.slow
            and time.thread_time() < end
            and not self.stop.is_set()
        ):
            sum(range(1000))

    def accepts(self, matcher: ScriptedMatcher, token: int) -> bool:
        self.work(matcher.handle, "accept")
        return True

    def mask(self, matcher: ScriptedMatcher) -> int:
        self.work(matcher.handle, "fill")
        return 1 << len(matcher.tokens) % 3


@pytest.fixture
def slow():
    backend = Slow()
    yield backend
    backend.stop.set()


def table_of(slow: Slow, names: str, quarantined: list | None = None) -> GrammarTable:
    refuse = (
        None
        if quarantined is None
        else lambda spec, error: quarantined.append((spec, error))
    )
    table = GrammarTable(VOCABULARY, 0.1, 60.0, refuse)
    for slot, name in enumerate(names):
        table.add(slot, name, SPEC, Grammar(SPEC, slow.name, name, 0, 0.0), slow)
    return table


def masks(table: GrammarTable, slots: tuple[int, ...]) -> list[int]:
    rows = np.zeros((len(slots), VOCABULARY.words), np.int32)
    table.fill(slots, rows)
    return rows[:, 0].tolist()


@pytest.mark.parametrize("what", ["fill", "accept"])
def test_one_that_takes_too_long_fails_alone(slow, what) -> None:
    quarantined: list = []
    table = table_of(slow, "xyz", quarantined)
    slots = (0, 1, 2)
    assert masks(table, slots) == [1, 1, 1]
    table.accept(slots, [0, 0, 0])
    slow.slow.add(f"{what} y")
    if what == "fill":
        assert masks(table, slots) == [2, 1 << END, 2]
        table.accept(slots, [1, END, 1])
    else:
        assert masks(table, slots) == [2, 2, 2]
        table.accept(slots, [1, 1, 1])
    assert masks(table, slots) == [4, 1 << END, 4]
    ((slot, error),) = table.failures
    assert slot == 1
    assert isinstance(error, BudgetError)
    assert error.request_id == "y"
    assert "100 ms" in str(error)
    assert table.tokens(0) == table.tokens(2) == (0, 1)
    assert table.tokens(1) == (0,)
    assert [table.phase(slot) for slot in slots] == [
        Phase.ACTIVE,
        Phase.FAILED,
        Phase.ACTIVE,
    ]
    assert quarantined == [(SPEC, quarantined[0][1])]
    assert table.overdue() > 0.0


def test_a_draft_whose_mask_takes_too_long_fails_its_request(slow) -> None:
    """Its matcher is in use by the abandoned call: it can't go back."""
    table = table_of(slow, "xy")
    slots = (0, 1)
    mask = np.zeros((6, VOCABULARY.words), np.int32)
    original = slow.mask

    def slow_at_the_second(matcher: ScriptedMatcher) -> int:
        if matcher.handle == "y" and matcher.tokens == [0]:
            slow.slow.add("fill y")
        return original(matcher)

    slow.mask = slow_at_the_second
    fill_with_drafts(table, slots, mask, [[0, 0], [1, 1]])
    assert mask[:, 0].tolist()[:4] == [1, 1, 2, 1 << END]
    assert [(slot, type(error)) for slot, error in table.failures] == [(1, BudgetError)]
    assert [table.phase(slot) for slot in slots] == [Phase.ACTIVE, Phase.FAILED]
    assert [table.tokens(slot) for slot in slots] == [(), ()]
    assert masks(table, slots) == [1, 1 << END]


def test_a_replay_that_takes_too_long_is_an_error_for_its_request(slow) -> None:
    table = table_of(slow, "x")
    slow.slow.add("accept y")
    with pytest.raises(
        BudgetError, match="a replay of its grammar takes more than 100 ms"
    ):
        table.add(1, "y", SPEC, Grammar(SPEC, slow.name, "y", 0, 0.0), slow, [0, 1])
    assert masks(table, (0,)) == [1]
    table.add(1, "z", SPEC, Grammar(SPEC, slow.name, "z", 0, 0.0), slow, [0, 1])
    assert masks(table, (0, 1)) == [1, 4]


def test_after_a_slow_call_for_all_the_request_that_takes_too_long_fails(slow) -> None:
    quarantined = []
    threads = set()

    def work(name: str, what: str) -> None:
        threads.add(threading.current_thread())
        if (name, what) == ("y", "fill"):
            spin(0.15)

    slow.work = work
    table = GrammarTable(
        VOCABULARY, 0.1, 60.0, lambda spec, error: quarantined.append(spec)
    )
    for slot, name in enumerate("xyz"):
        table.add(
            slot, name, SPEC, Grammar(SPEC, slow.name, name, 0, 0.0, bounded=True), slow
        )
    assert masks(table, (0, 1, 2)) == [1, 1, 1]
    assert table.failures == quarantined == []
    assert masks(table, (0, 1, 2)) == [1, 1 << END, 1]
    assert [(slot, type(error)) for slot, error in table.failures] == [(1, BudgetError)]
    assert quarantined == [SPEC]
    for _ in range(3):
        masks(table, (0, 1, 2))
    assert threads > {threading.current_thread()}
    threads.clear()
    assert masks(table, (0, 1, 2)) == [1, 1 << END, 1]
    assert threads == {threading.current_thread()}


def test_who_shares_the_lock_of_an_abandoned_call_fails_with_it(slow) -> None:
    """It would wait for that in its next call, and hold the GIL."""
    table = table_of(slow, "xyz")
    given_up = []
    for slot in (0, 1):
        matcher: Any = table.requests[slot].matcher
        matcher.shared = slow
        matcher.give_up_shared = lambda: given_up.append("shared") or slow
    slow.slow.add("fill y")
    assert masks(table, (0, 1, 2)) == [1 << END, 1 << END, 1]
    assert given_up == ["shared"]


@pytest.mark.parametrize(
    ("form", "error"),
    [
        ({}, "the replay of its 20 tokens takes too long"),
        ({"kept": True}, "a replay of its grammar takes more"),
    ],
)
def test_tokens_that_a_request_brings_take_a_bounded_time(slow, form, error) -> None:
    slow.work = lambda name, what: spin(0.02)
    spec = SPEC
    tokens = [0] * 20
    if form:
        spec = gp.OutputSpec.regex("[abc]*", start_after=[{"tokens": tokens, **form}])
        tokens = []
    table = GrammarTable(VOCABULARY, 0.1, 0.2)
    with pytest.raises(RequestError, match=error):
        table.add(
            0,
            "x",
            spec,
            Grammar(spec, slow.name, "x", 0, 0.0, bounded=True),
            slow,
            tokens,
        )
    assert not table.requests


def test_bounded_backends_are_called_in_the_callers_thread(slow) -> None:
    threads = set()
    slow.work = lambda name, what: threads.add(threading.current_thread())
    table = GrammarTable(VOCABULARY)
    table.add(0, "x", SPEC, Grammar(SPEC, slow.name, "x", 0, 0.0, bounded=True), slow)
    masks(table, (0,))
    table.accept((0,), [0])
    assert threads == {threading.current_thread()}


def test_a_spec_in_quarantine_is_refused_until_its_time_is_over(
    byte_compiler, monkeypatch
) -> None:
    spec = gp.OutputSpec.regex("[a-c]{3}")
    byte_compiler.compile(spec)
    byte_compiler.quarantine(spec, BudgetError("a mask took too long", hint="shorter"))
    assert byte_compiler.cached(spec) is None
    assert byte_compiler._cache.size_bytes == 0
    with pytest.raises(
        CompileLimitError, match=r"refused for now: a mask took too long \(shorter\)"
    ):
        byte_compiler.compile(spec)
    byte_compiler.compile(gp.OutputSpec.regex("[a-c]{4}"))
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 3600)
    byte_compiler.compile(spec)


def test_triggers_that_cost_too_much_are_not_blamed_on_their_language(
    byte_compiler,
) -> None:
    asked = gp.OutputSpec.regex("[a-c]{5}", start_after=[[1], [2]])
    byte_compiler.quarantine(asked, BudgetError("a mask took too long"))
    assert isinstance(byte_compiler.refusal(asked), CompileLimitError)
    assert isinstance(
        byte_compiler.refusal(dataclasses.replace(asked, stop_token_ids=(3,))),
        CompileLimitError,
    )
    for other in (None, [[1]], "</think>"):
        spec = gp.OutputSpec.regex("[a-c]{5}", start_after=other)
        assert byte_compiler.refusal(spec) is None
        byte_compiler.compile(spec)


def test_a_lark_grammar_that_is_ambiguous_inside_of_tokens_fails_alone() -> None:
    """No limit of llguidance looks at rows there. What must follow, which goes through
    more, isn't asked."""
    vocabulary = gp.Vocabulary.from_tokens([b"a", b"b", b"c", b"ca", b"</s>"], [4])
    compiler = gp.GrammarCompiler(vocabulary, config=gp.GuidedConfig(jump_forward=True))
    source = 'start: e "a" /[c]/\ne: e e | e e e e e e | "a" /[b]/ "c"'
    table = GrammarTable(vocabulary, 0.01, 60.0)
    for slot, spec in enumerate(
        [gp.OutputSpec.regex("a(bca)*"), gp.OutputSpec.grammar(source, "lark")]
    ):
        grammar = compiler.compile(spec)
        table.add(slot, str(slot), spec, grammar, compiler.backend(grammar.backend))
    mask = np.zeros((2, vocabulary.words), np.int32)
    tokens = itertools.chain([0], itertools.cycle([1, 3]))
    while not table.failures:
        table.fill((0, 1), mask)
        assert ForcedTokens(vocabulary).after(table.requests[1], 7) == ()
        table.accept((0, 1), [next(tokens)] * 2)
    assert table.phase(0) is Phase.ACTIVE
    assert "takes more than 10 ms of processor time" in str(table.requests[1].error)


BOMBS = {
    "three ways": gp.OutputSpec.grammar("root ::= e\ne ::= e e e | [a-z] e | [a-z]"),
    "lark": gp.OutputSpec.grammar("start: e\ne: e e | e e e | X\nX: /[a-z]/", "lark"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_mask_bomb_fails_and_the_rows_beside_it_go_on(
    demo_vocabulary, name, caplog
) -> None:
    compiler = gp.GrammarCompiler(
        demo_vocabulary, config=gp.GuidedConfig(threads=2, row_ms=50)
    )
    specs = [
        gp.OutputSpec.regex("[a-z ]{400}"),
        gp.OutputSpec.grammar("root ::= [a-z ]{400}"),
    ]
    pipeline = gp.StepPipeline(compiler, max_slots=4, mode="inline")
    import torch

    slots = [
        pipeline.add_request(f"r{n}", spec)
        for n, spec in enumerate([*specs, BOMBS[name]])
    ]
    random = torch.Generator().manual_seed(1)
    for _ in range(390):
        logits = torch.rand(3, demo_vocabulary.size, generator=random)
        # an output that ends costs nothing more
        logits[:, list(demo_vocabulary.stop_token_ids)] -= 2.0
        pipeline.plan(slots)
        pipeline.fill_mask()
        pipeline.apply_mask(logits)
        pipeline.schedule_update(logits.argmax(-1))
        pipeline.finish_update()
        if pipeline.request("r2").error is not None:
            break
    assert pipeline.request("r0").error is None
    assert pipeline.request("r1").error is None
    error = str(pipeline.request("r2").error)
    assert (
        "takes more than 50 ms" in error or "exceeded a limit of its backend" in error
    ), error
