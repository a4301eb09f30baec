"""What the worker offers as drafts: in time, with confidences that tell what comes, and where it pays."""

import random
import time
from types import SimpleNamespace

import numpy as np
import pytest

from guided_plugin.grammar.recall import Found
from guided_plugin.step import NO_TOKEN
from guided_plugin.worker.child import offers as offers_module
from guided_plugin.worker.child.offers import Offers, SizeTrial
from guided_plugin.worker.child.rings import Plan, WorkerRings
from guided_plugin.worker.layout import TOKEN_DEPTH, Region, Shape
from guided_plugin.worker.words import Counter

DRAFTS = 3


class Forced:
    """What each slot's request has to go on with; it takes its time."""

    def __init__(self, runs, seconds=0.0):
        self.runs, self.seconds = runs, seconds

    def after(self, request, most):
        time.sleep(self.seconds)
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
    monkeypatch.setattr(offers_module, "_SECONDS", 10.0)


@pytest.fixture
def region():
    region = Region.create(Shape(max_slots=8, words=2, drafts=DRAFTS), shared=False)
    yield region
    region.close()


def step(region, offers, number, slots, *, sampled=1, proposed=NO_TOKEN, rows=None):
    """The drafts and the confidences of a step."""
    count = len(slots)
    ring = region.tokens[number % TOKEN_DEPTH, : count * (2 * DRAFTS + 1)].reshape(-1, count)
    ring[:] = NO_TOKEN
    ring[:sampled] = 5
    ring[DRAFTS + 1 :] = proposed
    plan = Plan(number, number - 1, 0, 0, slots, rows or count)
    blocks = ring[: DRAFTS + 1].tolist()[: max(sampled, 1)]
    offers.seen(plan, blocks, whole=True)
    assert region.offered(number)
    found = region.drafts(number, count)
    return found[:, :, 0].T.tolist(), found[:, :, 1].view(np.float32).T, blocks


def make(region, runs, known=(), **options):
    parts = Table(), Forced(runs, **options), Earlier(), Recalled(known)
    return Offers(WorkerRings(region, 0, 0, 0), *parts)


@pytest.mark.usefixtures("patient")
def test_what_must_follow_stands_in_place_of_guesses(region):
    offers = make(region, [(7, 8), (), (1, 2, 3, 4)])
    found, _, _ = step(region, offers, 1, (0, 1, 2), proposed=9)
    assert found == [[7, 8, NO_TOKEN], [9, 9, 9], [1, 2, 3]]
    found, sure, _ = step(region, offers, 2, (0, 1, 2))
    assert found == [[7, 8, NO_TOKEN], [NO_TOKEN] * 3, [1, 2, 3]]
    assert np.isfinite(sure).all()


@pytest.mark.usefixtures("patient")
def test_places_without_drafts_are_worth_what_they_were_lately(region):
    offers = make(region, [(7,), (7,), (), ()])
    for number in range(1, 60):
        _, sure, _ = step(region, offers, number, (0, 1, 2, 3))
    worth = np.cumprod(sure, axis=1)
    assert worth[0] == pytest.approx([0.97, 0, 0], abs=1e-6)
    # Half of the half of the rows that have one, as far as that is learnt.
    assert worth[2] == pytest.approx([0.25 * (1 - 0.6**3), 0, 0], abs=1e-6)


def test_rows_that_drafts_come_too_late_for_keep_what_was_proposed_and_are_the_first_next_time(
    region, monkeypatch
):
    monkeypatch.setattr(offers_module, "_SECONDS", 0.1)
    offers = make(region, [(7, 8)] * 8, seconds=0.03)
    found, _, _ = step(region, offers, 1, tuple(range(8)), proposed=9)
    assert found[0] == [7, 8, NO_TOKEN]
    assert found[-1] == [9, 9, 9]
    late = found.index([9, 9, 9])
    found, sure, _ = step(region, offers, 2, tuple(range(8)))
    assert found[late] == [7, 8, NO_TOKEN]
    assert [NO_TOKEN] * 3 in found
    assert np.isfinite(sure).all()


