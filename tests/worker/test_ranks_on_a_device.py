"""A rank whose device reads the masks of rank 0 at any time: on a device that the test
drives."""

import os

import fake_cuda
import numpy as np
import pytest
import torch
from worker_runs import until

from guided_plugin.errors import PipelineError
from guided_plugin.step import StepPlan
from guided_plugin.worker.buffers import Buffers, HostTokens
from guided_plugin.worker.device.cuda_masks import (
    CudaMasks,
    DeviceRegion,
    FollowedMasks,
)
from guided_plugin.worker.layout import PLAN_DEPTH, Region, Shape, unwrap
from guided_plugin.worker.ranks import follower
from guided_plugin.worker.ranks.follower import FollowerRuntime, RegionOffer
from guided_plugin.worker.words import Counter, PlanField, RankWord

PLAN = StepPlan((0, 1), (0, 1))
WORDS = 9


class Leader:
    """The process of rank 0."""

    rank = 0
    lives = True

    def alive(self):
        return self.lives


def mapped(region, device):
    return DeviceRegion(
        region, torch.device("cpu"), region.address, lambda: device.main, True
    )


class Ranks:
    """Rank 0 as a test plays it, and a real rank 1."""

    def __init__(self, monkeypatch, first=0):
        self.device = fake_cuda.Device(monkeypatch)
        self.first = first
        self.region = Region.create(
            Shape(
                2,
                WORDS,
                followers=1,
            )
        )
        for counter in (Counter.PLANNED, Counter.FILLED):
            self.region.store(counter, first)
        self.region.rank_line(0)[RankWord.TAKEN] = first & 0xFFFFFFFF
        self.leader = Leader()
        shape = self.region.shape
        offer = RegionOffer(
            self.region.fd,
            shape,
            first,
            "process",
        )
        fd = os.dup(self.region.fd)
        region = Region(
            fd,
            shape,
            follows=True,
        )
        monkeypatch.setattr(
            follower,
            "make_buffers",
            self._buffers,
        )
        self.rank = FollowerRuntime(
            region, self.leader, region.rank_line(0), offer, torch.device("meta")
        )
        self.seen = []
        """What each step masked with, in the order of the main stream."""

    def _buffers(self, region, *_, **__):
        self.masks = FollowedMasks(mapped(region, self.device))
        return Buffers(
            self.masks,
            HostTokens(region),
            lambda: None,
        )

    def fill(self, step, slots=PLAN.slots):
        """Rank 0: the plan, the masks and FILLED of a step."""
        record = self.region.plans[step % PLAN_DEPTH]
        record[PlanField.STEP], record[PlanField.COUNT] = step & 0xFFFFFFFF, len(slots)
        record[PlanField.SLOTS : PlanField.SLOTS + len(slots)] = slots
        self.region.masks[step % PLAN_DEPTH] = step % 1000
        self.region.store(Counter.FILLED, step)

    def step(self, plan=PLAN):
        """Rank 1: plan a step and launch what masks with it."""
        self.rank.plan(plan)
        self.rank.fill()
        masks, _ = self.rank.masks(self.rank.newest, len(plan.rows))
        self.device.main.launch(lambda: self.seen.append(int(masks.unique())))
        return masks

    @property
    def taken(self):
        return unwrap(self.region.rank_line(0)[RankWord.TAKEN], self.first)

    def close(self):
        self.rank.close()
        self.region.close()


@pytest.fixture
def both(monkeypatch, request):
    """A test may give the number of the first step."""
    made = Ranks(
        monkeypatch,
        getattr(
            request,
            "param",
            0,
        ),
    )
    yield made
    made.close()


@pytest.mark.parametrize(
    "both",
    [0, 2**31 - 5, 2**32 - 5],
    indirect=True,
)
def test_masks_are_taken_when_the_device_has_copied_them(both):
    """Not when they are asked for, nor when they are filled."""
    first = both.first
    both.step()
    both.step()
    assert both.taken == first  # nothing is filled
    both.fill(first + 1)
    both.step()
    assert both.taken == first  # nothing has run
    both.device.run()
    both.step()
    assert both.taken == first + 1
    for step in range(first + 2, first + 5):
        both.fill(step)
    both.device.run()
    both.step()
    assert both.taken == first + 3  # the step before is not looked at yet
    both.step()
    assert both.taken == first + 4
    assert both.seen == [(first + n) % 1000 for n in (1, 2, 3, 4)]


