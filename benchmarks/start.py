"""How much longer vLLM takes to start with the plugin: whole starts of an engine, in turns with and without.

    python benchmarks/start.py [--rounds 3] [--tensor 2] [--pipeline 1] [--model DIR] [--tokenizer DIR]
        [--one-gpu] [--engine '{"load_format": "dummy"}'] [--out FILE]

Each start is a process of its own: the seconds of `LLM(...)`, without Python's start and vLLM's import. Needs
vLLM.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from guided_plugin.bench import environment
from guided_plugin.demo import MODEL_DIR

WAYS = ("without", "with")
SECONDS = 600.0
"""How long a start may take."""


def main() -> None:
    """Start engines, print their seconds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tensor", type=int, default=1)
    parser.add_argument("--pipeline", type=int, default=1)
    parser.add_argument("--model", default=str(MODEL_DIR))
    parser.add_argument("--tokenizer")
    parser.add_argument("--one-gpu", action="store_true", help="all ranks on one GPU")
    parser.add_argument("--engine", default="{}", help="further arguments of the engine, JSON")
    parser.add_argument("--device", default="cpu", help="for the description of the machine")
    parser.add_argument("--out", help="also write the JSON here")
    parser.add_argument("--child", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(start(options)))
        return
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(options.rounds):
        for way in WAYS if number % 2 == 0 else reversed(WAYS):
            seconds[way].append(started(way))
            print(f"round {number + 1}, {way}: {seconds[way][-1]:.1f} s", file=sys.stderr, flush=True)
    medians = {way: statistics.median(seconds[way]) for way in WAYS}
    result = {
        "command": " ".join(["benchmarks/start.py", *sys.argv[1:]]),
        **environment(options.device),
        "seconds": seconds,
        "median": medians,
        "longer": round(medians["with"] - medians["without"], 2),
    }
    print(json.dumps({name: result[name] for name in ("seconds", "median", "longer")}))
    if options.out:
        Path(options.out).write_text(json.dumps(result))


def started(way: str) -> float:
    """The seconds of a start in a process of its own."""
    surroundings = dict(os.environ, VLLM_LOGGING_LEVEL="WARNING", VLLM_WORKER_MULTIPROC_METHOD="spawn")
    surroundings.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    if way == "without":
        surroundings["VLLM_PLUGINS"] = "none"
    command = [sys.executable, __file__, *sys.argv[1:], "--child", way]
    done = subprocess.run(
        command, env=surroundings, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise SystemExit(
            f"{done.stderr[-4000:]}\nan engine {way} the plugin did not start; above is the end of its log"
        )
    return float(json.loads(lines[-1])["seconds"])


def start(options: argparse.Namespace) -> dict[str, Any]:
    """Start one engine here."""
    from vllm import LLM

    arguments: dict[str, Any] = {}
    if options.tensor * options.pipeline > 1:
        arguments["distributed_executor_backend"] = "mp"
    if options.one_gpu:
        from benchmarks.one_gpu import ONE_GPU

        arguments.update(ONE_GPU)
    begin = time.perf_counter()
    llm = LLM(
        options.model,
        tokenizer=options.tokenizer,
        tensor_parallel_size=options.tensor,
        pipeline_parallel_size=options.pipeline,
        **{"max_model_len": 256, "enforce_eager": True, **arguments, **json.loads(options.engine)},
    )
    seconds = time.perf_counter() - begin
    guided = options.child == "with"
    if guided and any(llm.collective_rpc("guided_health")):
        raise SystemExit("the plugin is not on in this engine")
    return {"seconds": seconds}


if __name__ == "__main__":
    main()
