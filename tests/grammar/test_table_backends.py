"""Tables with grammars of two backends, one of which fails."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from grammar_tables import (
    END,
    EVERYTHING,
    OTHER_END,
    THINK,
    ScriptedBackend,
    ScriptedMatcher,
    Table,
    ids,
)
from raw_xgrammar import RawXGrammar

from guided_plugin.config import GuidedConfig
from guided_plugin.errors import PipelineError, RequestError
from guided_plugin.grammar.base import Grammar
from guided_plugin.grammar.llguidance.backend import LLGuidanceBackend
from guided_plugin.grammar.table import GrammarTable, Phase
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.spec import OutputSpec


class FakeBackend(ScriptedBackend):
    """A second backend next to xgrammar, which takes `z` for ever. `broken` names the
    call that raises, for `culprit` or for all."""

    def __init__(self, broken: str = "", culprit: OutputSpec | None = None) -> None:
        super().__init__()
        self.broken = broken
        self.culprit = culprit
        self.limit = 0
        """Rows from which on a fill raises, of any request."""
        self.live: dict[str, ScriptedMatcher] = {}
        """The matcher that was started last, by the text of its spec."""

    def start(
        self, grammar: Grammar, stop_token_ids: tuple[int, ...]
    ) -> ScriptedMatcher:
        if self.broken == "start":
            raise RuntimeError("out of matchers")
        matcher = self.live[grammar.spec.text] = super().start(grammar, stop_token_ids)
        return matcher

    def accepts(self, matcher: ScriptedMatcher, token: int) -> bool:
        if self.broken == "accept" and self._guilty(matcher):
            raise RuntimeError("out of threads")
        if self.broken == "replay" and matcher.tokens:
            raise RuntimeError("out of memory")
        return token in (Z, END)

    def _guilty(self, matcher: ScriptedMatcher) -> bool:
        return self.culprit in (None, matcher.spec)

    def fills(self, matchers: Sequence[ScriptedMatcher]) -> None:
        fatal = (
            len(matchers) >= self.limit
            if self.limit
            else any(map(self._guilty, matchers))
        )
        if self.broken == "fill" and fatal:
            raise RuntimeError("out of memory")

    def mask(self, matcher: ScriptedMatcher) -> list[int]:
        return [1 << Z, 1 << END % 32]


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
        assert table.phases(*slots) == [
            Phase.ACTIVE,
            Phase.ACTIVE,
            Phase.WAITING,
            Phase.ACTIVE,
            Phase.DONE,
        ]
        assert [table.inner.tokens(slot) for slot in slots] == [
            (A,),
            (Z,),
            (B,),
            (A,),
            (END,),
        ]
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
        assert table.phases(*slots) == [
            Phase.ACTIVE,
            Phase.FAILED,
            Phase.ACTIVE,
            Phase.ACTIVE,
            Phase.FAILED,
        ]
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
        assert fake.live["first"].tokens == [Z, Z]
        assert fake.live["last"].tokens == [Z, END]
        assert [table.inner.tokens(slot) for slot in (0, 1, 2)] == [
            (Z, Z),
            (Z,),
            (Z, END),
        ]
        assert table.failures() == [
            (1, "request r1: its backend failed: out of threads")
        ]
        assert table.mask(0, 1, 2) == [{Z, END}, {END}, {END}]

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
        assert fake.live["thought"].tokens == [Z, Z]
        assert table.phases(*slots) == [
            Phase.ACTIVE,
            Phase.FAILED,
            Phase.ACTIVE,
            Phase.ACTIVE,
        ]

    def test_its_fill_closes_its_row_only(self, table, fake):
        fake.broken = "fill"
        assert table.mask(0, 1, 2) == [{Z, END}, {END}, {Z, END}]
        assert table.phases(0, 1, 2) == [Phase.ACTIVE, Phase.FAILED, Phase.ACTIVE]
        assert table.failures() == [
            (1, "request r1: its backend failed: out of memory")
        ]

    def test_none_fails_when_the_rows_work_one_by_one(self, table, fake, caplog):
        fake.broken = "fill"
        fake.limit = 2
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
        with pytest.raises(
            RequestError, match=f"request r0: its backend failed: {what}"
        ):
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
        assert [table.inner.tokens(slot) for slot in (2, 5, 8)] == [
            (a,),
            (b, b),
            (c, END),
        ]

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


HALVES = [
    b"ba\xf0",
    b"a\xf0",
    b"a\xe1",
    b"a\xf0\x9f\x98\x80\xed\xa0",
    b"-\xf0",
    b"x\xf0\x9f",
    b"\xf0\x9f",
    b'"\xc3',
]
PARTS = Vocabulary.from_tokens(
    [*(bytes([byte]) for byte in range(256)), *HALVES, b"</s>"], [256 + len(HALVES)]
)
AFTER_RULES = 'root ::= ((r | "x") {} [^1ab])\nr ::= "1" | "ba"'


@pytest.mark.parametrize(
    ("backend", "spec", "begun"),
    [
        (
            RawXGrammar,
            OutputSpec.grammar(AFTER_RULES.format("[y-z]")),
            ["", "b", "1"],
        ),
        (
            RawXGrammar,
            OutputSpec.grammar(AFTER_RULES.format("[😀-🙏]")),
            ["", "b", "ba"],
        ),
        (LLGuidanceBackend, OutputSpec.regex("(1|ba|x)[y-z][^1ab]"), ["", "b", "1"]),
        (
            LLGuidanceBackend,
            OutputSpec.json_schema({"items": {"const": 1}, "type": "array"}),
            ["", "[1"],
        ),
    ],
)
def test_an_error_tells_a_token_that_the_mask_showed_from_one_that_it_did_not(
    backend, spec, begun
):
    """xgrammar's masks show some tokens that end inside of a character, and its
    matchers refuse them."""
    made = backend(PARTS, GuidedConfig(threads=1))
    grammar = made.compile(spec)
    contradictions = 0
    for before in begun:
        table = GrammarTable(PARTS)
        slots = tuple(range(PARTS.size))  # one for each token
        for slot in slots:
            table.add(slot, "r", spec, grammar, made, before.encode())
        masks = np.zeros((PARTS.size, PARTS.words), np.int32)
        table.fill(slots, masks)
        table.accept(slots, list(slots))
        failed = dict(table.failures)
        for token in slots:
            shown = bool(masks[token, token // 32] >> token % 32 & 1)
            assert shown or token in failed
            if token in failed:
                error = failed[token]
                assert "breaks the grammar" in error.what
                assert ("though the mask of xgrammar shows it" in error.what) == shown
                assert ("fault of xgrammar" in error.hint) == shown
                contradictions += shown
    assert (contradictions > 0) == (backend is RawXGrammar)
