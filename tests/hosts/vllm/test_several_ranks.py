"""vLLM on several ranks, of the CPU and of CUDA devices: guided as on one rank, with the
same masks on the ranks of the last stage in each step, and what happens when one of
them dies.

Each engine takes long to start, so what ends it comes last. With fewer GPUs than ranks
they share one, and their kernels take turns there: slow, and as correct.
"""

import json
import os
import signal

import jsonschema
import pytest
import torch
from compilers import compiler_of, start
from vllm import LLM
from vllm.exceptions import GracefulHTTPError
from vllm.v1.engine.exceptions import EngineDeadError
from vllm_ranks import (
    OPTIONS,
    facts,
    record,
    requests,
    seen,
)
from vllm_support import PATIENT, SCHEMA
from worker_runs import gone, until

import guided_plugin as gp
from benchmarks.one_gpu import ONE_GPU
from guided_plugin.demo import MODEL_DIR


def engine(mode, tensor=1, pipeline=1, **options):
    """An engine of so many ranks, which keep their masks."""
    shared = ONE_GPU if 0 < torch.cuda.device_count() < tensor * pipeline else {}
    plugin = {"mode": mode, **PATIENT}
    llm = LLM(
        str(MODEL_DIR),
        tensor_parallel_size=tensor,
        pipeline_parallel_size=pipeline,
        additional_config={"guided_plugin": plugin},
        **{"distributed_executor_backend": "mp", **shared},
        **(OPTIONS | options),
    )
    ranks = tensor * pipeline
    assert llm.collective_rpc("guided_health") == [("", 0.0)] * ranks
    llm.collective_rpc(record)
    return llm


def same_masks(llm, tensor):
    """Those of the ranks of the last stage."""
    masks = llm.collective_rpc(seen)[-tensor:]
    assert len(masks[0]) > 30
    assert all(one == masks[0] for one in masks)


def added(llm):
    """What was begun: nothing twice, and nothing has failed."""
    (figures,) = [
        one for worker in llm.collective_rpc("guided_metrics") for one in worker
    ]
    assert figures["failed"] == 0
    return figures["added"]


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "victim"), [("inline", 1), ("process", 0)])
def test_two_ranks(mode, victim, expected):
    """Both sample the tokens of a single rank; one compiles; a dead worker is
    replaced."""
    llm = engine(mode, tensor=2)
    kinds = [rank["runtime"] for rank in llm.collective_rpc(facts)]
    leader = {"inline": "InlineRuntime", "process": "WorkerRuntime"}[mode]
    assert kinds == [leader, "FollowerRuntime"]
    prompts, params = requests()
    outputs = llm.generate(
        prompts,
        params,
        use_tqdm=False,
    )
    assert [output.outputs[0].token_ids for output in outputs] == expected
    assert all(output.outputs[0].finish_reason == "stop" for output in outputs[:3])
    jsonschema.validate(json.loads(outputs[0].outputs[0].text), SCHEMA)
    assert added(llm) == len(params) - 1
    if mode == "process":
        os.kill(llm.collective_rpc(facts)[0]["worker"], signal.SIGKILL)
        outputs = llm.generate(
            prompts,
            params,
            use_tqdm=False,
        )
        assert [output.outputs[0].token_ids for output in outputs] == expected
        assert llm.collective_rpc("guided_metrics")[0][0]["worker"]["restarts"] == 1
    same_masks(llm, 2)
    check_death(llm, victim)


def check_death(llm, victim):
    """With a dead rank the engine ends, and all its processes."""
    ranks = llm.collective_rpc(facts)
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


DRAFTS = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_max": 4,
}
LARGER = {
    "max_num_seqs": 8,
    "max_num_batched_tokens": None,
    "num_gpu_blocks_override": None,
    "gpu_memory_utilization": 0.2,
}


@pytest.mark.gpu
@pytest.mark.timeout(900)
@pytest.mark.skipif(torch.cuda.device_count() == 0, reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("model_runner", "options", "victim"),
    [
        pytest.param(
            "0",
            {"tensor": 2},
            1,
            id="V1-TP2",
        ),
        pytest.param(
            "1",
            {"tensor": 2},
            0,
            id="V2-TP2",
        ),
        pytest.param(
            "1",
            {"pipeline": 2},
            1,
            id="V2-PP2",
        ),
        pytest.param(
            "1", {"pipeline": 2, "async_scheduling": False}, 0, id="V2-PP2-sync"
        ),
        pytest.param(
            "1",
            {"tensor": 2, "pipeline": 2},
            3,
            id="V2-TP2-PP2",
        ),
        pytest.param(
            "1", {"tensor": 2, "speculative_config": DRAFTS}, 1, id="V2-TP2-drafts"
        ),
    ],
)
def test_ranks_on_devices(monkeypatch, model_runner, options, victim):
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", model_runner)
    # CUDA may have been asked for here
    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    llm = engine("process", **{**LARGER, **options})
    tensor = options.get("tensor", 1)
    kinds = [rank["runtime"] for rank in llm.collective_rpc(facts)]
    others = ["NoneType"] * (len(kinds) - tensor)
    assert kinds == others + ["WorkerRuntime", "FollowerRuntime"][:tensor]
    prompts, params = (3 * one for one in requests())
    outputs = llm.generate(
        prompts,
        params,
        use_tqdm=False,
    )
    compiler = compiler_of(gp.Vocabulary.from_tokenizer(llm.get_tokenizer()))
    ends = []
    for output, asked in zip(
        outputs,
        params,
        strict=True,
    ):
        answer = output.outputs[0]
        ends.append(answer.finish_reason)
        if asked.extra_args is not None:
            spec = gp.OutputSpec.parse(asked.extra_args["guided"])
            assert all(map(start(compiler, spec).accept, answer.token_ids)), answer.text
    assert set(ends) <= {"stop", "length"}
    assert ends.count("stop") > len(ends) // 2
    assert added(llm) == sum(asked.extra_args is not None for asked in params)
    same_masks(llm, tensor)
    check_death(llm, victim)