def test_the_host_waits_only_where_it_is_as_far_ahead_as_the_rings_are_deep(both):
    for _ in range(PLAN_DEPTH):
        both.step()
    assert both.taken == 0
    with pytest.raises(fake_cuda.Stuck):
        both.step()
    both.device.asked = lambda: both.fill(1)
    both.step()
    assert both.taken == 1


def test_rank_0_never_fills_a_place_that_is_still_read(both):
    """It fills as soon as it may; the stream that reads is held up at all times but
    one."""
    for step in range(1, 40):
        if step - PLAN_DEPTH <= both.taken:
            both.fill(step)
        else:
            pytest.fail(f"rank 1 may be read at {both.taken}, and plans {step}")
        both.masks.side_stream.held = step % 3 != 0
        both.device.run()
        both.masks.side_stream.held = False  # only while the host plans, if it waits
        both.step()
    both.device.run()
    assert both.seen == list(range(1, 40))


def test_a_copy_waits_for_the_kernel_that_reads_its_place_on_the_device(both):
    """Of the masks of PLAN_DEPTH steps ago. The stream that masks may be late too."""
    both.device.main.held = True
    for step in range(1, PLAN_DEPTH + 1):
        both.fill(step)
        both.step()
    both.device.run()
    both.fill(PLAN_DEPTH + 1)
    view = both.step()
    both.device.run()
    # the place of step 5 holds step 1, which nothing has used yet
    assert int(view.unique()) == 1
    both.device.main.held = False
    both.device.run()
    assert both.seen == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("filled_first", [True, False])
def test_other_slots_are_found_before_rank_0_may_write_over_them(both, filled_first):
    """At once, if the masks are there already."""
    if filled_first:
        both.fill(1, slots=(1, 0))
    else:
        both.step()
        both.step()
        both.fill(1, slots=(1, 0))
        both.device.run()
    with pytest.raises(
        PipelineError, match=r"step 1 has slots \[0, 1\] here and \[1, 0\] at rank 0"
    ):
        both.step()
    assert both.taken == 0
    assert both.region.rank_line(0)[RankWord.TROUBLE] == 1


@pytest.mark.parametrize(
    ("end", "says"),
    [
        (
            lambda both: setattr(
                both.leader,
                "lives",
                False,
            ),
            "rank 0 has ended",
        ),
        (
            lambda both: both.region.store(Counter.ENDED, 1),
            "rank 0 has closed its pipeline",
        ),
    ],
)
def test_a_device_does_not_wait_for_a_rank_0_that_has_gone(
    both, monkeypatch, caplog, end, says
):
    monkeypatch.setattr(
        follower,
        "_WATCH_SECONDS",
        0.01,
    )
    both.fill(1)
    both.step()
    both.step()
    both.device.run()
    assert both.seen == [1]
    end(both)
    until(lambda: both.device.run() or both.seen[1:])
    with pytest.raises(PipelineError, match=says):
        both.step()
    assert says in caplog.text
    # A worker that outlives rank 0 takes the flag back: it is raised again.
    both.region.store(Counter.FILLED, 1)
    until(lambda: unwrap(both.region.load(Counter.FILLED), 1) > 1)


def test_without_other_ranks_places_are_free_when_tokens_came(monkeypatch):
    """The host looks at one word; only without tokens it looks at events."""
    device = fake_cuda.Device(monkeypatch)
    region = Region.create(Shape(2, WORDS))
    masks = CudaMasks(mapped(region, device))
    seen = []
    for step in range(1, 20):
        region.masks[step % PLAN_DEPTH] = step
        region.store(Counter.FILLED, step)
        masks.claim(step)
        masks.upload(step, 2)
        view = masks.fetch(step, 2)
        device.main.launch(lambda view=view: seen.append(int(view.unique())))
        device.main.launch(lambda step=step: region.store(Counter.SAMPLED, step))
        if step % 2:
            device.run()
    device.run()
    assert seen == list(range(1, 20))
    assert np.array_equal(view.numpy(), np.full((2, WORDS), 19))
    for step in range(20, 20 + PLAN_DEPTH):  # planned, never sampled, never filled
        masks.claim(step)
        masks.upload(step, 2)
    with pytest.raises(fake_cuda.Stuck):
        masks.claim(20 + PLAN_DEPTH)
    region.close()
