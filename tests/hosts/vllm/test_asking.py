"""A frontend with several engines behind it: what any of them says counts. With vLLM's own client."""

import asyncio
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

from vllm.exceptions import GracefulHTTPError
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.core_client import AsyncMPClient, DPLBAsyncMPClient

from guided_plugin.hosts.vllm.common import HEALTH, METRICS, PREPARE, RETRY_AFTER
from guided_plugin.hosts.vllm.figures import GuidedStatLogger
from guided_plugin.hosts.vllm.questions import Health, ask_all


class Recorder:
    """In place of what sends a question to an engine."""

    def __init__(self, answers):
        self.answers, self.asked = answers, []

    async def __call__(self, kind, method, timeout, args, kwargs, *, engine):
        assert (kind, timeout, kwargs or {}) == ("collective_rpc", None, {})
        self.asked.append((engine, method, tuple(args)))
        return self.answers[engine][method]


def frontend(kind, answers):
    """vLLM's `AsyncLLM` and its client, with nothing behind them."""
    llm, client = object.__new__(AsyncLLM), object.__new__(kind)
    client.resources = SimpleNamespace(engine_dead=False)
    client._finalizer = SimpleNamespace(detach=lambda: None)  # nothing to shut down
    client.core_engines = sorted(answers)
    client.core_engine = client.core_engines[0]
    client._call_utility_async = Recorder(answers)
    llm.engine_core = client
    return llm, client._call_utility_async


ANSWERS = {
    b"0": {HEALTH: [""], PREPARE: [True], METRICS: [[{"steps": 3}], []], RETRY_AFTER: [0.0]},
    b"1": {HEALTH: ["no grammar worker"], PREPARE: [False], METRICS: [[{"steps": 5}]], RETRY_AFTER: [7.0]},
}


def test_vllm_itself_passes_on_one_answer_and_we_all():
    llm, asked = frontend(DPLBAsyncMPClient, ANSWERS)
    assert asyncio.run(llm.collective_rpc(HEALTH)) == [""]
    assert asyncio.run(ask_all(llm, HEALTH)) == ["", "no grammar worker"]
    assert not all(asyncio.run(ask_all(llm, PREPARE, ("key", None))))
    assert asked.asked[-2:] == [(b"0", PREPARE, ("key", None)), (b"1", PREPARE, ("key", None))]


def test_one_engine_is_asked_as_ever():
    llm, asked = frontend(AsyncMPClient, {b"0": ANSWERS[b"0"]})
    assert asyncio.run(ask_all(llm, HEALTH)) == [""]
    assert asked.asked == [(b"0", HEALTH, ())]


def test_a_frontend_refuses_while_any_engine_would():
    """A request may go to each of them."""
    llm, _ = frontend(DPLBAsyncMPClient, ANSWERS)
    with pytest.raises(GracefulHTTPError, match="no grammar worker"):
        asyncio.run(Health().check_async(lambda method: ask_all(llm, method)))
    healthy = {b"0": ANSWERS[b"0"], b"1": ANSWERS[b"0"]}
    llm, _ = frontend(DPLBAsyncMPClient, healthy)
    asyncio.run(Health().check_async(lambda method: ask_all(llm, method)))


def test_the_figures_name_each_engine(monkeypatch):
    from guided_plugin.hosts.vllm import figures

    GuidedStatLogger(None, [0, 1])
    monkeypatch.setattr(figures, "SECONDS", 0.2)
    monkeypatch.setattr(figures, "_IDLE", 100)
    llm, _ = frontend(DPLBAsyncMPClient, ANSWERS)

    async def ask():
        figures._metrics._task = None
        figures._metrics.on_loop(llm)
        while steps.labels("1")._value.get() != 5:
            await asyncio.sleep(0.05)

    steps = figures._metrics.engine["steps"]
    asyncio.run(asyncio.wait_for(ask(), 60))
    assert [steps.labels(engine)._value.get() for engine in ("0", "1")] == [3, 5]


def test_a_client_that_has_changed_is_told(monkeypatch):
    from guided_plugin.errors import RequestError
    from guided_plugin.hosts.vllm import questions as asking

    monkeypatch.setattr(asking, "broken", lambda part: RequestError(f"no {part.value}"))
    llm, _ = frontend(DPLBAsyncMPClient, ANSWERS)
    with pytest.raises(RequestError, match="data-parallel front"):
        asyncio.run(ask_all(llm, HEALTH))
