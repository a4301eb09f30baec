"""Lexers that requests of a grammar share: how many there are, and how requests go on
when one is full."""

import string
import threading
import time

import numpy as np
import pytest
from compilers import compiler_of, shown, tokens_of
from lexer_bases import Base, add

from benchmarks.samples import refused_at
from guided_plugin import GuidedConfig, OutputSpec, Vocabulary
from guided_plugin.grammar import renewal
from guided_plugin.grammar.drafts import fill_with_drafts
from guided_plugin.grammar.llguidance import backend as module
from guided_plugin.grammar.llguidance.backend import LLGuidanceBackend
from guided_plugin.grammar.llguidance.lexers import LexerPool, Lexers
from guided_plugin.grammar.llguidance.matcher import LLGuidanceMatcher
from guided_plugin.grammar.table import GrammarTable, Phase

END = 256
SEVENS = 257
TOKENS = [*(bytes([byte]) for byte in range(256)), b"</s>", b"777"]
VOCABULARY = Vocabulary.from_tokens(TOKENS, [END])
LETTERS = string.ascii_lowercase
SPEC = OutputSpec.regex("|".join(f"{letter}[0-9{letter}]{{60}}" for letter in LETTERS))
"""Each letter has 61 states of its own, with which no other output begins."""
SLOTS = tuple(range(len(LETTERS)))
ENOUGH = 150
TOO_FEW = 100


def output(letter):
    """Some of it in tokens of several bytes: a lexer that gets full inside of one says
    something else."""
    return [ord(letter), *[SEVENS, *b"77", SEVENS, *b"7777"] * 5, END]


OUTPUTS = [output(letter) for letter in LETTERS]


@pytest.fixture
def made(monkeypatch):
    monkeypatch.setattr(renewal, "_MOST", 60.0)

    def make(states, threads=1):
        monkeypatch.setitem(module._LIMITS, "max_lexer_states", states)
        backend = LLGuidanceBackend(VOCABULARY, GuidedConfig(threads=threads))
        return backend, backend.compile(SPEC)

    return make


def table_of(backend, grammar, count=26, taken=0):
    """A table with the first requests, which have some of their tokens."""
    table = GrammarTable(VOCABULARY)
    for slot in range(count):
        add(table, (slot,), grammar, backend, OUTPUTS[slot][:taken])
    return table


def step(table, tokens):
    """One step of the first requests, and what the masks show. Those that have failed
    get a stop token."""
    slots = tuple(range(len(tokens)))
    rows = shown(table, *slots)
    due = []
    for slot, token in enumerate(tokens):
        active = table.phase(slot) is Phase.ACTIVE
        due.append(token if active else END)
    table.accept(slots, due)
    return rows


def all_show(rows, tokens):
    return all(token in row for row, token in zip(rows, tokens, strict=True))


def phases(table, slots):
    return {table.phase(slot) for slot in slots}


def test_one_after_the_other_they_all_end(made):
    """And their masks are those of lexers that have room enough."""
    full_backend, full = made(ENOUGH)
    free_backend, free = made(10_000)
    table = GrammarTable(VOCABULARY)
    for tokens in OUTPUTS:
        add(table, (0,), full, full_backend)
        add(table, (1,), free, free_backend)
        for token in tokens:
            ours, others = step(table, [token, token])
            assert ours == others
        assert table.failures == []
        assert phases(table, (0, 1)) == {Phase.DONE}
        table.remove(0)
        table.remove(1)


@pytest.mark.parametrize(
    ("states", "threads", "taken"),
    [(ENOUGH, 1, 0), (ENOUGH, 2, 0), (800, 1, 0), (800, 2, 0), (ENOUGH, 1, 20)],
)
def test_side_by_side_they_all_end(made, states, threads, taken):
    """Those that have tokens get more without masks, as where a worker ended."""
    table = table_of(*made(states, threads), taken=taken)
    for tokens in list(zip(*OUTPUTS, strict=True))[taken:]:
        if taken:
            table.accept(SLOTS, list(tokens))
        else:
            assert all_show(step(table, tokens), tokens)
    assert table.failures == []
    assert phases(table, SLOTS) == {Phase.DONE}


