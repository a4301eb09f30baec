"""Several ranks of one model, here threads: one has the grammars, all mask with its
memory or a copy."""

import functools
import gc
import os
import threading

import pytest
import torch
from rank_threads import pipeline, sharing, step
from vocabularies import BYTES

import guided_plugin as gp
from guided_plugin.errors import PipelineError
from guided_plugin.pipeline import runtime
from guided_plugin.worker.engine.runtime import WorkerRuntime
from guided_plugin.worker.layout import PLAN_DEPTH, Region, Shape
from guided_plugin.worker.ranks import follower, peers
from guided_plugin.worker.ranks.group import RegionOffer
from guided_plugin.worker.ranks.peers import Peer
from guided_plugin.worker.words import Counter, RankWord

WHERE = pytest.mark.parametrize(
    "where", ["aa", "ab"], ids=["one machine", "two machines"]
)
END = BYTES.stop_token_ids[0]
SPECS = [
    gp.OutputSpec.regex("[a-c]{2,30}"),
    gp.OutputSpec.choice(["yes", "no", "maybe"]),
]
LONG = gp.OutputSpec.regex("[a-c]{60}")


@pytest.fixture
def share(monkeypatch):
    with sharing(monkeypatch) as share:
        yield share


@pytest.fixture
def ended():
    """A process that has ended, and that its parent has not reaped, as a `Peer`."""
    child = os.posix_spawn("/bin/sleep", ["sleep", "60"], {})
    peer = Peer(child)
    os.kill(child, 9)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    yield peer
    os.waitpid(child, 0)


def add(pipes, *specs):
    for pipe in pipes:
        assert [
            pipe.add_request(f"r{i}", spec) for i, spec in enumerate(specs)
        ] == list(range(len(specs)))


def agree(pipes, slots, number):
    """A step of all ranks: the tokens. What is left of the logits is the same."""
    found = [step(pipe, slots, number) for pipe in pipes]
    for masked, tokens in found[1:]:
        assert torch.equal(masked, found[0][0])
        assert tokens == found[0][1]
    return found[0][1]


def shared_memory():
    """The regions that this process has open: files without a name."""
    links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
    return [
        os.readlink(link)
        for link in links
        if os.path.islink(link) and "/dev/shm/" in os.readlink(link)
    ]


@pytest.mark.parametrize("where", ["aaa", "ab", "aabb", "abcab"])
def test_all_ranks_mask_alike_and_one_has_the_grammars(share, mode, where):
    """As one that is alone, while requests come and go; every rank makes the same
    calls."""
    with pipeline(mode="inline") as alone:
        pipes = [*share(where, mode), alone]
        add(pipes, *SPECS)
        for number in range(20):
            agree(pipes, [1, gp.UNGUIDED, 0] if number % 5 else [0], number)
            if number == 8:
                for pipe in pipes:
                    pipe.remove_request("r1")
                    assert pipe.add_request("r2", gp.OutputSpec.regex("[x-z]{9}")) == 1
        assert pipes[0].tokens("r2") == alone.tokens("r2") != ()
    assert [pipe.rank for pipe in pipes] == [*range(len(where)), None]
    assert [pipe.mode for pipe in pipes] == [mode] * len(where) + ["inline"]
    with pytest.raises(PipelineError, match="only at rank 0"):
        pipes[1].tokens("r2")


def test_rank_0_waits_for_a_rank_that_is_late(share, mode, monkeypatch):
    """The masks of a step stay as they are until every rank has used them, and no
    longer."""
    near, late = pipes = share("aa", mode)
    add(pipes, gp.OutputSpec.regex("[a-z]*"))
    monkeypatch.setattr(peers, "PATIENCE", 0.3)
    monkeypatch.setattr(peers, "_LOOK_EVERY", 10)
    first = [step(near, [0], number)[0] for number in range(PLAN_DEPTH)]
    with pytest.raises(PipelineError, match="rank 1 has not used the masks of step 1"):
        step(near, [0], PLAN_DEPTH)
    for number in range(PLAN_DEPTH):
        assert torch.equal(step(late, [0], number)[0], first[number])


def test_a_rank_that_died_is_not_waited_for(share, monkeypatch, ended):
    """A process that has ended masks nothing any more."""
    near, _ = pipes = share("aa")
    add(pipes, gp.OutputSpec.regex("[a-z]*"))
    near.runtime.followers.watch([ended.alive])
    monkeypatch.setattr(peers, "_LOOK_EVERY", 10)
    for number in range(3 * PLAN_DEPTH):
        step(near, [0], number)


@WHERE
def test_a_rank_whose_leader_has_gone_does_not_wait_for_ever(
    share, mode, where, monkeypatch
):
    """It has closed its pipeline: what it filled is used, what it did not is an
    error."""
    near, other = pipes = share(where, mode)
    add(pipes, SPECS[0])
    expected, _ = step(near, [0], 1)
    near.close()
    monkeypatch.setattr(peers, "_LOOK_EVERY", 10)
    assert torch.equal(step(other, [0], 1)[0], expected)
    with pytest.raises(PipelineError, match="rank 0 has closed its pipeline"):
        step(other, [0], 2)


