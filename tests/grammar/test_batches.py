"""Calls with a deadline: one that takes too long is given up, and its request fails by
itself."""

import dataclasses
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from compilers import compiler_of, shown
from grammar_tables import ScriptedBackend

import guided_plugin as gp
from guided_plugin.errors import BudgetError, CompileLimitError, RequestError
from guided_plugin.grammar import batches
from guided_plugin.grammar.base import Grammar
from guided_plugin.grammar.batches import StepBatch
from guided_plugin.grammar.drafts import fill_with_drafts
from guided_plugin.grammar.forced import ForcedTokens
from guided_plugin.grammar.native import DeadlineCalls, Overdue
from guided_plugin.grammar.table import GrammarTable, Phase

END = 3
VOCABULARY = gp.Vocabulary.from_tokens([b"a", b"b", b"c", b"</s>"], [END])
SPEC = gp.OutputSpec.regex("[abc]*")


def spin(seconds):
    """Use so much processor time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(1000))


@pytest.fixture
def released():
    """What an endless call waits for."""
    event = threading.Event()
    yield event
    event.set()


def divide():
    return 1 // 0


@pytest.mark.parametrize(
    ("seconds", "longest", "work", "outcome"),
    [
        (5.0, 5.0, divide, ZeroDivisionError),
        (0.1, 60.0, "spins", Overdue),
        (0.05, 0.2, "waits", Overdue),
        # It holds the GIL, so it is late when it ends.
        (0.05, 60.0, lambda: sum(range(40_000_000)), Overdue),
        # On a slow processor: longer than its deadline by the clock alone.
        (0.05, 60.0, lambda: time.sleep(0.3), type(None)),
    ],
)
def test_a_call_is_given_up_for_its_own_time_and_the_others_are_not(
    seconds, longest, work, outcome, released
):
    def spins():
        while not released.is_set():
            spin(0.01)

    endless = {"spins": spins, "waits": released.wait}
    calls = DeadlineCalls(seconds, longest)
    found, quick = calls.run([endless.get(work, work), lambda: "here"])
    assert isinstance(found, outcome)
    assert quick == "here"
    assert (calls.overdue() > 0.0) == (work in endless)
    assert calls.run([lambda: "again"]) == ["again"]  # another thread
    released.set()
    end = time.monotonic() + 20
    while calls.overdue():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_long_calls_are_made_a_few_at_a_time_in_threads_that_end():
    before = set(threading.enumerate())
    calls = DeadlineCalls(60.0, 60.0)
    together = threading.Barrier(4)
    assert sorted(calls.run([lambda: together.wait(30)] * 4)) == [0, 1, 2, 3]
    for thread in set(threading.enumerate()) - before:
        thread.join(20)
        assert not thread.is_alive()


def test_no_more_threads_is_an_error_of_the_calls(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    calls = DeadlineCalls(5.0, 5.0)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    (error,) = calls.run([lambda: 1])
    assert str(error) == "no thread is available"


class Slow(ScriptedBackend):
    """The calls of it that `slow` names use the processor for long."""

    def __init__(self):
        self.slow = set()
        self.released = threading.Event()

    def work(self, name, what):
        end = time.thread_time() + 30.0
        while f"{what} {name}" in self.slow and time.thread_time() < end:
            if self.released.is_set():
                break
            sum(range(1000))

    def accepts(self, matcher, token):
        self.work(matcher.handle, "accept")
        return True

    def mask(self, matcher):
        self.work(matcher.handle, f"fill {len(matcher.tokens)}")
        return 1 << len(matcher.tokens) % 3


@pytest.fixture
def slow(released):
    backend = Slow()
    backend.released = released
    return backend


def grammar_of(name, *, bounded=False):
    return Grammar(SPEC, "scripted", name, 0, 0.0, bounded=bounded)


def table_of(slow, names, *, bounded=False, longest=0.2):
    """A table, and the specs that it refuses from now on."""
    refused = []
    table = GrammarTable(
        VOCABULARY, 0.1, longest, lambda spec, error: refused.append(spec)
    )
    for slot, name in enumerate(names):
        table.add(slot, name, SPEC, grammar_of(name, bounded=bounded), slow)
    return table, refused


def masks(table):
    rows = np.zeros((len(table.requests), VOCABULARY.words), np.int32)
    table.fill(tuple(table.requests), rows)
    return rows[:, 0].tolist()


def failed(table):
    return [(slot, type(error)) for slot, error in table.failures]


@pytest.mark.parametrize("what", ["fill 1", "accept"])
def test_one_that_takes_too_long_fails_alone(slow, what):
    table, refused = table_of(slow, "xyz", longest=60.0)
    assert masks(table) == [1, 1, 1]
    table.accept((0, 1, 2), [0, 0, 0])
    slow.slow.add(f"{what} y")
    assert masks(table) == [2, 2 if what == "accept" else 1 << END, 2]
    table.accept((0, 1, 2), [1, 1, 1])
    assert masks(table) == [4, 1 << END, 4]
    assert failed(table) == [(1, BudgetError)]
    ((_, error),) = table.failures
    assert error.request_id == "y"
    assert "100 ms" in str(error)
    assert [table.tokens(slot) for slot in (0, 1, 2)] == [(0, 1), (0,), (0, 1)]
    assert refused == [SPEC]
    assert table.overdue() > 0.0


def test_one_that_gets_no_processor_fails_and_its_spec_is_not_refused(slow):
    table, refused = table_of(slow, "xyz")
    slow.work = lambda name, what: time.sleep(0.4 * (name == "y"))
    assert masks(table) == [1, 1 << END, 1]
    ((slot, error),) = table.failures
    assert (slot, type(error)) == (1, BudgetError)
    assert "was not done in 0.2 s" in str(error)
    assert refused == []


def test_a_draft_whose_mask_takes_too_long_fails_its_request(slow):
    """Its matcher is in use by the abandoned call: it can't go back."""
    table, _ = table_of(slow, "xy")
    slow.slow.add("fill 1 y")
    rows = np.zeros((6, VOCABULARY.words), np.int32)
    fill_with_drafts(table, (0, 1), rows, [[0, 0], [1, 1]])
    assert rows[:4, 0].tolist() == [1, 1, 2, 1 << END]
    assert failed(table) == [(1, BudgetError)]
    assert [table.tokens(slot) for slot in (0, 1)] == [(), ()]
    assert masks(table) == [1, 1 << END]


