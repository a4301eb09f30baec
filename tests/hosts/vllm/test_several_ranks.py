"""vLLM on two ranks of the CPU, tensor-parallel: guided as on one rank, and what happens
when one of them dies.

Each engine takes long to start, so what ends it comes last.
"""

import json
import os
import signal

import jsonschema
import pytest
from vllm import LLM
from vllm.exceptions import GracefulHTTPError
from vllm.v1.engine.exceptions import EngineDeadError
from vllm_ranks import (
    GREEDY,
    OPTIONS,
    SEEDED,
    facts,
    record,
    requests,
    seen,
)
from vllm_support import PATIENT, SCHEMA
from worker_runs import gone, until

from guided_plugin.demo import MODEL_DIR

pytestmark = pytest.mark.slow


def engine(mode):
    return LLM(
        str(MODEL_DIR),
        tensor_parallel_size=2,
        distributed_executor_backend="mp",
        additional_config={"guided_plugin": {"mode": mode, **PATIENT}},
        **OPTIONS,
    )


@pytest.mark.parametrize(("mode", "victim"), [("inline", 1), ("process", 0)])
def test_two_ranks(mode, victim, expected):
    """Both sample the same tokens in each step, and those of a single rank; one
    compiles. A failed request ends as an error; a dead worker is replaced; with a dead
    rank the engine ends, and all its processes."""
    llm = engine(mode)
    ranks = llm.collective_rpc(facts)
    assert [rank["serves"] for rank in ranks] == [True, False]
    assert llm.collective_rpc("guided_health") == [("", 0.0)] * 2
    llm.collective_rpc(record)

    outputs = llm.generate(*requests(), use_tqdm=False)
    assert [output.outputs[0].token_ids for output in outputs] == expected
    assert all(output.outputs[0].finish_reason == "stop" for output in outputs[:3])
    jsonschema.validate(json.loads(outputs[0].outputs[0].text), SCHEMA)
    first, second = llm.collective_rpc(seen)
    assert first == second != []
    leading, following = llm.collective_rpc("guided_metrics")
    assert following == []
    assert leading[0]["added"] == len(GREEDY) + len(SEEDED) - 1

    if mode == "process":
        os.kill(llm.collective_rpc(facts)[0]["worker"], signal.SIGKILL)
        outputs = llm.generate(*requests(), use_tqdm=False)
        assert [output.outputs[0].token_ids for output in outputs] == expected
        assert llm.collective_rpc("guided_metrics")[0][0]["worker"]["restarts"] == 1
        ranks = llm.collective_rpc(facts)
    first, second = llm.collective_rpc(seen)
    assert first == second

    check_death(llm, ranks, victim)


def check_death(llm, ranks, victim):
    """With a dead rank the engine ends, and all its processes."""
    os.kill(ranks[victim]["pid"], signal.SIGKILL)
    try:
        with pytest.raises(
            (RuntimeError, EngineDeadError, GracefulHTTPError), match=r"\w"
        ):
            llm.generate(*requests(), use_tqdm=False)
        processes = [
            pid
            for rank in ranks
            for pid in (rank["pid"], rank["worker"])
            if pid is not None
        ]
        until(lambda: all(map(gone, processes)), 120.0)
    finally:
        left = [name for name in os.listdir("/dev/shm") if ranks[0]["ident"] in name]
        for name in left:  # vLLM's own, which it leaves after a kill
            os.unlink(f"/dev/shm/{name}")
    assert all(name.startswith("vllm_dist_") for name in left)
