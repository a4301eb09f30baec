"""What a frontend asks its engines; with several of them, what any says counts. With
vLLM's own client."""

import asyncio
from types import SimpleNamespace

import pytest
from vllm.v1.engine import EngineCoreOutput, FinishReason
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.core_client import DPLBAsyncMPClient

from guided_plugin.errors import PipelineError
from guided_plugin.hosts.vllm.common import HEALTH, METRICS
from guided_plugin.hosts.vllm.gate import process_outputs
from guided_plugin.hosts.vllm.health import Health, ask_all
from guided_plugin.hosts.vllm.metrics import metrics


class Recorder:
    """In place of what sends a question to an engine."""

    def __init__(self, answers):
        self.answers = answers
        self.asked = []

    async def __call__(self, kind, method, timeout, args, kwargs, *, engine):
        assert (kind, timeout, kwargs or {}) == ("collective_rpc", None, {})
        self.asked.append((engine, method, tuple(args)))
        return self.answers[engine][method]


def frontend(kind, answers):
    """vLLM's `AsyncLLM` and its client, with nothing behind them."""
    llm = object.__new__(AsyncLLM)
    client = object.__new__(kind)
    client.resources = SimpleNamespace(engine_dead=False)
    client._finalizer = SimpleNamespace(detach=lambda: None)  # nothing to shut down
    client.core_engines = sorted(answers)
    client.core_engine = client.core_engines[0]
    client._call_utility_async = Recorder(answers)
    llm.engine_core = client
    return llm, client._call_utility_async


ANSWERS = {
    b"0": {METRICS: ([{"growth": {"steps": (3,)}}], [])},
    b"1": {METRICS: ([{"growth": {"steps": (5,)}}], [])},
}


def test_the_metrics_name_each_engine():
    llm, asked = frontend(DPLBAsyncMPClient, ANSWERS)
    steps = metrics()._told["steps"]
    before = [steps.labels(engine)._value.get() for engine in ("0", "1")]
    asyncio.run(metrics().ask(lambda: ask_all(llm, METRICS, (True,))))
    after = [steps.labels(engine)._value.get() for engine in ("0", "1")]
    assert after == [before[0] + 3, before[1] + 5]
    assert asked.asked == [(b"0", METRICS, (True,)), (b"1", METRICS, (True,))]


def test_a_caller_that_may_block_asks_until_all_is_well():
    asked = []
    answers = ["", "the breaker is open"]

    def collective_rpc(method):
        asked.append(method)
        return [[answer, 0.0] for answer in answers]

    health = Health()
    for _ in range(2):
        with pytest.raises(PipelineError, match="the breaker is open"):
            health.check(collective_rpc)
    answers[:] = [""]
    for _ in range(5):
        health.check(collective_rpc)
    assert asked == [HEALTH] * 3


def test_nothing_waits_for_what_is_asked_after_a_failure(monkeypatch):
    asked = []
    answers = [""]
    answered = asyncio.Event()

    async def collective_rpc(method):
        asked.append(method)
        await answered.wait()
        return [[answer, 0.0] for answer in answers]

    async def serve():
        health = Health()
        first = asyncio.ensure_future(health.check_async(collective_rpc))
        await asyncio.sleep(0)
        assert not first.done()  # nothing is known yet
        answered.set()
        await first
        for _ in range(5):
            await health.check_async(collective_rpc)
        assert asked == [HEALTH]

        monkeypatch.setattr(metrics(), "failures", metrics().failures + 1)
        answered.clear()
        answers[:] = ["", "the breaker is open"]
        for _ in range(5):
            await health.check_async(collective_rpc)  # the answer is on its way
        answered.set()
        for _ in range(5):
            await asyncio.sleep(0)
        assert asked == [HEALTH] * 2

        for _ in range(2):
            with pytest.raises(PipelineError, match="the breaker is open"):
                await health.check_async(collective_rpc)
        answers[:] = [""]
        for _ in range(5):
            await health.check_async(collective_rpc)
        assert asked == [HEALTH] * 5

    asyncio.run(serve())


def test_a_question_that_fails_behind_a_failure_is_asked_again(monkeypatch, caplog):
    async def collective_rpc(method):
        if ended:
            raise RuntimeError("the engine has ended")
        return [["", 0.0]]

    async def serve():
        health = Health()
        await health.check_async(collective_rpc)
        ended.append(True)
        monkeypatch.setattr(metrics(), "failures", metrics().failures + 1)
        await health.check_async(collective_rpc)
        await asyncio.sleep(0.01)
        with pytest.raises(PipelineError, match="the engine has ended"):
            await health.check_async(collective_rpc)

    ended = []
    asyncio.run(serve())
    assert "never retrieved" not in caplog.text


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        ("bad_words leave no token that the grammar allows (change them)", 400),
        ("the worker ended", 500),
    ],
)
def test_a_failure_by_options_of_the_request_is_the_clients(
    monkeypatch, reason, status
):
    """After another one the engine is asked again: with the worker of its request others
    can have ended."""
    monkeypatch.setattr(metrics(), "failures", 0)
    put = []
    state = SimpleNamespace(queue=SimpleNamespace(put=put.append))
    output = EngineCoreOutput(
        "one", [], finish_reason=FinishReason.ERROR, stop_reason=reason
    )
    ended = EngineCoreOutput("one", [], finish_reason=FinishReason.STOP, stop_reason=7)
    processor = SimpleNamespace(request_states={"one": state})
    for one in (ended, output):
        told = process_outputs(processor, [one], original=lambda self, told: told)
        assert told == [one]
    assert metrics().failures == (status == 500)
    # since 0.33, which gives the answer
    passed_on = "error" in EngineCoreOutput.__struct_fields__
    assert [error.http_status for error in put] == [status] * (not passed_on)


def test_callers_on_an_event_loop_share_a_question():
    asked = []

    async def collective_rpc(method):
        asked.append(method)
        await asyncio.sleep(0)
        return [["closed", 5.0]]

    async def many(health):
        return await asyncio.gather(
            *(health.check_async(collective_rpc) for _ in range(9)),
            return_exceptions=True,
        )

    errors = asyncio.run(many(Health()))
    assert {type(error) for error in errors} == {PipelineError}
    assert asked == [HEALTH]


def test_an_engine_that_cannot_be_asked_gets_no_guided_requests():
    def fails(method):
        raise AttributeError("no attribute 'guided_health'")

    with pytest.raises(PipelineError, match="may not have loaded"):
        Health().check(fails)
