"""Ranks of one model on several machines, here threads that are told so: masks are sent, and the same."""

import functools
import threading
import time

import numpy as np
import pytest
import torch
from rank_threads import WIDTH, on_ranks, step
from vocabularies import BYTES

import guided_plugin as gp
from guided_plugin.errors import PipelineError
from guided_plugin.pipeline import make
from guided_plugin.step import NO_TOKEN
from guided_plugin.worker.engine.runtime import WorkerRuntime
from guided_plugin.worker.layout import PLAN_DEPTH, Counter, Shape
from guided_plugin.worker.ranks import machines, mirror, peers, sender
from guided_plugin.worker.ranks.changes import Head, Incoming, Outgoing

SPECS = [gp.OutputSpec.regex("[a-c]{2,30}"), gp.OutputSpec.choice(["yes", "no", "maybe"])]
HERE = threading.local()


def compiler():
    return gp.GrammarCompiler(BYTES, config=gp.GuidedConfig(threads=1, worker_step_ms=20_000))


@pytest.fixture
def share(monkeypatch):
    """Make pipelines on machines, one for each letter; rank 0 first."""
    monkeypatch.setattr(machines, "machine", lambda: HERE.machine)
    monkeypatch.setattr(peers, "PATIENCE", 20.0)
    made = []

    def make(where, mode="inline", change=None, **options):
        def one(group):
            HERE.machine = where[group.rank]
            group = group if change is None else change(group) or group
            return gp.StepPipeline(compiler(), max_slots=4, mode=mode, ranks=group, **options)

        found = on_ranks(len(where), one)
        made.extend(pipe for pipe in found if isinstance(pipe, gp.StepPipeline))
        return found

    yield make
    for pipe in made:
        pipe.close()


class Plain:
    """What a group had to do before there were machines."""

    def __init__(self, group):
        self.rank, self.size = group.rank, group.size
        self.broadcast, self.gather = group.broadcast, group.gather


@pytest.fixture
def threads():
    """The names of threads that this test has started, and that run."""
    before = set(threading.enumerate())
    return lambda: {thread.name for thread in set(threading.enumerate()) - before if thread.is_alive()}


@pytest.mark.parametrize("mode", ["inline", "process"])
@pytest.mark.parametrize("where", ["ab", "aabb", "abcab"])
def test_every_machine_masks_as_one_rank_that_is_alone(share, mode, where):
    """Requests come and go, and one fails; every rank makes the same calls."""
    pipes = share(where, mode)
    pipes.append(gp.StepPipeline(compiler(), max_slots=4, mode="inline"))
    for pipe in pipes:
        assert [pipe.add_request(f"r{i}", spec) for i, spec in enumerate(SPECS)] == [0, 1]
    for number in range(20):
        if number == 8:
            for pipe in pipes:
                pipe.remove_request("r1")
                assert pipe.add_request("r2", gp.OutputSpec.regex("[x-z]{9}")) == 1
        slots = [1, gp.UNGUIDED, 0] if number % 5 else [0]
        found = [step(pipe, slots, number) for pipe in pipes]
        for masked, tokens in found:
            assert torch.equal(masked, found[-1][0])
            assert tokens == found[-1][1]


def test_a_machine_may_be_as_late_as_a_rank(share):
    """Rank 0 goes on, as what is sent has left its memory; the other finds each step."""
    near, far = share("ab")
    alone = gp.StepPipeline(compiler(), max_slots=4, mode="inline")
    for pipe in (near, far, alone):
        pipe.add_request("r", SPECS[0])
    ahead = 2 * PLAN_DEPTH
    for number in range(ahead):
        step(near, [0], number)
    for number in range(ahead):
        assert torch.equal(step(far, [0], number)[0], step(alone, [0], number)[0])


def test_a_rank_that_closes_leaves_the_copy_to_the_others_of_its_machine(share, monkeypatch):
    """Which may be late: masks that they have not used stay in their places."""
    monkeypatch.setattr(mirror, "_CLOSE_SECONDS", 0.1)
    near, first, late = share("abb")
    alone = gp.StepPipeline(compiler(), max_slots=4, mode="inline")
    for pipe in (near, first, late, alone):
        pipe.add_request("r", SPECS[1])
    step(near, [0], 0)
    step(first, [0], 0)
    first.close()
    ahead = 2 * PLAN_DEPTH
    for number in range(1, ahead):
        step(near, [0], number)
    for number in range(ahead):
        assert torch.equal(step(late, [0], number)[0], step(alone, [0], number)[0])


