"""Two ranks as two processes, on the CPU and on one CUDA device. `-m gpu` runs what needs the device."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
import rank_process
import torch

import guided_plugin as gp

pytestmark = pytest.mark.timeout(900)  # processes start torch, which takes minutes on a busy machine

STEPS = 60
CUDA = pytest.param(
    "cuda",
    marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")],
)
BOTH = pytest.mark.parametrize("device", [pytest.param("cpu", marks=pytest.mark.slow), CUDA])
MACHINES = pytest.mark.parametrize("where", ["aa", "ab"], ids=["one machine", "two machines"])
ON_CUDA = pytest.mark.parametrize("device", [CUDA])


@pytest.fixture
def start(tmp_path):
    """Starts two ranks; none outlives its test. What differs for a rank is given by its number."""
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
            folders = [pathlib.Path(gp.__file__).parent.parent, os.environ.get("PYTHONPATH", "")]
            ranks.append(
                subprocess.Popen(
                    [sys.executable, rank_process.__file__, json.dumps(own)],
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        return ranks

    yield start
    for rank in ranks:
        rank.kill()
        rank.communicate()


def alone(drafts=0):
    """The same steps at a rank that is alone, inline on the CPU."""
    with gp.StepPipeline(
        rank_process.compiler(), max_slots=rank_process.REQUESTS, mode="inline", drafts=drafts
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


def finish(ranks):
    """What each rank printed of its steps."""
    results = [rank.communicate(timeout=500) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], [errors[-3000:] for _, errors in results]
    return [[json.loads(line) for line in out.splitlines()[1:]] for out, _ in results]


def gone(pid):
    """Whether a process has ended, or only waits for its parent to see that."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] == "Z"
    return True


def shared_memory():
    return {name for name in os.listdir("/dev/shm") if "guided" in name}


LATE_HOST = {"late": 0.02}
LATE_DEVICE = {"late_cycles": 30_000_000}
"""Some 15 ms on the stream that reads the masks, while the host goes on."""


@BOTH
@MACHINES
@pytest.mark.parametrize(
    "only",
    [{}, {1: LATE_HOST}, {0: LATE_HOST}, {1: LATE_DEVICE}],
    ids=["in step", "rank 1 late", "rank 0 late", "device of rank 1 late"],
)
def test_both_ranks_mask_as_one_that_is_alone(start, device, only, where):
    """Bit by bit, also where one is so late that rank 0 has to wait before it fills a place again."""
    first, second = finish(start(device, only=only, where=where))
    assert first == second == alone()


@BOTH
@MACHINES
def test_drafts_are_judged_alike(start, device, where):
    first, second = finish(start(device, drafts=2, only={1: LATE_DEVICE}, where=where))
    assert first == second == alone(drafts=2)


@ON_CUDA
@pytest.mark.parametrize("without", [(1,), (0, 1)])
def test_a_rank_whose_device_cannot_wait_for_memory(start, device, without):
    """Its host waits."""
    first, second = finish(start(device, only={rank: {"ops": False} for rank in without}))
    assert first == second == alone()


@BOTH
@MACHINES
def test_rank_0_dies(start, device, where):
    """The other does not wait for it, nor does its device; nothing is left."""
    before = shared_memory()
    ranks = start(device, steps=None, where=where)
    pids = json.loads(ranks[0].stdout.readline())
    for rank in ranks:
        for _ in range(3):
            assert rank.stdout.readline()
    ranks[0].send_signal(signal.SIGKILL)
    _, errors = ranks[1].communicate(timeout=120)
    assert ranks[1].returncode == 1
    assert "rank 0 has ended" in errors
    wait_until(lambda: all(map(gone, pids)))
    assert shared_memory() == before


@BOTH
def test_rank_1_dies(start, device):
    """Rank 0 goes on."""
    ranks = start(device, steps=None)
    ranks[0].stdout.readline()
    for rank in ranks:
        for _ in range(3):
            assert rank.stdout.readline()
    ranks[1].send_signal(signal.SIGKILL)
    ranks[1].wait(60)
    for _ in range(20):
        assert ranks[0].stdout.readline()
    ranks[0].kill()
    _, errors = ranks[0].communicate(timeout=60)
    assert "rank 1 has ended; it is not waited for" in errors


@BOTH
@MACHINES
def test_rank_0_closes_first(start, device, where):
    """What it filled is used, what it did not is an error, and the device is not left waiting."""
    ranks = start(device, only={1: {"steps": STEPS + 2}}, where=where)
    _, errors = ranks[1].communicate(timeout=500)
    assert ranks[1].returncode == 1
    assert "rank 0 has closed its pipeline" in errors or "rank 0 has ended" in errors


@BOTH
def test_the_worker_dies(start, device):
    """Another one takes its place."""
    ranks = start(device, only={0: {"late": 0.01}})
    pids = json.loads(ranks[0].stdout.readline())
    time.sleep(0.2)
    os.kill(pids[1], signal.SIGKILL)
    results = [rank.communicate(timeout=500) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], [errors[-3000:] for _, errors in results]
    lines = [[json.loads(line) for line in out.splitlines()] for out, _ in results]
    assert lines[0] == lines[1][1:] == alone()


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)
