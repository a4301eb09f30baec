"""How many threads fill masks: all of them until steps have a pace, then as few as are
done in time."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from compilers import compiler_of

import guided_plugin as gp
from guided_plugin.grammar.threads import AdaptiveThreads

CASES = json.loads(Path(__file__).with_name("thread_counts.json").read_bytes())
PACE = 0.02 / 3
"""A batch may take 0.3 of it: 2 ms."""


def fills(adaptive, work, count=1, *, overhead=0.0, tokens=0.0):
    """Fills whose work, of so many milliseconds, spreads evenly over the threads; how
    many threads each had."""
    seen = []
    for _ in range(count):
        seen.append(adaptive.executor)
        adaptive.accepted(tokens / 1e3)
        adaptive.took((work / adaptive.executor + overhead) / 1e3)
    return seen


def paced(most, pace=PACE):
    adaptive = AdaptiveThreads(lambda threads: threads, most)
    adaptive.pace(pace)
    return adaptive


@pytest.mark.parametrize("most", [1, 3, 12, 64])
def test_all_threads_work_until_there_is_a_pace(most):
    made = []
    adaptive = AdaptiveThreads(lambda threads: made.append(threads) or threads, most)
    assert set(fills(adaptive, 1e-6, 200)) == {most}
    assert made == [most]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["what"])
def test_how_many_threads_are_left(case):
    """After so many fills, each of work that spreads, of work that does not, and of
    tokens before it, in milliseconds."""
    adaptive = paced(case["most"])
    for run in case["runs"]:
        fills(
            adaptive,
            run["spreading"],
            run["fills"],
            overhead=run["fixed"],
            tokens=run["tokens"],
        )
        assert adaptive.threads == run["left"]


def test_a_trial_that_came_out_badly_is_not_made_again_soon():
    seen = fills(paced(8), 5, 20_000)  # 1.25 ms with 4, 2.5 ms with 2
    assert set(seen) == {8, 4, 2}
    assert seen.count(8) == 32
    trials = [number for number, threads in enumerate(seen) if threads == 2]
    gaps = [later - sooner for sooner, later in itertools.pairwise(trials)]
    assert len(trials) < 8
    assert gaps == sorted(gaps)
    assert gaps[-1] > 2000


def test_who_was_caught_with_few_threads_keeps_more_of_them():
    adaptive = paced(8)
    assert fills(adaptive, 0.1, 200)[-1] == 1
    caught = 0
    for _ in range(50):
        caught += adaptive.threads < 8
        assert fills(adaptive, 20, 4)[-1] == 8
        fills(adaptive, 0.1, 97)
    assert caught < 4


def test_a_faster_pace_brings_them_back():
    adaptive = paced(8, 1.0)
    assert fills(adaptive, 10, 300)[-1] == 1
    adaptive.pace(PACE)
    assert fills(adaptive, 10, 3)[-1] == 8


def test_threads_that_cannot_be_made_are_done_without(caplog):
    def make(threads):
        if threads < 4:
            raise RuntimeError("out of threads")
        return threads

    adaptive = AdaptiveThreads(make, 8)
    adaptive.pace(PACE)
    assert fills(adaptive, 0.1, 300)[-1] == 4
    (record,) = caplog.records
    assert record.message == "cannot start 2 threads: out of threads"


def test_masks_are_the_same_however_many_threads_fill_them(byte_vocabulary, caplog):
    """Nor does it matter that another backend's pace fails, which is not tried
    again."""
    threads = 8
    compiler = compiler_of(byte_vocabulary, threads=threads)
    there = compiler.backend("llguidance")
    calls = []

    def broken(seconds):
        calls.append(seconds)
        raise ValueError("no sense of time")

    compiler.backend("xgrammar").pace = broken
    grammar = compiler.compile(gp.OutputSpec.regex("[a-f]{3,40}"))
    stops = byte_vocabulary.stop_token_ids
    rows = list(range(9))
    batch = there.batch([there.start(grammar, stops) for _ in rows])
    full = np.zeros((9, byte_vocabulary.words), np.int32)
    batch.fill(full, rows)
    compiler.chooser.pace(60.0)
    sizes = set()
    for _ in range(200):
        mask = np.zeros_like(full)
        batch.fill(mask, rows)
        assert np.array_equal(mask, full)
        sizes.add(there._executors.threads)
    assert sizes == {8, 4, 2, 1}
    assert all(batch.accept([ord("a")] * 9))
    compiler.chooser.pace(1e-12)
    batch.fill(mask, rows)
    assert there._executors.threads == threads
    assert calls == [60.0]
    assert "'xgrammar': pace updates disabled" in caplog.text
