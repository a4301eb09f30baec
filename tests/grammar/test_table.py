"""`GrammarTable`: where each request is, and that nothing one request does reaches
another.

Any history of a table is judged by the rules of `start_after` and stop tokens, which
`Request` has in plain words, and by a fresh matcher for each look.
"""

import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from compilers import shown, tokens_of
from grammar_tables import (
    END,
    EVERYTHING,
    OTHER_END,
    THINK,
    TOKENS,
    VOCABULARY,
    ScriptedBackend,
    Table,
    ids,
)
from raw_xgrammar import RawXGrammar

from benchmarks.samples import TextTokens
from guided_plugin.config import GuidedConfig
from guided_plugin.errors import GuidedError, PipelineError
from guided_plugin.grammar.drafts import fill_with_drafts
from guided_plugin.grammar.llguidance.backend import LLGuidanceBackend
from guided_plugin.grammar.table import GrammarTable, Phase
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.spec import OutputSpec
from guided_plugin.step import BROKEN, NO_TOKEN

CONFIG = GuidedConfig(threads=2)
XGRAMMAR = RawXGrammar(VOCABULARY, CONFIG)
LLGUIDANCE = LLGuidanceBackend(VOCABULARY, CONFIG)
A, Z = ids("az")
DRAFTS = 4
ENDED = (Phase.DONE, Phase.FAILED)

KEPT = ["<think>", {"text": "yz", "kept": True}]
SPECS = [
    OutputSpec.regex("[a-c]{2,9}"),
    OutputSpec.choice(["abc", "ab", "badge"], stop_token_ids=[OTHER_END]),
    OutputSpec.json_schema(
        {"type": "object", "properties": {"a": {"type": "integer"}}}
    ),
    OutputSpec.json_schema({"type": "array", "items": {"enum": ["b", "abc"]}}),
    OutputSpec.regex("a(b!|c)d"),  # no token spells this mark
    OutputSpec.regex("[0-9]+", start_after=[THINK, OTHER_END]),
    OutputSpec.regex("ac*", start_after=[*ids("h"), END]),
    OutputSpec.regex("yzx?", start_after=KEPT),
    OutputSpec.regex("xyz", start_after=KEPT),  # it refuses what is kept
]


class Request:
    """What is true of a request."""

    def __init__(self, backend, spec):
        self.backend = backend
        self.spec = spec
        self.grammar = backend.compile(spec)
        self.stops = spec.stop_token_ids or (END,)
        self.triggers = VOCABULARY.triggers(spec.start_after)
        self.tokens = []
        self.phase = Phase.WAITING if self.triggers else Phase.ACTIVE

    def started(self, tokens=()):
        """Whether its grammar takes these at its beginning, and the matcher."""
        matcher = self.backend.start(self.grammar, self.stops)
        return all(map(matcher.accept, tokens)), matcher

    def completed(self, tokens):
        """The first trigger that tokens end with."""
        wanted = (
            one
            for one in self.triggers
            if tuple(tokens[-len(one.tokens) :]) == one.tokens
        )
        return next(wanted, None)

    def after(self, drafts=()):
        """The phase after its tokens and these, how many of them count, and what may
        come next."""
        tokens = [*self.tokens, *drafts]
        ended = set(self.stops)
        waiting = bool(self.triggers)
        _, matcher = self.started()
        if self.phase in ENDED:
            return self.phase, len(self.tokens), ended
        for count, token in enumerate(tokens, 1):
            if not waiting:
                known = 0 <= token < len(TOKENS)
                if not known or not matcher.accept(token):
                    return Phase.FAILED, count - 1, ended
                if token in self.stops:
                    return Phase.DONE, count, ended
                continue
            if token < 0:
                return Phase.FAILED, count - 1, ended
            trigger = self.completed(tokens[:count])
            waiting = trigger is None
            taken = token not in self.stops
            if trigger is not None:
                taken, matcher = self.started(trigger.tokens if trigger.kept else ())
            if not taken:
                return Phase.FAILED, count, ended
        if waiting:
            return Phase.WAITING, len(tokens), EVERYTHING - self.forbidden(tokens)
        row = np.zeros((1, VOCABULARY.words), np.int32)
        self.backend.batch([matcher]).fill(row, [0])
        (allowed,) = tokens_of(row)
        phase = Phase.ACTIVE if allowed else Phase.FAILED
        return phase, len(tokens), set(allowed) or ended

    def forbidden(self, tokens):
        """What would complete a trigger that its grammar can't begin with."""
        kept = [one.tokens for one in self.triggers if one.kept]
        return {
            last
            for *before, last in kept
            if tokens[len(tokens) - len(before) :] == before
            and not self.started([*before, last])[0]
        }

    def masks(self, drafts):
        """What may come next, here and after each draft; nothing after a wrong one. Where
        nothing may come after a right one, the request fails."""
        found = [self.after()[2]]
        dead = False
        for count, draft in enumerate(drafts, 1):
            phase, _, mask = self.after(drafts[:count])
            allowed = draft in found[-1]
            found.append(mask if allowed else set(self.stops))
            dead |= allowed and phase is Phase.FAILED and draft not in self.stops
        if dead:
            self.phase = Phase.FAILED
        return found

    def likely(self, chance, drafts=()):
        """A token that may come next, most of the time."""
        anything = range(len(TOKENS))
        allowed = sorted(self.after(drafts)[2].intersection(anything))
        begins = [token for one in self.triggers for token in one.tokens]
        return chance.choice(
            chance.choice([allowed, allowed, allowed, begins or allowed, anything])
        )

    def take(self, token):
        """A token was sampled after a mask was filled."""
        self.phase, _, _ = self.after()
        if self.phase not in ENDED:
            self.phase, count, _ = self.after([token])
            self.tokens = [*self.tokens, token][:count]


