"""`GrammarTable`: where each request is, and that nothing one request does reaches another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pytest

from guided_plugin.config import GuidedConfig
from guided_plugin.errors import PipelineError, RequestError, VocabularyError
from guided_plugin.grammar.base import Grammar, MaskArray, Matcher
from guided_plugin.grammar.table import GrammarTable, Phase
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.grammar.xgrammar.backend import XGrammarBackend
from guided_plugin.spec import OutputSpec

TOKENS = (
    *(bytes([letter]) for letter in b"abcdefghijklmnopqrstuvwxyz0123456789 "),
    b"</s>",
    b"<end>",
    b"<think>",
)
END, OTHER_END, THINK = (TOKENS.index(name) for name in (b"</s>", b"<end>", b"<think>"))
PAD = 0  # the letter a: hosts pad with ordinary tokens too
EVERYTHING = set(range(64))


def ids(text: str) -> list[int]:
    return [TOKENS.index(letter.encode()) for letter in text]


VOCABULARY = Vocabulary(TOKENS, (END,), frozenset({END, OTHER_END, THINK}), encode=lambda text: ids(text))


@pytest.fixture(scope="module")
def backend() -> XGrammarBackend:
    return XGrammarBackend(VOCABULARY, GuidedConfig(threads=2))


class Table:
    """A `GrammarTable` with helpers; `mask` shows a step's masks as sets of token ids."""

    def __init__(self, backend: XGrammarBackend) -> None:
        self.inner = GrammarTable(VOCABULARY)
        self.backend = backend

    def add(self, slot: int, spec: OutputSpec, tokens: Iterable[int] = (), backend: object = None) -> None:
        chosen = backend or self.backend
        self.inner.add(slot, f"r{slot}", spec, chosen.compile(spec), chosen, tokens)

    def mask(self, *slots: int) -> list[set[int]]:
        rows = np.full((len(slots), VOCABULARY.words), 0x5A5A5A5A, np.int32)
        self.inner.fill(slots, rows)
        bits = np.unpackbits(rows.view(np.uint8), axis=1, bitorder="little")
        return [set(np.flatnonzero(row).tolist()) for row in bits]

    def phases(self, *slots: int) -> list[Phase]:
        return [self.inner.phase(slot) for slot in slots]

    def feed(self, slot: int, tokens: Iterable[int]) -> None:
        for token in tokens:
            self.inner.accept((slot,), [token])

    def failures(self) -> list[tuple[int, str]]:
        return [(slot, str(error)) for slot, error in self.inner.failures]


@pytest.fixture
def table(backend: XGrammarBackend) -> Table:
    return Table(backend)