@pytest.mark.usefixtures("patient")
def test_tokens_and_drafts_are_counted(region):
    offers = make(region, [(7, 8), ()])
    for number in (1, 2, 3):
        step(region, offers, number, (0, 1), sampled=2)
    step(region, offers, 4, (0, 1), sampled=0)
    counts = [region.load(counter) for counter in (Counter.DRAFTS, Counter.TOKENS, Counter.FORWARDS)]
    assert counts == [8, 12, 6]


def trial(cost, gain, steps, seed=0):
    """A size of batches for so many steps; the part of them with drafts, and the time of a token beside that
    without."""
    chance, one = random.Random(seed), SizeTrial()
    spent = tokens = drafted = 0
    for _ in range(steps):
        got = 1 + (chance.random() < 2 * gain) / 2 if one.offers else 1
        took = (
            (cost if one.offers else 1.0) * chance.uniform(0.98, 1.02) * (5 if chance.random() < 0.1 else 1)
        )
        drafted += one.offers
        spent, tokens = spent + took, tokens + got
        one.add(took, got)
    return drafted / steps, spent / tokens / 1.4, one


@pytest.mark.parametrize(("cost", "gain"), [(1.05, 0.4), (1.04, 0.2)])
def test_a_size_that_is_faster_with_drafts_keeps_them(cost, gain):
    drafted, took, one = trial(cost, gain, 20_000)
    assert drafted > 0.97
    assert took < (cost / (1 + gain) + 0.015)
    assert not one.worse


@pytest.mark.parametrize(("cost", "gain"), [(1.2, 0.05), (1.05, 0.0)])
def test_a_size_that_is_slower_with_drafts_goes_without_and_tries_again(cost, gain):
    drafted, took, one = trial(cost, gain, 20_000)
    assert 0.01 < drafted < 0.04
    assert took < 1.01
    assert one.worse
    # What is drafted pays from now on.
    for _ in range(3000):
        one.add(1.0, 1.5 if one.offers else 1.0)
    assert not one.worse


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("between", [1, 2])
def test_what_was_proposed_stands_while_drafts_do_not_pay(region, between):
    """Also where requests come in every step, which are a plan of their own."""
    offers = make(region, [(7, 8)])
    stood = 0
    for number in range(1, 3000 * between, between):
        found, _, _ = step(region, offers, number, (0,), proposed=9)
        stood += found == [[9, 9, 9]]
        assert found in ([[9, 9, 9]], [[7, 8, NO_TOKEN]])
        time.sleep(0 if found == [[9, 9, 9]] else 100e-6)
    assert stood > 900
    assert region.load(Counter.WITHOUT) == 1


@pytest.mark.usefixtures("patient")
def test_what_is_known_is_offered_before_any_grammar_has_seen_the_tokens(region):
    known = {slot: Found((slot + 1, 9)) for slot in range(5)} | {6: Found()}
    offers = make(region, [(7,)] * 8, known)
    found, _, blocks = step(region, offers, 1, tuple(range(7)))
    assert found == [[slot + 1, 9, NO_TOKEN] for slot in range(5)] + [[7] + [NO_TOKEN] * 2, [NO_TOKEN] * 3]
    # The one that nothing was known of has taken its token in, and is known now.
    assert offers._table.moved == [5]
    assert blocks == [[5] * 5 + [NO_TOKEN, 5]]
    assert offers._recalled.kept == {5: ((7,), True)}


@pytest.mark.usefixtures("patient")
def test_what_is_to_be_looked_at_again_is_once_there_is_time(region, monkeypatch):
    known = {slot: Found((slot + 1,)) for slot in range(5)}
    offers = make(region, [(7,)] * 8, known)
    monkeypatch.setattr(offers._recalled, "after", lambda slot, request, tokens: (known[slot], slot == 3))
    found, _, _ = step(region, offers, 1, tuple(range(5)))
    assert [row[0] for row in found] == [1, 2, 3, 4, 5]
    assert not offers._recalled.kept
    offers.learn()
    assert offers._recalled.kept == {3: ((7,), True)}
