"""Several ranks of one model, here threads: one has the grammars, all mask with its memory."""

import dataclasses
import functools
import gc
import os

import numpy as np
import pytest
import torch
from rank_threads import on_ranks, step
from vocabularies import BYTES

import guided_plugin as gp
from guided_plugin.errors import PipelineError
from guided_plugin.pipeline import make
from guided_plugin.worker.engine.runtime import WorkerRuntime
from guided_plugin.worker.layout import PLAN_DEPTH, Counter, RankWord, Region, Shape
from guided_plugin.worker.ranks import follower, peers
from guided_plugin.worker.ranks.group import Offer
from guided_plugin.worker.ranks.peers import Peer

MODES = ("inline", "process")
END = BYTES.stop_token_ids[0]
SPECS = [gp.OutputSpec.regex("[a-c]{2,30}"), gp.OutputSpec.choice(["yes", "no", "maybe"])]


def compiler():
    return gp.GrammarCompiler(BYTES, config=gp.GuidedConfig(threads=1, worker_step_ms=20_000))


@pytest.fixture
def share():
    """Make pipelines that share: rank 0 first."""
    made = []

    def make(size, mode, **options):
        def one(group):
            return gp.StepPipeline(compiler(), max_slots=4, mode=mode, ranks=group, **options)

        found = on_ranks(size, one)
        made.extend(pipe for pipe in found if isinstance(pipe, gp.StepPipeline))
        return found

    yield make
    for pipe in made:
        pipe.close()


def shared_memory():
    """The regions that this process has open: files without a name."""
    links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
    return [os.readlink(link) for link in links if os.path.islink(link) and "/dev/shm/" in os.readlink(link)]


@pytest.mark.parametrize("mode", MODES)
def test_all_ranks_mask_alike_and_one_has_the_grammars(share, mode):
    """Requests come and go; every rank makes the same calls, and what is left of the logits is the same."""
    pipes = share(3, mode)
    alone = gp.StepPipeline(compiler(), max_slots=4, mode="inline")
    pipes.append(alone)
    for pipe in pipes:
        assert [pipe.add_request(f"r{i}", spec) for i, spec in enumerate(SPECS)] == [0, 1]
    for number in range(12):
        slots = [1, gp.UNGUIDED, 0] if number % 5 else [0]
        found = [step(pipe, slots, number) for pipe in pipes]
        for masked, tokens in found[1:]:
            assert torch.equal(masked, found[0][0])
            assert tokens == found[0][1]
        if number == 6:
            for pipe in pipes:
                pipe.remove_request("r1")
                assert pipe.add_request("r2", gp.OutputSpec.regex("z{100}")) == 1
    assert pipes[0].tokens("r2") == alone.tokens("r2") != ()
    assert [pipe.rank for pipe in pipes] == [0, 1, 2, None]
    assert [pipe.mode for pipe in pipes] == [mode, mode, mode, "inline"]
    with pytest.raises(PipelineError, match="rank 0 alone"):
        pipes[1].tokens("r2")
    alone.close()


@pytest.mark.parametrize("mode", MODES)
def test_a_request_that_cannot_begin_is_closed_on_all_ranks(share, mode):
    """It takes the same slot everywhere, its row has stop tokens only, and rank 0 tells why."""
    pipes = share(2, mode)
    bad = gp.OutputSpec.regex("a(?=b)c")
    for pipe in pipes:
        assert pipe.add_request("bad", bad) == 0
        assert pipe.add_request("good", SPECS[0]) == 1
    for number in range(3):
        found = [step(pipe, [0, 1], number) for pipe in pipes]
        assert torch.equal(found[0][0], found[1][0])
        assert found[0][1][0] == END
        assert chr(found[0][1][1]) in "abc"
    error = pipes[0].request("bad").error
    assert error is not None
    assert error.request_id == "bad"
    assert [one.request_id for one in pipes[0].runtime.take_closed()] == ["bad"]
    assert pipes[1].runtime.take_closed() == []
    assert pipes[0].request("good").error is None
    for pipe in pipes:
        pipe.remove_request("bad")
        assert pipe.add_request("next", SPECS[1]) == 0
        assert chr(step(pipe, [0], 5)[1][0]) in "ynm"


@pytest.mark.parametrize("mode", MODES)
def test_rank_0_waits_for_a_rank_that_is_late(share, mode, monkeypatch):
    """The masks of a step stay as they are until every rank has used them, and no longer."""
    pipes = share(2, mode)
    for pipe in pipes:
        pipe.add_request("r", gp.OutputSpec.regex("[a-z]*"))
    monkeypatch.setattr(peers, "PATIENCE", 0.3)
    monkeypatch.setattr(peers, "_LOOK_EVERY", 10)
    first = [step(pipes[0], [0], number)[0] for number in range(PLAN_DEPTH)]
    with pytest.raises(PipelineError, match="rank 1 has not used the masks of step 1"):
        step(pipes[0], [0], PLAN_DEPTH)
    # The late rank finds all of them.
    for number in range(PLAN_DEPTH):
        assert torch.equal(step(pipes[1], [0], number)[0], first[number])


def test_a_rank_that_died_is_not_waited_for(share, monkeypatch):
    """A process that has ended masks nothing any more."""
    pipes = share(2, "inline")
    for pipe in pipes:
        pipe.add_request("r", gp.OutputSpec.regex("[a-z]*"))
    child = os.posix_spawn("/bin/sleep", ["sleep", "60"], {})
    pipes[0].runtime.followers._peers[0].close()
    pipes[0].runtime.followers._peers[0] = Peer(child)
    os.kill(child, 9)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # ended, and not reaped
    monkeypatch.setattr(peers, "_LOOK_EVERY", 10)
    for number in range(3 * PLAN_DEPTH):
        step(pipes[0], [0], number)
    os.waitpid(child, 0)


