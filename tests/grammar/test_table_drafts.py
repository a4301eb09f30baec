"""Masks along drafts: each is what a table has that was really brought there, and
nobody moves for them."""

from __future__ import annotations

import random

import numpy as np
import pytest
from grammar_tables import ScriptedBackend, ScriptedMatcher
from raw_xgrammar import RawXGrammar

from guided_plugin.config import GuidedConfig
from guided_plugin.grammar.base import Backend, Grammar, MaskArray
from guided_plugin.grammar.drafts import fill_with_drafts
from guided_plugin.grammar.llguidance.backend import LLGuidanceBackend
from guided_plugin.grammar.table import GrammarTable, Phase
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.spec import OutputSpec
from guided_plugin.step import NO_TOKEN

LETTERS = [bytes([letter]) for letter in b'abcdefgh0123456789 {}[]":,-.']
TOKENS = (*LETTERS, b'{"', b'":', b"ab", b"12", b'"}', b"</s>", b"<end>", b"<think>")
END, OTHER_END, THINK = (TOKENS.index(name) for name in (b"</s>", b"<end>", b"<think>"))
VOCABULARY = Vocabulary(
    TOKENS,
    (END,),
    frozenset({END, OTHER_END, THINK}),
    encode=lambda text: [TOKENS.index(text.encode())],
)
SPECS = [
    OutputSpec.regex("[a-c]{2,9}"),
    OutputSpec.choice(["abc", "ab", "badge"], stop_token_ids=[OTHER_END]),
    OutputSpec.json_schema(
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    ),
    OutputSpec.json_schema({"type": "array", "items": {"enum": ["b", "abc"]}}),
    OutputSpec.regex("[0-9]+", start_after=[THINK]),
]
DRAFTS = 4


@pytest.fixture(scope="module", params=[RawXGrammar, LLGuidanceBackend])
def backend(request: pytest.FixtureRequest) -> Backend:
    made: Backend = request.param(VOCABULARY, GuidedConfig(threads=2))
    return made


@pytest.fixture(scope="module")
def grammars(backend: Backend) -> list[Grammar]:
    return [backend.compile(spec) for spec in SPECS]


def allowed(row: MaskArray) -> list[int]:
    found: list[int] = np.flatnonzero(
        np.unpackbits(row.view(np.uint8), bitorder="little")
    ).tolist()
    return found


def masks_of(table: GrammarTable, slots: tuple[int, ...]) -> list[list[int]]:
    rows = np.full((len(slots), VOCABULARY.words), 0x5A5A5A5A, np.int32)
    table.fill(slots, rows)
    return [allowed(row) for row in rows]


def walked(
    backend: Backend,
    grammar: Grammar,
    spec: OutputSpec,
    tokens: list[int],
    drafts: list[int],
) -> list[list[int]]:
    """The masks along drafts, each of a table of its own that was brought there."""
    stops = list(spec.stop_token_ids or VOCABULARY.stop_token_ids)
    found: list[list[int]] = []
    for place in range(len(drafts) + 1):
        table = GrammarTable(VOCABULARY)
        table.add(0, "r", spec, grammar, backend, tokens)
        ended = any(draft in stops for draft in drafts[:place])
        for draft in drafts[:place]:
            if not ended:
                table.accept((0,), [draft])
        found.append(stops if ended else masks_of(table, (0,))[0])
    return found