def test_one_that_is_too_much_for_any_lexer_fails_alone(made):
    backend, grammar = made(TOO_FEW)
    table = table_of(backend, grammar, count=1)
    add(table, (1,), backend.compile(OutputSpec.regex("[0-9]{70}")), backend)
    for token in OUTPUTS[0][:41]:
        step(table, [token, ord("5")])
    ((slot, error),) = table.failures
    assert slot == 0
    assert "is exhausted" in str(error)
    assert table.phase(1) is Phase.ACTIVE


@pytest.mark.parametrize("states", [ENOUGH, 800])
def test_drafts_are_looked_at_with_a_new_lexer(made, states):
    table = table_of(*made(states))
    steps = list(zip(*OUTPUTS, strict=True))
    for at in range(0, len(steps) - 4, 7):
        rows = np.zeros((4 * len(SLOTS), VOCABULARY.words), np.int32)
        drafts = [list(step) for step in steps[at : at + 3]]
        fill_with_drafts(table, SLOTS, rows, drafts)
        due = [token for step in steps[at : at + 4] for token in step]
        assert all_show(tokens_of(rows), due)
        for tokens in drafts:
            table.accept(SLOTS, tokens)
    assert table.failures == []


def test_replays_take_a_bounded_time(made, monkeypatch):
    """Beyond it requests fail, and what is new finds a lexer."""
    backend, grammar = made(ENOUGH)
    monkeypatch.setattr(renewal, "_MOST", 0.0)
    table = table_of(backend, grammar)
    for tokens in zip(*OUTPUTS, strict=True):
        step(table, tokens)
    assert phases(table, SLOTS) == {Phase.FAILED}
    assert all("is exhausted after" in str(error) for _, error in table.failures)
    table.remove(0)
    add(table, (0,), grammar, backend)
    for token in OUTPUTS[0]:
        step(table, [token])
    assert table.phase(0) is Phase.DONE


def test_right_outputs_are_not_called_wrong(monkeypatch):
    monkeypatch.setitem(module._LIMITS, "max_lexer_states", ENOUGH)
    spec = OutputSpec.regex(SPEC.text, backend="llguidance")
    compiler = compiler_of(VOCABULARY)
    assert {refused_at(compiler, spec, tokens) for tokens in OUTPUTS} == {None}
    assert refused_at(compiler, spec, [*OUTPUTS[0][:5], ord("b")]) == 5


def test_a_backend_that_fails_at_it_fails_one_request(made, caplog):
    class Broken:
        def accept(self, token):
            return False

        def rebuild_shared(self):
            raise RuntimeError("no idea")

    table = table_of(*made(ENOUGH), count=2)
    table.requests[0].matcher = Broken()
    table._accept_one(0, table.requests[0], ord("a"))
    table.accept((1,), list(b"b"))
    assert (table.phase(0), table.phase(1)) == (Phase.FAILED, Phase.ACTIVE)
    assert "cannot replace its matcher: no idea" in caplog.text


def test_a_full_lexer_is_rebuilt_once_for_all_its_users():
    """It stays where nothing new can be made, which is tried again."""
    answers = [MemoryError(), Base(error=True), Base()]
    old = Base()
    lexers = Lexers(old, lambda: said(answers), LexerPool(1))
    shares = [lexers.take()[1] for _ in range(2)]
    assert not shares[0].rebuild_shared()  # nothing is wrong with it
    old.error = True
    with pytest.raises(MemoryError):
        shares[0].rebuild_shared()
    assert shares[0].rebuild_shared()
    assert lexers.take()[0] is old
    assert shares[0].rebuild_shared()
    new = lexers.take()[0]
    assert new is not old
    assert shares[1].rebuild_shared()  # known already
    assert lexers.take()[0] is new


def said(answers):
    answer = answers.pop(0)
    if isinstance(answer, Exception):
        raise answer
    return answer


def settled(lexers):
    """How many there are, once no more are being made."""
    deadline = time.monotonic() + 10
    while lexers._growing and time.monotonic() < deadline:
        time.sleep(0.001)
    return len(lexers)


def taken(lexers, users):
    """Shares of so many users, who come one after the other."""
    shares = []
    for _ in range(users):
        shares.append(lexers.take()[1])
        settled(lexers)
    return shares


