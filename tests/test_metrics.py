"""Metrics, which are plain values."""

import dataclasses

import pytest

from guided_plugin.metrics import (
    COUNTERS,
    Growth,
    PipelineMetrics,
    Times,
    WorkerMetrics,
)


def counts(*seconds):
    times = Times()
    for each in seconds:
        times.add(each)
    return times.counts()


FOUND = PipelineMetrics(
    mode="process",
    steps=7,
    rows=20,
    running=2,
    added=5,
    failed=1,
    backends={"xgrammar": 3, "llguidance": 2},
    main_thread=4e-5,
    unenforced={"uniqueItems": 2},
    times={"main_thread": counts(4e-5, 4e-5, 1e-3)},
    worker=WorkerMetrics(
        steps=7, plan_to_mask=1e-3, restarts=1, times={"fill": counts(0.0, 7.0)}
    ),
)


def test_each_growth_is_told_once_and_a_dip_is_none():
    growth = Growth()

    def take(restarts, taken, **changed):
        worker = dataclasses.replace(FOUND.worker, restarts=restarts, taken=taken)
        grown = growth.take(
            dataclasses.replace(FOUND, worker=worker, **changed), host_thread=host
        )
        assert set(grown) == COUNTERS | {"main_thread", "fill", "host_thread"}
        return {name: grown[name][0] for name in COUNTERS if grown[name][0]}

    host = counts()

    assert take(1, 40) == {
        "steps": 7,
        "rows": 20,
        "added": 5,
        "failed": 1,
        "restarts": 1,
        "taken": 40,
    }
    assert take(1, 40) == {}
    assert take(2, 0, rows=21) == {"restarts": 1, "rows": 1}
    assert take(2, 45, rows=21) == {"taken": 5}
    assert sum(growth.take(FOUND)["fill"]) == 0
    grown = growth.take(
        dataclasses.replace(FOUND, times={"main_thread": counts(4e-5, 4e-5, 1e-3, 2.0)})
    )
    assert grown["main_thread"] == pytest.approx((*[0] * 15, 1, 2.0))


def test_times_are_counted_and_the_newest_kept():
    times = Times()
    assert (times.median(), len(times)) == (0.0, 0)
    for seconds in range(1000):
        times.add(seconds)
    assert times.counts() == counts(*range(1000))
    assert times.median() == (871 + 872) / 2
