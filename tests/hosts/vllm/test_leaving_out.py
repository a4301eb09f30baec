"""Requests whose masks take too long for a step: vLLM's scheduler leaves them out."""

import json
import os
import pathlib
import signal
import time
from types import SimpleNamespace

import pytest
from vllm_runners import V1, V2, V2Drafts
from vllm_support import params_of, runner, runner_config, stepped

import guided_plugin as gp
from guided_plugin.hosts.vllm import turns
from guided_plugin.hosts.vllm.engine import execute_model
from guided_plugin.hosts.vllm.turns import SLOW, Turns

SECONDS = {"slow1": 0.02, "slow2": 0.04}


def request(name, on_their_way=0):
    return SimpleNamespace(
        request_id=name,
        next_decode_eligible_step=0,
        num_output_placeholders=on_their_way,
    )


@pytest.mark.parametrize(
    ("why", "names", "clock", "seen"),
    json.loads(pathlib.Path(__file__).with_name("turns.json").read_text()),
)
def test_slow_requests_take_turns(monkeypatch, why, names, clock, seen):
    scheduler = SimpleNamespace(running=[*map(request, names)], current_step=7)
    taken = Turns()
    found = []
    times = iter([9.99, *clock])
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    taken.leave_out(scheduler)
    for _ in clock:
        taken.tell(SECONDS)
        taken.leave_out(scheduler)
        scheduler.current_step += 1
        due = [
            one.request_id
            for one in scheduler.running
            if one.next_decode_eligible_step <= scheduler.current_step
        ]
        assert set(due) >= set(names) - set(SECONDS)
        found.append(sorted(name for name in due if name in SECONDS))
    assert found == seen, why


def test_none_is_back_while_a_token_is_on_its_way_and_none_is_slow_for_ever():
    late = request("slow1", 1)
    scheduler = SimpleNamespace(running=[late, request("free")], current_step=1)
    taken = Turns()
    taken.tell(SECONDS)
    for step in (1, 2):
        scheduler.current_step = step
        taken.leave_out(scheduler)
        assert late.next_decode_eligible_step == step + 2
    taken.tell({})
    scheduler.current_step = 3
    taken.leave_out(scheduler)
    assert late.next_decode_eligible_step == 4


@pytest.mark.parametrize("kind", [V1, V2, V2Drafts])
def test_an_output_tells_who_is_slow(byte_tokenizer, play, kind, mode):
    asked = {"spec": gp.OutputSpec.regex("[ab]{30}")}
    played = play(kind, runner_config(mode), one=asked, two=asked)
    assert not hasattr(played.step(), SLOW)
    runtime = played.engine.pipeline.runtime
    region = runtime.region
    requests = runtime.requests if mode == "process" else runtime.table.requests
    region.slow[:] = 0.25
    slots = {one.request_id: slot for slot, one in requests.items()}
    region.slow[slots["two"]] = 0.0
    told = getattr(played.step(), SLOW, {})
    # with drafts, no request can be left out
    assert told == ({} if region.shape.drafts else {"one": 0.25})


PATTERNS = {"slow1": "[a-d]{40}", "slow2": "(foo|bar){12}", "slow3": "[x-z]{40}"}


@pytest.fixture
def engine(llm, monkeypatch):
    """What it tells: each request with a name that begins so is slow."""
    engine = llm.llm_engine
    runtime = runner(llm).engine.pipeline.runtime

    def slow():
        live = [one.request_id for one in list(runtime.requests.values())]
        return {name: 0.004 for name in live if name.startswith("slow")}

    monkeypatch.setattr(runtime, "slow", slow)
    yield engine
    llm.generate(["x"], params_of(None, max_tokens=3), use_tqdm=False)


def outputs(engine, names, meanwhile=lambda step: None):
    """What became of these, in the order of their ends."""
    for name in names:
        form = {"regex": PATTERNS[name]} if name in PATTERNS else None
        tokens = {"max_tokens": 60, "temperature": 0.0, "ignore_eos": form is None}
        engine.add_request(name, "Once ", params_of(form, **tokens))
    _, done = stepped(engine, meanwhile)
    return {name: output.text for name, output in done.items()}


@pytest.mark.parametrize("event", ["", "abort", "kill", "preempt"])
def test_others_go_on_and_outputs_are_the_same(llm, engine, event, monkeypatch):
    names = ["free", *PATTERNS]
    with monkeypatch.context() as patch:
        patch.setattr(Turns, "tell", lambda *_: None)
        expected = outputs(engine, names)
    left_out = []
    leave_out = Turns.leave_out

    def counted(self, scheduler):
        leave_out(self, scheduler)
        left_out.append(
            sum(
                one.next_decode_eligible_step > scheduler.current_step + 1
                for one in scheduler.running
            )
        )

    monkeypatch.setattr(turns.Turns, "leave_out", counted)

    def meanwhile(step):
        if step == 12 and event:
            happens[event]()

    def kill():
        pid = runner(llm).engine.pipeline.runtime.supervisor.worker_pid
        os.kill(pid, signal.SIGKILL)

    happens = {
        "abort": lambda: engine.abort_request(["slow2"]),
        "kill": kill,
        "preempt": lambda: engine.reset_prefix_cache(reset_running_requests=True),
    }

    done = outputs(engine, names, meanwhile)
    assert event != "abort" or expected.pop("slow2")
    assert done == expected
    assert max(left_out) >= 2
    # with 60 tokens, where each of the others has fewer
    assert event or next(iter(done)) == "free"
    outputs(engine, ["more"])
    # its first step has brought the ids of those that ended
    assert not runner(llm)._known


def test_what_was_preempted_has_left_as_what_has_ended():
    engine = SimpleNamespace(get_ready=set)
    step = SimpleNamespace(
        num_scheduled_tokens={"c": 1}, finished_req_ids={"a"}, preempted_req_ids={"b"}
    )
    worker = SimpleNamespace(_guided_engine=engine)
    execute_model(worker, step, original=lambda self, step: None)
    assert (engine.left, engine.scheduled) == ({"a", "b"}, ["c"])
