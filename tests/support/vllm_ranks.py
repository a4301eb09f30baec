"""What tests of several ranks ask of an engine, and of each of its ranks. Their workers
import it, too."""

import hashlib
import os

from vllm_support import SCHEMA, params_of

from guided_plugin.hosts.vllm.health import engine_of

FORMS = [
    {"json_schema": SCHEMA},
    {"regex": "[a-f]{20}[0-9]{10}"},
    {"choice": ["alpha", "beta"]},
    None,
    {"json_schema": SCHEMA},
    {"regex": "[xyz]{5,40}"},
    {"grammar": 'root ::= "(" root ")" | "x"'},
]
"""Of requests, the first four of which are greedy."""

OPTIONS = {
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_seqs": 4,
    "enforce_eager": True,
    "max_num_batched_tokens": 32,
    "num_gpu_blocks_override": 7,
}
"""Small caches and batches: requests wait, are preempted, and their prompts come in
parts."""


def requests():
    params = [
        params_of(
            form, max_tokens=60, **({"temperature": 0.0} if at < 4 else {"seed": at})
        )
        for at, form in enumerate(FORMS)
    ]
    return ["Person as JSON: "] * len(params), params


def runtime_of(worker):
    """That of this rank; None where it does not sample."""
    engine = engine_of(worker)
    return None if engine is None else engine.pipeline.runtime


def record(worker):
    """Keep the masks of each step, as this rank's device has them."""
    runtime = runtime_of(worker)
    if runtime is None:
        return
    runtime.seen = []
    original = runtime.masks

    def masks(*given):
        found = original(*given)
        runtime.seen.append(found[0].clone())
        return found

    runtime.masks = masks


def seen(worker):
    masks = getattr(runtime_of(worker), "seen", [])
    return [hashlib.sha256(one.cpu().numpy()).hexdigest() for one in masks]


def facts(worker):
    """The process of this rank, its worker, and whether it has grammars; what vLLM
    calls its shared memory on the CPU: no file elsewhere."""
    runtime = runtime_of(worker)
    supervisor = getattr(runtime, "supervisor", None)
    return {
        "pid": os.getpid(),
        "ident": os.environ.get("VLLM_DIST_IDENT", "/"),
        "runtime": type(runtime).__name__,
        "worker": getattr(supervisor, "worker_pid", None),
    }
