"""A bounded part of `make soak`: every finished guided answer of a server under mixed load is judged."""

import pytest

pytest.importorskip("vllm")

from benchmarks.server.asks import MIXED
from benchmarks.server.runs import soak


def test_every_answer_under_mixed_load_is_right_and_none_is_lost(loaded_server):
    found = soak(loaded_server, clients=20, seconds=25, seed=3)
    assert found["server_alive"]
    assert found["invalid"] == []
    assert found["lost"] == {}
    assert found["ends"]["valid"] > 2 * len(MIXED)
    assert found["ends"]["left"] > 0
    assert len(found["kinds"]) == len(MIXED)
    assert found["preemptions"] > 0
    for role in ("frontend", "template", "worker", "helpers"):
        assert found["processes"][role]["memory_mb"]["peak"] > 0
