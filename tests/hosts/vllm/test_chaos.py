"""A bounded part of `make chaos`: ordinary streams of a server under attack."""

import pytest

pytest.importorskip("vllm")

from benchmarks.server.runs import chaos, invalid


@pytest.mark.parametrize("attack", ["kill-all", "mask-bombs", "big-bodies", "many-schemas"])
def test_an_attack_costs_ordinary_clients_no_answer(loaded_server, attack):
    found = chaos(loaded_server, attack, clients=6, seconds=8, quiet=2)
    assert found["server_alive"]
    assert invalid(found) == 0
    for part in ("quiet", "attacked"):
        assert found[part]["lost"] == {}, part
        assert found[part]["ends"]["valid"] + found[part]["ends"]["length"] > 3, part
    done = found["attack"]
    assert sum(done["ends"].values()) + len(done["kills"]) > 0, done