class TestLifeOfARequest:
    def test_active_until_its_stop_token_then_done(self, table):
        table.add(3, OutputSpec.regex("ab?"))
        assert table.phases(3) == [Phase.ACTIVE]
        assert table.mask(3) == [set(ids("a"))]
        table.feed(3, ids("a"))
        assert table.mask(3) == [{*ids("b"), END}]
        table.feed(3, [END])
        assert table.phases(3) == [Phase.DONE]
        assert table.inner.tokens(3) == (*ids("a"), END)
        assert table.inner.failures == []

    def test_padding_after_the_end_is_ignored(self, table):
        table.add(0, OutputSpec.regex("ab?"))
        table.feed(0, [*ids("a"), END, PAD, PAD, END])
        assert table.phases(0) == [Phase.DONE]
        assert table.inner.tokens(0) == (*ids("a"), END)
        assert table.mask(0) == [{END}]
        assert table.inner.failures == []

    def test_its_own_stop_tokens_replace_the_vocabularys(self, table):
        table.add(0, OutputSpec.regex("ab?", stop_token_ids=[OTHER_END]))
        table.feed(0, ids("a"))
        assert table.mask(0) == [{*ids("b"), OTHER_END}]
        table.feed(0, [OTHER_END])
        assert table.phases(0) == [Phase.DONE]
        assert table.mask(0) == [{OTHER_END}]

    @pytest.mark.parametrize("stop", [len(TOKENS), 63, 64, 10**6])
    def test_a_stop_token_outside_the_vocabulary_is_refused_and_takes_no_slot(self, table, stop):
        with pytest.raises(RequestError, match=f"request r5: stop token {stop} is outside the vocabulary"):
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

    def test_the_sequence_counts_when_it_overlaps_itself(self, table):
        table.add(0, OutputSpec.regex("x", start_after=ids("aab")))
        table.feed(0, ids("aaab"))
        assert table.phases(0) == [Phase.ACTIVE]

    def test_the_sequence_is_no_trigger_a_second_time(self, table):
        table.add(0, OutputSpec.regex("[a-z]+", start_after=ids("ab")))
        table.feed(0, [*ids("ab"), *ids("abab")])
        assert table.phases(0) == [Phase.ACTIVE]
        assert END in table.mask(0)[0]

    def test_a_stop_token_before_it_ends_the_request(self, table):
        table.add(0, OutputSpec.regex("x", start_after="<think>"))
        table.feed(0, [*ids("abc"), END, THINK, PAD])
        assert table.phases(0) == [Phase.DONE]
        assert table.inner.tokens(0) == (*ids("abc"), END)

    def test_a_sequence_that_ends_in_a_stop_token_starts_the_output(self, table):
        table.add(0, OutputSpec.regex("x", start_after=[*ids("a"), END]))
        table.feed(0, [*ids("a"), END])
        assert table.phases(0) == [Phase.ACTIVE]
        assert table.mask(0) == [set(ids("x"))]

    def test_text_that_cannot_be_encoded_takes_no_slot(self, backend):
        plain = Vocabulary(TOKENS, (END,), VOCABULARY.special_ids)
        table, spec = GrammarTable(plain), OutputSpec.regex("x", start_after="text")
        with pytest.raises(VocabularyError, match="no encoder"):
            table.add(0, "r0", spec, backend.compile(spec), backend)
        table.add(0, "r0", OutputSpec.regex("x"), backend.compile(OutputSpec.regex("x")), backend)


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
        assert [table.inner.tokens(slot) for slot in (4, 7, 9)] == [(a, c), (), (a, END)]
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
        assert message.startswith("request r0: the grammar allows no token after 1 tokens (")

    def test_the_stop_row_is_that_of_the_request(self, table):
        table.add(0, OutputSpec.grammar('root ::= "a" "!"', stop_token_ids=[OTHER_END]), ids("a"))
        assert table.mask(0) == [{OTHER_END}]

    def test_dead_ends_past_the_first_words_of_a_wide_mask_are_told_from_late_tokens(self):
        # Only the last token of a wide vocabulary fits: a look at the first words alone sees nothing.
        tokens = [b"a", b"</s>", *(b"-" for _ in range(5000)), b"b"]
        vocabulary = Vocabulary.from_tokens(tokens, [1])
        backend, table = XGrammarBackend(vocabulary, GuidedConfig(threads=1)), GrammarTable(vocabulary)
        for slot, text in enumerate(("ab", "a!")):
            spec = OutputSpec.grammar(f'root ::= "{text}"')
            table.add(slot, f"r{slot}", spec, backend.compile(spec), backend, [0])
        mask = np.zeros((2, vocabulary.words), np.int32)
        table.fill((0, 1), mask)
        rows = np.unpackbits(mask.view(np.uint8), axis=1, bitorder="little")
        assert [np.flatnonzero(row).tolist() for row in rows] == [[len(tokens) - 1], [1]]
        assert [table.phase(slot) for slot in (0, 1)] == [Phase.ACTIVE, Phase.FAILED]


class TestReplay:
    @pytest.mark.parametrize(
        ("spec", "produced"),
        [
            (OutputSpec.regex("ab?c*"), ids("abc")),
            (OutputSpec.regex("ab?c*"), [*ids("ab"), END]),
            (OutputSpec.regex("ab?c*"), [*ids("ab"), END, PAD]),
            (OutputSpec.regex("ab?c*"), ids("aa")),
            (OutputSpec.regex("ab?c*", start_after="<think>"), [*ids("zz"), THINK, *ids("ab")]),
            (OutputSpec.regex("ab?c*", start_after=ids("zz")), ids("xz")),
            (OutputSpec.regex("a", start_after="<think>"), [*ids("zz"), END]),
        ],
        ids=["active", "done", "padded", "failed", "triggered", "half a trigger", "never triggered"],
    )
    def test_gives_the_state_that_a_live_request_has(self, table, backend, spec, produced):
        table.add(0, spec)
        table.feed(0, produced)
        again = Table(backend)
        again.add(0, spec, produced)
        assert again.phases(0) == table.phases(0)
        assert again.inner.tokens(0) == table.inner.tokens(0)
        assert again.failures() == table.failures()
        assert again.mask(0) == table.mask(0)
        for next_token in (*ids("z"), THINK):
            table.feed(0, [next_token])
            again.feed(0, [next_token])
        assert again.phases(0) == table.phases(0)

    def test_the_journal_itself_replays(self, table):
        table.add(0, OutputSpec.regex("ab?c*", start_after="<think>"), [*ids("qq"), THINK, *ids("abc")])
        table.add(1, OutputSpec.regex("ab?c*", start_after="<think>"), table.inner.tokens(0))
        assert table.mask(0, 1) == [{*ids("c"), END}] * 2

    def test_any_integers_do(self, table):
        table.add(0, OutputSpec.regex("abc"), np.array(ids("ab"), np.int64))
        assert table.mask(0) == [set(ids("c"))]
        assert all(type(token) is int for token in table.inner.tokens(0))


