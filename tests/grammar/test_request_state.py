"""The state machine of a request: table, journal and plain rules agree on its phase and
its tokens."""

import os
import random
import signal
import timeit
from array import array

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
from guided_plugin.worker.messages import LiveRequest

VOCABULARY = gp.Vocabulary.from_tokens([b"a", b"b", b"c", b"d", b"e", b"</s>"], [5])
TAKEN = {0, 1, 2, 3, 5}


class Anything(ScriptedBackend):
    """Takes all tokens but one."""

    def accepts(self, matcher, token):
        return token in TAKEN


def plain(trigger, stops, tokens, taken):
    """The rules, written down without any state. Phase and number of tokens that
    count, where a grammar takes all of `taken` at any time."""
    waiting = bool(trigger)
    for count, token in enumerate(tokens, 1):
        if waiting:
            begins = tuple(tokens[max(0, count - len(trigger)) : count]) == trigger
            if begins:
                waiting = False
            elif token < 0:
                return Phase.FAILED, count - 1
            elif token in stops:
                return Phase.FAILED, count
        elif token not in taken:
            return Phase.FAILED, count - 1
        elif token in stops:
            return Phase.DONE, count
    return Phase.WAITING if waiting else Phase.ACTIVE, len(tokens)


ids = st.integers(0, 5)
CASES = {
    "trigger": st.lists(ids, max_size=3).map(tuple),
    "stops": st.sets(ids, min_size=1, max_size=3).map(tuple),
    "tokens": st.lists(st.integers(-1, 5), max_size=14),
    "replayed": st.integers(0, 14),
    "chunks": st.lists(st.integers(1, 5), min_size=14, max_size=14),
    "told": st.integers(0, 14),
}


def table_of(spec, tokens=()):
    table = GrammarTable(VOCABULARY)
    table.add(0, "r", spec, Anything().compile(spec), Anything(), tokens)
    return table


@settings(deadline=None, max_examples=400)
@given(**CASES)
def test_table_and_journal_follow_the_rules(
    trigger, stops, tokens, replayed, chunks, told
):
    spec = OutputSpec.choice(["x"], start_after=trigger or None, stop_token_ids=stops)
    expected = plain(trigger, stops, tokens, TAKEN)

    # What a request had produced before, as a host or a new worker gives it.
    first = tokens[:replayed]
    table = table_of(spec, first)
    for token in tokens[len(first) :]:
        table.accept((0,), [token])
    assert (table.phase(0), len(table.tokens(0))) == expected
    assert list(table.tokens(0)) == tokens[: expected[1]]

    journal = LiveRequest(1, 0, "r", spec, stops)
    failed = bool(table.failures)
    at = 0
    for chunk in chunks:
        # A worker tells of a failure when the journal has fewer or more tokens than
        # those that counted.
        if failed and at >= told:
            journal.state.fail(len(table.tokens(0)))
            failed = False
        journal.state.extend(array("q", tokens[at : at + chunk]))
        at += chunk
    if failed:
        journal.state.fail(len(table.tokens(0)))
    assert journal.state.phase == table.phase(0)
    assert tuple(journal.state.tokens) == table.tokens(0)

    if not table.failures:  # a new worker is where the old one was
        again = table_of(spec, journal.state.tokens)
        assert again.phase(0) == table.phase(0)
        assert again.tokens(0) == table.tokens(0)


@settings(deadline=None, max_examples=200)
@given(**CASES)
def test_a_state_goes_back_to_any_mark(trigger, stops, tokens, replayed, chunks, told):
    tokens = [abs(token) for token in tokens]
    state = RequestState(triggers(trigger) if trigger else (), stops)
    state.extend(array("q", tokens[:replayed]))
    mark = state.mark()
    counted = list(state.tokens)
    for number, token in enumerate(chunks):
        ends = state.ends_with(token)
        state.take(token)
        assert ends == (state.phase in (Phase.DONE, Phase.FAILED))
        if number == told:
            state.fail()
    state.go_back(mark)
    assert state.mark() == mark
    assert list(state.tokens) == counted
    # It goes on as one that never went further.
    other = RequestState(triggers(trigger) if trigger else (), stops)
    for token in (*tokens[:replayed], *tokens):
        other.take(token)
    state.extend(array("q", tokens))
    assert state.mark() == other.mark()
    assert state.tokens == other.tokens


def test_a_long_request_is_extended_without_looking_at_what_it_has():
    def seconds(length):
        state = RequestState((Trigger((1, 2)),), (5,))
        state.extend(array("q", [0] * length))
        chunk = array("q", [0] * 10)
        return min(timeit.repeat(lambda: state.extend(chunk), number=2000, repeat=5))

    assert seconds(1_000_000) < 10 * seconds(10)


def test_both_modes_follow_the_rules(mode):
    """Whatever the masks say; also in a worker that takes over."""
    chance = random.Random(5)
    compiler = gp.GrammarCompiler(BYTES, config=gp.GuidedConfig(threads=1))
    with gp.StepPipeline(compiler, max_slots=1, mode=mode) as pipe:
        for number in range(30):
            trigger = tuple(chance.choices(range(4), k=chance.randrange(1, 3)))
            stops = tuple(chance.sample(range(4), 2))
            tokens = chance.choices(range(4), k=8)
            spec = OutputSpec.regex(
                "[\x00-\x02]*", start_after=trigger, stop_token_ids=stops
            )
            slot = pipe.add_request("r", spec)
            for at, token in enumerate(tokens):
                pipe.plan([slot])
                pipe.fill_mask()
                pipe.apply_mask(torch.zeros(1, BYTES.size))
                if (mode, number, at) == ("process", 10, 5):
                    os.kill(pipe.runtime.supervisor.worker_pid, signal.SIGKILL)
                pipe.schedule_update(torch.tensor([token]))
                pipe.finish_update()
            taken = {0, 1, 2, *stops}
            phase, count = plain(trigger, stops, tokens, taken)
            found = pipe.phase("r"), list(pipe.tokens("r"))
            assert found == (phase, tokens[:count]), (trigger, stops, tokens)
            pipe.remove_request("r")
