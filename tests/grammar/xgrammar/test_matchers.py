"""Matchers of the xgrammar backend: control tokens, stop tokens, batches."""

from __future__ import annotations

import pytest
from xgrammar_specs import allowed

from guided_plugin.config import GuidedConfig
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.grammar.xgrammar.backend import XGrammarBackend
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


class TestControlTokens:
    def test_are_no_text_inside_a_string(self, backend):
        matcher = backend.start(
            backend.compile(OutputSpec.json_schema({"type": "string"})), (END,)
        )
        assert allowed(backend, matcher) == {QUOTE, CLOSE}
        assert matcher.accept(QUOTE)
        assert allowed(backend, matcher) == {QUOTE, LETTER_A, LETTER_B, LESS, REST}
        assert [
            token for token in (TOOL, END, UNUSED, BEGIN) if matcher.accept(token)
        ] == []

    def test_their_text_may_still_be_written_out(self, backend):
        matcher = backend.start(
            backend.compile(OutputSpec.json_schema({"type": "string"})), (END,)
        )
        assert all(matcher.accept(token) for token in (QUOTE, LESS, REST, QUOTE))
        assert matcher.complete

    @pytest.mark.parametrize(
        "spec",
        [
            OutputSpec.regex("<tool>a"),
            OutputSpec.choice(["<tool>a"]),
            OutputSpec.grammar('root ::= "<tool>a"'),
        ],
        ids=lambda spec: spec.kind,
    )
    def test_are_not_spelt_by_other_kinds(self, backend, spec):
        assert allowed(backend, backend.start(backend.compile(spec), (END,))) == {LESS}


class TestStopTokens:
    def test_are_allowed_exactly_where_the_output_is_whole(self, backend):
        matcher = backend.start(backend.compile(OutputSpec.regex("ab?")), (END,))
        assert not matcher.accept(END)
        assert matcher.accept(LETTER_A)
        assert allowed(backend, matcher) == {LETTER_B, END}
        assert matcher.accept(END)
        assert not matcher.accept(LETTER_B)

    def test_an_override_takes_the_place_of_the_vocabularys_own(self, backend):
        matcher = backend.start(
            backend.compile(OutputSpec.regex("ab?")), (NEWLINE, BEGIN)
        )
        assert matcher.accept(LETTER_A)
        assert allowed(backend, matcher) == {LETTER_B, NEWLINE, BEGIN}
        assert not matcher.accept(END)
        assert matcher.accept(NEWLINE)

    def test_an_override_is_no_text_any_more(self, backend):
        grammar = backend.compile(OutputSpec.regex("(a|b)+"))
        matcher = backend.start(grammar, (LETTER_B,))
        assert allowed(backend, matcher) == {LETTER_A}
        assert matcher.accept(LETTER_A)
        assert allowed(backend, matcher) == {LETTER_A, LETTER_B}

    def test_requests_that_share_a_grammar_keep_their_own(self, backend):
        grammar = backend.compile(OutputSpec.regex("a"))
        own = backend.start(grammar, (END,))
        other = backend.start(grammar, (NEWLINE,))
        for matcher in (own, other):
            assert matcher.accept(LETTER_A)
        assert (allowed(backend, own), allowed(backend, other)) == ({END}, {NEWLINE})


class TestMatcher:
    def test_a_refused_token_or_text_moves_nothing(self, backend):
        matcher = backend.start(backend.compile(OutputSpec.regex("ab")), (END,))
        assert not matcher.accept(LETTER_B)
        assert not matcher.accept_text(b"ax")
        assert allowed(backend, matcher) == {LETTER_A}

    @pytest.mark.parametrize("token", [-1, len(TOKENS), 31, 32, 10**6])
    def test_ids_outside_the_vocabulary_are_refused(self, backend, token):
        matcher = backend.start(backend.compile(OutputSpec.regex("a")), (END,))
        assert not matcher.accept(token)
        assert backend.batch([matcher]).accept([token]) == [False]

    def test_rollback_takes_tokens_back_the_stop_token_too(self, backend):
        matcher = backend.start(backend.compile(OutputSpec.regex("aab?")), (END,))
        for token in (LETTER_A, LETTER_A, END):
            assert matcher.accept(token)
        matcher.rollback(1)
        assert allowed(backend, matcher) == {LETTER_B, END}
        matcher.rollback(2)
        assert allowed(backend, matcher) == {LETTER_A}

    def test_a_fork_starts_here_and_goes_its_own_way(self, backend):
        matcher = backend.start(backend.compile(OutputSpec.regex("a(a|b)a?")), (END,))
        assert matcher.accept(LETTER_A)
        fork = matcher.fork()
        assert fork.accept(LETTER_B)
        assert allowed(backend, matcher) == {LETTER_A, LETTER_B}
        assert allowed(backend, fork) == {LETTER_A, END}
        assert fork.accept(END)
        assert not matcher.accept(END)
