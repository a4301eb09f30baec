"""What the worker offers as drafts: in time, with confidences that tell what comes."""

from types import SimpleNamespace

import numpy as np
import pytest

from guided_plugin.grammar.recall import Found
from guided_plugin.step import NO_TOKEN
from guided_plugin.worker.child import offers as offers_module
from guided_plugin.worker.child import steps as steps_module
from guided_plugin.worker.child.offers import Offers
from guided_plugin.worker.child.rings import Plan, WorkerRings
from guided_plugin.worker.layout import PLAN_DEPTH, TOKEN_DEPTH, Region, Shape
from guided_plugin.worker.words import Counter, PlanField

DRAFTS = 3


class Forced:
    """What each slot's request has to go on with; it takes its time."""

    def __init__(self, runs, clock=None):
        self.runs, self.clock = runs, clock or SimpleNamespace(now=0.0)

    def after(self, request, most):
        self.clock.now += 0.0021
        return self.runs[request.slot][:most]


class Earlier:
    """Nothing is known of slots but the last: there a draft is half sure."""

    offered = taken = 0

    def after(self, slot, request, most):
        return ((6,), SimpleNamespace(sure=0.5)) if slot == 7 else ((), None)

    def learn(self, slot, followers=None, tokens=()):
        pass


class Recalled:
    """What is known of slots; rows of others are to be looked for."""

    def __init__(self, known=()):
        self.known, self.kept = dict(known), {}

    def after(self, slot, request, tokens):
        return self.known.get(slot), slot not in self.known

    def keep(self, slot, request, tokens, source, *, offered):
        self.kept[slot] = tokens, offered
        return Found(tokens, source)


class Table:
    """Slots with requests, and which of them took their tokens in."""

    def __init__(self):
        self.requests = {slot: SimpleNamespace(slot=slot) for slot in range(8)}
        self.moved = []

    def accept_more(self, slots, blocks):
        self.moved += slots


@pytest.fixture
def patient(monkeypatch):
    """The machine may be busy with other things."""
    monkeypatch.setattr(offers_module, "_WORTH", 1e6)


@pytest.fixture
def region():
    region = Region.create(Shape(max_slots=8, words=2, drafts=DRAFTS), shared=False)
    yield region
    region.close()


def step(region, offers, number, slots, *, sampled=1, proposed=NO_TOKEN):
    """The drafts and the confidences of a step."""
    count = len(slots)
    ring = region.tokens[number % TOKEN_DEPTH, : count * (2 * DRAFTS + 1)].reshape(-1, count)
    ring[:] = NO_TOKEN
    ring[:sampled] = 5
    ring[DRAFTS + 1 :] = proposed
    plan = Plan(number, number - 1, 0, 0, slots, True)
    blocks = ring[: DRAFTS + 1].tolist()[: max(sampled, 1)]
    offers.seen(plan, blocks, whole=True)
    assert region.offered(number)
    found = region.drafts(number, count)
    return found[:, :, 0].T.tolist(), found[:, :, 1].view(np.float32).T, blocks


def make(region, runs, clock=None, known=()):
    parts = Table(), Forced(runs, clock), Earlier(), Recalled(known)
    return Offers(WorkerRings(region, 0, 0, 0), *parts)


@pytest.mark.usefixtures("patient")
def test_what_must_follow_stands_in_place_of_guesses(region):
    offers = make(region, [(7, 8), (), (1, 2, 3, 4), *[()] * 5])
    found, _, _ = step(region, offers, 1, (0, 1, 2), proposed=9)
    assert found == [[7, 8, NO_TOKEN], [9, 9, 9], [1, 2, 3]]
    found, sure, _ = step(region, offers, 2, (0, 1, 7))
    assert found == [[7, 8, NO_TOKEN], [NO_TOKEN] * 3, [6, NO_TOKEN, NO_TOKEN]]
    assert sure == pytest.approx(np.array([[0.97, 0.97, 0], [0] * 3, [0.5, 0, 0]]))


def test_rows_that_drafts_come_too_late_for_keep_what_was_proposed_and_are_the_first_next_time(
    region, monkeypatch
):
    clock = SimpleNamespace(now=1.0, perf_counter=lambda: clock.now)
    monkeypatch.setattr(offers_module, "time", clock)
    slots, offers = tuple(range(8)), make(region, [(7, 8)] * 8, clock)
    found, _, _ = step(region, offers, 1, slots, proposed=9)
    assert found == [[7, 8, NO_TOKEN]] * 5 + [[9, 9, 9]] * 3
    found, sure, _ = step(region, offers, 2, slots)
    assert found[5:] == [[7, 8, NO_TOKEN]] * 3
    assert [NO_TOKEN] * 3 in found
    assert np.isfinite(sure).all()
    for number in range(3, 20):  # where steps are shorter there is less time
        clock.now += 0.001
        found, _, _ = step(region, offers, number, slots)
    assert found.count([7, 8, NO_TOKEN]) == 2