class FakeMatcher:
    """Accepts `z` for ever; may stop at any time."""

    complete = True

    def __init__(self, spec: OutputSpec, backend: FakeBackend) -> None:
        self.spec = spec
        self.backend = backend
        self.accepted: list[int] = []

    def accept(self, token: int) -> bool:
        if self.backend.broken == "replay" and self.accepted:
            raise RuntimeError("out of memory")
        if token not in (*ids("z"), END):
            return False
        self.accepted.append(token)
        return True

    def accept_text(self, text: bytes) -> bool:
        raise NotImplementedError

    def rollback(self, tokens: int) -> None:
        raise NotImplementedError

    def fork(self) -> Matcher:
        raise NotImplementedError


class FakeBackend:
    """A second backend beside xgrammar. `broken` names the call that raises, for `culprit` or for all."""

    name = "fake"

    def __init__(self, broken: str = "", culprit: OutputSpec | None = None) -> None:
        self.broken = broken
        self.culprit = culprit
        self.limit = 0
        """Rows from which on a fill raises, whoever they are."""
        self.batches: list[int] = []
        self.live: dict[str, FakeMatcher] = {}
        """The matcher that was started last, by the text of its spec."""

    def compile(self, spec: OutputSpec) -> Grammar:
        return Grammar(spec, self.name, None, 0, 0.0)

    def start(self, grammar: Grammar, stop_token_ids: tuple[int, ...]) -> FakeMatcher:
        if self.broken == "start":
            raise RuntimeError("out of matchers")
        matcher = self.live[grammar.spec.text] = FakeMatcher(grammar.spec, self)
        return matcher

    def batch(self, matchers: Sequence[FakeMatcher]) -> FakeBatch:
        self.batches.append(len(matchers))
        return FakeBatch(self, matchers)


