"""Metrics: plain values, and the same for Prometheus."""

import dataclasses
import sys
from types import ModuleType

import pytest

from guided_plugin.metrics import COUNTERS, Growth, PipelineMetrics, WorkerMetrics, prometheus_collector

FOUND = PipelineMetrics(
    mode="process",
    steps=7,
    rows=20,
    running=2,
    added=5,
    failed=1,
    backends={"xgrammar": 3, "llguidance": 2},
    main_thread=4e-5,
    choices={("xgrammar", "the spec names it"): 3, ("llguidance", "as a JSON schema"): 2},
    unenforced={"uniqueItems": 2},
    worker=WorkerMetrics(steps=7, plan_to_mask=1e-3, exposed_wait=2e-6, restarts=1),
)


class Family:
    def __init__(self, name, help, value=None, labels=()):
        self.name, self.value, self.help, self.labels, self.samples = name, value, help, labels, []

    def add_metric(self, labels, value):
        self.samples.append((labels, value))


class Counter(Family):
    pass


class Gauge(Family):
    pass


def test_what_prometheus_scrapes(monkeypatch):
    core = ModuleType("prometheus_client.core")
    core.CounterMetricFamily, core.GaugeMetricFamily = Counter, Gauge
    monkeypatch.setitem(sys.modules, "prometheus_client", ModuleType("prometheus_client"))
    monkeypatch.setitem(sys.modules, "prometheus_client.core", core)
    families = {family.name: family for family in prometheus_collector(lambda: FOUND).collect()}
    assert {name: family.value for name, family in families.items() if isinstance(family, Counter)} == {
        "guided_plugin_steps": 7,
        "guided_plugin_rows": 20,
        "guided_plugin_added": 5,
        "guided_plugin_failed": 1,
        "guided_plugin_restarts": 1,
        "guided_plugin_offered": 0,
        "guided_plugin_taken": 0,
        "guided_plugin_forwards": 0,
        "guided_plugin_offered_earlier": 0,
        "guided_plugin_taken_earlier": 0,
        "guided_plugin_led_outputs": 0,
        "guided_plugin_led_tokens": 0,
        "guided_plugin_requests": None,
        "guided_plugin_unenforced": None,
    }
    assert families["guided_plugin_requests"].samples == [
        (["xgrammar", "the spec names it"], 3),
        (["llguidance", "as a JSON schema"], 2),
    ]
    assert families["guided_plugin_unenforced"].samples == [(["uniqueItems"], 2)]
    assert families["guided_plugin_running"].value == 2
    assert families["guided_plugin_worker_steps"].value == 7
    assert families["guided_plugin_worker_plan_to_mask"].value == 1e-3
    assert all(family.help for family in families.values())


def test_without_prometheus_it_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ImportError, match="prometheus_client"):
        prometheus_collector(lambda: FOUND)


def test_each_growth_is_told_once_and_a_dip_is_none():
    growth = Growth()

    def take(restarts, taken, **changed):
        worker = dataclasses.replace(FOUND.worker, restarts=restarts, taken=taken)
        grown = growth.take(dataclasses.replace(FOUND, worker=worker, **changed))
        assert set(grown) == COUNTERS
        return {name: value for name, value in grown.items() if value}

    assert take(1, 40) == {"steps": 7, "rows": 20, "added": 5, "failed": 1, "restarts": 1, "taken": 40}
    assert take(1, 40) == {}
    assert take(2, 0, rows=21) == {"restarts": 1, "rows": 1}
    assert take(2, 45, rows=21) == {"taken": 5}
