"""Several ranks of one model, here threads: the first of each machine has grammars, and
all mask alike."""

import functools
import gc
import os
import threading

import pytest
import torch
from rank_threads import (
    pipeline,
    sharing,
    step,
)
from vocabularies import BYTES

import guided_plugin as gp
from guided_plugin.errors import PipelineError
from guided_plugin.pipeline import runtime
from guided_plugin.worker.engine.runtime import WorkerRuntime
from guided_plugin.worker.layout import PLAN_DEPTH, Region, Shape
from guided_plugin.worker.ranks import follower, leader
from guided_plugin.worker.words import Counter, RankWord

WHERE = pytest.mark.parametrize("where", ["aa", "abb"])
"""The last rank has no grammars, and masks with the memory of the one before it."""
END = BYTES.stop_token_ids[0]
SPECS = [
    gp.OutputSpec.regex("[a-c]{2,30}"),
    gp.OutputSpec.choice(["yes", "no", "maybe"]),
]
LONG = gp.OutputSpec.regex("[a-c]{60}")


@pytest.fixture
def share():
    with sharing() as share:
        yield share


def add(pipes, *specs):
    for pipe in pipes:
        assert [
            pipe.add_request(f"r{i}", spec) for i, spec in enumerate(specs)
        ] == list(range(len(specs)))


def agree(pipes, slots, number):
    """A step of all ranks: the tokens. What is left of the logits is the same."""
    found = [
        step(
            pipe,
            slots,
            number,
        )
        for pipe in pipes
    ]
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
        if os.path.islink(link) and "memfd:guided_plugin" in os.readlink(link)
    ]


@pytest.mark.parametrize("where", ["aaa", "ab", "aabb", "abcab"])
def test_all_ranks_mask_alike(share, mode, where):
    """As one that is alone, while requests come and go; every rank makes the same
    calls."""
    with pipeline(mode="inline") as alone:
        pipes = [*share(where, mode), alone]
        add(pipes, *SPECS)
        for number in range(20):
            agree(
                pipes,
                [1, gp.UNGUIDED, 0] if number % 5 else [0],
                number,
            )
            if number == 8:
                for pipe in pipes:
                    pipe.remove_request("r1")
                    assert pipe.add_request("r2", gp.OutputSpec.regex("[x-z]{9}")) == 1
        for rank, pipe in enumerate(pipes[:-1]):
            if where.index(where[rank]) == rank:
                assert pipe.tokens("r2") == alone.tokens("r2") != ()
            else:
                with pytest.raises(PipelineError, match="is known only at rank"):
                    pipe.tokens("r2")
    assert [pipe.rank for pipe in pipes] == [*range(len(where)), None]
    assert [pipe.mode for pipe in pipes] == [mode] * len(where) + ["inline"]


def test_rank_0_waits_for_a_rank_that_is_late(share, mode, monkeypatch):
    """The masks of a step stay as they are until every rank has used them, and no
    longer."""
    near, late = pipes = share("aa", mode)
    add(pipes, gp.OutputSpec.regex("[a-z]*"))
    monkeypatch.setattr(
        leader,
        "PATIENCE",
        0.3,
    )
    monkeypatch.setattr(
        leader,
        "_LOOK_EVERY",
        10,
    )
    first = [
        step(
            near,
            [0],
            number,
        )[0]
        for number in range(PLAN_DEPTH)
    ]
    with pytest.raises(PipelineError, match="rank 1 has not used the masks of step 1"):
        step(
            near,
            [0],
            PLAN_DEPTH,
        )
    for number in range(PLAN_DEPTH):
        assert torch.equal(
            step(
                late,
                [0],
                number,
            )[0],
            first[number],
        )


@WHERE
def test_a_rank_whose_leader_has_gone_does_not_wait_for_ever(
    share, mode, where, monkeypatch
):
    """It has closed its pipeline: what it filled is used, what it did not is an
    error."""
    *_, near, other = pipes = share(where, mode)
    add(pipes, SPECS[0])
    expected, _ = step(
        near,
        [0],
        1,
    )
    near.close()
    monkeypatch.setattr(
        leader,
        "_LOOK_EVERY",
        10,
    )
    assert torch.equal(
        step(
            other,
            [0],
            1,
        )[0],
        expected,
    )
    with pytest.raises(
        PipelineError, match=f"rank {near.rank} has closed its pipeline"
    ):
        step(
            other,
            [0],
            2,
        )


@WHERE
def test_ranks_that_plan_other_rows_are_found(share, mode, where):
    """Masks of other rows are never used, and the rank with the grammars does not go
    on."""
    *_, near, other = pipes = share(where, mode)
    add(pipes, *SPECS)
    step(
        near,
        [0, 1],
        1,
    )
    says = rf"step 1 has slots \[1, 0\] here and \[0, 1\] at rank {near.rank}"
    with pytest.raises(PipelineError, match=says):
        step(
            other,
            [1, 0],
            1,
        )
    with pytest.raises(PipelineError, match=f"rank {other.rank} plans different steps"):
        step(
            near,
            [0, 1],
            2,
        )


def test_step_numbers_wrap(share, monkeypatch):
    """Across 32 bits, on one machine and between two."""
    first = 2**32 - 3
    monkeypatch.setattr(
        runtime, "WorkerRuntime", functools.partial(WorkerRuntime, first_step=first)
    )
    with pipeline(mode="inline") as alone:
        pipes = share("aab", "process")
        assert pipes[1].runtime.region.load(Counter.FILLED) == first
        add([*pipes, alone], LONG)
        for number in range(8):
            agree(
                [*pipes, alone],
                [0],
                number,
            )
    assert pipes[1].runtime.region.load(Counter.FILLED) == (first + 8) % 2**32


def fails(error):
    def raises(*arguments, **options):
        # not this one, whose traceback would keep what it saw
        raise type(error)(str(error))

    return raises


@pytest.mark.parametrize(
    ("where", "target", "error", "says"),
    [
        ("aaa", (follower, "Region"), OSError("no such memory"), "rank 1: no such"),
        # of a device
        ("aa", (follower, "Region"), RuntimeError("out of memory"), "rank 1: out"),
        ("aab", (runtime, "InlineRuntime"), ZeroDivisionError("by zero"), "rank 0: by"),
        (
            "abb",
            (follower, "FollowerRuntime"),
            PipelineError("too large"),
            "rank 2: too large",
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
    assert "guided-machines" not in new


def test_followers_write_their_own_lines_only():
    """All else that a follower maps is read-only."""
    region = Region.create(
        Shape(
            2,
            9,
            followers=1,
        )
    )
    fd = os.dup(region.fd)
    mapped = Region(
        fd,
        region.shape,
        follows=True,
    )
    mapped.rank_line(0)[RankWord.TAKEN] = 7
    assert region.rank_line(0)[RankWord.TAKEN] == 7
    for array in (mapped.plans, mapped.masks, mapped.tokens):
        assert not array.flags.writeable
    with pytest.raises(TypeError):
        mapped.store(Counter.FILLED, 1)
    mapped.close()
    region.close()
