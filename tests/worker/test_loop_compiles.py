"""Compiles in a worker next to requests that it may have died of."""

import pytest
from worker_engine import ABC, XYZ

import guided_plugin as gp
from guided_plugin.grammar.native import DeadlineCalls
from guided_plugin.worker.child import loop
from guided_plugin.worker.messages import Ends
from guided_plugin.worker.words import Counter

SLOW = gp.OutputSpec.regex("slow")


def test_compiles_wait_for_requests_that_a_worker_may_have_died_of(engine, monkeypatch):
    """Next to them it could not be told which of them ended the next worker."""
    doing = []
    compile = gp.GrammarCompiler.compile

    def watched(compiler, spec, **options):
        if spec == SLOW:
            doing.append((engine.filled(step), engine.region.load(Counter.DOING)))
        return compile(
            compiler,
            spec,
            **options,
        )

    monkeypatch.setattr(
        gp.GrammarCompiler,
        "compile",
        watched,
    )
    engine.land(engine.first_step(one=ABC), "a")
    engine.end()
    step = engine.plan(0)
    verdict = engine.client.prepare(SLOW)
    engine.begin(isolate=True)
    engine.until(verdict.done)
    assert doing == [(True, 0)]
    assert engine.shown(step) == "b"


def test_they_do_not_wait_for_ever(engine):
    engine.first_step(one=ABC)
    engine.end()
    engine.plan(0)  # whose tokens don't come
    verdict = engine.client.prepare(SLOW)
    engine.begin(isolate=True)
    engine.until(verdict.done)
    assert verdict.result().backend


@pytest.mark.parametrize("order", [(None, 0), (0, None)])
@pytest.mark.parametrize("planned", [False, True])
def test_a_death_at_a_request_may_be_a_compiles(engine, go_on, order, planned):
    """Compiles run beside all that is done for requests: who is worked on at that
    moment is merely near."""
    engine.add(good=ABC, planned=XYZ)
    verdict = engine.client.prepare(SLOW)
    if planned:
        assert engine.shown(engine.plan(1)) == "x"
    for slot in order:
        assert not verdict.done()
        engine.session.blame(slot, "was ended by SIGKILL")
    assert "compiling this spec ended the grammar worker twice" in str(
        verdict.exception(0)
    )
    assert engine.client.requests.take_failures() == []
    go_on.set()


def test_a_request_that_ends_workers_takes_no_compile_along(engine, go_on):
    engine.add(deadly=ABC)
    verdict = engine.client.prepare(SLOW)
    for _ in range(2):
        engine.session.blame(0, "was ended by SIGKILL")
    [(slot, error)] = engine.client.requests.take_failures()
    assert slot == 0
    assert "working on this request ended the grammar worker twice" in str(error)
    assert not verdict.done()
    go_on.set()
    engine.until(verdict.done)
    assert verdict.result().backend


@pytest.mark.parametrize("cause", ["time", "memory"])
def test_a_call_that_was_given_up_ends_its_worker_when_it_costs_too_much(
    make_engine, monkeypatch, cause
):
    costs = {"time": 0.0, "memory": 5 << 30}
    monkeypatch.setattr(
        DeadlineCalls,
        "overdue",
        lambda self: costs["time"],
    )
    monkeypatch.setattr(
        loop,
        "resident_bytes",
        lambda: costs["memory"],
    )
    engine = make_engine()
    engine.first_step(one=ABC)  # a worker without requests would end at once
    costs["time"] = 1.0
    engine.never(lambda: engine.codes, 0.6)
    costs[cause] += {"time": 60.0, "memory": (1 << 30) + 1}[cause]

    def last():
        return [message for message in engine.said if isinstance(message, Ends)]

    engine.until(last)
    (end,) = last()
    assert "still runs after" in end.reason
    assert end.blameless
