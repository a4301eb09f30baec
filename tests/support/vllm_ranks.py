"""What tests of several ranks ask of an engine, and of each of its ranks. Their workers
import it, too."""

import os

from vllm_support import SCHEMA, params_of

PROMPT = "Person as JSON: "
GREEDY = [
    {"json_schema": SCHEMA},
    {"regex": "[a-f]{20}[0-9]{10}"},
    {"choice": ["alpha", "beta"]},
    None,
]
SEEDED = [
    {"json_schema": SCHEMA},
    {"regex": "[xyz]{5,40}"},
    {"grammar": 'root ::= "(" root ")" | "x"'},
]

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
    params = [params_of(form, temperature=0.0, max_tokens=60) for form in GREEDY]
    params += [
        params_of(form, seed=seed, max_tokens=60) for seed, form in enumerate(SEEDED)
    ]
    return [PROMPT] * len(params), params


def runner_of(worker):
    found = worker.model_runner.input_batch.logitsprocs.non_argmax_invariant
    return next(
        (one.runner for one in found if getattr(one, "runner", None) is not None), None
    )


def record(worker):
    """Keep what this rank samples."""
    runner = runner_of(worker)
    runner.seen = []
    original = runner.sampled

    def sampled(tokens):
        runner.seen.append(tokens.view(-1).tolist())
        original(tokens)

    runner.sampled = sampled


def seen(worker):
    return runner_of(worker).seen


def facts(worker):
    """The process of this rank, its worker, whether it has grammars; what vLLM calls its
    shared memory."""
    runner = runner_of(worker)
    runtime = runner.engine.pipeline.runtime
    supervisor = getattr(runtime, "supervisor", None)
    return {
        "pid": os.getpid(),
        "ident": os.environ["VLLM_DIST_IDENT"],
        "serves": runner.engine.serves,
        "runtime": type(runtime).__name__,
        "worker": None if supervisor is None else supervisor.worker_pid,
    }