@pytest.mark.usefixtures("patient")
def test_tokens_and_drafts_are_counted(region):
    offers = make(region, [(7, 8), ()])
    for number in (1, 2, 3):
        step(region, offers, number, (0, 1), sampled=2)
    step(region, offers, 4, (0, 1), sampled=0)
    counts = [region.load(counter) for counter in (Counter.DRAFTS, Counter.TOKENS, Counter.FORWARDS)]
    assert counts == [8, 12, 6]


@pytest.mark.usefixtures("patient")
def test_what_is_known_is_offered_before_any_grammar_has_seen_the_tokens(region):
    known = {slot: Found((slot + 1, 9)) for slot in range(5)} | {6: Found()}
    offers = make(region, [(7,)] * 8, known=known)
    found, _, blocks = step(region, offers, 1, tuple(range(7)))
    assert found == [[slot + 1, 9, NO_TOKEN] for slot in range(5)] + [[7] + [NO_TOKEN] * 2, [NO_TOKEN] * 3]
    # The one that nothing was known of has taken its token in, and is known now.
    assert offers._table.moved == [5]
    assert blocks == [[5] * 5 + [NO_TOKEN, 5]]
    assert offers._recalled.kept == {5: ((7,), True)}


@pytest.mark.usefixtures("patient")
def test_what_is_to_be_looked_at_again_is_once_there_is_time(region, monkeypatch):
    known = {slot: Found((slot + 1,)) for slot in range(5)}
    offers = make(region, [(7,)] * 8, known=known)
    monkeypatch.setattr(offers._recalled, "after", lambda slot, request, tokens: (known[slot], slot == 3))
    found, _, _ = step(region, offers, 1, tuple(range(5)))
    assert [row[0] for row in found] == [1, 2, 3, 4, 5]
    assert not offers._recalled.kept
    while offers.learn():
        pass
    assert offers._recalled.kept == {3: ((7,), True)}
    step(region, offers, 2, tuple(range(5)))
    offers.seen(Plan(3, 2, 0, 0, tuple(range(5)), False), [], whole=True)  # it is at another place now
    offers._recalled.kept.clear()
    while offers.learn():
        pass
    assert not offers._recalled.kept


def test_outputs_are_learnt_from_in_turns_and_a_little_at_a_time(region, monkeypatch):
    monkeypatch.setattr(offers_module, "_LEARN_SECONDS", 0.0)
    learnt = []
    monkeypatch.setattr(Earlier, "learn", lambda self, slot, *offered: learnt.append(slot))
    offers = make(region, [()] * 8, known=dict.fromkeys(range(8), Found()))
    assert not offers.learn()
    step(region, offers, 1, (0, 1, 2))
    assert offers.learn()
    assert offers.learn()
    step(region, offers, 2, (0, 1, 2))  # two rows at a time, if there is no time for more
    while offers.learn():
        pass
    first, second, *rest = learnt
    assert (first, second) == (1, 2)
    assert rest == [0, 1, 2]


@pytest.mark.usefixtures("patient")
def test_if_the_worker_ends_while_it_looks_at_a_row_its_request_is_to_blame(region, monkeypatch):
    monkeypatch.setattr(Earlier, "after", lambda *given: {}["name"])
    with pytest.raises(KeyError):
        step(region, make(region, [(7,), ()]), 1, (0, 1))
    assert region.load(Counter.DOING) == 1 + 1


def test_steps_that_are_sent_before_the_model_runs_tell_the_pace(region, monkeypatch):
    monkeypatch.setattr(steps_module, "fill_with_drafts", lambda *given: 3)
    told, rings = [], WorkerRings(region, 0, 0, 0)
    requests = SimpleNamespace(table=None, all_run=lambda plan: True)
    pace = SimpleNamespace(step=lambda now, fills: told.append(fills))
    steps = steps_module.DraftSteps(rings, requests, pace, None)
    for number, sent in enumerate((0, 1, 2), 1):
        region.plans[number % PLAN_DEPTH][[PlanField.COUNT, PlanField.OFFERS]] = 1, sent
        steps._fill(rings.plan(number))
    assert told == [3.0, 3.0]  # three masks for one row; not of requests that enter