@pytest.mark.parametrize(
    ("threads", "users", "wanted"),
    [(2, 1, 1), (2, 2, 1), (2, 3, 2), (2, 8, 4), (2, 15, 8), (2, 60, 8), (1, 20, 1)],
)
def test_a_grammar_has_lexers_for_those_that_use_it_at_the_same_time(
    threads, users, wanted
):
    lexers = Lexers(Base(), Base, LexerPool(threads))
    shares = taken(lexers, users)
    assert len(lexers) == wanted
    first = shares[0].lexer
    del shares[:]
    assert lexers.users == 0
    # One after the other they get the first one: it has learned most.
    assert {lexers.take()[1].lexer for _ in range(5)} == {first}


def test_a_grammar_may_grow_again_after_a_lexer_could_not_be_made(monkeypatch):
    """The first is refused a thread, the second finds no memory, the third fails."""
    failed = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    answers = [RuntimeError("no memory"), Base(error=True), Base(), Base()]
    lexers = Lexers(Base(), lambda: said(answers), LexerPool(2))

    def refuse(thread):
        raise RuntimeError

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        shares = taken(lexers, 5)
    for wanted in (1, 1, 3):
        lexers._paused_until = 0.0
        shares.append(lexers.take()[1])
        assert settled(lexers) == wanted
        shares.pop()
    assert [str(args.exc_value) for args in failed] == ["no memory"]


def test_all_grammars_together_have_a_bounded_number_of_lexers():
    pool = LexerPool(2)
    grammars = [Lexers(Base(), Base, pool) for _ in range(4)]
    first = taken(grammars[0], 16)
    second = taken(grammars[1], 16)
    third = taken(grammars[2], 16)
    assert list(map(len, grammars)) == [8, 8, 1 + pool.most - 14, 1]
    # One that lexers are taken from keeps those that are used, and its first.
    del first[4:]
    used = {share.lexer for share in first}
    grammars[2]._paused_until = 0.0
    third += taken(grammars[2], 1)
    assert list(map(len, grammars)) == [len(used), 8, 8, 1]
    assert used <= set(grammars[0]._lexers)
    del second[:]
    fourth = taken(grammars[3], 16)
    assert len(grammars[3]) == len({share.lexer for share in fourth}) == 8
    assert sum(map(len, grammars)) <= pool.most + len(grammars)


def test_requests_that_came_while_there_was_no_room_get_lexers_later():
    backend = LLGuidanceBackend(VOCABULARY, GuidedConfig(threads=2))
    string = OutputSpec.json_schema({"type": "string", "maxLength": 50})
    grammar = backend.compile(string)
    lexers = grammar.handle.lexers
    # As while requests of another grammar, which are about to leave, have all lexers.
    lexers._paused_until = float("inf")
    table = GrammarTable(VOCABULARY)
    slots = tuple(range(48))
    add(table, slots, grammar, backend)
    assert settled(lexers) == 1
    lexers._paused_until = 0.0
    tokens = list(b'"')
    table.accept(slots, tokens * 48)
    deadline = time.monotonic() + 20
    users = [48]
    while len(users) < 8 or max(users) > 2 * min(users) + 2:
        assert time.monotonic() < deadline, users
        shown(table, *slots)
        if len(tokens) < 40:
            tokens.append(ord("x"))
            table.accept(slots, [ord("x")] * 48)
        time.sleep(0.001)
        users = [lexer.users for lexer in lexers._lexers]
    assert table.failures == []
    assert {table.tokens(slot) for slot in slots} == {tuple(tokens)}
    add(table, (48,), grammar, backend, tokens)
    rows = shown(table, *slots, 48)
    assert rows == rows[-1:] * 49


@pytest.mark.parametrize(("tokens", "moves"), [(1000, True), (1001, False)])
def test_long_requests_stay_where_they_are(monkeypatch, tokens, moves):
    backend = LLGuidanceBackend(VOCABULARY, GuidedConfig(threads=2))
    grammar = backend.compile(OutputSpec.regex("x{2000}"))
    table = GrammarTable(VOCABULARY)
    add(table, (0,), grammar, backend, list(b"x" * tokens))
    before = table.requests[0].matcher
    monkeypatch.setattr(LLGuidanceMatcher, "crowded", True)
    shown(table, 0)
    table._looked = 0.0
    shown(table, 0)
    assert (table.requests[0].matcher is not before) == moves
    assert table.requests[0].stays != moves
    assert table.tokens(0) == tuple(b"x" * tokens)