class FakeBatch:
    def __init__(self, backend: FakeBackend, matchers: Sequence[FakeMatcher]) -> None:
        self._backend = backend
        self._matchers = matchers

    def accept(self, tokens: list[int]) -> list[bool]:
        assert all(type(token) is int for token in tokens)
        return [self._accepted(matcher, token) for matcher, token in zip(self._matchers, tokens, strict=True)]

    def _accepted(self, matcher: FakeMatcher, token: int) -> bool:
        if self._backend.broken == "accept" and self._guilty(matcher):
            raise RuntimeError("out of threads")
        return matcher.accept(token)

    def _guilty(self, matcher: FakeMatcher) -> bool:
        return self._backend.culprit in (None, matcher.spec)

    def fill(self, mask: MaskArray, rows: list[int]) -> None:
        backend = self._backend
        fatal = (
            len(self._matchers) >= backend.limit if backend.limit else any(map(self._guilty, self._matchers))
        )
        if backend.broken == "fill" and fatal:
            raise RuntimeError("out of memory")
        assert len(rows) == len(self._matchers)
        mask[rows] = 0
        mask[rows, 0] = 1 << ids("z")[0]
        mask[rows, END // 32] |= 1 << (END % 32)


SPEC = OutputSpec.regex("ab*")
A, B, Z = ids("abz")


def mixed(table: Table, fake: FakeBackend) -> tuple[int, ...]:
    """Slots of both backends in turn, one that waits among them."""
    table.add(10, SPEC)
    table.add(11, SPEC, backend=fake)
    table.add(12, OutputSpec.regex("a", start_after="<think>"))
    table.add(13, SPEC, backend=fake)
    table.add(14, SPEC)
    return (14, 11, 12, 10, 13)


class TestTwoBackends:
    def test_every_row_gets_its_own_mask_and_token(self, table):
        slots = mixed(table, FakeBackend())
        assert table.mask(*slots) == [{A}, {Z, END}, EVERYTHING, {A}, {Z, END}]
        table.inner.accept(slots, [A, Z, B, A, END])
        assert table.phases(*slots) == [Phase.ACTIVE, Phase.ACTIVE, Phase.WAITING, Phase.ACTIVE, Phase.DONE]
        assert [table.inner.tokens(slot) for slot in slots] == [(A,), (Z,), (B,), (A,), (END,)]
        assert table.mask(*slots) == [{B, END}, {Z, END}, EVERYTHING, {B, END}, {END}]
        assert table.inner.failures == []

    def test_batches_are_made_again_only_when_rows_or_phases_change(self, table):
        fake = FakeBackend()
        for slot in (0, 1, 2):
            table.add(slot, SPEC, backend=fake)
        for _ in range(4):
            table.mask(0, 1, 2)
            table.inner.accept((0, 1, 2), [Z, Z, Z])
        assert fake.batches == [3]
        table.inner.accept((0, 1, 2), [Z, END, Z])
        table.mask(0, 1, 2)
        assert fake.batches == [3, 2]
        table.mask(2)
        assert fake.batches == [3, 2, 1]

    @pytest.mark.parametrize("broken", ["fill", "accept"])
    def test_one_that_raises_fails_only_its_rows(self, table, broken):
        fake = FakeBackend(broken)
        slots = mixed(table, fake)
        masks = table.mask(*slots)
        assert [masks[0], masks[2], masks[3]] == [{A}, EVERYTHING, {A}]
        if broken == "fill":
            assert [masks[1], masks[4]] == [{END}, {END}]
        table.inner.accept(slots, [A, Z, THINK, A, Z])
        assert table.phases(*slots) == [Phase.ACTIVE, Phase.FAILED, Phase.ACTIVE, Phase.ACTIVE, Phase.FAILED]
        assert sorted(table.failures()) == [
            (slot, f"request r{slot}: its backend failed: out of {what}")
            for slot in (11, 13)
            for what in [{"fill": "memory", "accept": "threads"}[broken]]
        ]
        assert table.mask(*slots) == [{B, END}, {END}, {A}, {B, END}, {END}]
        assert len(table.inner.failures) == 2


class TestACulprit:
    """Three rows of one backend, whose batch call raises for the one in the middle."""

    CULPRIT = OutputSpec.regex("culprit")
    SPECS = (OutputSpec.regex("first"), CULPRIT, OutputSpec.regex("last"))

    @pytest.fixture
    def fake(self, table) -> FakeBackend:
        fake = FakeBackend(culprit=self.CULPRIT)
        for slot, spec in enumerate(self.SPECS):
            table.add(slot, spec, backend=fake)
        table.inner.accept((0, 1, 2), [Z, Z, Z])
        return fake

    def test_its_accept_moves_the_others_once(self, table, fake):
        fake.broken = "accept"
        table.inner.accept((0, 1, 2), [Z, Z, END])
        assert table.phases(0, 1, 2) == [Phase.ACTIVE, Phase.FAILED, Phase.DONE]
        # The batch had moved the first row when it raised, and never came to the last.
        assert fake.live["first"].accepted == [Z, Z]
        assert fake.live["last"].accepted == [Z, END]
        assert [table.inner.tokens(slot) for slot in (0, 1, 2)] == [(Z, Z), (Z,), (Z, END)]
        assert table.failures() == [(1, "request r1: its backend failed: out of threads")]
        assert table.mask(0, 1, 2) == [{Z, END}, {END}, {END}]

    def test_the_others_go_on(self, table, fake):
        fake.broken = "accept"
        table.inner.accept((0, 1, 2), [Z, Z, Z])
        table.inner.accept((0, 1, 2), [Z, Z, END])
        assert table.phases(0, 1, 2) == [Phase.ACTIVE, Phase.FAILED, Phase.DONE]
        assert fake.live["first"].accepted == [Z, Z, Z]
        assert len(table.inner.failures) == 1

    def test_a_wrong_token_beside_it_is_told_as_such(self, table, fake):
        fake.broken = "accept"
        table.inner.accept((0, 1, 2), [A, Z, Z])
        assert table.phases(0, 1, 2) == [Phase.FAILED, Phase.FAILED, Phase.ACTIVE]
        first, culprit = sorted(reason for _, reason in table.failures())
        assert "breaks the grammar" in first
        assert "out of threads" in culprit

    def test_what_came_before_the_constrained_part_is_not_replayed(self, table, fake):
        table.add(3, OutputSpec.regex("thought", start_after="<think>"), backend=fake)
        slots = (0, 1, 2, 3)
        for token in (A, THINK, Z):
            table.inner.accept(slots, [Z, Z, Z, token])
        fake.broken = "accept"
        table.inner.accept(slots, [Z, Z, Z, Z])
        assert fake.live["thought"].accepted == [Z, Z]
        assert table.phases(*slots) == [Phase.ACTIVE, Phase.FAILED, Phase.ACTIVE, Phase.ACTIVE]

    def test_its_fill_closes_its_row_only(self, table, fake):
        fake.broken = "fill"
        assert table.mask(0, 1, 2) == [{Z, END}, {END}, {Z, END}]
        assert table.phases(0, 1, 2) == [Phase.ACTIVE, Phase.FAILED, Phase.ACTIVE]
        assert table.failures() == [(1, "request r1: its backend failed: out of memory")]

    def test_none_fails_when_the_rows_work_one_by_one(self, table, fake, caplog):
        fake.broken, fake.limit = "fill", 2
        assert table.mask(0, 1, 2) == [{Z, END}] * 3
        assert table.failures() == []
        assert "3 rows are retried one by one: out of memory" in caplog.text


class TestABackendThatFailsAtTheStart:
    @pytest.mark.parametrize(
        ("broken", "what"),
        [("start", "out of matchers"), ("replay", "out of memory")],
        ids=["start", "replay"],
    )
    def test_takes_no_slot(self, table, broken, what):
        with pytest.raises(RequestError, match=f"request r0: its backend failed: {what}"):
            table.add(0, SPEC, [Z, Z], backend=FakeBackend(broken))
        assert table.inner.failures == []
        table.add(0, SPEC)
        assert table.mask(0) == [{A}]


class TestSlots:
    def test_rows_follow_the_slots_in_any_order_and_number(self, table):
        for slot, pattern in ((2, "a+"), (5, "b+"), (8, "c+")):
            table.add(slot, OutputSpec.regex(pattern))
        a, b, c = ids("abc")
        assert table.mask(8, 2, 5) == [{c}, {a}, {b}]
        table.inner.accept((8, 2, 5), [c, a, b])
        assert table.mask(5, 8) == [{b, END}, {c, END}]
        table.inner.accept((5, 8), [b, END])
        assert table.mask(2, 8, 5) == [{a, END}, {END}, {b, END}]
        assert [table.inner.tokens(slot) for slot in (2, 5, 8)] == [(a,), (b, b), (c, END)]

    @pytest.mark.parametrize("history", [ids("a"), [*ids("a"), END], ids("x"), []])
    def test_a_slot_used_again_knows_nothing_of_who_had_it(self, table, history):
        table.add(0, OutputSpec.regex("ab*", stop_token_ids=[OTHER_END, END]))
        table.feed(0, history)
        table.mask(0)
        table.inner.remove(0)
        table.inner.failures.clear()
        table.add(0, OutputSpec.regex("cd*"))
        assert table.phases(0) == [Phase.ACTIVE]
        assert table.inner.tokens(0) == ()
        assert table.mask(0) == [set(ids("c"))]
        table.feed(0, ids("c"))
        assert table.mask(0) == [{*ids("d"), END}]
        assert table.inner.failures == []

    def test_requests_with_one_grammar_move_apart(self, table):
        for slot in (0, 1):
            table.add(slot, SPEC)
        table.inner.accept((0, 1), [A, A])
        table.inner.accept((0,), [B])
        table.inner.accept((1,), [END])
        assert table.phases(0, 1) == [Phase.ACTIVE, Phase.DONE]

    def test_a_taken_slot_names_its_holder(self, table):
        table.add(0, SPEC)
        with pytest.raises(PipelineError, match="slot 0 is taken by request r0"):
            table.add(0, OutputSpec.regex("b"))
        assert table.mask(0) == [{A}]

    def test_empty_slots(self, table):
        table.add(0, SPEC)
        with pytest.raises(PipelineError, match="slot 1 is empty"):
            table.inner.remove(1)
        with pytest.raises(PipelineError, match="slot 1 has no request"):
            table.mask(0, 1)
        with pytest.raises(PipelineError, match="slot 1 has no request"):
            table.inner.accept((0, 1), [A, A])
        table.inner.remove(0)
        with pytest.raises(PipelineError, match="slot 0 is empty"):
            table.inner.remove(0)

    def test_no_rows_at_all(self, table):
        assert table.mask() == []
        table.inner.accept((), [])
        assert table.inner.failures == []