def masks_with_drafts(table, slots, drafts, alone):
    """The masks of each slot along its drafts. `alone`: as a worker asks that looks for
    a culprit, one slot at a time, with rows far apart."""
    count = len(slots)
    padded = [[*own, *[NO_TOKEN] * (DRAFTS - len(own))] for own in drafts]
    rows = np.zeros((count * (DRAFTS + 1), VOCABULARY.words), np.int32)
    if alone:
        for at, slot in enumerate(slots):
            own = [[draft] for draft in padded[at]]
            fill_with_drafts(table, (slot,), rows[at::count], own)
    else:
        fill_with_drafts(table, slots, rows, list(zip(*padded, strict=True)))
    masks = [set(tokens) for tokens in tokens_of(rows)]
    return [masks[at::count][: len(own) + 1] for at, own in enumerate(drafts)]


@pytest.mark.parametrize("seed", range(6))
def test_any_history(seed):
    """Requests of both backends come to any slot, also with what they had before; they
    are looked at along drafts, get tokens that are allowed and others, and leave."""
    chance = random.Random(seed)
    table = Table()
    live = {}
    seen = set()
    for _ in range(150):
        slot = chance.randrange(10)
        if slot not in live:
            spec = chance.choice(SPECS)
            request = Request(chance.choice([XGRAMMAR, LLGUIDANCE]), spec)
            for _ in range(chance.randrange(3)):
                request.take(request.likely(chance))
            if request.phase is Phase.FAILED:
                continue  # no host brings a token that was refused
            live[slot] = request
            before = np.array(request.tokens, np.int64)
            table.start(slot, spec, request.backend, before)
        elif chance.random() < 0.2:
            del live[slot]
            table.remove(slot)
        if not live:
            continue
        slots = tuple(chance.sample(sorted(live), chance.randint(1, len(live))))
        requests = [live[slot] for slot in slots]
        drafts = [[] for _ in slots]
        for request, own in zip(requests, drafts, strict=True):
            for _ in range(chance.randrange(DRAFTS + 1)):
                own.append(request.likely(chance, own))
        pairs = list(zip(requests, drafts, strict=True))
        expected = [request.masks(own) for request, own in pairs]
        alone = chance.random() < 0.3
        found = masks_with_drafts(table, slots, drafts, alone)
        assert found == expected
        for slot, request in zip(slots, requests, strict=True):
            phase, _, _ = request.after()
            seen.add(phase)
            found = table.phase(slot), list(table.tokens(slot))
            assert found == (phase, request.tokens)
        sampled = [request.likely(chance) for request in requests]
        odd = chance.randrange(3 * len(slots))
        if odd < len(slots):
            sampled[odd] = chance.choice([NO_TOKEN, -5, len(TOKENS), 10**6])
        table.accept(slots, sampled)
        for request, token in zip(requests, sampled, strict=True):
            if token != NO_TOKEN:
                request.take(token)
    assert seen == set(Phase)


