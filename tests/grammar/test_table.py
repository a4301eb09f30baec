"""`GrammarTable`: where each request is, and that nothing one request does reaches
another."""

from __future__ import annotations

import numpy as np
import pytest
from grammar_tables import (
    END,
    EVERYTHING,
    OTHER_END,
    PAD,
    THINK,
    TOKENS,
    VOCABULARY,
    ids,
)
from raw_xgrammar import RawXGrammar

from guided_plugin.config import GuidedConfig
from guided_plugin.errors import RequestError, VocabularyError
from guided_plugin.grammar.table import GrammarTable, Phase
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.spec import OutputSpec


class TestLifeOfARequest:
    @pytest.mark.parametrize("stop", [END, OTHER_END])
    def test_active_until_its_stop_token_then_done(self, table, stop):
        own = [stop] if stop != END else None  # else the vocabulary's
        table.add(3, OutputSpec.regex("ab?", stop_token_ids=own))
        assert table.phases(3) == [Phase.ACTIVE]
        assert table.mask(3) == [set(ids("a"))]
        table.feed(3, ids("a"))
        assert table.mask(3) == [{*ids("b"), stop}]
        table.feed(3, [stop])
        assert table.phases(3) == [Phase.DONE]
        assert table.mask(3) == [{stop}]
        assert table.inner.tokens(3) == (*ids("a"), stop)
        assert table.inner.failures == []

    @pytest.mark.parametrize("stop", [len(TOKENS), 63, 64, 10**6])
    def test_a_stop_token_outside_the_vocabulary_is_refused_and_takes_no_slot(
        self, table, stop
    ):
        with pytest.raises(
            RequestError,
            match=f"request r5: stop token {stop} is outside the vocabulary",
        ):
            table.add(5, OutputSpec.regex("a", stop_token_ids=[stop]))
        table.add(5, OutputSpec.regex("a"))


class TestStartAfter:
    @pytest.mark.parametrize(
        ("start_after", "sequence"),
        [("<think>", [THINK]), ("end", ids("end")), ([THINK, PAD], [THINK, PAD])],
        ids=["a control token", "text", "ids"],
    )
    def test_constrains_only_what_follows(self, table, start_after, sequence):
        table.add(0, OutputSpec.regex("xy", start_after=start_after))
        before = [*ids("free 9 "), *sequence[:-1], *ids("b"), *sequence[:-1]]
        for token in before:
            assert table.phases(0) == [Phase.WAITING]
            assert table.mask(0) == [EVERYTHING]
            table.feed(0, [token])
        table.feed(0, sequence[-1:])
        assert table.phases(0) == [Phase.ACTIVE]
        assert table.mask(0) == [set(ids("x"))]
        table.feed(0, [*ids("xy"), END])
        assert table.phases(0) == [Phase.DONE]
        assert table.inner.tokens(0) == (*before, sequence[-1], *ids("xy"), END)
        assert table.inner.failures == []

    def test_a_stop_token_before_it_is_a_failure(self, table):
        table.add(0, OutputSpec.regex("x", start_after="<think>"))
        table.feed(0, [*ids("abc"), END, THINK, PAD])
        assert table.phases(0) == [Phase.FAILED]
        assert table.inner.tokens(0) == (*ids("abc"), END)
        ((slot, error),) = table.inner.failures
        assert (slot, error.where) == (0, "start_after")
        assert "request r0" in str(error)
        assert "the output ended before '<think>' came" in str(error)
        assert table.mask(0) == [{END}]

    def test_the_first_alternative_that_comes_starts_the_output(self, table):
        for slot, sequence in enumerate(([THINK], ids("end"), ids("9"))):
            table.add(
                slot, OutputSpec.regex("xy", start_after=["<think>", ids("end"), "9"])
            )
            table.feed(slot, [*ids("ab en"), *sequence])
            assert table.phases(slot) == [Phase.ACTIVE]
            assert table.mask(slot) == [set(ids("x"))]

    def test_one_that_is_kept_is_the_beginning_of_the_output(self, table):
        kept = {"text": "xy", "kept": True}
        table.add(0, OutputSpec.regex("xyz?", start_after=["<think>", kept]))
        table.feed(0, ids("abx"))
        assert table.mask(0) == [EVERYTHING]
        table.feed(0, ids("y"))
        assert table.phases(0) == [Phase.ACTIVE]
        assert table.mask(0) == [{*ids("z"), END}]
        table.feed(0, [*ids("z"), END])
        assert table.phases(0) == [Phase.DONE]
        again = OutputSpec.regex("xyz?", start_after=["<think>", kept])
        table.add(1, again, table.inner.tokens(0)[:-1])
        assert table.mask(1) == [{END}]

    def test_one_that_is_kept_is_forbidden_where_the_grammar_refuses_it(self, table):
        table.add(
            0,
            OutputSpec.regex(
                "xyz", start_after=["<think>", {"text": "yz", "kept": True}]
            ),
        )
        y, z = ids("yz")
        assert table.mask(0) == [EVERYTHING]
        table.feed(0, [y])
        assert table.mask(0) == [EVERYTHING - {z}]
        table.feed(0, [y, z])  # a host sampled it all the same
        assert table.phases(0) == [Phase.FAILED]
        assert len(table.inner.failures) == 1

    def test_a_token_outside_the_vocabulary_would_never_come(self, table):
        with pytest.raises(RequestError, match="token 4000 is outside"):
            table.add(0, OutputSpec.regex("x", start_after=[4000]))

    def test_text_that_cannot_be_encoded_takes_no_slot(self, backend):
        plain = Vocabulary(TOKENS, (END,), VOCABULARY.special_ids)
        table = GrammarTable(plain)
        spec = OutputSpec.regex("x", start_after="text")
        with pytest.raises(VocabularyError, match="no encoder"):
            table.add(0, "r0", spec, backend.compile(spec), backend)
        table.add(
            0,
            "r0",
            OutputSpec.regex("x"),
            backend.compile(OutputSpec.regex("x")),
            backend,
        )


