"""What ranks on two machines send each other for a step, and how much later the other one has its masks.

    python benchmarks/machines.py [--tokenizer FOLDER] [--rows 64] [--steps 300] [--mode inline] [--out FILE]

Two processes of this machine with a gloo group, which are told that they are on two, decode rows of each
schema of `bench` from random logits on the CPU. `late_ms` is the time from a step's masks at rank 0 to the
same at rank 1, over the loopback device: with a network its bytes take longer. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.measuring import quantile
from guided_plugin.bench import SCHEMAS, environment, median
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.demo import MODEL_DIR
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.pipeline.pipeline import StepPipeline
from guided_plugin.spec import OutputSpec
from guided_plugin.worker.layout import Counter, Region
from guided_plugin.worker.ranks import group
from guided_plugin.worker.ranks.group import TorchRanks

_LOGITS = 8
"""Rows of random logits, turned a little for each step."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokenizer", default=str(MODEL_DIR), help="folder of a transformers tokenizer")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--mode", default="inline", choices=["inline", "process"])
    parser.add_argument("--out", type=Path, help="also write the JSON here")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.rank is not None:
        print(json.dumps(_rank(options)), flush=True)
        return
    given = list(sys.argv[1:] if arguments is None else arguments)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, *given, "--store", f"{folder}/store"]
        ranks = [subprocess.Popen([*command, "--rank", str(n)], stdout=subprocess.PIPE) for n in range(2)]
        near, far = (json.loads(rank.communicate()[0].splitlines()[-1]) for rank in ranks)
    result = {
        "environment": environment(),
        "options": {"rows": options.rows, "steps": options.steps, "mode": options.mode},
        "figures": [_figure(name, near[name], far[name], options) for name in SCHEMAS],
    }
    text = json.dumps(result)
    print(text)
    if options.out:
        options.out.write_text(text)


def _figure(name: str, near: dict[str, Any], far: dict[str, Any], options: Any) -> dict[str, Any]:
    late = [there - here for here, there in zip(near["filled"], far["filled"], strict=True)]
    whole = near["words"] * 4 * options.rows
    return {
        "schema": name,
        "late_ms": {part: round(quantile(late, at) * 1e3, 3) for part, at in (("p50", 0.5), ("p99", 0.99))},
        "kib_per_step": round(near["sent_bytes"] / options.steps / 1024, 1),
        "kib_of_all_masks": round(whole / 1024, 1),
        "share": round(near["sent_bytes"] / options.steps / whole, 4),
        "rank_0_thread_ms": median(near["thread_ms"], 3),
    }


def _rank(options: Any) -> dict[str, Any]:
    torch.set_num_threads(1)
    group.machine = lambda: f"machine {options.rank}"
    dist.init_process_group("gloo", init_method=f"file://{options.store}", rank=options.rank, world_size=2)
    from transformers import AutoTokenizer

    vocabulary = Vocabulary.from_tokenizer(AutoTokenizer.from_pretrained(options.tokenizer))
    return {name: _decode(options, vocabulary, schema) for name, schema in SCHEMAS.items()}


def _decode(options: Any, vocabulary: Vocabulary, schema: dict[str, Any]) -> dict[str, Any]:
    with StepPipeline(
        GrammarCompiler(vocabulary), max_slots=options.rows, mode=options.mode, ranks=TorchRanks()
    ) as pipe:
        slots = [pipe.add_request(f"r{row}", OutputSpec.json_schema(schema)) for row in range(options.rows)]
        random = torch.randn(_LOGITS, vocabulary.size, generator=torch.Generator().manual_seed(1))
        filled, thread = [], []
        runtime: Any = pipe.runtime
        region: Region = getattr(runtime, "_region", None) or runtime.client.region
        for step in range(options.steps):
            logits = random.roll(step * 7919, 1)[torch.arange(options.rows) % _LOGITS]
            for row in range(options.rows):
                logits[row] = logits[row].roll(row * 31)
            dist.barrier()
            start = time.perf_counter()
            pipe.plan(slots)
            pipe.fill_mask()
            planned = time.perf_counter() - start
            while region.load(Counter.FILLED) != runtime.newest:
                time.sleep(1e-5)
            filled.append(time.monotonic())
            start = time.perf_counter()
            tokens = pipe.apply_mask(logits).argmax(-1)
            pipe.schedule_update(tokens)
            pipe.finish_update()
            thread.append((planned + time.perf_counter() - start) * 1e3)
        sender = options.rank == 0 and runtime.followers.sender
        return {
            "filled": filled,
            "thread_ms": thread,
            "words": vocabulary.words,
            "sent_bytes": sender.sent_bytes if sender else 0,
        }


if __name__ == "__main__":
    main()