@pytest.mark.parametrize(
    ("bounded", "trigger", "error"),
    [
        (False, None, "a replay of its grammar takes more than 100 ms"),
        (True, None, "the replay of its 20 tokens takes too long"),
        (True, [{"tokens": [0] * 20, "kept": True}], "a replay of its grammar takes"),
    ],
)
def test_tokens_that_a_request_brings_take_a_bounded_time(
    slow, bounded, trigger, error
):
    table, _ = table_of(slow, "x", longest=0.2 if bounded else 60.0)
    slow.work = lambda name, what: spin(0.02 if name == "y" else 0.0)
    spec = gp.OutputSpec.regex("[abc]*", start_after=trigger)
    tokens = [] if trigger else [0] * 20
    with pytest.raises(RequestError, match=error):
        table.add(1, "y", spec, grammar_of("y", bounded=bounded), slow, tokens)
    table.add(1, "z", SPEC, grammar_of("z"), slow, [0, 1])
    assert masks(table) == [1, 4]


def test_after_a_slow_call_for_all_the_request_that_takes_too_long_fails(slow):
    """Until then, and a while later, they are called together in this thread."""
    threads = set()

    def work(name, what):
        threads.add(threading.current_thread())
        if name == "y":
            spin(0.15)

    slow.work = work
    table, refused = table_of(slow, "xyz", bounded=True, longest=60.0)
    assert masks(table) == [1, 1, 1]
    assert threads == {threading.current_thread()}
    assert failed(table) == refused == []
    for _ in range(4):
        assert masks(table) == [1, 1 << END, 1]
    assert failed(table) == [(1, BudgetError)]
    assert refused == [SPEC]
    assert threads > {threading.current_thread()}
    threads.clear()
    assert masks(table) == [1, 1 << END, 1]
    assert threads == {threading.current_thread()}