def test_a_rank_whose_leader_has_died_does_not_wait_for_ever(share, monkeypatch, ended):
    """The process of rank 0 has ended."""
    _, other = pipes = share("aa")
    add(pipes, SPECS[0])
    other.runtime._leader = ended
    monkeypatch.setattr(peers, "_LOOK_EVERY", 10)
    with pytest.raises(PipelineError, match="rank 0 has ended"):
        step(other, [0], 1)


@WHERE
def test_ranks_that_plan_other_rows_are_found(share, mode, where):
    """Masks of other rows are never used, and a rank 0 on the same machine does not go
    on."""
    near, other = pipes = share(where, mode)
    add(pipes, *SPECS)
    step(near, [0, 1], 1)
    with pytest.raises(
        PipelineError, match=r"step 1 has slots \[1, 0\] here and \[0, 1\] at rank 0"
    ):
        step(other, [1, 0], 1)
    if where == "aa":
        with pytest.raises(PipelineError, match="rank 1 plans different steps"):
            step(near, [0, 1], 2)


def test_worker_deaths_change_nothing(share):
    """The next worker goes on, and all ranks mask alike."""
    pipes = share("aa", "process")
    add(pipes, LONG)
    for number in range(40):
        if number in (10, 25):
            os.kill(pipes[0].runtime.supervisor.worker_pid, 9)
        assert chr(agree(pipes, [0], number)[0]) in "abc"
    assert pipes[0].metrics().worker.restarts == 2


@WHERE
def test_step_numbers_wrap(share, where, monkeypatch):
    """Across 32 bits: a copy begins where rank 0 does, and goes on with it."""
    first = 2**32 - 3
    monkeypatch.setattr(
        runtime, "WorkerRuntime", functools.partial(WorkerRuntime, first_step=first)
    )
    with pipeline(mode="inline") as alone:
        pipes = share(where, "process")
        assert pipes[1].runtime._region.load(Counter.FILLED) == first
        add([*pipes, alone], LONG)
        for number in range(8):
            agree([*pipes, alone], [0], number)
    assert pipes[1].runtime._region.load(Counter.FILLED) == (first + 8) % 2**32


def fails(error):
    def raises(*arguments, **options):
        # not this one, whose traceback would keep what it saw
        raise type(error)(str(error))

    return raises


@pytest.mark.parametrize(
    ("where", "target", "error", "says"),
    [
        ("aaa", (follower, "_open"), OSError("no such memory"), "rank 1: cannot map"),
        # of a device
        (
            "aa",
            (follower, "_open"),
            RuntimeError("out of memory"),
            "rank 1: cannot map",
        ),
        ("aa", (runtime, "InlineRuntime"), ZeroDivisionError("by zero"), ""),
        (
            "aabb",
            (follower, "Mirror"),
            PipelineError("too large"),
            "rank 2: cannot copy the memory",
        ),
    ],
)
def test_all_share_or_none_does(share, monkeypatch, where, target, error, says):
    """A rank that can't take part stops all, with its reason; nothing is left."""
    gc.collect()
    before = shared_memory()
    others = set(threading.enumerate())
    monkeypatch.setattr(*target, fails(error))
    for told in share(where):
        assert isinstance(told, Exception)
        assert says in str(told)
        assert str(error) in str(told)
    del told
    gc.collect()
    assert set(shared_memory()) <= set(before)  # what earlier tests left may go late
    new = {thread.name for thread in set(threading.enumerate()) - others}
    assert not {"guided-sender", "guided-mirror"} & new


def test_machines_whose_group_sends_no_tensors_share_nothing(share):
    class OneMachine:
        def __init__(self, group):
            self.rank = group.rank
            self.size = group.size
            self.gather = group.gather

    for error in share("ab", change=OneMachine):
        assert "their group sends no tensors" in str(error)


def test_followers_write_their_own_lines_only():
    """All else that a follower maps is read-only."""
    region = Region.create(Shape(2, 9, followers=40))
    offer = RegionOffer(
        os.getpid(), region.fd, region.shape, region.identity, 0, "inline", 0
    )
    mapped = follower._open(offer)
    lines = [mapped.rank_line(index) for index in range(40)]
    for index, line in enumerate(lines):
        line[RankWord.TAKEN] = index + 7
    assert [region.rank_line(index)[RankWord.TAKEN] for index in range(40)] == list(
        range(7, 47)
    )
    for array in (mapped.plans, mapped.masks, mapped.tokens, mapped.times):
        assert not array.flags.writeable
    with pytest.raises(TypeError):
        mapped.store(Counter.FILLED, 1)
    mapped.close()
    region.close()