@pytest.mark.usefixtures("share")
def test_two_pipelines_of_one_group():
    """Each machine hears of its own, also where the steps of both are alike."""

    def both(group):
        HERE.machine = "ab"[group.rank]
        return [gp.StepPipeline(compiler(), max_slots=4, mode="inline", ranks=group) for _ in SPECS]

    near, far = on_ranks(2, both)
    for pipes in (near, far):
        for pipe, spec in zip(pipes, SPECS, strict=True):
            pipe.add_request("r", spec)
    for place in (1, 0):
        alone = gp.StepPipeline(compiler(), max_slots=4, mode="inline")
        alone.add_request("r", SPECS[place])
        found = [step(pipe, [0], 1)[0] for pipe in (near[place], far[place], alone)]
        assert torch.equal(found[0], found[2])
        assert torch.equal(found[1], found[2])
    for pipe in (*near, *far):
        pipe.close()


def test_drafts_on_two_machines(share):
    drafts = 2
    pipes = [*share("ab", "process", drafts=drafts)]
    pipes.append(gp.StepPipeline(compiler(), max_slots=4, mode="inline", drafts=drafts))
    for pipe in pipes:
        pipe.add_request("r", SPECS[0])
    sampled = [NO_TOKEN] * (drafts + 1)
    for number in range(6):
        draft = [ord("a"), ord("x" if number % 2 else "b")]
        tokens, logits = torch.tensor(sampled + draft), torch.zeros(drafts + 1, WIDTH)
        found = [pipe.judge_drafts([0], tokens, logits) for pipe in pipes]
        assert all(torch.equal(masks, found[-1]) for masks in found)
        sampled = [ord("a"), NO_TOKEN, NO_TOKEN]


def test_what_has_been_sent_is_not_sent_again(share):
    near, far = share("ab")
    for pipe in (near, far):
        pipe.add_request("r", SPECS[0])
    sizes = []
    for number in range(12):
        before = near.runtime.followers.sender.sent_bytes
        step(near, [0], number)
        step(far, [0], number)
        sizes.append(near.runtime.followers.sender.sent_bytes - before)
    assert max(sizes) - min(sizes) == 4 * BYTES.words  # one mask
    assert sizes[5:] == [min(sizes)] * 7


def test_rank_0_closes(share, threads):
    near, far = share("ab")
    for pipe in (near, far):
        pipe.add_request("r", SPECS[0])
    step(near, [0], 1)
    near.close()
    assert "guided-sender" not in threads()
    step(far, [0], 1)  # what was filled before arrives
    with pytest.raises(PipelineError, match="rank 0 has closed its pipeline"):
        step(far, [0], 2)
    far.close()
    assert "guided-mirror" not in threads()


def test_rank_0_is_not_heard_any_more(share, caplog):
    def change(group):
        original = group.receive

        def receive(tensor, *of):
            original(tensor, *of)
            if lost.is_set():
                raise RuntimeError("Connection closed by peer")

        group.receive = receive

    lost = threading.Event()
    near, far, third = share("abb", change=change)
    for pipe in (near, far, third):
        pipe.add_request("r", SPECS[0])
        step(pipe, [0], 1)
    lost.set()
    step(near, [0], 2)
    for pipe in (far, third):
        with pytest.raises(PipelineError, match="has ended, or cannot be reached any more"):
            step(pipe, [0], 2)
    assert "no more masks come from rank 0: Connection closed by peer" in caplog.text


def test_a_machine_that_cannot_be_reached_is_not_waited_for(share, caplog):
    def change(group):
        original = group.send

        def send(tensor, rank, tag):
            if rank == 1 and lost.is_set():
                raise RuntimeError("Connection closed by peer")
            original(tensor, rank, tag)

        group.send = send

    lost = threading.Event()
    near, _, other = share("abc", change=change)
    for pipe in (near, other):
        pipe.add_request("r", SPECS[0])
    lost.set()
    for number in range(3 * PLAN_DEPTH):
        assert torch.equal(step(near, [0], number)[0], step(other, [0], number)[0])
    assert "the machine of rank 1 is not sent to any more: Connection closed by peer" in caplog.text


