"""The state machine of a request: table, journal and plain rules agree on its phase and
its tokens."""

from __future__ import annotations

import os
import random
import signal
import time
from array import array

import numpy as np
import torch
from grammar_tables import ScriptedBackend
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import BYTES

import guided_plugin as gp
from guided_plugin.grammar.request_state import Phase, RequestState
from guided_plugin.grammar.table import GrammarTable
from guided_plugin.spec import OutputSpec
from guided_plugin.spec.triggers import Trigger, triggers
from guided_plugin.worker.engine.steps import LiveRequest

VOCABULARY = gp.Vocabulary.from_tokens([b"a", b"b", b"c", b"d", b"e", b"</s>"], [5])
REFUSED = 4
"""The token that `Anything` refuses."""


class Anything(ScriptedBackend):
    """Takes all tokens but one."""

    def accepts(self, matcher, token):
        return _taken(token)


def _taken(token):
    return 0 <= token < VOCABULARY.size and token != REFUSED


def plain(trigger, stops, tokens):
    """The rules, written down without any state. Phase and number of tokens that
    count."""
    start = 0
    if trigger:
        for end in range(1, len(tokens) + 1):
            if tuple(tokens[max(0, end - len(trigger)) : end]) == trigger:
                start = end
                break
            if tokens[end - 1] < 0:
                return Phase.FAILED, end - 1
            if tokens[end - 1] in stops:
                return Phase.FAILED, end
        else:
            return Phase.WAITING, len(tokens)
    for end in range(start + 1, len(tokens) + 1):
        if not _taken(tokens[end - 1]):
            return Phase.FAILED, end - 1
        if tokens[end - 1] in stops:
            return Phase.DONE, end
    return Phase.ACTIVE, len(tokens)


ids = st.integers(0, 5)
cases = st.fixed_dictionaries(
    {
        "trigger": st.lists(ids, max_size=3).map(tuple),
        "stops": st.sets(ids, min_size=1, max_size=3).map(tuple),
        "tokens": st.lists(st.integers(-1, 5), max_size=14),
        "replayed": st.integers(0, 14),
        "chunks": st.lists(st.integers(1, 5), min_size=14, max_size=14),
        "told": st.integers(0, 14),
    }
)


def table_of(spec, tokens=()):
    table = GrammarTable(VOCABULARY)
    table.add(0, "r", spec, Anything().compile(spec), Anything(), tokens)
    return table


@settings(deadline=None, max_examples=400)
@given(cases)
def test_table_and_journal_follow_the_rules(case):
    trigger = case["trigger"]
    stops = case["stops"]
    tokens = case["tokens"]
    spec = OutputSpec.choice(["x"], start_after=trigger or None, stop_token_ids=stops)
    expected = plain(trigger, stops, tokens)

    first = tokens[
        : case["replayed"]
    ]  # what a request had produced before, as a host or a new worker gives it
    table = table_of(spec, first)
    for token in tokens[len(first) :]:
        table.accept((0,), [token])
    assert (table.phase(0), len(table.tokens(0))) == expected
    assert list(table.tokens(0)) == tokens[: expected[1]]

    journal = LiveRequest(1, 0, "r", spec, stops)
    failed = bool(table.failures)
    at = 0
    for chunk in case["chunks"]:
        # A worker tells of a failure when the journal has fewer or more tokens than
        # those that counted.
        if failed and at >= case["told"]:
            journal.state.fail(len(table.tokens(0)))
            failed = False
        journal.state.extend(array("q", tokens[at : at + chunk]))
        at += chunk
    if failed:
        journal.state.fail(len(table.tokens(0)))
    assert (journal.state.phase, journal.counted()) == (table.phase(0), table.tokens(0))

    if not table.failures:  # a new worker is where the old one was
        again = table_of(spec, journal.counted())
        assert (again.phase(0), again.tokens(0)) == (table.phase(0), table.tokens(0))


