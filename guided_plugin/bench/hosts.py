"""What `guided-plugin bench` measures: three hosts that decode a batch, unguided and guided in turn.

Both in one process or engine: engines differ by some percent from start to start.
"""

from __future__ import annotations

import json
import os
import random
from importlib.util import find_spec
from typing import Any

from guided_plugin.bench.measuring import Plan
from guided_plugin.errors import PipelineError
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.spec import OutputSpec

_PROMPT = [1, 2, 3]


def bench_loop(model: Any, vocabulary: Vocabulary, plan: Plan) -> dict[str, Any]:
    """The reference loop."""
    from guided_plugin.compiling.compiler import GrammarCompiler
    from guided_plugin.hosts.loop import DecodeLoop

    loop = DecodeLoop(model, GrammarCompiler(vocabulary), max_rows=max(plan.rows))

    def run(rows: int, spec: OutputSpec | None) -> list[list[int]]:
        outputs = loop.run([_PROMPT] * rows, [spec] * rows, max_new_tokens=plan.steps, ignore_stop=True)
        for output in outputs:
            if output.error is not None:
                raise output.error
        return [list(output.tokens) for output in outputs]

    return plan.compared("loop", str(model.device), vocabulary, run)


def bench_transformers(model: Any, vocabulary: Vocabulary, plan: Plan) -> dict[str, Any]:
    """transformers' `generate`."""
    import torch

    from guided_plugin.hosts.transformers.guide import Guide

    with Guide(vocabulary, model=model) as guide:

        def run(rows: int, spec: OutputSpec | None) -> list[list[int]]:
            given = torch.tensor([_PROMPT] * rows, device=model.device)
            kwargs: Any = None if spec is None else guide.generate_kwargs(spec)
            try:
                out = model.generate(
                    inputs=given,
                    attention_mask=torch.ones_like(given),
                    max_new_tokens=plan.steps,
                    do_sample=False,
                    pad_token_id=vocabulary.stop_token_ids[0],
                    **(kwargs or {}),
                )
            finally:
                if kwargs is not None:
                    kwargs.call.close()
            for error in kwargs.errors.values() if kwargs is not None else ():
                raise error
            found: list[list[int]] = out[:, len(_PROMPT) :].tolist()
            return found

        return plan.compared("transformers", str(model.device), vocabulary, run)


def start_engine(model: str, plan: Plan, arguments: dict[str, Any]) -> Any:
    """An `LLM` with `take_over`, for a plan. Raises PipelineError without vLLM."""
    if find_spec("vllm") is None:
        raise PipelineError(
            "No module named 'vllm'",
            where="bench vllm",
            hint="pip install 'guided-plugin[vllm]', or run it in vLLM's environment",
        )
    # The engine's process reads it too.
    os.environ["GUIDED_PLUGIN"] = json.dumps({"take_over": True})
    from vllm import LLM

    sizes = {"max_num_seqs": max(plan.rows), "max_model_len": plan.steps + 64}
    return LLM(model, **{**sizes, "enable_prefix_caching": False} | arguments)


def bench_vllm(llm: Any, plan: Plan) -> dict[str, Any]:
    """A vLLM engine with `take_over`."""
    from vllm import SamplingParams
    from vllm.platforms import current_platform
    from vllm.sampling_params import StructuredOutputsParams

    vocabulary = Vocabulary.from_tokenizer(llm.get_tokenizer())
    chance = random.Random(1)

    def run(rows: int, spec: OutputSpec | None) -> list[list[int]]:
        asked = spec and StructuredOutputsParams(json=spec.document(), disable_any_whitespace=True)
        params = SamplingParams(
            structured_outputs=asked, max_tokens=plan.steps, ignore_eos=True, temperature=1.0
        )
        given = [{"prompt_token_ids": chance.choices(range(100, 1000), k=8)} for _ in range(rows)]
        found = llm.generate(given, params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in found]

    return plan.compared("vllm", current_platform.device_type, vocabulary, run)