def test_a_sender_that_fails_tells_it_and_lets_rank_0_go_on(share, monkeypatch, caplog):
    near, far = share("ab")
    for pipe in (near, far):
        pipe.add_request("r", SPECS[0])
    monkeypatch.setattr(Outgoing, "write", lambda *_: 1 / 0)
    for number in range(3 * PLAN_DEPTH):
        step(near, [0], number)
    assert "no longer sent to other machines: division by zero" in caplog.text
    with pytest.raises(PipelineError, match="rank 0 has closed its pipeline"):
        step(far, [0], 0)


def test_other_machines_hear_of_a_rank_0_that_has_nothing_to_do(share, monkeypatch):
    monkeypatch.setattr(sender, "_IDLE_SECONDS", 0.05)
    near, far = share("ab")
    time.sleep(0.3)
    assert near.runtime.followers.sender.sent_bytes > 0
    for pipe in (near, far):
        pipe.add_request("r", SPECS[0])
    assert torch.equal(step(near, [0], 1)[0], step(far, [0], 1)[0])


def test_a_group_that_sends_no_tensors(share):
    for error in share("ab", change=Plain):
        assert "on several machines, and their group sends no tensors" in str(error)


def test_a_machine_without_memory_refuses_for_all(share, monkeypatch, threads):
    def fails(shape):
        raise PipelineError("cannot allocate 9 MiB", where="/dev/shm")

    with monkeypatch.context() as patch:
        patch.setattr(mirror, "Region", type("Full", (), {"create": fails}))
        for error in share("aabb"):
            assert "rank 2: cannot copy the memory of rank 0: " in str(error)
    assert not {"guided-sender", "guided-mirror"} & threads()


def test_a_rank_that_plans_other_steps_is_told(share):
    """It raises before it masks."""
    near, far = share("ab")
    for pipe in (near, far):
        for i, spec in enumerate(SPECS):
            pipe.add_request(f"r{i}", spec)
    step(near, [0, 1], 1)
    with pytest.raises(PipelineError, match=r"step 1 has slots \[1, 0\] here and \[0, 1\] at rank 0"):
        step(far, [1, 0], 1)


@pytest.mark.parametrize("drafts", [0, 2])
def test_both_sides_keep_the_same_table(drafts):
    """Also when it is full and places are given again, and with masks whose keys are the same."""
    shape = Shape(3, 7, drafts)
    chance = np.random.default_rng(drafts)
    out, come = Outgoing(shape), Incoming(shape)
    out._weights[:] = 0 if drafts else out._weights
    known = chance.integers(-(2**31), 2**31, (4 * shape.max_slots * shape.positions + 5, 7), dtype=np.int32)
    sent = 0
    for number in range(400):
        count = int(chance.integers(1, 4))
        slots = chance.permutation(3)[:count].astype(np.uint32)
        masks = known[chance.integers(0, len(known), count * shape.positions)]
        new = out.write(number, slots, masks)
        sent += len(new)
        come.head[:] = out.head
        assert int(come.head[Head.NEW]) == len(new)
        come.new().copy_(new)
        read = np.empty_like(masks)
        come.read(read)
        assert np.array_equal(read, masks)
        assert come.slots().tolist() == slots.tolist()
    assert len(known) < sent < 400 * 3 * shape.positions


def test_step_numbers_wrap(share, monkeypatch):
    """Across 32 bits: the copy begins where rank 0 does, and goes on with it."""
    first = 2**32 - 3
    monkeypatch.setattr(make, "WorkerRuntime", functools.partial(WorkerRuntime, first_step=first))
    near, far = share("ab", "process")
    assert far.runtime._region.load(Counter.FILLED) == first
    alone = gp.StepPipeline(compiler(), max_slots=4, mode="inline")
    for pipe in (near, far, alone):
        pipe.add_request("r", SPECS[0])
    for number in range(8):
        found = [step(pipe, [0], number)[0] for pipe in (near, far, alone)]
        assert torch.equal(found[0], found[2])
        assert torch.equal(found[1], found[2])
    assert far.runtime._region.load(Counter.FILLED) == (first + 8) % 2**32
