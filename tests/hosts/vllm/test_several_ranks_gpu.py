"""vLLM on several ranks of CUDA devices, both model runners: the same masks on the
ranks of the last stage in each step; a rank that is killed.

With fewer GPUs than ranks they share one, and their kernels take turns there: slow, and
as correct.
"""

import hashlib
import json
import os
import re
import signal

import jsonschema
import pytest
import torch
from vllm import LLM
from vllm.exceptions import GracefulHTTPError
from vllm.v1.engine.exceptions import EngineDeadError
from vllm_support import SCHEMA, params_of
from worker_runs import gone, until

from benchmarks.one_gpu import ONE_GPU
from guided_plugin.demo import MODEL_DIR
from guided_plugin.hosts.vllm.health import ENGINES, engine_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(900),
    pytest.mark.skipif(torch.cuda.device_count() == 0, reason="needs a CUDA device"),
]

LETTERS = "[a-f]{20}[0-9]{10}"


def record(worker):
    """Keep the masks of each step, as this rank's device has them; its process and
    runtime."""
    assert len(ENGINES) <= 1
    engine = engine_of(worker)
    if engine is None:
        return os.getpid(), None
    runtime = engine.pipeline.runtime
    runtime.seen = []
    original = runtime.masks

    def masks():
        found = original()
        runtime.seen.append(found[0].clone())
        return found

    runtime.masks = masks
    return os.getpid(), type(runtime).__name__


def seen(worker):
    engine = engine_of(worker)
    masks = [] if engine is None else engine.pipeline.runtime.seen
    return [hashlib.sha256(one.cpu().numpy().tobytes()).hexdigest() for one in masks]


def engine(tensor=1, pipeline=1, **options):
    shared = ONE_GPU if torch.cuda.device_count() < tensor * pipeline else {}
    return LLM(
        str(MODEL_DIR),
        tensor_parallel_size=tensor,
        pipeline_parallel_size=pipeline,
        **{"distributed_executor_backend": "mp", **shared},
        dtype="float32",
        max_model_len=256,
        max_num_seqs=8,
        enforce_eager=True,
        gpu_memory_utilization=0.2,
        additional_config={"guided_plugin": {"mode": "process"}},
        **options,
    )


FORMS = [
    {"json_schema": SCHEMA},
    {"regex": LETTERS},
    None,
    {"choice": ["alpha", "beta"]},
] * 6


def check(outputs):
    finished = 0
    for output, form in zip(outputs, FORMS, strict=True):
        answer = output.outputs[0]
        assert answer.finish_reason in ("stop", "length"), answer
        if form is None or answer.finish_reason == "length":
            continue
        finished += 1
        if "json_schema" in form:
            jsonschema.validate(json.loads(answer.text), SCHEMA)
        else:
            assert re.fullmatch(form.get("regex") or "alpha|beta", answer.text)
    assert finished > len(FORMS) // 2


DRAFTS = {
    "speculative_config": {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_max": 4,
    }
}


@pytest.mark.parametrize(
    ("model_runner", "options", "victim"),
    [
        pytest.param("0", {"tensor": 2}, 1, id="V1-TP2"),
        pytest.param("1", {"tensor": 2}, 0, id="V2-TP2"),
        pytest.param("1", {"pipeline": 2}, 1, id="V2-PP2"),
        pytest.param(
            "1", {"pipeline": 2, "async_scheduling": False}, 0, id="V2-PP2-sync"
        ),
        pytest.param("1", {"tensor": 2, "pipeline": 2}, 3, id="V2-TP2-PP2"),
        pytest.param("1", {"tensor": 2, **DRAFTS}, 1, id="V2-TP2-drafts"),
    ],
)
def test_ranks(monkeypatch, model_runner, options, victim):
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", model_runner)
    # CUDA may have been asked for here
    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    llm = engine(**options)
    ranks = options.get("tensor", 1) * options.get("pipeline", 1)
    assert llm.collective_rpc("guided_health") == [("", 0.0)] * ranks
    found = llm.collective_rpc(record)
    tensor = options.get("tensor", 1)
    kinds = ["WorkerRuntime", "FollowerRuntime"][:tensor]
    assert [kind for _, kind in found] == [None] * (ranks - tensor) + kinds
    params = [
        params_of(form, seed=seed, max_tokens=100) for seed, form in enumerate(FORMS)
    ]
    check(llm.generate(["Person: "] * len(FORMS), params, use_tqdm=False))
    masks = llm.collective_rpc(seen)[-tensor:]
    assert len(masks[0]) > 30
    assert all(one == masks[0] for one in masks)
    metrics = [
        figures for worker in llm.collective_rpc("guided_metrics") for figures in worker
    ]
    # none was begun twice
    assert [figures["added"] for figures in metrics] == [len(FORMS) * 3 // 4]
    assert metrics[0]["failed"] == 0

    before = {name for name in os.listdir("/dev/shm") if "guided" in name}
    os.kill(found[victim][0], signal.SIGKILL)
    with pytest.raises((RuntimeError, EngineDeadError, GracefulHTTPError), match=r"\w"):
        llm.generate(["Person: "] * len(FORMS), params, use_tqdm=False)
    until(lambda: all(gone(pid) for pid, _ in found), 120.0)
    assert {name for name in os.listdir("/dev/shm") if "guided" in name} <= before