def test_whose_masks_take_long_is_found_out_and_forgotten(slow):
    """One that is cheap in between changes nothing."""
    table, _ = table_of(slow, "xyz", bounded=True, longest=60.0)

    def filled(seconds, times):
        slow.work = lambda name, what: spin(seconds if name == "y" else 0.0)
        assert [masks(table) for _ in range(times)] == [[1, 1, 1]] * times
        return [slot for slot, cost in sorted(table.slow.items()) if cost]

    assert filled(0.0, 20) == []
    assert filled(0.02, 40) == [1]
    assert 0.01 < table.slow[1] < 0.1
    assert filled(0.0, 1) == [1]
    assert filled(0.02, 1) == [1]
    assert filled(0.0, 20) == []
    assert not any(request.watched for request in table.requests.values())


@pytest.mark.parametrize("bounded", [True, False])
def test_many_cheap_rows_and_single_long_masks_are_not_slow(slow, bounded):
    """All of them together take longer than a step has for masks."""
    names = [str(number) for number in range(40)]
    table, _ = table_of(slow, names, bounded=bounded, longest=60.0)
    turn = []
    slow.work = lambda name, what: spin(0.001 if name in turn else 0.0003)
    for turn[:] in zip(names, strict=True):
        masks(table)
        assert sum(request.watched > 0 for request in table.requests.values()) <= 4
    assert not any(table.slow.values())


def test_rows_are_measured_in_turns_while_masks_fit_into_a_step(slow, monkeypatch):
    table, _ = table_of(slow, "abcde", bounded=True, longest=60.0)
    slow.work = lambda name, what: spin(0.003)
    monkeypatch.setattr(batches, "_ROW_SECONDS", 1.0)  # none is found to be slow
    alone = []
    fill = StepBatch._fill_alone
    monkeypatch.setattr(
        StepBatch,
        "_fill_alone",
        lambda self, index, *rows: alone.append(index) or fill(self, index, *rows),
    )
    table.accept((1, 4), [0, 0])
    table.accept((4,), [1])
    while len(alone) < 10:
        before = len(alone)
        assert masks(table) == [1, 2, 1, 1, 4]
        assert len(alone) <= before + 2
    assert sorted(alone[:10]) == sorted([*range(5)] * 2)


def test_what_an_end_takes_counts(slow):
    table, _ = table_of(slow, "xyz", bounded=True, longest=60.0)
    closing = SimpleNamespace(restrict=lambda *_: spin(0.02), due=-1, led=0)
    table.requests[1].closing = closing
    table.regroup()
    for _ in range(40):
        masks(table)
    assert [slot for slot, cost in sorted(table.slow.items()) if cost] == [1]


@pytest.mark.parametrize("bounded", [True, False])
def test_a_search_for_an_end_that_takes_too_long_is_the_last(slow, bounded):
    """Of a grammar whose masks are not bounded: it runs on, and that is told."""
    table, _ = table_of(slow, "xyz", bounded=bounded, longest=60.0)
    closing = SimpleNamespace(restrict=lambda *_: spin(0.15), due=-1, led=0)
    table.requests[1].closing = closing
    assert masks(table) == [1, 1, 1]
    assert (table.requests[1].closing is closing) == bounded
    assert ("too long" in table.unprotected.get(1, "")) != bounded
    assert not table.failures


def test_who_shares_the_lock_of_an_abandoned_call_fails_with_it(slow):
    """It would wait for that in its next call, and hold the GIL."""
    table, _ = table_of(slow, "xyz")
    for slot in (0, 1):
        matcher = table.requests[slot].matcher
        matcher.shared = slow
        matcher.give_up_shared = lambda: slow
    slow.slow.add("fill 0 y")
    assert masks(table) == [1 << END, 1 << END, 1]


