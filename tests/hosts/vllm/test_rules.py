"""The Prometheus rules and the Grafana dashboard of `examples/` have names that exist;
the rules can fire."""

import json
import os
import re
import signal
import threading
import time

import pytest
import torch
import yaml
from prometheus_client import REGISTRY
from script_files import ROOT
from vllm_runners import V1
from vllm_support import WIDTH, runner_config
from worker_runs import until

import guided_plugin as gp
from guided_plugin.grammar.llguidance import learnt
from guided_plugin.grammar.table import GrammarTable
from guided_plugin.hosts.vllm.metrics import metrics


@pytest.fixture(autouse=True)
def registered():
    metrics()


def alerts():
    """The expression of each alert."""
    rules = yaml.safe_load((ROOT / "examples/prometheus_rules.yml").read_text())
    return {
        rule["alert"]: rule["expr"]
        for group in rules["groups"]
        for rule in group["rules"]
    }


def expressions():
    """PromQL of the files for operators, with where each stands."""
    yield from alerts().items()
    dashboard = json.loads((ROOT / "examples/grafana_dashboard.json").read_text())
    for panel in dashboard["panels"]:
        yield from ((panel["title"], target["expr"]) for target in panel["targets"])
    yield from (
        (one["name"], one["query"]) for one in dashboard["templating"]["list"][1:]
    )


def unknown(expression):
    """Names of metrics, of their labels and of outcomes that this package does not
    have."""
    theirs = {"instance", "job"}
    outcomes = {"admitted", "refused", "busy", "left", "failed"}
    known = REGISTRY._names_to_collectors
    labels = set(theirs)
    found = set()
    for name in re.findall(r"guided_plugin_\w+", expression):
        if name not in known or name.endswith("_created"):
            found.add(name)
            continue
        labels.update(
            known[name]._labelnames, {"le"} if name.endswith("_bucket") else ()
        )
        suffixes = {"counter": "_total", "histogram": ("_bucket", "_count", "_sum")}
        if not name.endswith(suffixes.get(known[name]._type, "")):
            found.add(name)
    used = re.findall(r"(\w+)=~?\"", expression)
    for group in re.findall(r"(?:by|without) \((.*?)\)", expression):
        used += group.split(", ")
    return (
        found
        | ({*used} - labels)
        | ({*re.findall(r'outcome="(\w+)"', expression)} - outcomes)
    )


def labels_of(side):
    """Which labels are left in one side of a comparison."""
    known = REGISTRY._names_to_collectors
    return {*re.findall(r"(?:by|without) \((.*?)\)", side)} or {
        known[name]._labelnames for name in re.findall(r"guided_plugin_\w+", side)
    }


@pytest.mark.parametrize(("where", "expression"), [*expressions()])
def test_rules_and_dashboard_have_names_that_exist(where, expression):
    assert unknown(expression) == set()
    assert "guided_plugin_" in expression
    assert expression.count("(") == expression.count(")")
    # else two sides of a comparison have nothing in common
    left, *right = re.split(" [<>] ", expression)
    assert not right or labels_of(right[0]) in (set(), labels_of(left))
    wrapped = re.findall(r"(?:rate|increase)\((guided_plugin_\w+)", expression)
    assert all(name.endswith(("_total", "_bucket")) for name in wrapped), (
        "a rate of a gauge"
    )
    quantiles = re.findall(
        r"histogram_quantile\([\d.]+, sum by \(([\w, ]+)\) \(rate\(\w+_bucket",
        expression,
    )
    assert (
        len(quantiles)
        == expression.count("histogram_quantile")
        == expression.count("_bucket")
    )
    assert all("le" in labels.split(", ") for labels in quantiles), (
        "buckets are added up by their bound"
    )


# What Prometheus makes of the alerts


def scrape():
    return [sample for family in REGISTRY.collect() for sample in family.samples]