@pytest.mark.parametrize("seed", range(4))
def test_masks_are_those_of_tables_that_went_there(backend, grammars, seed):
    chance = random.Random(seed)
    table = GrammarTable(VOCABULARY)
    slots = tuple(chance.sample(range(40), 12))
    of = {slot: chance.randrange(len(SPECS)) for slot in slots}
    journal: dict[int, list[int]] = {slot: [] for slot in slots}
    for slot in slots:
        table.add(slot, f"r{slot}", SPECS[of[slot]], grammars[of[slot]], backend)
    alone = bool(seed % 2)
    for _ in range(7):
        drafts = {
            slot: [chance.randrange(len(TOKENS)) for _ in range(DRAFTS)]
            for slot in slots
        }
        for slot in slots:
            walker = GrammarTable(VOCABULARY)
            walker.add(
                0, "r", SPECS[of[slot]], grammars[of[slot]], backend, journal[slot]
            )
            for place in range(chance.randrange(DRAFTS + 1)):
                drafts[slot][place] = chance.choice(masks_of(walker, (0,))[0])
                walker.accept((0,), [drafts[slot][place]])
            drafts[slot] = drafts[slot][: chance.randrange(DRAFTS + 1)]
        padded = [
            [*drafts[slot], *[NO_TOKEN] * (DRAFTS - len(drafts[slot]))]
            for slot in slots
        ]
        columns = [[own[place] for own in padded] for place in range(DRAFTS)]
        rows = np.zeros((len(slots) * (DRAFTS + 1), VOCABULARY.words), np.int32)
        # as a worker does that looks for a culprit: one slot at a time, rows far apart
        if alone:
            for at, slot in enumerate(slots):
                fill_with_drafts(
                    table,
                    (slot,),
                    rows[at :: len(slots)],
                    [[column[at]] for column in columns],
                )
        else:
            fill_with_drafts(table, slots, rows, columns)
        for at, slot in enumerate(slots):
            spec = SPECS[of[slot]]
            expected = walked(
                backend, grammars[of[slot]], spec, journal[slot], drafts[slot]
            )
            found = [
                allowed(rows[place * len(slots) + at])
                for place in range(len(drafts[slot]) + 1)
            ]
            refused = next(
                (
                    place
                    for place, draft in enumerate(drafts[slot])
                    if draft not in expected[place]
                ),
                None,
            )
            if refused is not None:
                stops = list(spec.stop_token_ids or VOCABULARY.stop_token_ids)
                expected[refused + 1 :] = [stops] * (len(expected) - refused - 1)
            assert found == expected, (spec.summary(), journal[slot], drafts[slot])
            assert list(table.tokens(slot)) == journal[slot]
        assert all(error.where == "start_after" for _, error in table.failures)
        chosen = [chance.choice(masks) for masks in masks_of(table, slots)]
        table.accept(slots, chosen)
        for slot, token in zip(slots, chosen, strict=True):
            journal[slot] = list(table.tokens(slot))
            unbegun = token == END and not table.requests[slot].state.begun
            assert (table.phase(slot) is Phase.FAILED) == unbegun
            assert token in journal[slot] or table.phase(slot) is Phase.DONE


def test_a_draft_that_completes_the_trigger_starts_the_grammar_also_where_it_is_a_stop_token(
    backend,
):
    a, c, h = (TOKENS.index(letter) for letter in (b"a", b"c", b"h"))
    spec = OutputSpec.regex("ac", start_after=[h, END])
    table = GrammarTable(VOCABULARY)
    table.add(0, "r", spec, backend.compile(spec), backend, [h])
    rows = np.zeros((3, VOCABULARY.words), np.int32)
    for _ in range(2):  # the drafts leave no trace
        fill_with_drafts(table, (0,), rows, [[END], [a]])
        assert allowed(rows[1]) == [a]
        assert allowed(rows[2]) == [c]
        assert table.phase(0) is Phase.WAITING
        assert table.tokens(0) == (h,)


class FragileBackend(ScriptedBackend):
    """Fails as it is told."""

    refuses = empty_at = -1
    """Positions at which it takes no token, and allows none."""
    stays = False
    """Whether it can't go back."""

    def accepts(self, matcher: ScriptedMatcher, token: int) -> bool:
        return self.refuses != len(matcher.tokens)

    def goes_back(self, matcher: ScriptedMatcher) -> None:
        if self.stays:
            raise RuntimeError("lost")

    def mask(self, matcher: ScriptedMatcher) -> int:
        return 0 if len(matcher.tokens) == self.empty_at else -1


class TestABackendThatFails:
    @pytest.fixture
    def fragile(self) -> FragileBackend:
        return FragileBackend()

    @pytest.fixture
    def table(self, fragile) -> GrammarTable:
        table = GrammarTable(VOCABULARY)
        spec = OutputSpec.regex("abc")
        for slot in (0, 1):
            table.add(slot, f"r{slot}", spec, fragile.compile(spec), fragile, [])
        return table

    def look(self, table: GrammarTable) -> list[list[int]]:
        """The masks of slot 0, with two drafts for it alone."""
        rows = np.zeros((6, VOCABULARY.words), np.int32)
        fill_with_drafts(table, (0, 1), rows, [[1, NO_TOKEN], [2, NO_TOKEN]])
        return [allowed(row) for row in rows[::2]]

    def test_nothing_left_after_a_draft_fails_nobody(self, table, fragile):
        fragile.empty_at = 1
        masks = self.look(table)
        assert len(masks[0]) > 30
        assert masks[1:] == [[END], [END]]
        assert table.failures == []
        assert table.phase(0) is Phase.ACTIVE
        table.accept((0, 1), [3, NO_TOKEN])
        self.look(table)
        assert [slot for slot, _ in table.failures] == [0]  # now it is there

    def test_a_draft_refused_against_its_mask_fails_its_request(self, table, fragile):
        fragile.refuses = 1
        masks = self.look(table)
        assert masks[2] == [END]
        assert table.phase(0) is Phase.FAILED
        assert table.phase(1) is Phase.ACTIVE
        assert "breaks the grammar" in str(table.failures[0][1])
        assert table.tokens(0) == ()

    def test_who_cannot_go_back_is_brought_there_anew(self, table, fragile):
        fragile.stays = True
        table.accept((0, 1), [3, 3])
        old = table.requests[0].matcher
        self.look(table)
        assert table.failures == []
        assert table.requests[0].matcher is not old
        assert table.requests[0].matcher.tokens == [3]

    def test_nor_then_it_fails_alone(self, table, fragile):
        fragile.stays = True
        table.accept((0, 1), [3, 3])
        fragile.refuses = 0  # what it accepts at its beginning
        self.look(table)
        assert table.phase(0) is Phase.FAILED
        assert table.phase(1) is Phase.ACTIVE
        assert "could not roll drafts back" in str(table.failures[0][1])


