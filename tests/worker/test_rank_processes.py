"""Two ranks as two processes, on the CPU and on one CUDA device. `-m gpu` runs what
needs the device."""

import json

import pytest
import rank_process
import torch
from rank_process import finish, shared_memory, started
from worker_runs import gone, until

import guided_plugin as gp

# processes start torch, which takes minutes on a busy machine
pytestmark = pytest.mark.timeout(900)

STEPS = 60
CUDA = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    ],
)
BOTH = pytest.mark.parametrize(
    "device", [pytest.param("cpu", marks=pytest.mark.slow), CUDA]
)
PLACES = pytest.mark.parametrize(
    ("where", "mode"), [("aa", "process"), ("aa", "inline"), ("ab", "process")]
)
MACHINES = pytest.mark.parametrize(
    "where", ["aa", "ab"], ids=["one machine", "two machines"]
)


@pytest.fixture
def start(tmp_path):
    """Starts two ranks; none outlives its test. What differs for a rank is given by its
    number."""
    ranks = []

    def start(device, *, steps=STEPS, only=None, **options):
        for rank in range(2):
            own = {
                "rank": rank,
                "size": 2,
                "store": str(tmp_path / "store"),
                "device": device,
                "steps": steps,
            }
            own |= options | (only or {}).get(rank, {})
            ranks.append(started(rank_process.__file__, json.dumps(own)))
        return ranks

    yield start
    for rank in ranks:
        rank.kill()
        rank.communicate()


def alone(drafts=0):
    """The same steps at a rank that is alone, inline on the CPU."""
    with gp.StepPipeline(
        rank_process.compiler(),
        max_slots=rank_process.REQUESTS,
        mode="inline",
        drafts=drafts,
    ) as pipe:
        # A rank that is alone raises what several tell later.
        original = pipe.add_request

        def add_request(name, spec):
            try:
                return original(name, spec)
            except gp.GuidedError as error:
                return pipe.add_failed(name, spec, error)

        pipe.add_request = add_request
        steps = rank_process.Steps(pipe, "cpu")
        return [rank_process.told(*steps.step(number)) for number in range(STEPS)]


def finished(ranks):
    """The steps of each rank."""
    return [lines[1:] for lines in finish(ranks)]


LATE_HOST = {"late": 0.02}
LATE_DEVICE = {"late_cycles": 30_000_000}
"""Some 15 ms on the stream that reads the masks, while the host goes on."""


@BOTH
@PLACES
@pytest.mark.parametrize(
    "only",
    [{}, {1: LATE_HOST}, {0: LATE_HOST}, {1: LATE_DEVICE}],
    ids=["in step", "rank 1 late", "rank 0 late", "device of rank 1 late"],
)
def test_both_ranks_mask_as_one_that_is_alone(start, device, only, where, mode):
    """Bit by bit, also where one is so late that rank 0 has to wait before it fills a
    place again."""
    first, second = finished(start(device, only=only, where=where, mode=mode))
    assert first == second == alone()


@BOTH
@PLACES
def test_drafts_are_judged_alike(start, device, where, mode):
    first, second = finished(
        start(device, drafts=2, only={1: LATE_DEVICE}, where=where, mode=mode)
    )
    assert first == second == alone(drafts=2)


def running(start, device, where, mode):
    """Two ranks in the middle of their steps, and the processes of rank 0."""
    ranks = start(device, steps=None, where=where, mode=mode)
    pids = json.loads(ranks[0].stdout.readline())
    for rank in ranks:
        for _ in range(3):
            assert rank.stdout.readline()
    return ranks, pids


@BOTH
@MACHINES
@pytest.mark.parametrize("mode", ["inline", "process"])
def test_rank_0_dies(start, device, where, mode):
    """The other does not wait for it, nor does its device; nothing is left."""
    before = shared_memory()
    ranks, pids = running(start, device, where, mode)
    ranks[0].kill()
    _, errors = ranks[1].communicate(timeout=120)
    assert ranks[1].returncode == 1
    # "or cannot be reached any more", on another machine
    assert "rank 0 has ended" in errors
    until(lambda: all(map(gone, pids)), 60)
    assert shared_memory() == before


@BOTH
@pytest.mark.parametrize(("where", "mode"), [("aa", "process"), ("ab", "inline")])
def test_rank_1_dies(start, device, where, mode):
    """Rank 0 goes on; nothing is left when it ends."""
    before = shared_memory()
    ranks, pids = running(start, device, where, mode)
    ranks[1].kill()
    ranks[1].wait(60)
    for _ in range(20):
        assert ranks[0].stdout.readline()
    ranks[0].terminate()
    _, errors = ranks[0].communicate(timeout=60)
    assert (
        "rank 1 has ended; rank 0 stops waiting for it"
        if where == "aa"
        else "no more masks are sent"
    ) in errors
    until(lambda: all(map(gone, pids)), 60)
    assert shared_memory() == before


@BOTH
@MACHINES
def test_rank_0_closes_first(start, device, where):
    """What it filled is used, what it did not is an error, and the device is not left
    waiting."""
    ranks = start(device, only={1: {"steps": STEPS + 2}}, where=where)
    _, errors = ranks[1].communicate(timeout=500)
    assert ranks[1].returncode == 1
    assert "rank 0 has closed its pipeline" in errors or "rank 0 has ended" in errors


@BOTH
def test_the_worker_dies(start, device):
    """Another one takes its place, in the middle of the steps."""
    first, second = finished(start(device, only={0: {"kill": STEPS // 3}}))
    assert first == second == alone()
