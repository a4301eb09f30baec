"""Bounded parts of `make soak` and `make chaos`: a server under mixed load, and under
attack."""

import asyncio

import pytest

from benchmarks.server.asks import MIXED
from benchmarks.server.first import measure, parsed
from benchmarks.server.launch import Launch, started
from benchmarks.server.runs import chaos, invalid, soak


@pytest.fixture(scope="module")
def loaded_server(tmp_path_factory):
    """A server for load and attacks. On a busy machine nothing may be lost to a time
    limit."""
    launch = Launch(
        sequences=16,
        kv_tokens=1024,
        plugin={"worker_step_ms": 60_000, "worker_grammar_ms": 60_000},
    )
    log = tmp_path_factory.mktemp("loaded") / "log"
    with started(launch, log) as server:
        yield server
    print(log.read_text()[-3000:])


def test_every_answer_under_mixed_load_is_right_and_none_is_lost(loaded_server):
    found = soak(loaded_server, clients=20, seconds=25, seed=3)
    assert found["server_alive"]
    assert found["invalid"] == []
    assert found["lost"] == {}
    assert found["ends"]["valid"] > 2 * len(MIXED)
    assert found["ends"]["left"] > 0
    assert len(found["kinds"]) == len(MIXED)
    assert found["preemptions"] > 0
    for role in ("frontend", "template", "worker"):  # small specs need no helper
        assert found["processes"][role]["memory_mb"]["peak"] > 0


def test_first_tokens_and_bursts_of_new_schemas(loaded_server):
    # more than vLLM's rings between engine and worker hold
    options = parsed(["--rounds", "2", "--burst", "40", "--streams", "2"])
    found = asyncio.run(measure(loaded_server.url, options, 1))
    assert found["first_token_ms"]["new"]["count"] == 2
    assert {burst["valid"] for burst in found["bursts"].values()} == {40}


@pytest.mark.parametrize(
    "attack", ["kill-all", "mask-bombs", "big-bodies", "many-schemas"]
)
def test_an_attack_costs_ordinary_clients_no_answer(loaded_server, attack):
    found = chaos(loaded_server, attack, clients=6, seconds=8, quiet=2)
    assert found["server_alive"]
    assert invalid(found) == 0
    done = found["attack"]
    assert sum(done["ends"].values()) + len(done["kills"]) > 0, done
    for part in ("quiet", "attacked"):
        assert found[part]["ends"]["valid"] + found[part]["ends"]["length"] > 3, part
        assert found[part]["unguided_lost"] == 0, part
        lost = found[part]["lost"]
        if attack == "kill-all" and part == "attacked":
            # Guided requests that run then fail, and new ones are refused until the
            # next template is there.
            lost = {
                why: count
                for why, count in lost.items()
                if "have ended, and are being started" not in why
            }
            assert found[part]["back_ms"]["count"] == found[part]["kills"] > 0
        assert lost == {}, part