class TestRejectedTokens:
    @pytest.mark.parametrize("token", [ids("b")[0], END, THINK, len(TOKENS), -1, 10**6])
    def test_fail_their_request_alone(self, table, token):
        for slot in (4, 7, 9):
            table.add(slot, OutputSpec.regex("ac*"))
        a, c = ids("ac")
        table.mask(4, 7, 9)
        table.inner.accept((4, 7, 9), [a, token, a])
        assert table.phases(4, 7, 9) == [Phase.ACTIVE, Phase.FAILED, Phase.ACTIVE]
        [(slot, message)] = table.failures()
        assert slot == 7
        assert message.startswith(f"request r7: token {token} (")
        assert "after 0 tokens breaks the grammar" in message
        assert table.mask(4, 7, 9) == [{c, END}, {END}, {c, END}]
        table.inner.accept((4, 7, 9), [c, END, END])
        assert table.phases(4, 7, 9) == [Phase.ACTIVE, Phase.FAILED, Phase.DONE]
        assert [table.inner.tokens(slot) for slot in (4, 7, 9)] == [
            (a, c),
            (),
            (a, END),
        ]
        assert len(table.inner.failures) == 1

    def test_the_message_shows_the_text_of_the_token_and_where(self, table):
        table.add(0, OutputSpec.regex("aab"))
        table.feed(0, ids("aax"))
        [(_, message)] = table.failures()
        assert f"token {ids('x')[0]} (b'x') after 2 tokens" in message
        error = table.inner.failures[0][1]
        assert isinstance(error, RequestError)
        assert error.request_id == "r0"

    def test_a_failed_request_is_left_only_its_own_stop_tokens(self, table):
        table.add(0, OutputSpec.regex("a+", stop_token_ids=[THINK, OTHER_END]))
        table.feed(0, ids("ab"))
        assert table.mask(0) == [{THINK, OTHER_END}]
        table.feed(0, ids("aaa"))
        assert table.inner.tokens(0) == tuple(ids("a"))
        assert table.mask(0) == [{THINK, OTHER_END}]

    def test_a_host_may_fail_a_request_too(self, table):
        table.add(0, OutputSpec.regex("a+"))
        table.add(1, OutputSpec.regex("a+"))
        table.mask(0, 1)
        table.inner.fail(1, RequestError("the engine lost it", hint="try again"))
        assert table.phases(0, 1) == [Phase.ACTIVE, Phase.FAILED]
        assert table.failures() == [(1, "request r1: the engine lost it (try again)")]
        assert table.mask(0, 1) == [set(ids("a")), {END}]


class TestDeadEnds:
    def test_a_text_the_vocabulary_cannot_spell_fails_closed(self, table):
        table.add(0, OutputSpec.grammar('root ::= "a" "!"'))
        table.add(1, OutputSpec.grammar('root ::= "a" "b"'))
        table.feed(0, ids("a"))
        table.feed(1, ids("a"))
        assert table.mask(0, 1) == [{END}, set(ids("b"))]
        assert table.phases(0, 1) == [Phase.FAILED, Phase.ACTIVE]
        [(slot, message)] = table.failures()
        assert slot == 0
        assert message.startswith(
            "request r0: the grammar allows no token after 1 tokens ("
        )

    def test_dead_ends_past_the_first_words_of_a_wide_mask_are_told_from_late_tokens(
        self,
    ):
        # Only the last token of a wide vocabulary fits: a look at the first words alone
        # sees nothing.
        tokens = [b"a", b"</s>", *(b"-" for _ in range(5000)), b"b"]
        vocabulary = Vocabulary.from_tokens(tokens, [1])
        backend = RawXGrammar(vocabulary, GuidedConfig(threads=1))
        table = GrammarTable(vocabulary)
        for slot, text in enumerate(("ab", "a!")):
            spec = OutputSpec.grammar(f'root ::= "{text}"')
            table.add(slot, f"r{slot}", spec, backend.compile(spec), backend, [0])
        mask = np.zeros((2, vocabulary.words), np.int32)
        table.fill((0, 1), mask)
        rows = np.unpackbits(mask.view(np.uint8), axis=1, bitorder="little")
        assert [np.flatnonzero(row).tolist() for row in rows] == [
            [len(tokens) - 1],
            [1],
        ]
        assert [table.phase(slot) for slot in (0, 1)] == [Phase.ACTIVE, Phase.FAILED]


def test_any_integers_are_replayed(table):
    table.add(0, OutputSpec.regex("abc"), np.array(ids("ab"), np.int64))
    assert table.mask(0) == [set(ids("c"))]
    assert all(type(token) is int for token in table.inner.tokens(0))
