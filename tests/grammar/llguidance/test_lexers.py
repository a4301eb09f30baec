"""Lexers that grammars share, and how many there are."""

import threading
import time

import numpy as np
import pytest
from lexer_bases import Base
from llguidance_specs import PERSON, VOCABULARY

from guided_plugin import GuidedConfig, OutputSpec
from guided_plugin.grammar.llguidance import lexers as module
from guided_plugin.grammar.llguidance.backend import LLGuidanceBackend
from guided_plugin.grammar.llguidance.lexers import LexerPool, Lexers
from guided_plugin.grammar.table import GrammarTable, Phase


def settled(lexers):
    deadline = time.monotonic() + 10
    while lexers._growing and time.monotonic() < deadline:
        time.sleep(0.001)
    return len(lexers)


def users(lexers):
    return [lexer.users for lexer in lexers._lexers]


def test_a_grammar_has_lexers_for_those_that_use_it_at_the_same_time():
    lexers = Lexers(Base(), Base, LexerPool(2))
    shares = []
    for users, wanted in ((1, 1), (2, 1), (3, 2), (8, 4), (15, 8), (16, 8), (60, 8)):
        while len(shares) < users:
            shares.append(lexers.take()[1])
        assert settled(lexers) == wanted, users
    assert len({share.lexer for share in shares}) == 8
    del shares[:]
    # One after the other they get the first one: it has learned most.
    assert {lexers.take()[1].lexer for _ in range(5)} == {lexers._lexers[0]}


def test_a_share_lasts_as_long_as_a_matcher_holds_it(backend):
    grammar = backend.compile(OutputSpec.json_schema(PERSON))
    lexers = grammar.handle.lexers
    matcher = backend.start(grammar, VOCABULARY.stop_token_ids)
    fork = matcher.fork()
    del matcher
    assert lexers.users == 1
    del fork
    assert lexers.users == 0


def test_fewer_lexers_do_where_more_can_not_be_made():
    failing = Lexers(Base(), lambda: Base(error=True), LexerPool(2))
    shares = [failing.take()[1] for _ in range(9)]
    assert settled(failing) == 1
    shares.append(failing.take()[1])
    assert not failing._growing
    alone = Lexers(Base(), Base, LexerPool(1))
    shares += [alone.take()[1] for _ in range(20)]
    assert settled(alone) == 1


def taken(lexers, users):
    shares = []
    for _ in range(users):
        shares.append(lexers.take()[1])
        settled(lexers)
    return shares


def test_a_grammar_may_grow_again_after_a_lexer_could_not_be_made(monkeypatch):
    failed = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    answers = [RuntimeError("no memory"), Base(), Base()]

    def make():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    lexers = Lexers(Base(), make, LexerPool(2))
    shares = [lexers.take()[1] for _ in range(3)]
    assert settled(lexers) == 1
    lexers._paused_until = 0.0
    shares += [lexers.take()[1] for _ in range(2)]
    assert settled(lexers) == 3
    assert [str(args.exc_value) for args in failed] == ["no memory"]


def test_all_grammars_together_have_a_bounded_number_of_lexers():
    pool = LexerPool(2)
    grammars = [Lexers(Base(), Base, pool) for _ in range(4)]
    first = taken(grammars[0], 16)
    second = taken(grammars[1], 16)
    assert [len(grammar) for grammar in grammars] == [8, 8, 1, 1]
    third = taken(grammars[2], 16)
    assert len(grammars[2]) == 1 + pool.most - 14
    # One that lexers are taken from keeps those that are used, and its first.
    del first[4:]
    grammars[2]._paused_until = 0.0
    third += taken(grammars[2], 1)
    assert [len(grammar) for grammar in grammars] == [
        len({share.lexer for share in first}),
        8,
        8,
        1,
    ]
    del second[:]
    fourth = taken(grammars[3], 16)
    assert len(grammars[3]) == 8
    assert sum(len(grammar) - 1 for grammar in grammars) <= pool.most
    for grammar, shares in zip(grammars, (first, [], third, fourth), strict=True):
        assert {share.lexer for share in shares} <= set(grammar._lexers)