def firing(expression, before, after):
    """Whether an alert's expression is true of the one engine of the test, where its
    ranges reach from one scrape to another."""

    def now(name, labels="", samples=after):
        wanted = set(re.findall(r'(\w+)="(.+?)"', labels))
        return sum(
            one.value
            for one in samples
            if one.name == name and wanted <= one.labels.items()
        )

    def grown(name, labels=""):
        return now(name, labels) - now(name, labels, before)

    def histogram_quantile(part, name):
        """The upper end of the bucket that the quantile is in."""
        bounds = {one.labels["le"] for one in after if one.name == name}
        most = grown(name, 'le="+Inf"')
        return min(
            float(bound)
            for bound in bounds
            if grown(name, f'le="{bound}"') >= part * most
        )

    text = re.sub(r"sum (by|without) \(.*?\) ", "", " ".join(expression.split()))
    for pattern, becomes in (
        (r"(histogram_quantile\(.*), \(rate\((\w+)\[\w+\]\)\)", r"\1, '\2'"),
        (r"(?:rate|increase)\((\w+)(\{.*?\})?\[\w+\]\)", r"grown('\1', '\2')"),
        (r"max_over_time\((\w+)\[\w+\]\)", r"\1"),
        (r"(?<!')\b(guided_plugin_\w+)", r"now('\1')"),
    ):
        text = re.sub(pattern, becomes, text)
    known = {"grown": grown, "now": now, "histogram_quantile": histogram_quantile}
    return eval(text, known)


def replaced(runner, monkeypatch):
    supervisor = runner.engine.pipeline.runtime.supervisor
    runner.step()
    os.kill(supervisor.worker_pid, signal.SIGKILL)
    runner.step()
    until(lambda: supervisor.restarts)


def fail(runner, monkeypatch):
    """No grammar of the requests allows the token."""
    guide = runner.guide
    guide.update_state(runner.update)
    guide.runner.mask(torch.zeros(len(runner.names), WIDTH))
    guide.runner.sampled(torch.full((len(runner.names), 1), ord("z")))
    for tokens in runner.tokens:
        tokens.append(ord("z"))
    guide.update_state(None)
    until(lambda: runner.engine.pipeline.request(runner.names[0]).error)


def late(runner, monkeypatch):
    """The masks of each step take 20 ms."""
    runner.step()
    supervisor = getattr(runner.engine.pipeline.runtime, "supervisor", None)
    fill = GrammarTable.fill
    monkeypatch.setattr(
        GrammarTable, "fill", lambda *given: (time.sleep(0.02), fill(*given))
    )
    for _ in range(5):
        if supervisor is not None:
            os.kill(supervisor.worker_pid, signal.SIGSTOP)
            threading.Timer(
                0.02, os.kill, (supervisor.worker_pid, signal.SIGCONT)
            ).start()
        runner.step()


BOTH = ("inline", "process")
CAUSES = {
    "GuidedWorkerReplaced": (replaced, ("process",)),
    "GuidedRequestsFail": (fail, BOTH),
    "GuidedRequestsBusy": (
        lambda *_: metrics().refused("BusyError", "busy"),
        BOTH,
    ),
    "GuidedRequestsRefused": (
        lambda *_: metrics().refused("SpecError", "refused"),
        BOTH,
    ),
    "GuidedRequestsLeft": (lambda *_: metrics().count("left"), BOTH),
    "GuidedMasksLate": (late, BOTH),
}
"""What each alert is about, and in which modes that happens."""


@pytest.fixture
def played(mode, byte_tokenizer, play):
    """A model runner with guided requests, and what `/metrics` says of it."""
    asked = {name: {"spec": gp.OutputSpec.regex("[ab]{40}")} for name in "abcd"}
    runner = play(V1, runner_config(mode, learnt_bytes=64 << 20), **asked)

    def told(**changes):
        found = runner.engine.metrics(growth=True)
        found["worker"].update(changes)
        metrics().tell([found])
        return scrape()

    return runner, told


@pytest.mark.parametrize("alert", CAUSES)
def test_an_alert_fires_in_each_mode_in_which_its_cause_exists(
    alert, mode, played, monkeypatch
):
    cause, modes = CAUSES[alert]
    if mode not in modes:
        pytest.skip(f"{mode} has nothing of that kind")
    runner, told = played
    before = told()
    assert not firing(alerts()[alert], before, before)
    cause(runner, monkeypatch)
    assert firing(alerts()[alert], before, told())


def test_lexers_are_full_where_they_are_cleared_whatever_the_bound_is(played):
    """Not where clearing them ends."""
    _, told = played
    expression = alerts()["GuidedLexersFull"]
    bound = 64 << 20
    for part, fires in ((learnt._END, False), (learnt._BEGIN, True)):
        found = told(learnt_bytes=part * bound)
        assert firing(expression, found, found) == fires
    assert alerts().keys() == {*CAUSES, "GuidedLexersFull"}
