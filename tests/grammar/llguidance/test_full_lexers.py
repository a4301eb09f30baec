"""llguidance's lexers learn states until they are full: then requests go on with new
ones."""

import string

import numpy as np
import pytest
from lexer_bases import Base

from guided_plugin import GuidedConfig, OutputSpec, Vocabulary
from guided_plugin.bench import refused_at
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.errors import GrammarError
from guided_plugin.grammar import renewal
from guided_plugin.grammar.drafts import fill_with_drafts
from guided_plugin.grammar.llguidance import backend as module
from guided_plugin.grammar.llguidance.backend import LLGuidanceBackend
from guided_plugin.grammar.llguidance.lexers import LexerPool, Lexers
from guided_plugin.grammar.llguidance.matcher import LLGuidanceMatcher
from guided_plugin.grammar.table import GrammarTable, Phase

END = 256
LONG_TOKEN = 257
VOCABULARY = Vocabulary.from_tokens(
    [*(bytes([byte]) for byte in range(256)), b"</s>", b"777"], [END]
)
LETTERS = string.ascii_lowercase
SPEC = OutputSpec.regex("|".join(f"{letter}[0-9{letter}]{{60}}" for letter in LETTERS))
"""Each letter has 61 states of its own, with which no other output begins."""
ENOUGH = 150
TOO_FEW = 100


@pytest.fixture
def made(monkeypatch):
    def make(states, threads=1):
        monkeypatch.setitem(module._LIMITS, "max_lexer_states", states)
        backend = LLGuidanceBackend(VOCABULARY, GuidedConfig(threads=threads))
        return backend, backend.compile(SPEC)

    return make


def side_by_side(backend, grammar):
    table = GrammarTable(VOCABULARY)
    slots = tuple(range(len(LETTERS)))
    for slot, letter in enumerate(LETTERS):
        table.add(slot, letter, grammar.spec, grammar, backend)
    return table, slots


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    monkeypatch.setattr(renewal, "_MOST", 60.0)


def output(letter):
    """Some of it in tokens of several bytes: a lexer that gets full inside of one says
    something else."""
    return [ord(letter), *[LONG_TOKEN, *b"77", LONG_TOKEN, *b"7777"] * 5, END]


def masks(table, slots):
    rows = np.zeros((len(slots), VOCABULARY.words), np.int32)
    table.fill(slots, rows)
    return rows


