"""Ranks of one model on several machines, here threads that are told so: masks are
sent, and the same."""

import threading

import numpy as np
import pytest
import torch
from rank_threads import HERE, WIDTH, on_ranks, pipeline, sharing, step
from worker_runs import until

import guided_plugin as gp
from guided_plugin.errors import PipelineError
from guided_plugin.step import NO_TOKEN
from guided_plugin.worker.layout import PLAN_DEPTH, Shape
from guided_plugin.worker.ranks import leader, peers, sender
from guided_plugin.worker.ranks.sender import Head, Incoming, Outgoing

SPECS = [
    gp.OutputSpec.regex("[a-c]{2,30}"),
    gp.OutputSpec.choice(["yes", "no", "maybe"]),
]


@pytest.fixture
def share(monkeypatch):
    monkeypatch.setattr(peers, "PATIENCE", 20.0)
    with sharing(monkeypatch) as share:
        yield share


@pytest.fixture
def alone():
    with pipeline(mode="inline") as alone:
        yield alone


def add(*pipes, spec=SPECS[0]):
    for pipe in pipes:
        pipe.add_request("r", spec)


def same(number, *pipes):
    """A step of each masks alike."""
    first, *others = (step(pipe, [0], number)[0] for pipe in pipes)
    assert all(torch.equal(masked, first) for masked in others)


def broken(name, lost, only=None):
    """Groups whose `send` or `receive` fails once something is lost."""

    def change(group):
        original = getattr(group, name)

        def call(tensor, rank, tag):
            if name == "receive":
                original(tensor, rank, tag)
            if lost.is_set() and rank in (only, 0):
                raise RuntimeError("Connection closed by peer")
            if name == "send":
                original(tensor, rank, tag)

        setattr(group, name, call)
        return group

    return change


def test_a_machine_may_be_as_late_as_a_rank(share, alone):
    """Rank 0 goes on, as what is sent has left its memory; the other finds each
    step."""
    near, far = share("ab")
    add(near, far, alone)
    for number in range(2 * PLAN_DEPTH):
        step(near, [0], number)
    for number in range(2 * PLAN_DEPTH):
        same(number, far, alone)


def test_a_rank_that_closes_leaves_the_copy_to_the_others_of_its_machine(
    share, alone, monkeypatch
):
    """Which may be late: masks that they have not used stay in their places."""
    monkeypatch.setattr(leader, "CLOSE_SECONDS", 0.1)
    near, first, late = share("abb")
    add(near, first, late, alone, spec=SPECS[1])
    same(0, near, first)
    first.close()
    for number in range(1, 2 * PLAN_DEPTH):
        step(near, [0], number)
    for number in range(2 * PLAN_DEPTH):
        same(number, late, alone)


@pytest.mark.usefixtures("share")
def test_two_pipelines_of_one_group():
    """Each machine hears of its own, also where the steps of both are alike."""

    def both(group):
        HERE.machine = "ab"[group.rank]
        return [pipeline(mode="inline", ranks=group) for _ in SPECS]

    near, far = on_ranks(2, both)
    alone = [pipeline(mode="inline") for _ in SPECS]
    for pipes in zip(near, far, alone, SPECS, strict=True):
        add(*pipes[:3], spec=pipes[3])
    for place in (1, 0):
        same(1, near[place], far[place], alone[place])
    for pipe in (*near, *far, *alone):
        pipe.close()


def test_drafts_on_two_machines(share, mode):
    drafts = 2
    with pipeline(mode="inline", drafts=drafts) as alone:
        pipes = [*share("ab", mode, drafts=drafts), alone]
        add(*pipes)
        sampled = [NO_TOKEN] * (drafts + 1)
        for number in range(6):
            draft = [ord("a"), ord("x" if number % 2 else "b")]
            tokens = torch.tensor(sampled + draft)
            logits = torch.zeros(drafts + 1, WIDTH)
            found = [
                pipe.draft_masks(pipe.send_drafts([0], tokens), logits)
                for pipe in pipes
            ]
            assert all(torch.equal(masks, found[-1]) for masks in found)
            sampled = [ord("a"), NO_TOKEN, NO_TOKEN]


def test_rank_0_is_not_heard_any_more(share, caplog):
    lost = threading.Event()
    near, far, third = share("abb", change=broken("receive", lost))
    add(near, far, third)
    same(1, near, far, third)
    lost.set()
    step(near, [0], 2)
    for pipe in (far, third):
        with pytest.raises(
            PipelineError, match="has ended, or cannot be reached any more"
        ):
            step(pipe, [0], 2)
    assert "rank 0 sends no more masks: Connection closed by peer" in caplog.text


def test_a_machine_that_cannot_be_reached_is_not_waited_for(share, caplog):
    lost = threading.Event()
    near, _, other = share("abc", change=broken("send", lost, only=1))
    add(near, other)
    lost.set()
    for number in range(3 * PLAN_DEPTH):
        same(number, near, other)
    assert (
        "no more masks are sent to the machine of rank 1: Connection closed by peer"
        in caplog.text
    )


def test_a_sender_that_fails_tells_it_and_lets_rank_0_go_on(share, monkeypatch, caplog):
    near, far = share("ab")
    add(near, far)
    monkeypatch.setattr(Outgoing, "write", lambda *_: 1 / 0)
    for number in range(3 * PLAN_DEPTH):
        step(near, [0], number)
    assert "no longer sent to other machines: division by zero" in caplog.text
    with pytest.raises(PipelineError, match="rank 0 has closed its pipeline"):
        step(far, [0], 0)


def test_other_machines_hear_of_a_rank_0_that_has_nothing_to_do(share, monkeypatch):
    monkeypatch.setattr(sender, "_IDLE_SECONDS", 0.05)
    near, far = share("ab")
    until(lambda: near.runtime.followers.sender.sent_bytes > 0)
    add(near, far)
    same(1, near, far)


@pytest.mark.parametrize("drafts", [0, 2])
def test_what_is_read_is_what_was_written(drafts):
    """Also when there is no room for more masks, and the next step begins with none."""
    shape = Shape(3, 7, drafts)
    chance = np.random.default_rng(drafts)
    out = Outgoing(shape)
    come = Incoming(shape)
    known = chance.integers(0, 2**31, (4 * 3 * shape.positions + 5, 7), dtype=np.int32)
    begun = 0
    for number in range(400):
        count = int(chance.integers(1, 4))
        slots = chance.permutation(3)[:count].astype(np.uint32)
        masks = known[chance.integers(0, len(known), count * shape.positions)]
        new = out.write(number, slots, masks)
        begun += out.head[Head.KEPT] == 0
        come.head[:] = out.head
        assert come.head[Head.NEW] == len(new)
        come.new().copy_(new)
        read = np.empty_like(masks)
        come.read(read)
        assert np.array_equal(read, masks)
        assert come.slots().tolist() == slots.tolist()
    assert 10 < begun < 100
