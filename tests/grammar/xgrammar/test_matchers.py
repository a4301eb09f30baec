"""Matchers of the xgrammar backend: stop tokens of a request's own, refused texts, and
tokens that are taken back.

Masks, control tokens and forks are judged in test_masks.py, histories of many requests
in test_table.py.
"""

import pytest
from xgrammar_specs import allowed

from guided_plugin.config import GuidedConfig
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.grammar.xgrammar.backend import XGrammarBackend
from guided_plugin.spec import OutputSpec

TOKENS = (b"a", b"b", b"<tool>", b"</s>", b"", b"\n")
A, B, TOOL, END, UNUSED, NEWLINE = range(len(TOKENS))


@pytest.fixture(scope="module")
def backend():
    vocabulary = Vocabulary.from_tokens(TOKENS, [END], [TOOL])
    return XGrammarBackend(vocabulary, GuidedConfig(threads=1))


def started(backend, source, stops=(END,), tokens=()):
    """A matcher of a grammar with one rule, after some tokens."""
    grammar = backend.compile(OutputSpec.grammar(f"root ::= {source}"))
    matcher = backend.start(grammar, stops)
    assert all(map(matcher.accept, tokens))
    return matcher


@pytest.mark.parametrize(
    ("source", "stops", "tokens", "expected"),
    [
        ('"a" "b"?', (END,), [A], {B, END}),
        ('"a" "b"?', (NEWLINE, TOOL), [A], {B, NEWLINE, TOOL}),
        ('"a" "b"?', (NEWLINE, TOOL), [], {A}),
        # A text token that ends outputs is no text any more.
        ("[ab]+", (B,), [], {A}),
        ("[ab]+", (B,), [A], {A, B}),
        ('"a" "b"', (B,), [A], set()),
    ],
)
def test_requests_that_share_a_grammar_have_stop_tokens_of_their_own(
    backend, source, stops, tokens, expected
):
    matcher = started(backend, source, stops, tokens)
    assert allowed(backend, matcher) == expected
    for token in {*range(len(TOKENS))} - expected:
        assert not matcher.accept(token)
    assert allowed(backend, matcher) == expected


def test_a_refused_text_moves_nothing_and_a_fork_stays_where_it_was_made(backend):
    matcher = started(backend, '"aa" "b"?')
    assert not matcher.accept_text(b"ab")
    assert allowed(backend, matcher) == {A}
    forks = [matcher.fork()]
    for token in (A, A, END):
        assert matcher.accept(token)
        forks.append(matcher.fork())
    assert not matcher.accept(B)
    assert not forks[3].accept(B)
    assert [allowed(backend, one) for one in forks[:3]] == [{A}, {A}, {B, END}]


@pytest.mark.parametrize("token", [-1, len(TOKENS), 31, 32, 10**6])
def test_ids_outside_the_vocabulary_are_refused(backend, token):
    matcher = started(backend, '"a"')
    assert not matcher.accept(token)
    assert backend.batch([matcher]).accept([token]) == [False]
