"""Memory under any number of large specs: each is compiled, sent to a worker, and used by a request once.

    python benchmarks/many_specs.py [--specs 10000] [--bytes 1000000] [--cache-mb 64] [--out FILE]

A compiler admits each spec as vLLM's frontend does, in a helper process; a pipeline prepares it in a grammar
worker, decodes a few tokens with it, and forgets it. The memory of this process (frontend and engine in one)
and of the worker is sampled ten times. Prints JSON; exit code 1 if either grows by more than `--growth-mb`
after the first tenth, in which the caches fill.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from guided_plugin.bench import environment
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import GuidedConfig
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.pipeline.pipeline import StepPipeline
from guided_plugin.spec import OutputSpec

_SAMPLES = 10
_TOKENS = 4

VOCABULARY = Vocabulary.from_tokens([*(bytes([byte]) for byte in range(256)), b"</s>"], [256])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--specs", type=int, default=10_000)
    parser.add_argument("--bytes", type=int, default=1_000_000, help="of each spec")
    parser.add_argument("--cache-mb", type=int, default=64, help="cache_bytes of both compilers")
    parser.add_argument("--growth-mb", type=float, default=64.0)
    parser.add_argument("--out", help="also write the JSON here")
    options = parser.parse_args(arguments)
    result = {
        "command": f"python benchmarks/many_specs.py {' '.join(arguments)}".strip(),
        **environment("cpu"),
        **measure(options.specs, options.bytes, options.cache_mb),
    }
    print(json.dumps(result))
    if options.out:
        Path(options.out).write_text(json.dumps(result))
    return int(max(result["growth_mb"].values()) > options.growth_mb)


def measure(specs: int, size: int, cache_mb: int) -> dict[str, Any]:
    """Use so many specs, one after the other."""
    config = GuidedConfig(cache_bytes=cache_mb << 20, threads=2)
    frontend, engine = (GrammarCompiler(VOCABULARY, config=config) for _ in range(2))
    memory: dict[str, list[float]] = {"frontend_and_engine": [], "worker": []}
    start = time.monotonic()
    with StepPipeline(engine, max_slots=4, mode="process") as pipe:
        for number in range(specs):
            _use(pipe, frontend, distinct(number, size))
            if (number + 1) % max(1, specs // _SAMPLES) == 0:
                print(f"{number + 1} after {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
                memory["frontend_and_engine"].append(_resident_mb("self"))
                memory["worker"].append(_resident_mb(str(pipe.runtime.supervisor.worker_pid)))
        restarts = pipe.metrics().worker.restarts
    frontend.close()
    return {
        "specs": specs,
        "bytes": size,
        "cache_mb": cache_mb,
        "seconds": round(time.monotonic() - start, 1),
        "worker_restarts": restarts,
        "memory_mb": memory,
        "growth_mb": {name: round(max(of) - of[0], 1) for name, of in memory.items()},
    }


def distinct(number: int, size: int) -> OutputSpec:
    """A spec of about so many bytes, unlike those of other numbers in its language and in its padding."""
    schema = {
        "type": "object",
        "properties": {f"key{number}": {"type": "integer"}},
        "required": [f"key{number}"],
        "additionalProperties": False,
        "description": f"{number} " + "x" * size,
    }
    return OutputSpec.json_schema(schema)


def _use(pipe: StepPipeline, frontend: GrammarCompiler, spec: OutputSpec) -> None:
    prepared = frontend.admit(spec)
    if prepared is not None:
        pipe.compiler.keep(spec, prepared)
    slot = pipe.add_request("one", spec)
    for _ in range(_TOKENS):
        logits = torch.zeros(1, VOCABULARY.size)
        pipe.plan([slot])
        pipe.fill_mask()
        pipe.apply_mask(logits)
        pipe.schedule_update(logits.argmax(-1))
        pipe.finish_update()
    error = pipe.request("one").error
    if error is not None:
        raise error
    pipe.remove_request("one")


def _resident_mb(process: str) -> float:
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return round(int(line.split()[1]) / 1024, 1)
    raise RuntimeError(f"process {process} has no memory")


if __name__ == "__main__":
    sys.exit(main())
