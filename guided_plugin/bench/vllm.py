"""Milliseconds a step of a vLLM engine with `take_over`, unguided and with structured outputs.

Both in one engine, in turns: engines differ by some percent from start to start.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

from guided_plugin.bench.measuring import SCHEMAS, check_outputs, compared, environment, in_turns
from guided_plugin.errors import PipelineError
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.spec import OutputSpec


def start_engine(model: str, rows: int, steps: int, arguments: dict[str, Any]) -> Any:
    """An `LLM` with `take_over`, for so many rows and steps. Raises PipelineError without vLLM."""
    if find_spec("vllm") is None:
        raise PipelineError(
            "No module named 'vllm'",
            where="bench vllm",
            hint="pip install 'guided-plugin[vllm]', or run it in vLLM's environment",
        )
    # The engine's process reads it too.
    os.environ["GUIDED_PLUGIN"] = json.dumps({"take_over": True})
    from vllm import LLM

    return LLM(
        model,
        **{"max_num_seqs": rows, "max_model_len": steps + 64, "enable_prefix_caching": False} | arguments,
    )


def bench_vllm(
    llm: Any,
    *,
    rows: Sequence[int],
    schemas: Sequence[str],
    steps: int = 256,
    repetitions: int = 3,
    progress: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Generate `steps` tokens a row, unguided and guided in turn; `progress` is called after each run."""
    from vllm import SamplingParams
    from vllm.platforms import current_platform
    from vllm.sampling_params import StructuredOutputsParams

    vocabulary = Vocabulary.from_tokenizer(llm.get_tokenizer())
    chance = random.Random(1)
    outputs: list[list[int]] = []

    def run(count: int, asked: Any) -> float:
        params = SamplingParams(structured_outputs=asked, max_tokens=steps, ignore_eos=True, temperature=1.0)
        given = [{"prompt_token_ids": chance.choices(range(100, 1000), k=8)} for _ in range(count)]
        start = time.perf_counter()
        found = llm.generate(given, params, use_tqdm=False)
        milliseconds = (time.perf_counter() - start) * 1e3 / steps
        outputs[:] = [list(output.outputs[0].token_ids) for output in found]
        return milliseconds

    figures = []
    for count in rows:
        for name in schemas:
            asked = StructuredOutputsParams(json=SCHEMAS[name], disable_any_whitespace=True)
            ways = {"unguided": partial(run, count, None), "guided": partial(run, count, asked)}
            in_turns(ways, 1, progress)  # the first round ends with the guided way
            backend = check_outputs(vocabulary, OutputSpec.json_schema(SCHEMAS[name]), outputs)
            figure = compared(in_turns(ways, repetitions, progress))
            figures.append({"rows": count, "schema": name, "backend": backend, **figure})
    return {
        "benchmark": "vllm",
        "environment": environment(current_platform.device_type),
        "steps": steps,
        "repetitions": repetitions,
        "vocabulary": vocabulary.size,
        "figures": figures,
    }