@pytest.mark.parametrize("mode", MODES)
def test_a_rank_whose_leader_has_gone_does_not_wait_for_ever(share, mode, monkeypatch):
    """It has closed its pipeline: what it filled is used, what it did not is an error."""
    pipes = share(2, mode)
    for pipe in pipes:
        pipe.add_request("r", SPECS[0])
    expected, _ = step(pipes[0], [0], 1)
    pipes[0].close()
    monkeypatch.setattr(peers, "_LOOK_EVERY", 10)
    assert torch.equal(step(pipes[1], [0], 1)[0], expected)
    with pytest.raises(PipelineError, match="rank 0 has closed its pipeline"):
        step(pipes[1], [0], 2)


def test_a_rank_whose_leader_has_died_does_not_wait_for_ever(share, monkeypatch):
    """The process of rank 0 has ended."""
    pipes = share(2, "inline")
    pipes[1].add_request("r", SPECS[0])
    child = os.posix_spawn("/bin/sleep", ["sleep", "60"], {})
    pipes[1].runtime._leader.close()
    pipes[1].runtime._leader = Peer(child)
    os.kill(child, 9)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    monkeypatch.setattr(peers, "_LOOK_EVERY", 10)
    with pytest.raises(PipelineError, match="rank 0 has ended"):
        step(pipes[1], [0], 1)
    os.waitpid(child, 0)


@pytest.mark.parametrize("mode", MODES)
def test_ranks_that_plan_other_rows_are_found(share, mode):
    """Masks of other rows are never used, and rank 0 does not go on."""
    pipes = share(2, mode)
    for pipe in pipes:
        for i, spec in enumerate(SPECS):
            pipe.add_request(f"r{i}", spec)
    step(pipes[0], [0, 1], 1)
    with pytest.raises(PipelineError, match=r"slots \[1, 0\] here and \[0, 1\] at rank 0"):
        step(pipes[1], [1, 0], 1)
    with pytest.raises(PipelineError, match="rank 1 plans other steps"):
        step(pipes[0], [0, 1], 2)


def test_worker_deaths_change_nothing(share):
    """The next worker goes on, and all ranks mask alike."""
    pipes = share(2, "process")
    for pipe in pipes:
        pipe.add_request("r", gp.OutputSpec.regex("[a-c]{60}"))
    for number in range(40):
        if number in (10, 25):
            os.kill(pipes[0].runtime.supervisor.worker_pid, 9)
        found = [step(pipe, [0], number) for pipe in pipes]
        assert torch.equal(found[0][0], found[1][0])
        assert chr(found[0][1][0]) in "abc"
    assert pipes[0].metrics().worker.restarts == 2


def test_step_numbers_wrap(share, monkeypatch):
    """Across 32 bits."""
    first = 2**32 - 3
    monkeypatch.setattr(make, "WorkerRuntime", functools.partial(WorkerRuntime, first_step=first))
    pipes = share(2, "process")
    for pipe in pipes:
        pipe.add_request("r", gp.OutputSpec.regex("[a-c]{60}"))
    for number in range(8):
        found = [step(pipe, [0], number) for pipe in pipes]
        assert torch.equal(found[0][0], found[1][0])


def test_all_share_or_none_does(share, monkeypatch):
    """A rank that can't map the memory stops all, with its reason; nothing is left."""
    gc.collect()
    before = shared_memory()
    monkeypatch.setattr(follower, "_open", lambda offer: (_ for _ in ()).throw(OSError("no such memory")))
    found = share(3, "inline")
    assert all("rank 1: cannot map" in str(one) and "no such memory" in str(one) for one in found), found
    monkeypatch.undo()
    monkeypatch.setattr(follower, "_open", lambda offer: (_ for _ in ()).throw(RuntimeError("out of memory")))
    found = share(2, "inline")  # as torch says it of a device
    assert all("rank 1: cannot map" in str(one) and "out of memory" in str(one) for one in found), found
    monkeypatch.undo()
    monkeypatch.setattr(make, "LeadingInlineRuntime", lambda *args: 1 / 0)
    failed, told = share(2, "inline")
    assert isinstance(failed, ZeroDivisionError)
    assert "division by zero" in str(told)
    monkeypatch.undo()
    found = share(2, "inline", drafts=3)
    assert all("without drafts" in str(one) for one in found), found
    assert shared_memory() == before


def test_followers_write_their_own_lines_only():
    """A region of another version or engine is refused, and what a follower maps is read-only."""
    region = Region.create(Shape(2, 9, followers=40))
    offer = Offer(os.getpid(), region.fd, region.shape, region.identity, 0, "inline", 0)
    mapped = follower._open(offer)
    lines = [mapped.rank_line(index) for index in range(40)]
    for index, line in enumerate(lines):
        line[RankWord.TAKEN] = index + 7
    assert [region.rank_line(index)[RankWord.TAKEN] for index in range(40)] == list(range(7, 47))
    assert region.shape.plans == 4 * 4096
    assert not np.any(region.plans)
    for array in (mapped.plans, mapped.masks, mapped.tokens, mapped.times):
        assert not array.flags.writeable
    with pytest.raises(TypeError):
        mapped.store(Counter.FILLED, 1)
    with pytest.raises(PipelineError, match="another version or engine"):
        follower._open(dataclasses.replace(offer, identity=b"x" * 16))
    with pytest.raises(PipelineError, match="bytes where"):
        follower._open(dataclasses.replace(offer, shape=Shape(2, 9)))
    mapped.close()
    region.close()
