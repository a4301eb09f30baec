"""What the worker offers as drafts: in time, with confidences that tell what comes."""

from types import SimpleNamespace

import numpy as np
import pytest

from guided_plugin.grammar.learnt_drafts import Followers, Found
from guided_plugin.step import NO_TOKEN
from guided_plugin.worker.child import offers as offers_module
from guided_plugin.worker.child.offers import Offers
from guided_plugin.worker.child.rings import Plan, WorkerRings
from guided_plugin.worker.layout import TOKEN_DEPTH, Region, Shape
from guided_plugin.worker.words import Counter

DRAFTS = 3


class Learnt:
    """What follows in each slot: known, or to be looked for."""

    def __init__(self, runs, known=()):
        self.runs = runs
        self.known = dict(known)
        self.looked = []

    def after(self, slot, request, tokens):
        return self.known.get(slot), slot not in self.known

    def look(self, slot, request):
        self.looked.append(slot)
        followers = Followers()
        followers.sure = 0.25
        if slot == 7:
            return Found((6,), followers)
        return Found(self.runs[slot][:DRAFTS])


class Table:
    """Slots with requests, and which of them took their tokens in."""

    def __init__(self):
        self.requests = {slot: SimpleNamespace(slot=slot) for slot in range(8)}
        self.moved = []

    def accept_more(self, slots, blocks):
        self.moved += slots


@pytest.fixture
def region(monkeypatch):
    # the machine may be busy with other things
    monkeypatch.setattr(
        offers_module,
        "_WORTH",
        1e6,
    )
    region = Region.create(
        Shape(
            max_slots=8,
            words=2,
            drafts=DRAFTS,
        ),
        shared=False,
    )
    yield region
    region.close()


def step(region, offers, number, slots, *, proposed=NO_TOKEN):
    """The drafts and the confidences of a step."""
    count = len(slots)
    ring = region.tokens[number % TOKEN_DEPTH, : count * (2 * DRAFTS + 1)].reshape(
        -1, count
    )
    ring[:] = NO_TOKEN
    ring[0] = 5
    ring[DRAFTS + 1 :] = proposed
    plan = Plan(
        number,
        number - 1,
        0,
        0,
        slots,
        True,
    )
    blocks = ring[:1].tolist()
    offers.seen(
        plan,
        blocks,
        whole=True,
    )
    assert region.reached(Counter.OFFERED, number)
    found = region.drafts(number, count)
    return found[:, :, 0].T.tolist(), found[:, :, 1].view(np.float32).T, blocks


def make(region, runs, known=()):
    return Offers(
        WorkerRings(
            region,
            0,
            0,
            0,
        ),
        Table(),
        Learnt(runs, known),
    )


def test_what_must_follow_stands_in_place_of_guesses(region):
    offers = make(region, [(7, 8), (), (1, 2, 3, 4), *[()] * 5])
    found, _, _ = step(
        region,
        offers,
        1,
        (0, 1, 2),
        proposed=9,
    )
    assert found == [[7, 8, NO_TOKEN], [9, 9, 9], [1, 2, 3]]
    found, sure, _ = step(
        region,
        offers,
        2,
        (0, 1, 7),
    )
    assert found == [
        [7, 8, NO_TOKEN],
        [NO_TOKEN] * 3,
        [6, NO_TOKEN, NO_TOKEN],
    ]
    assert sure == pytest.approx(np.array([[0.97, 0.97, 0], [0] * 3, [0.25, 0, 0]]))


def test_what_is_known_is_offered_before_any_grammar_has_seen_the_tokens(region):
    known = {slot: Found((slot + 1, 9)) for slot in range(5)} | {6: Found()}
    offers = make(
        region,
        [(7,)] * 8,
        known=known,
    )
    found, _, blocks = step(
        region,
        offers,
        1,
        tuple(range(7)),
    )
    assert found == [[slot + 1, 9, NO_TOKEN] for slot in range(5)] + [
        [7] + [NO_TOKEN] * 2,
        [NO_TOKEN] * 3,
    ]
    # The one that nothing was known of has taken its token in, and is known now.
    assert offers._table.moved == [5]
    assert blocks == [[5] * 5 + [NO_TOKEN, 5]]
    assert offers._learnt.looked == [5]


@pytest.mark.parametrize("name", ["after", "look"])
def test_if_the_worker_ends_while_it_looks_at_a_row_its_request_is_to_blame(
    region, monkeypatch, name
):
    monkeypatch.setattr(
        Learnt,
        name,
        lambda *given: {}["name"],
    )
    with pytest.raises(KeyError):
        step(
            region,
            make(region, [(7,), ()]),
            1,
            (1, 0),
        )
    assert region.load(Counter.DOING) == 1 + 1
