"""Requests that wait in vLLM's scheduler until the engine has their grammar: a real
engine, whose answers about grammars come when a test says so."""

import os
import re
import signal
import time
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

from vllm_support import params_of, runner

import guided_plugin as gp
from guided_plugin.hosts.vllm import hold
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

    def prepared(packed, made):
        prepare(ours, packed, made).result(60)
        return answer

    monkeypatch.setattr(ours, "prepare", prepared)
    return answer


def stepped(engine, meanwhile=lambda step: None):
    """For each request: the step of its first token, and its completion."""
    first = {}
    done = {}
    for step in range(10_000):
        if not engine.has_unfinished_requests():
            return first, done
        for output in engine.step():
            if output.outputs[0].token_ids:
                first.setdefault(output.request_id, step)
            if output.finished:
                done[output.request_id] = output.outputs[0]
        meanwhile(step)
    raise AssertionError("it does not end")


def add(engine, name, pattern=PATTERN, **options):
    form = None if pattern is None else {"regex": pattern}
    engine.add_request(name, "Once ", params_of(form, max_tokens=60, **options))


def test_others_go_on_while_one_is_held(engine, verdict):
    add(engine, "held")
    add(engine, "free", None, ignore_eos=True)

    def meanwhile(step):
        if step == 20:
            verdict.set_result(Admission("", 0.0))

    first, done = stepped(engine, meanwhile)
    assert first["free"] < 3
    assert 20 < first["held"] < 24
    assert re.fullmatch(PATTERN, done["held"].text)
    assert len(done["free"].token_ids) == 60


def test_fewer_questions_are_open_than_vllms_rings_hold():
    """Ten each way. With more, engine and worker wait for each other for ever."""
    unread = []

    class Answer:
        def done(self):
            return self not in unread

        def result(self):
            unread.remove(self)

    def ask(method, args, non_block):
        unread.append(Answer())
        return unread[-1]

    core = SimpleNamespace(model_executor=SimpleNamespace(collective_rpc=ask))
    add_request = hold.add_request(lambda self, request: None)
    for number in range(50):
        held = hold.Held(None, (f"id {number}",))
        add_request(core, SimpleNamespace(structured_output_request=held))
        assert len(unread) == min(number + 1, 4)


def test_a_grammar_that_is_there_holds_nothing(engine):
    for name in ("first", "again"):
        add(engine, name)
        first, done = stepped(engine)
        assert re.fullmatch(PATTERN, done[name].text)
    assert first["again"] < 3


def test_a_request_may_leave_while_it_is_held(engine, verdict):
    add(engine, "held")
    engine.step()
    engine.abort_request(["held"])
    assert stepped(engine) == ({}, {})
    verdict.set_result(Admission("", 0.0))
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


def test_workers_of_other_processes_are_asked_and_their_outputs_tell(
    engine, monkeypatch
):
    monkeypatch.setattr(hold, "engine_of", lambda core: None)
    add(engine, "alone", "[a-d]{32}")
    first, done = stepped(engine)
    assert re.fullmatch("[a-d]{32}", done["alone"].text)
    assert first["alone"] > 0
    add(engine, "free", None, ignore_eos=True)
    add(engine, "next to it", "[a-d]{33}")
    _, done = stepped(engine)
    assert re.fullmatch("[a-d]{33}", done["next to it"].text)
