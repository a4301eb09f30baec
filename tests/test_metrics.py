"""Metrics: plain values, and the same for Prometheus."""

import dataclasses
import sys
from types import ModuleType

import numpy as np
import pytest

from guided_plugin.metrics import (
    BUCKETS,
    COUNTERS,
    Growth,
    PipelineMetrics,
    Times,
    WorkerMetrics,
    prometheus_collector,
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
    choices={
        ("xgrammar", "the spec names it"): 3,
        ("llguidance", "as a JSON schema"): 2,
    },
    unenforced={"uniqueItems": 2},
    times={"main_thread": counts(4e-5, 4e-5, 1e-3)},
    worker=WorkerMetrics(
        steps=7, plan_to_mask=1e-3, restarts=1, times={"fill": counts(0.0, 7.0)}
    ),
)


class Family:
    def __init__(self, name, help, value=None, labels=()):
        self.name = name
        self.value = value
        self.help = help
        self.labels = labels
        self.samples = []

    def add_metric(self, labels, value):
        self.samples.append((labels, value))


class Counter(Family):
    pass


class Gauge(Family):
    pass


class Histogram(Family):
    def __init__(self, name, help, buckets, sum_value):
        super().__init__(name, help, (buckets, sum_value))


def test_what_prometheus_scrapes(monkeypatch):
    core = ModuleType("prometheus_client.core")
    core.CounterMetricFamily = Counter
    core.GaugeMetricFamily = Gauge
    core.HistogramMetricFamily = Histogram
    monkeypatch.setitem(
        sys.modules, "prometheus_client", ModuleType("prometheus_client")
    )
    monkeypatch.setitem(sys.modules, "prometheus_client.core", core)
    families = {
        family.name: family for family in prometheus_collector(lambda: FOUND).collect()
    }
    counted = {name for name, one in families.items() if isinstance(one, Counter)}
    assert counted == {f"guided_plugin_{name}" for name in COUNTERS} | {
        "guided_plugin_requests",
        "guided_plugin_unenforced",
    }
    for name, value in (("steps", 7), ("rows", 20), ("restarts", 1), ("taken", 0)):
        assert families[f"guided_plugin_{name}"].value == value
    assert families["guided_plugin_requests"].samples == [
        (["xgrammar", "the spec names it"], 3),
        (["llguidance", "as a JSON schema"], 2),
    ]
    assert families["guided_plugin_unenforced"].samples == [(["uniqueItems"], 2)]
    assert families["guided_plugin_running"].value == 2
    assert families["guided_plugin_worker_memory_bytes"].value == 0
    assert {one for one in families if one.endswith("seconds")} == {
        "guided_plugin_main_thread_seconds",
        "guided_plugin_fill_seconds",
    }
    buckets, total = families["guided_plugin_main_thread_seconds"].value
    assert total == pytest.approx(1.08e-3)
    assert [bound for bound, _ in buckets] == [*map(str, BUCKETS), "+Inf"]
    # 1 ms is in "up to 1 ms"
    assert [count for _, count in buckets] == [0, 0] + [2] * 4 + [3] * 10
    assert families["guided_plugin_fill_seconds"].value[0][-2:] == [
        ("0.5", 1),
        ("+Inf", 2),
    ]
    assert all(family.help for family in families.values())


def test_without_prometheus_it_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ImportError, match="prometheus_client"):
        prometheus_collector(lambda: FOUND)


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
    assert (times.median(), times.quantile(0.99), len(times)) == (0.0, 0.0, 0)
    times.extend(np.arange(999) / 1.0)
    times.add(999)
    assert times.counts() == counts(*range(1000))
    assert (times.quantile(0.0), times.quantile(1.0)) == (744, 999)
