"""What the plugin takes of the host's thread in a step of vLLM's V2 model runner, without an engine.

    python benchmarks/v2_step.py [--rows 64] [--steps 2000] [--ranks 1] [--package DIR] [--out FILE]

Needs vLLM and a CUDA device. The runner's tables are made here, the device is kept busy for a millisecond a
step, and the host waits for the step before, as vLLM does. `--package` measures the package in another
folder, such as an older commit's: take turns, since hosts differ from minute to minute. With `--ranks` as
many tensor-parallel ranks share the device, a process each. Prints microseconds, a line for each rank.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

END, WIDTH = 151_643, 151_936


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--package", help="folder that holds guided_plugin")
    parser.add_argument("--out", help="also write the JSON here")
    parser.add_argument("--ranks", type=int, default=1)
    options = parser.parse_args()
    if options.package:
        sys.path.insert(0, os.path.abspath(options.package))
    if options.ranks == 1:
        results = [measure(options.rows, options.steps)]
    else:
        import torch.multiprocessing as processes

        with tempfile.TemporaryDirectory() as folder:
            processes.spawn(_rank, (options, folder), options.ranks)
            results = [json.loads(Path(folder, str(rank)).read_text()) for rank in range(options.ranks)]
    text = "\n".join(map(json.dumps, results))
    print(text)
    if options.out:
        with open(options.out, "w") as file:
            file.write(text)


def _rank(rank: int, options: argparse.Namespace, folder: str) -> None:
    import torch.distributed as dist

    if options.package:
        sys.path.insert(0, os.path.abspath(options.package))
    dist.init_process_group("gloo", f"file://{folder}/group", rank=rank, world_size=options.ranks)
    Path(folder, str(rank)).write_text(json.dumps(measure(options.rows, options.steps, options.ranks)))
    dist.destroy_process_group()


def measure(rows: int, steps: int, ranks: int = 1) -> dict[str, Any]:
    """Medians of the steps after a tenth of them. The ranks are those of the process group that is there."""
    import numpy as np
    import torch
    from vllm import SamplingParams
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext
    from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsProcRequestState

    import guided_plugin as gp

    tokens = [bytes([n]) for n in range(256)] + [b"%d " % n for n in range(256, END)] + [b"</s>"]
    vocabulary = gp.Vocabulary.from_tokens(tokens, [END])
    for name in ("guided_plugin.hosts.vllm.engine", "guided_plugin.hosts.vllm_engine"):  # now, and before
        try:
            engine_module: Any = importlib.import_module(name)
            break
        except ImportError:
            continue
    engine_module.vocabulary_of = lambda config: vocabulary
    if ranks > 1:
        from guided_plugin.worker.ranks.group import TorchRanks

        engine_module.ranks_of = lambda config: TorchRanks()
    from guided_plugin.vllm import GuidedLogitsProcessor

    device, longest = torch.device("cuda"), 2 * steps
    history = torch.zeros(rows, longest, dtype=torch.int32, device=device)
    total = torch.ones(rows, dtype=torch.int32, device=device)
    ones = np.ones(rows, np.int32)
    states = LogitsProcRequestState(
        device=device,
        max_num_reqs=rows,
        vocab_size=WIDTH,
        all_token_ids=SimpleNamespace(gpu=history),
        prompt_len=SimpleNamespace(np=ones),
        prefill_len=SimpleNamespace(np=ones),
        total_len=SimpleNamespace(gpu=total),
    )
    config = SimpleNamespace(
        additional_config={"guided_plugin": {"threads": 4, "mode": "process", "isolate_compiles": False}},
        parallel_config=SimpleNamespace(
            tensor_parallel_size=ranks,
            pipeline_parallel_size=1,
            distributed_executor_backend="mp",
            prefill_context_parallel_size=1,
        ),
        device_config=SimpleNamespace(device_type="cuda"),
        speculative_config=None,
        model_config=SimpleNamespace(skip_tokenizer_init=False, get_vocab_size=lambda: WIDTH),
        structured_outputs_config=SimpleNamespace(enable_in_reasoning=False, reasoning_parser=""),
        scheduler_config=SimpleNamespace(max_num_seqs=rows),
    )
    guide = GuidedLogitsProcessor(config, states)
    for index in range(rows):
        params = SamplingParams(extra_args={"guided": {"regex": "[ab]+"}})
        params._all_stop_token_ids = {END}
        guide.add_request(index, params)
    indices = torch.randperm(rows, device=device)
    batch = indices.cpu().numpy()
    # vLLM's own logits, or its copy of them where the package waits for that.
    runner = getattr(guide, "runner", None) or guide._runner
    early = hasattr(runner, "mask_early")
    mask = runner.mask_early if early else guide.apply
    logits = torch.zeros(rows, WIDTH, device=device, dtype=torch.bfloat16 if early else torch.float32)
    context = LogitsContext(indices, indices, batch, *[None] * 4)
    every = torch.arange(rows, device=device)
    ends = [torch.cuda.Event() for _ in range(2)]
    plans, masks, wall, processor = [], [], [], []
    for step in range(steps):
        start, start_cpu = time.perf_counter(), time.thread_time()
        guide.apply_staged_writes()
        middle, middle_cpu = time.perf_counter(), time.thread_time()
        torch.cuda._sleep(2_000_000)
        logits.zero_()
        again, again_cpu = time.perf_counter(), time.thread_time()
        mask(logits, context)
        end, end_cpu = time.perf_counter(), time.thread_time()
        history[every, total.long()] = logits.argmax(-1).int()
        total += 1
        ends[step % 2].record()
        if step:
            ends[1 - step % 2].synchronize()
        plans.append(middle - start)
        masks.append(end - again)
        wall.append(middle - start + end - again)
        processor.append(middle_cpu - start_cpu + end_cpu - again_cpu)
    failed = runner.engine.pipeline.metrics().failed
    runner.engine.close()
    kept = slice(steps // 10, None)
    return {
        "package": os.path.dirname(gp.__file__),
        "rows": rows,
        "steps": steps,
        "kind": type(runner.engine.pipeline.runtime).__name__,
        "failed": failed,
        "wall_us": round(statistics.median(wall[kept]) * 1e6, 2),
        "wall_p90_us": round(statistics.quantiles(wall[kept], n=10)[8] * 1e6, 2),
        "plan_us": round(statistics.median(plans[kept]) * 1e6, 2),
        "mask_us": round(statistics.median(masks[kept]) * 1e6, 2),
        "cpu_us": round(statistics.mean(processor[kept]) * 1e6, 2),
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    main()
