"""Requests that wait in vLLM's scheduler until the engine has their grammar: a real
engine, whose answers about grammars come when a test says so."""

import os
import re
import signal
import time
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from vllm_support import params_of, runner, stepped

import guided_plugin as gp
from guided_plugin.hosts.vllm import hold, specs
from guided_plugin.hosts.vllm.common import EngineSpec
from guided_plugin.step import Admission

PATTERN = "[a-d]{30}"


@pytest.fixture
def engine(llm):
    return llm.llm_engine


@pytest.fixture
def verdict(llm, monkeypatch):
    """What the engine answers about the next specs; they do get ready meanwhile."""
    answer = Future()
    ours = runner(llm).engine
    prepare = type(ours).prepare

    def prepared(told, tell):
        prepare(ours, told, lambda _: answer.add_done_callback(tell))

    monkeypatch.setattr(ours, "prepare", prepared)
    monkeypatch.setattr(specs, "_LOADED_BYTES", 0)
    return answer


def add(engine, name, pattern=PATTERN, **options):
    form = None if pattern is None else {"regex": pattern}
    engine.add_request(name, "Once ", params_of(form, max_tokens=60, **options))


def test_others_go_on_while_one_is_held(engine, verdict):
    add(engine, "held")
    add(engine, "free", None, ignore_eos=True)

    def meanwhile(step):
        if step == 20:
            verdict.set_result(Admission(""))

    first, done = stepped(engine, meanwhile)
    assert first["free"] < 3
    assert 20 < first["held"] < 24
    assert re.fullmatch(PATTERN, done["held"].text)
    assert len(done["free"].token_ids) == 60


def test_a_step_brings_all_that_came_since_the_last_one():
    """Of specs that load at once the first is not held, for whichever request; others
    always are."""
    scheduler = SimpleNamespace()
    state = hold.state_of(scheduler)
    schedule = partial(hold.schedule, original=lambda self: SimpleNamespace())

    def held(*quick):
        requests = [Mock() for _ in quick]
        for number, (request, each) in enumerate(zip(requests, quick, strict=True)):
            request.request_id = f"id {number}"
            told = EngineSpec(f"packed {number // 2}", None, None, quick=each)
            request.structured_output_request = hold.Held(request, told)
            state.ask(request)
        brought = getattr(schedule(scheduler), hold.NEEDED)
        assert [one.quick for one in brought] == list(quick)
        assert not getattr(schedule(scheduler), hold.NEEDED)
        return [one.structured_output_request is not None for one in requests]

    assert held(True, True) == [True, True]  # the grammar worker may not run yet
    state.release(["id 0"])
    assert held(*[True] * 50) == [False] * 2 + [True] * 48
    assert held(False, False, True) == [True] * 3


def test_a_request_may_leave_while_it_is_held(engine, verdict):
    add(engine, "held")
    engine.step()
    engine.abort_request(["held"])
    assert stepped(engine) == ({}, {})
    verdict.set_result(Admission(""))
    add(engine, "next")
    assert re.fullmatch(PATTERN, stepped(engine)[1]["next"].text)


def test_a_spec_that_the_engine_refuses_ends_its_request_as_an_error(
    llm, engine, verdict
):
    pattern = "[a-d]{31}"
    add(engine, "refused", pattern)
    add(engine, "free", None, ignore_eos=True)
    error = gp.GuidedError("costs too much", hint="write less")
    compiler = runner(llm).engine.pipeline.compiler

    def meanwhile(step):
        if step == 5:
            compiler.quarantine(gp.OutputSpec.regex(pattern), error)
            verdict.set_exception(error)

    _, done = stepped(engine, meanwhile)
    assert done["refused"].finish_reason == "error"
    assert "costs too much" in done["refused"].stop_reason
    assert len(done["free"].token_ids) == 60


def test_a_worker_that_dies_meanwhile_is_replaced(llm, engine):
    pattern = "(foo|bar){5,9}[0-9]"
    supervisor = runner(llm).engine.pipeline.runtime.supervisor
    os.kill(supervisor.worker_pid, signal.SIGKILL)
    add(engine, "held", pattern)
    add(engine, "free", None, ignore_eos=True)
    _, done = stepped(engine)
    assert re.fullmatch(pattern, done["held"].text)
    assert len(done["free"].token_ids) == 60


def test_none_is_held_for_ever(engine, verdict, monkeypatch):
    monkeypatch.setattr(hold, "_SECONDS", 0.3)
    add(engine, "held")
    start = time.monotonic()
    _, done = stepped(engine)
    assert 0.3 < time.monotonic() - start < 5
    assert re.fullmatch(PATTERN, done["held"].text)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("at_once", [False, True])
def test_workers_hear_by_a_step_and_tell_by_outputs(
    engine, monkeypatch, at_once, apart
):
    """In this process, or in others."""
    if apart:
        monkeypatch.setattr(hold, "engine_of", lambda core: None)
    monkeypatch.setattr(specs, "_LOADED_BYTES", 10_000 * at_once)
    add(engine, "first", "[a-d]{31}")
    stepped(engine)
    add(engine, "alone", pattern := f"[a-d]{{{32 + at_once + 2 * apart}}}")
    first, done = stepped(engine)
    assert re.fullmatch(pattern, done["alone"].text)
    if at_once or apart:  # else its grammar may be there before the step
        assert bool(first["alone"]) is not at_once
    add(engine, "free", None, ignore_eos=True)
    add(engine, "next to it", pattern)
    first, done = stepped(engine)
    assert first["next to it"] < 3  # its grammar is there
    assert re.fullmatch(pattern, done["next to it"].text)
