"""Milliseconds a step of a vLLM engine with `take_over`, unguided and with structured outputs.

Both in one engine, in turns: engines differ by some percent from start to start.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

from guided_plugin.bench.measuring import SCHEMAS, Plan, Ways, check_outputs
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


def bench_vllm(llm: Any, plan: Plan) -> dict[str, Any]:
    """Generate some tokens a row, unguided and guided in turn."""
    from vllm import SamplingParams
    from vllm.platforms import current_platform
    from vllm.sampling_params import StructuredOutputsParams

    vocabulary = Vocabulary.from_tokenizer(llm.get_tokenizer())
    chance = random.Random(1)

    def run(rows: int, asked: Any, outputs: list[list[int]]) -> float:
        params = SamplingParams(
            structured_outputs=asked, max_tokens=plan.steps, ignore_eos=True, temperature=1.0
        )
        given = [{"prompt_token_ids": chance.choices(range(100, 1000), k=8)} for _ in range(rows)]
        start = time.perf_counter()
        found = llm.generate(given, params, use_tqdm=False)
        milliseconds = (time.perf_counter() - start) * 1e3 / plan.steps
        outputs[:] = [list(output.outputs[0].token_ids) for output in found]
        return milliseconds

    def case(rows: int, name: str) -> tuple[Ways, Callable[[], dict[str, Any]]]:
        asked = StructuredOutputsParams(json=SCHEMAS[name], disable_any_whitespace=True)
        guided: list[list[int]] = []
        ways = {"unguided": partial(run, rows, None, []), "guided": partial(run, rows, asked, guided)}
        spec = OutputSpec.json_schema(SCHEMAS[name])
        return ways, lambda: {"backend": check_outputs(vocabulary, spec, guided)}

    return plan.result("vllm", current_platform.device_type, vocabulary, figures=plan.figures(case))