class TestMatchersThatCannotGoBack:
    """llguidance's can't after an error, nor with some lexemes: they are brought there
    anew."""

    @pytest.fixture
    def backend(self) -> LLGuidanceBackend:
        return LLGuidanceBackend(VOCABULARY, GuidedConfig(threads=2))

    def test_a_draft_into_a_dead_end(self, backend):
        spec = OutputSpec.regex("a(bz|c)d")  # no token spells a z
        table = GrammarTable(VOCABULARY)
        table.add(0, "r", spec, backend.compile(spec), backend)
        a, b, c, d = (TOKENS.index(letter) for letter in (b"a", b"b", b"c", b"d"))
        table.accept((0,), [a])
        rows = np.zeros((2, VOCABULARY.words), np.int32)
        fill_with_drafts(table, (0,), rows, [[b]])
        assert table.failures == []
        assert c in masks_of(table, (0,))[0]
        table.accept((0,), [c])
        table.accept((0,), [d])
        assert masks_of(table, (0,)) == [[END]]
        assert table.failures == []


NAMES = "lastTransitionTime", "message", "reason", "status", "type"
CONDITION = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in NAMES},
}
CONDITIONS = {"type": "array", "items": {**CONDITION, "required": ["type", "status"]}}
PIECES = (
    *(
        '{"',
        "conditions",
        '":[{"',
        "last",
        "Transition",
        "Time",
        '":"',
        '","',
        "message",
        "reason",
        "status",
    ),
    *(
        "type",
        "True",
        "Namespace",
        "Active",
        '"}',
        '"},{"',
        ',{"',
        '],"',
        "phase",
        "Initialized",
    ),
)
HEAD = (
    '{"conditions":[{"lastTransitionTime":"2022-01-01T12:00:00Z","message":"Namespace is active",'
    '"reason":"NamespaceCreated","status":"True","type":"NamespaceActive"},'
    '{"lastTransitionTime":"2022-01-01T12:00:00Z","message":"Namespace is initialized",'
    '"reason":"NamespaceInitialized","status":"True","type":"NamespaceInitialized"}'
)


def test_a_mask_after_refused_drafts_is_not_one_from_before() -> None:
    """llguidance's own rollback leaves a matcher that shows one here: a replay of real
    documents met it."""
    pieces = sorted(
        (*map(str.encode, PIECES), *(bytes([byte]) for byte in range(256))), key=len
    )[::-1]
    vocabulary = Vocabulary((*pieces, b"</s>"), (len(pieces),))

    def tokens(text: bytes) -> list[int]:
        if not text:
            return []
        token = next(
            token for token, piece in enumerate(pieces) if text.startswith(piece)
        )
        return [token, *tokens(text[len(pieces[token]) :])]

    backend = LLGuidanceBackend(vocabulary, GuidedConfig(threads=1))
    properties = {"conditions": CONDITIONS, "phase": {"type": "string"}}
    spec = OutputSpec.json_schema({"type": "object", "properties": properties})
    grammar = backend.compile(spec)
    table = GrammarTable(vocabulary, 1.0, 1.0)
    table.add(0, "a", spec, grammar, backend, ())
    masks = np.zeros((6, vocabulary.words), np.int32)

    def accept(text: bytes) -> None:
        for token in tokens(text):
            table.accept((0,), (token,))

    accept(HEAD.encode())
    fill_with_drafts(
        table, (0,), masks, [[token] for token in tokens(b',{"lastTransitionTime":"')]
    )
    accept(b'],"phase":"Active')
    table.fill((0,), masks)
    wanted = np.zeros((1, vocabulary.words), np.int32)
    backend.batch([table.requests[0].replayed()[0]]).fill(wanted, [0])
    assert (masks[0] == wanted[0]).all()
    assert not table.failures