THINKS = replace(SPECS[0], start_after=ids("hm"), close_before_length=True, room=20)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a" * 14, "h"),
        ("a" * 13 + "h", "h"),
        ("a" * 14 + "h", "m"),
        ("a" * 17, "h"),
        ("a" * 16 + "h", "m"),
    ],
)
def test_a_request_whose_tokens_no_mask_led_is_led_from_there(before, after):
    table = Table()
    table.start(0, THINKS, LLGUIDANCE, ids(before))
    assert table.masks(0) == [set(ids(after))]


@pytest.mark.parametrize(
    ("backend", "answer_room", "thoughts"),
    [
        (LLGUIDANCE, 0.0, 15),
        (LLGUIDANCE, 0.1, 15),
        (LLGUIDANCE, 0.5, 8),
        (LLGUIDANCE, 1.0, 0),
        (XGRAMMAR, 0.0, 18),
        (XGRAMMAR, 0.25, 13),
    ],
)
def test_an_output_of_twenty_tokens_thinks_so_long(backend, answer_room, thoughts):
    """Where its end is known, the shortest answer takes three of them."""
    h, m = ids("hm")
    table = Table(answer_room=answer_room)
    table.start(0, THINKS, backend)
    answer = set(ids("abc"))
    if thoughts != 15:  # else, with no token to spare, single characters are tried
        answer.add(TOKENS.index(b"ab"))
    for count in range(thoughts):
        ahead = [A] * (thoughts - count) + [h, m]
        drafts = ahead[:DRAFTS]
        expected = [EVERYTHING if one == A else {one} for one in ahead] + [answer]
        found = masks_with_drafts(table, (0,), [drafts], False)
        assert found == [expected[: len(drafts) + 1]]
        table.feed(0, [A])
    for token in (h, m):
        assert table.masks(0) == [{token}]
        table.feed(0, [token])
    assert table.phase(0) is Phase.ACTIVE
    assert table.led == {0: 0}
    known = backend is LLGUIDANCE
    assert table.counts == Counter(
        led_tokens=2,
        led_reasoning=1,
        led_outputs=known and thoughts == 15,  # drafts come to the answer
        unprotected_outputs=not known,
    )


@pytest.mark.parametrize(
    ("spec", "tokens", "where", "says"),
    [
        (
            OutputSpec.regex("aab"),
            "aax",
            "",
            "(b'x') after 2 tokens breaks the grammar",
        ),
        (SPECS[8], "yz", "", "(b'y') after 2 tokens breaks the grammar"),
        (SPECS[4], "ab", "", "the grammar allows no token after 2 tokens ("),
        (
            OutputSpec.regex("x", start_after="<think>"),
            [A, END],
            "start_after",
            "the output ended before '<think>' (text or token ids) came, so none of it was constrained",
        ),
    ],
)
def test_a_failure_says_what_happened_and_where(spec, tokens, where, says):
    table = Table()
    table.start(7, spec, XGRAMMAR)
    table.feed(7, ids(tokens) if isinstance(tokens, str) else tokens)
    table.masks(7)
    ((slot, error),) = table.failures
    assert slot == 7
    assert error.where == where
    assert error.request_id == "r7"
    assert says in str(error)


