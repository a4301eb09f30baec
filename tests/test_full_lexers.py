"""llguidance's lexers learn states until they are full. That is nobody's fault, and must be nobody's end."""

import string
import threading
import time

import numpy as np
import pytest

from guided_plugin import GuidedConfig, OutputSpec, Vocabulary
from guided_plugin.grammar import llguidance as module
from guided_plugin.grammar.lexers import LexerPool, Lexers
from guided_plugin.grammar.llguidance import LLGuidanceBackend
from guided_plugin.grammar.table import GrammarTable, Phase

END = 256
VOCABULARY = Vocabulary.from_tokens([*(bytes([byte]) for byte in range(256)), b"</s>"], [END])
LETTERS = string.ascii_lowercase
SPEC = OutputSpec.regex("|".join(f"{letter}[0-9{letter}]{{60}}" for letter in LETTERS))
"""Each letter has 61 states of its own, with which no other output begins."""
ENOUGH, TOO_FEW = 150, 100


@pytest.fixture
def made(monkeypatch):
    def make(states, threads=1):
        monkeypatch.setitem(module._LIMITS, "max_lexer_states", states)
        backend = LLGuidanceBackend(VOCABULARY, GuidedConfig(threads=threads))
        return backend, backend.compile(SPEC)

    return make


def output(letter, digit="7"):
    return [*(letter + digit * 60).encode(), END]


def masks(table, slots):
    rows = np.zeros((len(slots), VOCABULARY.words), np.int32)
    table.fill(slots, rows)
    return rows


def test_one_after_the_other_they_all_end(made):
    backend, grammar = made(ENOUGH)
    free, its_grammar = made(10_000)
    table, reference = GrammarTable(VOCABULARY), GrammarTable(VOCABULARY)
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


@pytest.mark.parametrize("threads", [1, 2])
def test_side_by_side_they_all_end(made, threads):
    backend, grammar = made(ENOUGH, threads)
    table = GrammarTable(VOCABULARY)
    slots = tuple(range(len(LETTERS)))
    for slot, letter in enumerate(LETTERS):
        table.add(slot, letter, SPEC, grammar, backend)
    for tokens in zip(*map(output, LETTERS), strict=True):
        rows = masks(table, slots)
        assert all(row[token // 32] >> (token % 32) & 1 for row, token in zip(rows, tokens, strict=True))
        table.accept(slots, list(tokens))
    assert table.failures == []
    assert {table.phase(slot) for slot in slots} == {Phase.DONE}


def test_one_that_is_too_much_for_any_lexer_fails_alone(made):
    backend, grammar = made(TOO_FEW)
    table = GrammarTable(VOCABULARY)
    other = backend.compile(OutputSpec.regex("[0-9]{70}"))
    table.add(0, "big", SPEC, grammar, backend)
    table.add(1, "small", other.spec, other, backend)
    for token in output("a")[:61]:
        masks(table, (0, 1))
        table.accept((0, 1), [token if table.phase(0) is Phase.ACTIVE else END, ord("5")])
    (failure,) = table.failures
    assert failure[0] == 0
    assert "backend's limits are too low" in str(failure[1])
    assert table.phase(1) is Phase.ACTIVE


def test_tokens_are_taken_without_masks_too(made):
    """Replayed after a worker's end, say; one by one, and in a batch."""
    backend, grammar = made(ENOUGH)
    table = GrammarTable(VOCABULARY)
    for slot, letter in enumerate(LETTERS):
        table.add(slot, letter, SPEC, grammar, backend, output(letter)[:30])
    slots = tuple(range(len(LETTERS)))
    for tokens in zip(*(output(letter)[30:] for letter in LETTERS), strict=True):
        table.accept(slots, list(tokens))
    assert table.failures == []
    assert {table.phase(slot) for slot in slots} == {Phase.DONE}


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


def test_drafts_are_looked_at_with_a_new_lexer(made):
    backend, grammar = made(ENOUGH)
    table = GrammarTable(VOCABULARY)
    for letter in LETTERS:
        table.add(0, letter, SPEC, grammar, backend)
        tokens = output(letter)
        for at in range(0, 60, 3):
            rows = np.zeros((4, VOCABULARY.words), np.int32)
            table.fill((0,), rows, [[token] for token in tokens[at : at + 3]])
            for row, token in zip(rows, tokens[at : at + 4], strict=True):
                assert row[token // 32] >> (token % 32) & 1
            for token in tokens[at : at + 3]:
                table.accept((0,), [token])
        table.accept((0,), [tokens[60]])
        table.accept((0,), [END])
        assert (table.phase(0), table.failures) == (Phase.DONE, [])
        table.remove(0)


def test_a_backend_that_fails_at_it_fails_one_request(made, caplog):
    backend, grammar = made(ENOUGH)
    table = GrammarTable(VOCABULARY)
    for slot, letter in enumerate("ab"):
        table.add(slot, letter, SPEC, grammar, backend)

    class Broken:
        def accept(self, token):
            return False

        def worn(self):
            raise RuntimeError("no idea")

    table._entries[0].matcher = Broken()
    table._accept_one(0, table._entries[0], ord("a"))
    table.accept((1,), list(b"b"))
    assert (table.phase(0), table.phase(1)) == (Phase.FAILED, Phase.ACTIVE)
    assert "can't begin anew: no idea" in caplog.text


class Base:
    """In place of a matcher at the beginning of a grammar."""

    def __init__(self, error=False):
        self.error = error

    def is_error(self):
        return self.error

    def deep_copy(self):
        return self


def test_a_grammar_begins_anew_once_for_all_that_say_so():
    lexers = Lexers(Base(), Base, LexerPool(1))
    (old, one), (same, two) = lexers.take(), lexers.take()
    assert old is same
    one.full()
    new, three = lexers.take()
    assert new is not old
    two.full()  # of the same lexer: known already
    assert lexers.take()[0] is new
    assert one.place == two.place != three.place
    del one, two
    assert lexers._users == [1]  # those that left were not its own


def test_one_that_takes_long_is_made_while_others_go_on():
    may_go, made = threading.Event(), []

    def make():
        made.append(threading.get_ident())
        may_go.wait(10)
        return Base()

    lexers = Lexers(Base(), make, LexerPool(1), quick=False)
    old, share = lexers.take()
    share.full()
    assert lexers.take()[0] is old
    share.full()
    may_go.set()
    deadline = time.monotonic() + 10
    while lexers.take()[0] is old and time.monotonic() < deadline:
        time.sleep(0.001)
    assert lexers.take()[0] is not old
    assert len(made) == 1
    assert made[0] != threading.get_ident()


def test_where_nothing_new_can_be_made_the_old_one_stays():
    first = Base()
    lexers = Lexers(first, lambda: Base(error=True), LexerPool(1))
    lexers.take()[1].full()
    assert lexers.take()[0] is first