@settings(deadline=None, max_examples=200)
@given(cases)
def test_a_state_goes_back_to_any_mark(case):
    trigger = case["trigger"]
    stops = case["stops"]
    tokens = [abs(token) for token in case["tokens"]]
    state = RequestState(triggers(trigger or None) or (), stops)
    state.extend(array("q", tokens[: case["replayed"]]))
    mark = state.mark()
    counted = list(state.tokens)
    for number, token in enumerate(case["chunks"]):
        ends = state.ends_with(token)
        state.take(token)
        assert ends == (state.phase in (Phase.DONE, Phase.FAILED))
        if number == case["told"]:
            state.fail()
    state.go_back(mark)
    assert (state.mark(), list(state.tokens)) == (mark, counted)
    # It goes on as one that never went further.
    other = RequestState(triggers(trigger or None) or (), stops)
    for token in (*tokens[: case["replayed"]], *tokens):
        other.take(token)
    state.extend(array("q", tokens))
    assert (state.mark(), state.tokens) == (other.mark(), other.tokens)


def test_a_long_request_is_extended_without_looking_at_what_it_has():
    def seconds(length):
        state = RequestState((Trigger((1, 2)),), (5,))
        state.extend(array("q", [0] * length))
        chunk = array("q", [0] * 10)
        best = 1e9
        for _ in range(5):
            start = time.perf_counter()
            for _ in range(2000):
                state.extend(chunk)
            best = min(best, time.perf_counter() - start)
        return best

    assert seconds(1_000_000) < 10 * seconds(10)


TRIGGERED = gp.OutputSpec.regex("\x01{2,4}", start_after=[0, 3], stop_token_ids=[3])


def feed(pipe, slot, tokens):
    """Samples just these tokens, whatever the masks say; the masks, as sets of tokens
    up to 8."""
    masks = []
    for token in tokens:
        logits = torch.zeros(1, BYTES.size)
        pipe.plan([slot])
        pipe.fill_mask()
        pipe.apply_mask(logits)
        masks.append({other for other in range(8) if logits[0, other] == 0})
        pipe.schedule_update(torch.tensor([token]))
        pipe.finish_update()
    return masks


def test_a_trigger_that_ends_in_a_stop_token_starts_the_request(mode):
    compiler = gp.GrammarCompiler(BYTES, config=gp.GuidedConfig(threads=2))
    with gp.StepPipeline(compiler, max_slots=2, mode=mode) as pipe:
        slot = pipe.add_request("one", TRIGGERED)
        assert feed(pipe, slot, [0, 3, 1, 1])[-2:] == [{1}, {1}]
        assert (pipe.tokens("one"), pipe.phase("one")) == ((0, 3, 1, 1), Phase.ACTIVE)
        if mode == "process":  # the next worker starts it again where it was
            os.kill(pipe.runtime.supervisor.worker_pid, signal.SIGKILL)
        assert feed(pipe, slot, [1, 3, 1]) == [{1, 3}, {1, 3}, {3}]
        assert (pipe.tokens("one"), pipe.phase("one")) == (
            (0, 3, 1, 1, 1, 3),
            Phase.DONE,
        )
        # The same tokens, given as those that a request had produced before.
        again = pipe.add_request("two", TRIGGERED, tokens=[0, 3, 1, 1])
        assert feed(pipe, again, [1]) == [{1, 3}]
        assert (pipe.tokens("two"), pipe.phase("two")) == (
            (0, 3, 1, 1, 1),
            Phase.ACTIVE,
        )
        assert pipe.request("one").error is pipe.request("two").error is None


def test_both_modes_agree_on_any_tokens(mode):
    chance = random.Random(5)
    compiler = gp.GrammarCompiler(BYTES, config=gp.GuidedConfig(threads=2))
    with gp.StepPipeline(compiler, max_slots=1, mode=mode) as pipe:
        for number in range(40):
            trigger = [chance.randrange(4) for _ in range(chance.randrange(1, 3))]
            spec = gp.OutputSpec.regex(
                "[\x00-\x02]{6}",
                start_after=trigger,
                stop_token_ids=chance.sample(range(4), 2),
            )
            tokens = [chance.randrange(4) for _ in range(8)]
            slot = pipe.add_request(f"r{number}", spec)
            feed(pipe, slot, tokens)
            compiled = compiler.compile(spec)
            table = GrammarTable(BYTES)
            table.add(0, "r", spec, compiled, compiler.backend(compiled.backend))
            for token in tokens:
                table.fill((0,), np.zeros((1, BYTES.words), np.int32))
                table.accept((0,), [token])
            found = pipe.tokens(f"r{number}"), pipe.phase(f"r{number}")
            assert found == (table.tokens(0), table.phase(0)), (spec, tokens)
            pipe.remove_request(f"r{number}")