class Faulty(ScriptedBackend):
    """Takes `z` for ever. The calls that `broken` names raise for the request of
    `culprit`; if that is empty, where they are for several."""

    def __init__(self, *broken, culprit=""):
        self.broken = broken
        self.culprit = culprit

    def is_broken(self, call, matchers):
        texts = [matcher.spec.text for matcher in matchers]
        guilty = self.culprit in texts if self.culprit else len(texts) > 1
        return call in self.broken and guilty

    def check(self, call, matchers):
        if self.is_broken(call, matchers):
            raise RuntimeError("out of memory")

    def start(self, grammar, stop_token_ids):
        matcher = super().start(grammar, stop_token_ids)
        self.check("start", [matcher])
        return matcher

    def accepts(self, matcher, token):
        self.check("accept", [matcher])
        return token in (Z, END) and not self.is_broken("refuse", [matcher])

    def forks(self, matcher):
        self.check("fork", [matcher])

    def fills(self, matchers):
        self.check("fill", matchers)

    def mask(self, matcher):
        return [1 << Z, 1 << END % 32]


@pytest.mark.parametrize(
    ("call", "culprit", "failed"),
    [("fill", "b", {1, 2}), ("accept", "b", {1, 2}), ("fill", "", {2})],
)
def test_a_call_that_raises_fails_its_request_alone(call, culprit, failed):
    """The batch has moved some of the others then, and not the rest. A wrong token
    beside it is told as such."""
    table = Table()
    faulty = Faulty()
    for slot, text in enumerate("abc"):
        table.start(slot, OutputSpec.regex(text), faulty)
    table.start(3, OutputSpec.regex("d", start_after="<think>"), faulty)
    table.start(4, SPECS[0], LLGUIDANCE)
    slots = (3, 0, 4, 1, 2)
    table.accept(slots, [THINK, Z, A, Z, Z])
    faulty.broken = (call,)
    faulty.culprit = culprit
    table.masks(*slots)
    table.accept(slots, [Z, Z, A, Z, A])
    for slot, mask in enumerate(table.masks(0, 1, 2, 3)):
        request = table.requests[slot]
        assert mask == ({END} if slot in failed else {Z, END})
        if slot not in failed:
            assert request.matcher.tokens == list(request.state.constrained())
    assert table.tokens(4) == (A, A)
    assert table.phase(4) is Phase.ACTIVE
    told = dict(table.told())
    assert told.keys() == failed
    assert "breaks the grammar" in told[2]
    if culprit:
        assert told[1] == "request r1: its backend failed: out of memory"


@pytest.mark.parametrize(
    ("backend", "options", "says"),
    [
        (XGRAMMAR, {"stop_token_ids": [len(TOKENS)]}, "r0: stop token 54 is outside"),
        (XGRAMMAR, {"start_after": [4000]}, "r0: start_after: token 4000 is"),
        (Faulty("start", culprit="ab*"), {}, "r0: its backend failed: out of memory"),
        (Faulty("accept", culprit="ab*"), {}, "r0: its backend failed: out of memory"),
    ],
)
def test_a_request_that_cannot_start_takes_no_slot(backend, options, says):
    table = Table()
    spec = OutputSpec.regex("ab*", **options)
    with pytest.raises(GuidedError, match=says):
        table.start(0, spec, backend, [Z, Z])
    assert table.failures == []
    table.start(0, OutputSpec.regex("z"), XGRAMMAR)
    assert table.masks(0) == [{Z}]


def test_slots_that_are_taken_or_empty():
    table = Table()
    spec = OutputSpec.regex("z")
    table.start(0, spec, XGRAMMAR)
    with pytest.raises(PipelineError, match="slot 0 is taken by request r0"):
        table.start(0, spec, XGRAMMAR)
    with pytest.raises(PipelineError, match="slot 1 is empty"):
        table.remove(1)
    with pytest.raises(PipelineError, match="slot 1 has no request"):
        table.masks(0, 1)
    with pytest.raises(PipelineError, match="slot 1 has no request"):
        table.accept((0, 1), [Z, Z])
    assert table.masks() == []
    assert table.masks(0) == [{Z}]


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ([], ""),
        (["fork"], "could not copy a matcher: out of memory"),
        (["refuse"], "breaks the grammar"),  # though its mask showed the draft
    ],
)
def test_a_matcher_that_fails_along_drafts_fails_alone(broken, says):
    table = Table()
    faulty = Faulty()
    for slot, text in enumerate("ab"):
        table.start(slot, OutputSpec.regex(text), faulty, [Z])
    faulty.broken = broken
    faulty.culprit = "a"
    masks, others = masks_with_drafts(table, (0, 1), [[Z], []], alone=False)
    after = {END} if broken else {Z, END}
    assert [*masks, *others] == [{Z, END}, after, {Z, END}]
    assert [says in text for _, text in table.told()] == [True] * bool(says)
    assert table.phase(0) is (Phase.FAILED if says else Phase.ACTIVE)
    assert table.phase(1) is Phase.ACTIVE
    assert table.tokens(0) == (Z,)
    if not says:
        assert table.requests[0].matcher.tokens == [Z]


