"""Two engines behind vLLM's own data-parallel front: who takes requests, and what a
killed engine costs.

The front and its router are vLLM's, the model is the demo's.
"""

import asyncio
import re

import psutil
import pytest
from rank_process import shared_memory
from vllm_server import metrics_of
from vllm_support import PATIENT, SCHEMA
from worker_runs import gone, until

from benchmarks.server import judges
from benchmarks.server.asks import completion
from benchmarks.server.clients import connect, one
from benchmarks.server.launch import Launch, started

CLOSED = {**SCHEMA, "additionalProperties": False}
LETTERS = "[a-f]{150,180}"


@pytest.fixture(scope="module")
def front(tmp_path_factory):
    """A server with two engines."""
    launch = Launch(
        sequences=8,
        length=256,
        plugin=PATIENT,
        arguments="--data-parallel-size 2 --data-parallel-backend mp",
    )
    log = tmp_path_factory.mktemp("replicas") / "log"
    try:
        with started(launch, log) as server:
            yield server
    finally:
        print(log.read_text()[-5000:])


async def ask(server, count, meanwhile=None):
    """Send requests of two kinds together, a third of them streamed; their outcomes."""
    kinds = [
        ({"regex": LETTERS}, judges.of_pattern(LETTERS)),
        ({"json": CLOSED}, judges.of_schema(CLOSED)),
    ]
    async with connect(server.url) as session:
        asked = []
        for number in range(count):
            form, judge = kinds[number % 2]
            request = completion(
                "replicas", judge, tokens=230, seed=number, structured_outputs=form
            )
            asked.append(
                asyncio.create_task(one(session, request, stream=number % 3 == 0))
            )
        if meanwhile is not None:
            await meanwhile()
        return await asyncio.gather(*asked)


def by_engine(server, name):
    """One counter of the server, engine by engine."""
    found = {}
    for line in metrics_of(server).splitlines():
        if line.startswith(name + "{"):
            engine = re.search(r'engine="(\d+)"', line).group(1)
            found[engine] = found.get(engine, 0.0) + float(line.split()[-1])
    return found


def title(process):
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@pytest.mark.timeout(3600)
def test_requests_spread_over_engines_and_a_killed_one_ends_in_visible_errors(front):
    outcomes = asyncio.run(ask(front, 16))
    assert {outcome.end for outcome in outcomes} <= {"valid", "length"}, outcomes
    taken = by_engine(front, "vllm:request_success_total")
    assert set(taken) == {"0", "1"}
    assert sum(taken.values()) == 16
    assert min(taken.values()) >= 4, taken
    # The plugin in each of them has guided what it took.
    assert by_engine(front, "guided_plugin_engine_requests_total") == taken

    server = psutil.Process(front.pid)
    before = shared_memory()
    all_of_them = [server, *server.children(recursive=True)]
    (victim,) = [
        process for process in all_of_them if "EngineCore_DP1" in title(process)
    ]
    assert any(
        "guided_plugin" in title(child) for child in victim.children(recursive=True)
    )

    async def kill():
        running = 0
        # under load: both engines have some of them in their batches
        while not running:
            await asyncio.sleep(0.2)
            found = await asyncio.to_thread(
                by_engine, front, "vllm:num_requests_running"
            )
            running = min(found.get("0", 0), found.get("1", 0))
        victim.kill()

    outcomes = asyncio.run(ask(front, 48, kill))
    lost = [outcome for outcome in outcomes if outcome.end not in ("valid", "length")]
    assert lost, "the engine had nothing to lose"
    for outcome in lost:  # told by a status or an error event, or the connection ended
        seen = (
            r'status 50[03]:|.*"code": 50[03]|abort$'
            if outcome.end == "told"
            else "(?!not a word)"
        )
        assert outcome.end in ("told", "cut"), outcome
        assert re.match(seen, outcome.detail), outcome
    # vLLM ends a front one of whose engines is dead, and all of its engines. None of it
    # stays behind.
    until(lambda: all(gone(process.pid) for process in all_of_them), 300.0)
    assert shared_memory() <= before
