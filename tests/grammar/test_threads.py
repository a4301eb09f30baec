"""How many threads fill masks: all of them until steps have a pace, then as few as are
done in time."""

import itertools

import numpy as np
import pytest

import guided_plugin as gp
from guided_plugin.grammar.threads import AdaptiveThreads


def fills(adaptive, work, count, *, overhead=0.0):
    """Fills whose work spreads evenly over the threads; how many threads each had."""
    seen = []
    for _ in range(count):
        seen.append(adaptive.executor)
        adaptive.took(work / adaptive.executor + overhead)
    return seen


def paced(most, pace=0.02 / 3):
    """A batch may take 0.3 of the pace: 2 ms."""
    adaptive = AdaptiveThreads(lambda threads: threads, most)
    adaptive.pace(pace)
    return adaptive


@pytest.mark.parametrize("most", [1, 2, 3, 8, 12, 64])
def test_all_threads_work_until_there_is_a_pace(most):
    made = []
    adaptive = AdaptiveThreads(lambda threads: made.append(threads) or threads, most)
    assert set(fills(adaptive, 1e-9, 200)) == {most}
    assert made == [most]


@pytest.mark.parametrize(
    ("milliseconds", "ends"),
    [
        ([(0.0, 0.3, 0.0)] * 200, 1),  # small fills gain nothing by threads
        # nor do those that do not spread
        ([(0.1, 0.0, 0.0)] * 200 + [(0.0, 4.0, 0.0)] * 50, 8),
        # a cold start puts no trial off
        ([(1e3, 0.0, 0.0)] * 50 + [(0.1, 0.0, 0.0)] * 200, 1),
        # tokens count as well: three quarters of what is allowed
        ([(0.0, 0.2, 1.3)] * 200, 8),
        ([(0.0, 0.2, 1.3), (0.0, 0.2, 1.0)] * 200, 8),
        ([(0.0, 0.2, 1.0)] * 200, 1),
        # fills near the limit change nothing
        ([(0.0, 1.9, 0.0), (0.0, 0.9, 0.0)] * 100, 8),
    ],
)
def test_how_many_threads_are_left(milliseconds, ends):
    """Of 8, where 2 ms are allowed; after fills whose work spreads, does not, and comes
    before them."""
    adaptive = paced(8)
    for work, overhead, tokens in milliseconds:
        adaptive.accepted(tokens / 1e3)
        fills(adaptive, work / 1e3, 1, overhead=overhead / 1e3)
    assert adaptive.threads == ends


def test_a_slow_pace_takes_threads_away_one_size_at_a_time():
    adaptive = paced(12)
    seen = fills(adaptive, 0.004, 32 * 3)
    assert list(dict.fromkeys(seen)) == [12, 8, 4]
    assert seen.count(12) == seen.count(8) == 32


def test_a_trial_that_came_out_badly_is_not_made_again_soon():
    adaptive = paced(8)
    seen = fills(adaptive, 0.005, 20_000)  # 1.25 ms with 4, 2.5 ms with 2
    changes = [
        i for i, (before, now) in enumerate(itertools.pairwise(seen)) if before != now
    ]
    assert set(seen) == {8, 4, 2}
    assert seen.count(2) < 8
    assert seen.count(8) == 32
    gaps = [
        later - sooner
        for sooner, later in zip(changes[1::2], changes[3::2], strict=False)
    ]
    assert gaps == sorted(gaps)
    assert gaps[-1] > 2000


def test_one_late_fill_brings_as_many_as_it_takes():
    adaptive = paced(12)
    fills(adaptive, 1e-5, 300)
    assert adaptive.threads == 1
    adaptive.took(0.005)  # 5 ms with one thread where 2 are allowed
    assert adaptive.threads == 4
    adaptive.took(0.1)
    assert adaptive.threads == 12


def test_who_was_caught_with_few_threads_keeps_more_of_them():
    adaptive = paced(8)
    assert fills(adaptive, 1e-4, 200)[-1] == 1
    caught = 0
    for _ in range(50):
        caught += adaptive.threads < 8
        assert fills(adaptive, 0.02, 4)[-1] == 8
        fills(adaptive, 1e-4, 97)
    assert caught < 4


def test_trials_that_come_out_well_bring_the_next_ones_sooner():
    adaptive = paced(8)
    fills(adaptive, 1e-4, 200)
    adaptive.took(0.02)
    assert adaptive.threads == 8
    seen = fills(adaptive, 1e-4, 2000)
    assert seen.count(8) == seen.count(4) == 128
    assert seen.count(2) == 64
    assert seen[-1] == 1


def test_a_faster_pace_brings_them_back():
    adaptive = paced(8, 1.0)
    fills(adaptive, 0.01, 300)
    assert adaptive.threads == 1
    adaptive.pace(0.02 / 3)
    fills(adaptive, 0.01, 2)
    assert adaptive.threads == 8


def test_threads_that_cannot_be_made_are_done_without(caplog):
    def make(threads):
        if threads < 4:
            raise RuntimeError("out of threads")
        return threads

    adaptive = AdaptiveThreads(make, 8)
    adaptive.pace(0.02 / 3)
    assert fills(adaptive, 1e-4, 300)[-1] == 4
    assert [record.message for record in caplog.records] == [
        "cannot start 2 threads: out of threads"
    ]


def test_a_pace_that_fails_is_not_tried_again(byte_vocabulary, monkeypatch, caplog):
    compiler = gp.GrammarCompiler(
        byte_vocabulary, config=gp.GuidedConfig(threads=2, isolate_compiles=False)
    )
    there = compiler.backend("xgrammar")
    other = compiler.backend("llguidance")
    calls = []

    def broken(seconds):
        calls.append(seconds)
        raise ValueError("no sense of time")

    monkeypatch.setattr(there, "pace", broken, raising=False)
    for _ in range(3):
        compiler.chooser.pace(0.5)
    assert calls == [0.5]
    assert "'xgrammar': pace updates disabled" in caplog.text
    assert other._executors._allowed == pytest.approx(0.15)


def test_masks_are_the_same_however_many_threads_fill_them(byte_vocabulary):
    threads = 8
    config = gp.GuidedConfig(threads=threads, isolate_compiles=False)
    compiler = gp.GrammarCompiler(byte_vocabulary, config=config)
    there = compiler.backend("llguidance")
    grammar = compiler.compile(gp.OutputSpec.regex("[a-f]{3,40}"))
    matchers = [there.start(grammar, byte_vocabulary.stop_token_ids) for _ in range(9)]
    batch = there.batch(matchers)
    full = np.zeros((9, byte_vocabulary.words), np.int32)
    batch.fill(full, list(range(9)))
    compiler.chooser.pace(60.0)
    sizes = set()
    for _ in range(200):
        mask = np.zeros_like(full)
        batch.fill(mask, list(range(9)))
        assert np.array_equal(mask, full)
        sizes.add(there._executors.threads)
    assert sizes == {8, 4, 2, 1}
    assert batch.accept([ord("a")] * 9) == [True] * 9
    compiler.chooser.pace(1e-12)
    batch.fill(mask, list(range(9)))
    assert there._executors.threads == threads