def test_dead_ends_past_the_first_words_of_a_wide_mask_are_told_from_late_tokens():
    # Only the last token fits: a look at the first words alone sees nothing.
    tokens = [b"a", b"</s>", *(b"-" for _ in range(5000)), b"b"]
    vocabulary = Vocabulary.from_tokens(tokens, [1])
    backend = RawXGrammar(vocabulary, CONFIG)
    table = GrammarTable(vocabulary)
    for slot, text in enumerate(("ab", "a!")):
        spec = OutputSpec.regex(text)
        table.add(slot, f"r{slot}", spec, backend.compile(spec), backend, [0])
    assert shown(table, 0, 1) == [[len(tokens) - 1], [1]]
    assert table.phase(0) is Phase.ACTIVE
    assert table.phase(1) is Phase.FAILED


def test_a_mask_after_refused_drafts_is_not_one_from_before():
    """llguidance's own rollback leaves a matcher that shows one here: a replay of real
    documents met it."""
    case = json.loads(Path(__file__).with_name("rollback.json").read_bytes())
    pieces = [piece.encode() for piece in case["pieces"]]
    tokens = [*pieces, *(bytes([byte]) for byte in range(256)), b"</s>"]
    vocabulary = Vocabulary.from_tokens(tokens, [len(tokens) - 1])
    encode = TextTokens(vocabulary)
    spec = OutputSpec.json_schema(case["schema"])
    backend = LLGuidanceBackend(vocabulary, CONFIG)
    table = GrammarTable(vocabulary)
    table.add(0, "a", spec, backend.compile(spec), backend)
    masks = np.zeros((6, vocabulary.words), np.int32)
    before, drafts, after = (
        [[token] for token in encode(case[part])]
        for part in ("before", "drafts", "after")
    )
    table.accept_more((0,), before)
    fill_with_drafts(table, (0,), masks, drafts)
    table.accept_more((0,), after)
    table.fill((0,), masks)
    wanted = np.zeros((1, vocabulary.words), np.int32)
    backend.batch([table.requests[0].replayed()[0]]).fill(wanted, [0])
    assert not table.failures
    assert (masks[0] == wanted[0]).all()


def test_an_error_tells_a_token_that_the_mask_showed():
    """xgrammar's masks show some tokens that end inside of a character, and its
    matchers refuse them."""
    halves = [b"ba\xf0", b"a\xf0", b"a\xe1", b"-\xf0", b"x\xf0\x9f", b"\xf0\x9f"]
    tokens = [*(bytes([byte]) for byte in range(256)), *halves, b"</s>"]
    vocabulary = Vocabulary.from_tokens(tokens, [len(tokens) - 1])
    backend = RawXGrammar(vocabulary, CONFIG)
    rules = 'root ::= ((r | "x") [y-z] [^1ab])\nr ::= "1" | "ba"'
    spec = OutputSpec.grammar(rules)
    grammar = backend.compile(spec)
    seen = set()
    for token in range(vocabulary.size):
        table = GrammarTable(vocabulary)
        table.add(0, "r", spec, grammar, backend, b"b")
        (allowed,) = shown(table, 0)
        table.accept((0,), [token])
        told = ["fault of xgrammar" in error.hint for _, error in table.failures]
        seen.add((token in allowed, *told))
    # Taken; shown and refused; refused.
    assert seen == {(True,), (True, True), (False, False)}


def test_a_lost_history_is_told_once():
    table = Table()
    table.start(0, SPECS[0], LLGUIDANCE)
    table.accept((0,), [BROKEN])
    table.accept((0,), [BROKEN])
    assert len(table.told()) == 1