def test_requests_that_came_while_there_was_no_room_get_lexers_later():
    backend = LLGuidanceBackend(VOCABULARY, GuidedConfig(threads=2))
    bounded = backend.compile(
        OutputSpec.json_schema({"type": "string", "maxLength": 50})
    )
    lexers = bounded.handle.lexers
    table = GrammarTable(VOCABULARY)
    slots = tuple(range(48))
    # No room, as while requests of another grammar, which are about to leave, have all
    # lexers.
    lexers._paused_until = float("inf")
    for slot in slots:
        table.add(slot, str(slot), bounded.spec, bounded, backend)
    assert settled(lexers) == 1
    lexers._paused_until = 0.0
    table.accept(slots, [ord('"')] * 48)
    mask = np.zeros((48, VOCABULARY.words), np.int32)
    tokens = [ord('"')]
    end = time.monotonic() + 20
    while len(lexers) < 8 or max(users(lexers)) > 2 * min(users(lexers)) + 2:
        assert time.monotonic() < end, users(lexers)
        table.fill(slots, mask)
        if len(tokens) < 40:
            tokens.append(ord("x"))
            table.accept(slots, [ord("x")] * 48)
        time.sleep(0.001)
    assert table.failures == []
    assert [table.tokens(slot) for slot in slots] == [tuple(tokens)] * 48
    fresh = backend.start(bounded, VOCABULARY.stop_token_ids)
    assert all(fresh.accept(token) for token in tokens)
    expected = np.zeros((1, VOCABULARY.words), np.int32)
    backend.batch([fresh]).fill(expected, [0])
    table.fill(slots, mask)
    assert (mask == expected).all()


def crowd(pool, users):
    """A grammar whose requests all came while there was no room, and shares of its
    lexer."""
    lexers = Lexers(Base(), Base, pool)
    lexers._paused_until = float("inf")
    return lexers, [lexers.take()[1] for _ in range(users)]


def test_a_crowded_lexer_calls_for_others_and_is_crowded_no_more_when_they_are_used():
    lexers, shares = crowd(LexerPool(2), 12)
    assert not any(share.crowded for share in shares)  # there is no other
    lexers._paused_until = 0.0
    assert not shares[0].crowded
    assert settled(lexers) == 6
    while shares[0].crowded:
        shares[0] = None  # as when its request gets a new matcher
        shares.append(lexers.take()[1])
        del shares[0]
    assert (
        max(users(lexers)) <= 2 * (min(users(lexers)) + 1)
        or max(users(lexers)) <= module._FEW
    )


def test_a_lexer_that_was_given_up_is_not_crowded():
    lexers, shares = crowd(LexerPool(2), 12)
    lexers._paused_until = 0.0
    shares += [lexers.take()[1]]
    settled(lexers)
    last = [lexers.take()[1] for _ in range(6)][-1]
    assert last.lexer is not lexers._lexers[0]
    lexers.forget()
    assert last.lexer.outdated
    assert not last.crowded
    assert not shares[0].crowded


def test_a_system_without_threads_left_does_with_the_lexers_that_are_there(monkeypatch):
    lexers, shares = crowd(LexerPool(2), 12)
    lexers._paused_until = 0.0

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert not shares[0].crowded
    assert not lexers._growing
    monkeypatch.undo()
    lexers._paused_until = 0.0
    assert not shares[0].crowded
    assert settled(lexers) == 6


@pytest.mark.parametrize(("tokens", "moves"), [(1000, True), (1001, False)])
def test_long_requests_stay_where_they_are(monkeypatch, tokens, moves):
    backend = LLGuidanceBackend(VOCABULARY, GuidedConfig(threads=2))
    grammar = backend.compile(OutputSpec.regex("x{2000}"))
    table = GrammarTable(VOCABULARY)
    table.add(0, "long", grammar.spec, grammar, backend)
    for _ in range(tokens):
        table.accept((0,), [ord("x")])
    before = table.requests[0].matcher
    monkeypatch.setattr(type(before), "crowded", True)
    mask = np.zeros((1, VOCABULARY.words), np.int32)
    table.fill((0,), mask)
    table._looked = 0.0
    table.fill((0,), mask)
    assert (table.requests[0].matcher is not before) == moves
    assert table.requests[0].stays != moves
    assert table.tokens(0) == (ord("x"),) * tokens


def test_a_request_that_can_not_be_moved_is_tried_once(monkeypatch):
    backend = LLGuidanceBackend(VOCABULARY, GuidedConfig(threads=2))
    grammar = backend.compile(OutputSpec.regex("x{20}"))
    table = GrammarTable(VOCABULARY)
    tried = []
    table.add(0, "one", grammar.spec, grammar, backend)
    monkeypatch.setattr(type(table.requests[0].matcher), "crowded", True)
    monkeypatch.setattr(
        type(table.requests[0]),
        "replayed",
        lambda one: tried.append(one) or (None, False),
    )
    table.accept((0,), [ord("x")])
    mask = np.zeros((1, VOCABULARY.words), np.int32)
    for _ in range(5):
        table._looked = 0.0
        table.fill((0,), mask)
    assert len(tried) == 1
    assert table.phase(0) is Phase.ACTIVE
