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


LATE_HOST = {"late": 0.02}
LATE_DEVICE = {"late_cycles": 30_000_000}
"""Some 15 ms on the stream that reads the masks, while the host goes on."""
KILLED = {"kill": STEPS // 3}
"""Its worker, in the middle of the steps: another one takes its place."""


@BOTH
@pytest.mark.parametrize(
    ("where", "mode", "drafts", "only"),
    [
        ("aa", "process", 0, {}),
        ("aa", "process", 0, {0: LATE_HOST}),
        ("aa", "process", 0, {0: KILLED}),
        ("ab", "process", 0, {1: KILLED}),
        *(
            (where, mode, drafts, {1: late})
            for where, mode in (("aa", "process"), ("aa", "inline"), ("ab", "process"))
            for drafts, late in ((0, LATE_HOST), (0, LATE_DEVICE), (2, LATE_DEVICE))
        ),
    ],
)
def test_both_ranks_mask_as_one_that_is_alone(start, device, where, mode, drafts, only):
    """Bit by bit, also where one is so late that rank 0 has to wait before it fills a
    place again."""
    if device == "cpu" and LATE_DEVICE in only.values() and not drafts:
        pytest.skip("no device is late")
    ranks = start(device, only=only, where=where, mode=mode, drafts=drafts)
    first, second = (lines[1:] for lines in finish(ranks))
    assert first == second == alone(drafts)


@BOTH
@pytest.mark.parametrize(
    ("victim", "where", "mode", "says"),
    [
        (
            0,
            "aa",
            "inline",
            "rank 0 has ended",
        ),
        (
            0,
            "aa",
            "process",
            "rank 0 has ended",
        ),
        (
            0,
            "ab",
            "process",
            "rank 0, on another machine, does not go along",
        ),
        (
            1,
            "ab",
            "inline",
            "rank 1, on another machine, does not go along",
        ),
        (
            1,
            "aa",
            "process",
            "rank 1 has ended; this rank waits no longer",
        ),
    ],
)
def test_a_rank_dies(start, device, victim, where, mode, says):
    """On its machine a rank with grammars goes on; all others stop. None waits, and
    nothing is left."""
    before = shared_memory()
    ranks = start(device, steps=None, where=where, mode=mode)
    pids = json.loads(ranks[0].stdout.readline())
    for rank in ranks:
        for _ in range(3):
            assert rank.stdout.readline()
    ranks[victim].kill()
    ranks[victim].wait(60)
    other = ranks[1 - victim]
    goes_on = victim == 1 and where == "aa"
    if goes_on:
        for _ in range(20):
            assert other.stdout.readline()
        other.terminate()
    _, errors = other.communicate(timeout=120)
    assert goes_on or other.returncode == 1
    assert says in errors
    until(lambda: all(map(gone, pids)), 60)
    assert shared_memory() == before
