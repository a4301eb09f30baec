"""vLLM on two GPUs, both model runners: the same masks on both ranks in each step; a rank that is killed."""

import contextlib
import hashlib
import json
import os
import re
import signal
import time

import jsonschema
import pytest
import torch

pytest.importorskip("vllm")

from vllm import LLM
from vllm.exceptions import GracefulHTTPError
from vllm.v1.engine.exceptions import EngineDeadError
from vllm_support import params_of

from guided_plugin.demo import MODEL_DIR

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(900),
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
]

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 120}},
    "required": ["name", "age"],
}
LETTERS = "[a-f]{20}[0-9]{10}"


def engine_of(worker):
    from guided_plugin.hosts.vllm import worker_methods

    (found,) = worker_methods.ENGINES
    return found


def record(worker):
    """Keep the masks of each step, as this rank's device has them; its process and runtime."""
    runtime = engine_of(worker).pipeline.runtime
    runtime.seen, original = [], runtime.masks

    def masks():
        found = original()
        runtime.seen.append(found[0].clone())
        return found

    runtime.masks = masks
    return os.getpid(), type(runtime).__name__


def seen(worker):
    masks = engine_of(worker).pipeline.runtime.seen
    return [hashlib.sha256(one.cpu().numpy().tobytes()).hexdigest() for one in masks]


def gone(pid):
    """Whether a process has ended, or only waits for its parent to see that."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] == "Z"
    return True


@pytest.mark.parametrize(("runner", "victim"), [("0", 1), ("1", 0)], ids=["V1", "V2"])
def test_two_ranks(monkeypatch, runner, victim):
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", runner)
    llm = LLM(
        str(MODEL_DIR),
        tensor_parallel_size=2,
        distributed_executor_backend="mp",
        max_model_len=256,
        max_num_seqs=8,
        enforce_eager=True,
        gpu_memory_utilization=0.2,
        additional_config={"guided_plugin": {"mode": "process"}},
    )
    assert llm.collective_rpc("guided_health") == ["", ""]
    ranks = llm.collective_rpc(record)
    assert [kind for _, kind in ranks] == ["WorkerRuntime", "FollowerRuntime"]
    forms = [{"json_schema": SCHEMA}, {"regex": LETTERS}, None] * 8
    params = [params_of(form, seed=seed, max_tokens=100) for seed, form in enumerate(forms)]
    for output, form in zip(llm.generate(["Person: "] * 24, params, use_tqdm=False), forms, strict=True):
        answer = output.outputs[0]
        if form is not None and answer.finish_reason == "stop":
            if "regex" in form:
                assert re.fullmatch(LETTERS, answer.text)
            else:
                jsonschema.validate(json.loads(answer.text), SCHEMA)
    first, second = llm.collective_rpc(seen)
    assert len(first) > 100
    assert first == second

    before = {name for name in os.listdir("/dev/shm") if "guided" in name}
    os.kill(ranks[victim][0], signal.SIGKILL)
    with pytest.raises((RuntimeError, EngineDeadError, GracefulHTTPError), match=r"\w"):
        llm.generate(["Person: "] * 24, params, use_tqdm=False)
    end = time.monotonic() + 120
    while not all(gone(pid) for pid, _ in ranks):
        assert time.monotonic() < end
        time.sleep(0.2)
    assert {name for name in os.listdir("/dev/shm") if "guided" in name} <= before
