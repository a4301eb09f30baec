"""What the worker offers as drafts: in time, with confidences that tell what comes."""

from types import SimpleNamespace

import numpy as np
import pytest

from guided_plugin.grammar.layout import Layouts
from guided_plugin.grammar.learnt_drafts import Followers, Found
from guided_plugin.step import NO_TOKEN
from guided_plugin.worker.child import offers as offers_module
from guided_plugin.worker.child import steps as steps_module
from guided_plugin.worker.child.offers import Offers
from guided_plugin.worker.child.rings import Plan, WorkerRings
from guided_plugin.worker.layout import PLAN_DEPTH, TOKEN_DEPTH, Region, Shape
from guided_plugin.worker.words import Counter, PlanField

DRAFTS = 3


class Learnt:
    """What follows in each slot: known, or to be looked for, which takes its time."""

    def __init__(self, runs, clock=None, known=()):
        self.runs, self.clock = runs, clock or SimpleNamespace(now=0.0)
        self.known = dict(known)
        self.looked = []
        self.outputs = []

    def after(self, slot, request, tokens):
        return self.known.get(slot), slot not in self.known

    def read(self, slot, request):
        self.outputs.append(slot)

    def look(self, slot, request):
        self.clock.now += 0.0021
        self.looked.append(slot)
        followers = Followers()
        followers.sure = 0.25
        guesses = {6: Found((4, 4), Layouts()), 7: Found((6,), followers)}
        return (
            Found(self.runs[slot][:DRAFTS])
            if self.runs[slot] or slot < 6
            else guesses[slot]
        )


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
    ring = region.tokens[number % TOKEN_DEPTH, : count * (2 * DRAFTS + 1)].reshape(
        -1, count
    )
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
    return Offers(WorkerRings(region, 0, 0, 0), Table(), Learnt(runs, clock, known))


@pytest.mark.usefixtures("patient")
def test_what_must_follow_stands_in_place_of_guesses(region):
    offers = make(region, [(7, 8), (), (1, 2, 3, 4), *[()] * 5])
    found, _, _ = step(region, offers, 1, (0, 1, 2), proposed=9)
    assert found == [[7, 8, NO_TOKEN], [9, 9, 9], [1, 2, 3]]
    found, sure, _ = step(region, offers, 2, (0, 1, 7))
    assert found == [[7, 8, NO_TOKEN], [NO_TOKEN] * 3, [6, NO_TOKEN, NO_TOKEN]]
    assert sure == pytest.approx(np.array([[0.97, 0.97, 0], [0] * 3, [0.25, 0, 0]]))


def test_rows_that_drafts_come_too_late_for_keep_what_was_proposed_and_are_the_first_next_time(
    region, monkeypatch
):
    clock = SimpleNamespace(now=1.0, perf_counter=lambda: clock.now)
    monkeypatch.setattr(offers_module, "time", clock)
    slots = tuple(range(8))
    offers = make(region, [(7, 8)] * 8, clock)
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
    offers = make(region, [(7, 8), (), (), (), (), (), (), ()])
    for number in (1, 2, 3):
        step(region, offers, number, (0, 1, 6, 7), sampled=2)
    step(region, offers, 4, (0, 1, 6, 7), sampled=0)
    names = Counter.DRAFTS, Counter.TOKENS, Counter.FORWARDS
    assert [region.load(counter) for counter in names] == [20, 24, 12]
    # Followed earlier, and whitespace as it was before: offered, and accepted.
    assert [
        region.load(counter) for counter in (Counter.EARLIER, Counter.EARLIER_TAKEN)
    ] == [4, 2]
    assert [
        region.load(counter) for counter in (Counter.LAYOUT, Counter.LAYOUT_TAKEN)
    ] == [8, 2]


@pytest.mark.usefixtures("patient")
def test_what_is_known_is_offered_before_any_grammar_has_seen_the_tokens(region):
    known = {slot: Found((slot + 1, 9)) for slot in range(5)} | {6: Found()}
    offers = make(region, [(7,)] * 8, known=known)
    found, _, blocks = step(region, offers, 1, tuple(range(7)))
    assert found == [[slot + 1, 9, NO_TOKEN] for slot in range(5)] + [
        [7] + [NO_TOKEN] * 2,
        [NO_TOKEN] * 3,
    ]
    # The one that nothing was known of has taken its token in, and is known now.
    assert offers._table.moved == [5]
    assert blocks == [[5] * 5 + [NO_TOKEN, 5]]
    assert offers._learnt.looked == [5]


def test_what_there_was_no_time_for_is_looked_at_when_there_is(region, monkeypatch):
    clock = SimpleNamespace(now=1.0, perf_counter=lambda: clock.now)
    monkeypatch.setattr(offers_module, "time", clock)
    slots = tuple(range(8))
    offers = make(region, [(7, 8)] * 8, clock)
    step(region, offers, 1, slots)
    assert offers._learnt.looked == [0, 1, 2, 3, 4]
    del offers._table.requests[6]  # it has left
    while offers.learn():
        pass
    assert offers._learnt.looked == [0, 1, 2, 3, 4, 7, 5]
    assert sorted(offers._learnt.outputs) == [0, 1, 2, 3, 4, 5, 7]
    step(region, offers, 2, (0,))
    offers._learnt.looked.clear()
    assert offers.learn()
    assert not offers.learn()
    assert not offers._learnt.looked


@pytest.mark.parametrize("name", ["after", "look"])
def test_if_the_worker_ends_while_it_looks_at_a_row_its_request_is_to_blame(
    region, monkeypatch, name
):
    monkeypatch.setattr(offers_module, "_WORTH", 1e6)
    monkeypatch.setattr(Learnt, name, lambda *given: {}["name"])
    with pytest.raises(KeyError):
        step(region, make(region, [(7,), ()]), 1, (1, 0))
    assert region.load(Counter.DOING) == 1 + 1


def test_steps_that_are_sent_before_the_model_runs_tell_the_pace(region, monkeypatch):
    monkeypatch.setattr(steps_module, "fill_with_drafts", lambda *given: 3)
    told = []
    rings = WorkerRings(region, 0, 0, 0)
    requests = SimpleNamespace(table=None, all_run=lambda plan: True)
    pace = SimpleNamespace(step=lambda now, fills: told.append(fills))
    steps = steps_module.DraftSteps(rings, requests, pace, None)
    for number, sent in enumerate((0, 1, 2), 1):
        region.plans[number % PLAN_DEPTH][[PlanField.COUNT, PlanField.OFFERS]] = 1, sent
        steps._fill(rings.plan(number))
    assert told == [3.0, 3.0]  # three masks for one row; not of requests that enter
