"""Two engines behind vLLM's own data-parallel front: who takes requests, and what a killed engine costs.

The front and its router are vLLM's, the model is the demo's.
"""

import asyncio
import json
import os
import re
import time

import pytest

pytest.importorskip("vllm")

import httpx
import jsonschema
import psutil

from benchmarks.server.launch import MODEL, Launch, started

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
LETTERS = "[a-f]{150,180}"
PATIENT = {"worker_step_ms": 60_000, "worker_grammar_ms": 60_000, "compile_seconds": 120}
"""On a busy machine nothing may be lost to a time limit."""

ENDED = "ended by vLLM"


@pytest.fixture(scope="module")
def front(tmp_path_factory):
    """A server with two engines."""
    launch = Launch(
        sequences=8, length=256, plugin=PATIENT, arguments="--data-parallel-size 2 --data-parallel-backend mp"
    )
    log = tmp_path_factory.mktemp("replicas") / "log"
    try:
        with started(launch, log) as server:
            yield server
    finally:
        print(log.read_text()[-5000:])


def bodies(count):
    """Requests of two kinds, some of them streamed."""
    for number in range(count):
        form = {"json": SCHEMA} if number % 2 else {"regex": LETTERS}
        body = {"model": MODEL, "prompt": "Person as JSON: ", "max_tokens": 230, "seed": number}
        yield body | {"structured_outputs": form, "stream": number % 3 == 0}


def checked(body, text, reason):
    """How a request with status 200 ended; vLLM's front ends those it gives up with `abort`."""
    assert reason in ("stop", "length", "abort"), (reason, text)
    if reason == "stop":
        if "regex" in body["structured_outputs"]:
            assert re.fullmatch(LETTERS, text), text
        else:
            jsonschema.validate(json.loads(text), SCHEMA)
    return reason


async def answer(client, body):
    """How a request ended: `stop`, `length`, `abort`, a status, or `ENDED` where the connection did."""
    try:
        if not body["stream"]:
            answered = await client.post("/v1/completions", json=body)
            if answered.status_code != 200:
                return answered.status_code
            choice = answered.json()["choices"][0]
            return checked(body, choice["text"], choice["finish_reason"])
        text, reason = "", None
        async with client.stream("POST", "/v1/completions", json=body) as answered:
            if answered.status_code != 200:
                return answered.status_code
            async for line in answered.aiter_lines():
                event = line.removeprefix("data: ")
                if not event or event == "[DONE]":
                    continue
                read = json.loads(event)
                if "error" in read:
                    return read["error"]["code"]
                text += read["choices"][0]["text"]
                reason = read["choices"][0]["finish_reason"] or reason
        return ENDED if reason is None else checked(body, text, reason)
    except httpx.TransportError:
        return ENDED


async def ask(server, count, meanwhile=None):
    """Send requests together; their outcomes."""
    async with httpx.AsyncClient(base_url=server.url, timeout=600, limits=LIMITS) as client:
        asked = [asyncio.create_task(answer(client, body)) for body in bodies(count)]
        if meanwhile is not None:
            await meanwhile()
        return await asyncio.gather(*asked)


LIMITS = httpx.Limits(max_connections=100)


def by_engine(server, name):
    """One counter of the server, engine by engine."""
    found = {}
    for line in httpx.get(f"{server.url}/metrics", timeout=60).text.splitlines():
        if line.startswith(name + "{"):
            engine = re.search(r'engine="(\d+)"', line).group(1)
            found[engine] = found.get(engine, 0.0) + float(line.split()[-1])
    return found


def processes(server):
    """The server and all that it has started."""
    front = psutil.Process(server.pid)
    return [front, *front.children(recursive=True)]


def title(process):
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def gone(process):
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def shared_memory():
    return {name for name in os.listdir("/dev/shm") if "guided" in name}


def wait_until(condition, seconds=300):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.2)


@pytest.mark.timeout(3600)
def test_requests_spread_over_engines_and_a_killed_one_ends_in_visible_errors(front):
    assert set(asyncio.run(ask(front, 16))) <= {"stop", "length"}
    taken = by_engine(front, "vllm:request_success_total")
    assert set(taken) == {"0", "1"}
    assert sum(taken.values()) == 16
    assert min(taken.values()) >= 4, taken
    # The plugin in each of them has guided what it took; its figures come every few seconds.
    wait_until(lambda: sum(by_engine(front, "guided_plugin_engine_requests").values()) == 16)
    assert by_engine(front, "guided_plugin_engine_requests") == taken

    before, all_of_them = shared_memory(), processes(front)
    (victim,) = [one for one in all_of_them if "EngineCore_DP1" in title(one)]
    assert any("guided_plugin" in title(child) for child in victim.children(recursive=True))

    async def kill():
        running = 0
        while not running:  # under load: both engines have some of them in their batches
            await asyncio.sleep(0.2)
            found = await asyncio.to_thread(by_engine, front, "vllm:num_requests_running")
            running = min(found.get("0", 0), found.get("1", 0))
        victim.kill()

    outcomes = asyncio.run(ask(front, 48, kill))
    lost = [one for one in outcomes if one not in ("stop", "length")]
    assert lost, "the engine had nothing to lose"
    assert set(lost) <= {500, 503, ENDED, "abort"}, outcomes
    # vLLM ends a front one of whose engines is dead, and all of its engines. None of it stays behind.
    wait_until(lambda: all(map(gone, all_of_them)))
    assert shared_memory() <= before