def test_a_spec_in_quarantine_is_refused_until_its_time_is_over(
    byte_compiler, monkeypatch
):
    """Triggers that cost too much are not blamed on their language."""
    spec = gp.OutputSpec.regex("[a-c]{3}")
    asked = gp.OutputSpec.regex("[a-c]{5}", start_after=[[1], [2]])
    byte_compiler.compile(spec)
    for slow in (spec, asked):
        error = BudgetError("a mask took too long", hint="shorter")
        byte_compiler.quarantine(slow, error)
    assert byte_compiler.cached(spec) is None
    says = r"refused for now: a mask took too long \(shorter\)"
    with pytest.raises(CompileLimitError, match=says):
        byte_compiler.compile(spec)
    same = dataclasses.replace(asked, stop_token_ids=(3,))
    assert isinstance(byte_compiler.refusal(same), CompileLimitError)
    for trigger in (None, [[1]], "</think>"):
        other = gp.OutputSpec.regex("[a-c]{5}", start_after=trigger)
        assert byte_compiler.refusal(other) is None
        byte_compiler.compile(other)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 3600)
    byte_compiler.compile(spec)


def test_a_lark_grammar_that_is_ambiguous_inside_of_tokens_fails_alone():
    """No limit of llguidance looks at rows there. What must follow, which goes through
    more, isn't asked."""
    vocabulary = gp.Vocabulary.from_tokens([b"a", b"b", b"c", b"ca", b"</s>"], [4])
    compiler = compiler_of(vocabulary, jump_forward=True)
    source = 'start: e "a" /[c]/\ne: e e | e e e e e e | "a" /[b]/ "c"'
    specs = [gp.OutputSpec.regex("a(bca)*"), gp.OutputSpec.grammar(source, "lark")]
    table = GrammarTable(vocabulary, 0.01, 60.0)
    for slot, spec in enumerate(specs):
        grammar = compiler.compile(spec)
        table.add(slot, str(slot), spec, grammar, compiler.backend(grammar.backend))
    token = 0
    while not table.failures:
        shown(table, 0, 1)
        assert ForcedTokens(vocabulary).after(table.requests[1].matcher, 7) == ()
        table.accept((0, 1), [token, token])
        token = 3 if token == 1 else 1
    assert table.phase(0) is Phase.ACTIVE
    assert "takes more than 10 ms of processor time" in str(table.requests[1].error)


BOMBS = {
    "three ways": gp.OutputSpec.grammar("root ::= e\ne ::= e e e | [a-z] e | [a-z]"),
    "lark": gp.OutputSpec.grammar("start: e\ne: e e | e e e | X\nX: /[a-z]/", "lark"),
}
LONG = [
    gp.OutputSpec.regex("[a-z ]{400}"),
    gp.OutputSpec.grammar("root ::= [a-z ]{400}"),
]


@pytest.mark.parametrize("name", BOMBS)
def test_a_mask_bomb_fails_and_the_rows_beside_it_go_on(demo_vocabulary, name):
    compiler = compiler_of(demo_vocabulary, threads=2)
    table = GrammarTable(demo_vocabulary, 0.05, 1.0)
    for slot, spec in enumerate([*LONG, BOMBS[name]]):
        grammar = compiler.compile(spec)
        table.add(slot, str(slot), spec, grammar, compiler.backend(grammar.backend))
    chance = np.random.default_rng(1)
    stops = set(demo_vocabulary.stop_token_ids)
    for _ in range(390):
        # An output that ends costs nothing more.
        rows = shown(table, 0, 1, 2)
        allowed = [sorted(set(row) - stops) or [*stops] for row in rows]
        table.accept((0, 1, 2), [int(chance.choice(row)) for row in allowed])
        if table.failures:
            break
    ((slot, error),) = table.failures
    assert slot == 2
    assert any(
        part in str(error)
        for part in ("takes more than 50 ms", "exceeded a limit of its backend")
    )
