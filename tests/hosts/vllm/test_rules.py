"""The Prometheus rules and the Grafana dashboard of `examples/` have names that exist."""

import json
import re

import pytest

pytest.importorskip("vllm")

import yaml
from prometheus_client import REGISTRY
from script_files import ROOT

from guided_plugin.hosts.vllm import figures, telling


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr(telling, "listener", None)
    figures.GuidedStatLogger(None, [0])


def expressions():
    """PromQL of the files for operators, with where each stands."""
    rules = yaml.safe_load((ROOT / "examples/prometheus_rules.yml").read_text())
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        yield rule["alert"], rule["expr"]
    dashboard = json.loads((ROOT / "examples/grafana_dashboard.json").read_text())
    for panel in dashboard["panels"]:
        yield from ((panel["title"], target["expr"]) for target in panel["targets"])
    yield from ((one["name"], one["query"]) for one in dashboard["templating"]["list"][1:])


def unknown(expression):
    """Names of metrics, of their labels and of outcomes that this package does not have."""
    theirs, outcomes = {"instance", "job"}, {"admitted", "refused", "busy", "left", "failed"}
    known, labels, found = REGISTRY._names_to_collectors, set(theirs), set()
    for name in re.findall(r"guided_plugin_\w+", expression):
        if name not in known or name.endswith("_created"):
            found.add(name)
            continue
        labels.update(known[name]._labelnames, {"le"} if name.endswith("_bucket") else ())
        suffixes = {"counter": "_total", "histogram": ("_bucket", "_count", "_sum")}
        if not name.endswith(suffixes.get(known[name]._type, "")):
            found.add(name)
    used = re.findall(r"(\w+)=~?\"", expression)
    for group in re.findall(r"(?:by|without) \((.*?)\)", expression):
        used += group.split(", ")
    return found | ({*used} - labels) | ({*re.findall(r'outcome="(\w+)"', expression)} - outcomes)


@pytest.mark.parametrize(("where", "expression"), [*expressions()])
def test_rules_and_dashboard_have_names_that_exist(where, expression):
    assert unknown(expression) == set()
    assert "guided_plugin_" in expression
    assert expression.count("(") == expression.count(")")
    wrapped = re.findall(r"(?:rate|increase)\((guided_plugin_\w+)", expression)
    assert all(name.endswith(("_total", "_bucket")) for name in wrapped), "a rate of a gauge"
    quantiles = re.findall(r"histogram_quantile\([\d.]+, sum by \(([\w, ]+)\) \(rate\(\w+_bucket", expression)
    assert len(quantiles) == expression.count("histogram_quantile") == expression.count("_bucket")
    assert all("le" in labels.split(", ") for labels in quantiles), "buckets are added up by their bound"


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("increase(guided_plugin_engine_steps[1h])", {"guided_plugin_engine_steps"}),
        (
            'sum by (engine, reason) (guided_plugin_requests_total{outcome="lost"})',
            {"engine", "reason", "lost"},
        ),
        ("guided_plugin_requests_total / guided_plugin_engine_waits", {"guided_plugin_engine_waits"}),
        ("guided_plugin_mask_wait_seconds > 0.002", {"guided_plugin_mask_wait_seconds"}),
    ],
)
def test_a_name_that_does_not_exist_is_found(expression, names):
    assert unknown(expression) == names
