"""Matchers of the xgrammar backend: control tokens, stop tokens, batches."""

from __future__ import annotations

import pytest
from xgrammar_specs import allowed

from guided_plugin.config import GuidedConfig
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.grammar.xgrammar.backend import XGrammarBackend, XGrammarMatcher
from guided_plugin.spec import OutputSpec

TOKENS = (
    b'"',
    b"a",
    b"<tool>",
    b"</s>",
    b"",
    b"<s>",
    b"\n",
    b"b",
    b'"}',
    b"<",
    b"tool>",
)
QUOTE, LETTER_A, TOOL, END, UNUSED, BEGIN, NEWLINE, LETTER_B, CLOSE, LESS, REST = range(
    len(TOKENS)
)


@pytest.fixture(scope="module")
def backend() -> XGrammarBackend:
    """A vocabulary with control tokens, the stop token `</s>` and an unused id."""
    return XGrammarBackend(
        Vocabulary.from_tokens(TOKENS, [END], [TOOL, BEGIN]), GuidedConfig(threads=1)
    )


def started(
    backend: XGrammarBackend, source: str, stops: tuple[int, ...] = (END,)
) -> XGrammarMatcher:
    """A matcher at the beginning of a grammar with one rule."""
    grammar = backend.compile(OutputSpec.grammar(f"root ::= {source}"))
    return backend.start(grammar, stops)


class TestControlTokens:
    def test_are_no_text_inside_a_string(self, backend):
        matcher = started(backend, r'"\"" [^"\n]* "\""')
        assert allowed(backend, matcher) == {QUOTE, CLOSE}
        assert matcher.accept(QUOTE)
        assert allowed(backend, matcher) == {QUOTE, LETTER_A, LETTER_B, LESS, REST}
        assert [
            token for token in (TOOL, END, UNUSED, BEGIN) if matcher.accept(token)
        ] == []

    def test_their_text_may_still_be_written_out(self, backend):
        matcher = started(backend, r'"\"" [^"\n]* "\""')
        assert all(matcher.accept(token) for token in (QUOTE, LESS, REST, QUOTE))
        assert matcher.complete

    def test_are_not_spelt_by_a_text(self, backend):
        assert allowed(backend, started(backend, '"<tool>a"')) == {LESS}


class TestStopTokens:
    def test_are_allowed_exactly_where_the_output_is_whole(self, backend):
        matcher = started(backend, '"a" "b"?')
        assert not matcher.accept(END)
        assert matcher.accept(LETTER_A)
        assert allowed(backend, matcher) == {LETTER_B, END}
        assert matcher.accept(END)
        assert not matcher.accept(LETTER_B)

    def test_an_override_takes_the_place_of_the_vocabularys_own(self, backend):
        matcher = started(backend, '"a" "b"?', (NEWLINE, BEGIN))
        assert matcher.accept(LETTER_A)
        assert allowed(backend, matcher) == {LETTER_B, NEWLINE, BEGIN}
        assert not matcher.accept(END)
        assert matcher.accept(NEWLINE)

    def test_an_override_is_no_text_any_more(self, backend):
        matcher = started(backend, "[ab]+", (LETTER_B,))
        assert allowed(backend, matcher) == {LETTER_A}
        assert matcher.accept(LETTER_A)
        assert allowed(backend, matcher) == {LETTER_A, LETTER_B}

    def test_requests_that_share_a_grammar_keep_their_own(self, backend):
        grammar = backend.compile(OutputSpec.grammar('root ::= "a"'))
        own = backend.start(grammar, (END,))
        other = backend.start(grammar, (NEWLINE,))
        for matcher in (own, other):
            assert matcher.accept(LETTER_A)
        assert (allowed(backend, own), allowed(backend, other)) == ({END}, {NEWLINE})


class TestMatcher:
    def test_a_refused_token_or_text_moves_nothing(self, backend):
        matcher = started(backend, '"ab"')
        assert not matcher.accept(LETTER_B)
        assert not matcher.accept_text(b"ax")
        assert allowed(backend, matcher) == {LETTER_A}

    @pytest.mark.parametrize("token", [-1, len(TOKENS), 31, 32, 10**6])
    def test_ids_outside_the_vocabulary_are_refused(self, backend, token):
        matcher = started(backend, '"a"')
        assert not matcher.accept(token)
        assert backend.batch([matcher]).accept([token]) == [False]

    def test_rollback_takes_tokens_back_the_stop_token_too(self, backend):
        matcher = started(backend, '"aa" "b"?')
        for token in (LETTER_A, LETTER_A, END):
            assert matcher.accept(token)
        matcher.rollback(1)
        assert allowed(backend, matcher) == {LETTER_B, END}
        matcher.rollback(2)
        assert allowed(backend, matcher) == {LETTER_A}

    def test_a_fork_starts_here_and_goes_its_own_way(self, backend):
        matcher = started(backend, '"a" [ab] "a"?')
        assert matcher.accept(LETTER_A)
        fork = matcher.fork()
        assert fork.accept(LETTER_B)
        assert allowed(backend, matcher) == {LETTER_A, LETTER_B}
        assert allowed(backend, fork) == {LETTER_A, END}
        assert fork.accept(END)
        assert not matcher.accept(END)