def shows(row, token):
    return row[token // 32] >> (token % 32) & 1


def assert_all_ended(table, slots):
    assert table.failures == []
    assert {table.phase(slot) for slot in slots} == {Phase.DONE}


def test_one_after_the_other_they_all_end(made):
    backend, grammar = made(ENOUGH)
    free, its_grammar = made(10_000)
    table = GrammarTable(VOCABULARY)
    reference = GrammarTable(VOCABULARY)
    for letter in LETTERS:
        table.add(0, letter, SPEC, grammar, backend)
        reference.add(0, letter, SPEC, its_grammar, free)
        for token in output(letter):
            assert np.array_equal(masks(table, (0,)), masks(reference, (0,)))
            table.accept((0,), [token])
            reference.accept((0,), [token])
        assert (table.phase(0), table.failures) == (Phase.DONE, [])
        table.remove(0)
        reference.remove(0)


@pytest.mark.parametrize("states", [ENOUGH, 800])
@pytest.mark.parametrize("threads", [1, 2])
def test_side_by_side_they_all_end(made, threads, states):
    backend, grammar = made(states, threads)
    table, slots = side_by_side(backend, grammar)
    for tokens in zip(*map(output, LETTERS), strict=True):
        assert all(map(shows, masks(table, slots), tokens))
        table.accept(slots, list(tokens))
    assert_all_ended(table, slots)


def test_one_that_is_too_much_for_any_lexer_fails_alone(made):
    backend, grammar = made(TOO_FEW)
    table = GrammarTable(VOCABULARY)
    other = backend.compile(OutputSpec.regex("[0-9]{70}"))
    table.add(0, "big", SPEC, grammar, backend)
    table.add(1, "small", other.spec, other, backend)
    for token in output("a")[:41]:
        masks(table, (0, 1))
        table.accept(
            (0, 1), [token if table.phase(0) is Phase.ACTIVE else END, ord("5")]
        )
    (failure,) = table.failures
    assert failure[0] == 0
    assert "is exhausted" in str(failure[1])
    assert table.phase(1) is Phase.ACTIVE


def test_tokens_are_taken_without_masks_too(made):
    """Replayed after a worker's end, say; one by one, and in a batch."""
    backend, grammar = made(ENOUGH)
    table = GrammarTable(VOCABULARY)
    for slot, letter in enumerate(LETTERS):
        table.add(slot, letter, SPEC, grammar, backend, output(letter)[:20])
    slots = tuple(range(len(LETTERS)))
    for tokens in zip(*(output(letter)[20:] for letter in LETTERS), strict=True):
        table.accept(slots, list(tokens))
    assert_all_ended(table, slots)


def test_a_wrong_token_is_still_wrong(made):
    backend, grammar = made(ENOUGH)
    table = GrammarTable(VOCABULARY)
    for letter in "abc":
        table.add(0, letter, SPEC, grammar, backend, output(letter))
        table.remove(0)
    table.add(0, "r", SPEC, grammar, backend)
    table.accept((0,), list(b"d"))
    table.accept((0,), list(b"x"))
    assert table.phase(0) is Phase.FAILED
    assert "breaks the grammar" in str(table.failures[0][1])


@pytest.mark.parametrize("goes_back", [True, False])
@pytest.mark.parametrize("states", [ENOUGH, 800])
def test_drafts_are_looked_at_with_a_new_lexer(made, monkeypatch, states, goes_back):
    def fails(self, tokens):
        raise GrammarError("no way back")

    if not goes_back:
        monkeypatch.setattr(LLGuidanceMatcher, "rollback", fails)
    backend, grammar = made(states)
    table, slots = side_by_side(backend, grammar)
    outputs = [output(letter) for letter in LETTERS]
    for at in range(0, len(outputs[0]) - 4, 7):
        rows = np.zeros((4 * len(slots), VOCABULARY.words), np.int32)
        drafts = [[tokens[at + place] for tokens in outputs] for place in range(3)]
        fill_with_drafts(table, slots, rows, drafts)
        for place in range(4):
            for slot in slots:
                row = rows[place * len(slots) + slot]
                assert shows(row, outputs[slot][at + place])
        for tokens in drafts:
            table.accept(slots, tokens)
    assert table.failures == []


def test_replays_take_a_bounded_time(made, monkeypatch):
    """Beyond it requests fail, and what is new finds a lexer."""
    monkeypatch.setattr(renewal, "_MOST", 0.0)
    backend, grammar = made(ENOUGH)
    table, slots = side_by_side(backend, grammar)
    for tokens in zip(*map(output, LETTERS), strict=True):
        masks(table, slots)
        table.accept(
            slots,
            [
                t if table.phase(i) is Phase.ACTIVE else END
                for i, t in zip(slots, tokens, strict=True)
            ],
        )
    assert {table.phase(slot) for slot in slots} == {Phase.FAILED}
    assert all("is exhausted after" in str(error) for _, error in table.failures)
    table.remove(0)
    table.add(0, "next", SPEC, grammar, backend)
    for token in output("a"):
        masks(table, (0,))
        table.accept((0,), [token])
    assert table.phase(0) is Phase.DONE


def test_right_outputs_are_not_called_wrong(monkeypatch):
    monkeypatch.setitem(module._LIMITS, "max_lexer_states", ENOUGH)
    spec = OutputSpec.regex(SPEC.text, backend="llguidance")
    compiler = GrammarCompiler(
        VOCABULARY, config=GuidedConfig(isolate_compiles=False, threads=1)
    )
    assert compiler.compile(spec).backend == "llguidance"
    assert [refused_at(compiler, spec, output(letter)) for letter in LETTERS] == [
        None
    ] * len(LETTERS)
    assert refused_at(compiler, spec, [*output("a")[:5], ord("b")]) == 5


def test_a_backend_that_fails_at_it_fails_one_request(made, caplog):
    backend, grammar = made(ENOUGH)
    table = GrammarTable(VOCABULARY)
    for slot, letter in enumerate("ab"):
        table.add(slot, letter, SPEC, grammar, backend)

    class Broken:
        def accept(self, token):
            return False

        def rebuild_shared(self):
            raise RuntimeError("no idea")

    table.requests[0].matcher = Broken()
    table._accept_one(0, table.requests[0], ord("a"))
    table.accept((1,), list(b"b"))
    assert (table.phase(0), table.phase(1)) == (Phase.FAILED, Phase.ACTIVE)
    assert "cannot replace its matcher: no idea" in caplog.text


def test_a_full_lexer_is_rebuilt_once_for_all_its_users():
    lexers = Lexers(Base(), Base, LexerPool(1))
    (old, one), (same, two) = lexers.take(), lexers.take()
    assert old is same
    assert not one.rebuild_shared()  # nothing is wrong with it
    old.error = True
    assert one.rebuild_shared()
    new, three = lexers.take()
    assert new is not old
    assert two.rebuild_shared()  # of the same lexer: known already
    assert lexers.take()[0] is new
    assert one.lexer is two.lexer is not three.lexer
    del one, two
    assert lexers._lexers[0].users == 1  # those that left were not its own


def test_where_nothing_new_can_be_made_the_old_one_stays():
    first = Base(error=True)
    lexers = Lexers(first, lambda: Base(error=True), LexerPool(1))
    assert lexers.take()[1].rebuild_shared()
    assert lexers.take()[0] is first


def test_what_failed_once_is_tried_again():
    tries = []

    def make():
        tries.append(None)
        if len(tries) == 1:
            raise MemoryError
        return Base()

    lexers = Lexers(Base(error=True), make, LexerPool(1))
    old, share = lexers.take()
    with pytest.raises(MemoryError):
        share.rebuild_shared()
    assert share.rebuild_shared()
    assert lexers.take()[0] is not old
