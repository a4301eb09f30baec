"""Milliseconds a step of the reference loop, unguided and guided, in one run. Imports torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from guided_plugin.bench.environment import environment
from guided_plugin.bench.graphs import GraphedModel
from guided_plugin.bench.measuring import (
    PROMPT,
    WARM_UP,
    StepCosts,
    median,
    prompts,
    raise_first_error,
    step_ms,
)
from guided_plugin.bench.schemas import SCHEMAS
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.hookspecs import hookimpl
from guided_plugin.hosts.loop import DecodeLoop
from guided_plugin.spec import OutputSpec
from guided_plugin.step import DecodeStep

# hidden, layers, intermediate, heads, key-value heads
SHAPES = {"qwen3-0.6b": (1024, 28, 3072, 16, 8), "qwen3-1.7b": (2048, 28, 6144, 16, 8)}

_CALLS = ("plan", "fill_mask", "apply_mask", "schedule_update", "finish_update")


def bench_loop(
    model: Any,
    vocabulary: Vocabulary,
    *,
    rows: Sequence[int],
    schemas: Sequence[str],
    steps: int = 64,
    repetitions: int = 3,
    backend: str = "auto",
    graph: bool = False,
    progress: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Decode `steps` tokens a row, unguided and guided in turn; `progress` is called after each run.

    `graph`: the model's decode step is one CUDA graph, as in engines.
    """
    compiler = GrammarCompiler(vocabulary)
    figures = []
    for count in rows:
        runs: Any = GraphedModel(model, count, PROMPT + WARM_UP + steps) if graph else model
        loop = DecodeLoop(runs, compiler, max_rows=count)
        for name in schemas:
            spec = OutputSpec.json_schema(SCHEMAS[name], backend=backend)
            figure = _figure(loop, compiler, spec, count, steps, repetitions, progress)
            figures.append({"rows": count, "schema": name, **figure})
    return {
        "benchmark": "loop",
        "environment": environment(str(model.device)),
        "steps": steps,
        "repetitions": repetitions,
        "graph": graph,
        "vocabulary": vocabulary.size,
        "figures": figures,
    }


def _figure(
    loop: DecodeLoop,
    compiler: GrammarCompiler,
    spec: OutputSpec,
    rows: int,
    steps: int,
    repetitions: int,
    progress: Callable[[], None],
) -> dict[str, Any]:
    """One configuration. Every time is the median over the repetitions after the first."""

    def run(chosen: OutputSpec | None) -> _Clock:
        clock = _Clock()
        compiler.plugins.register(clock)
        try:
            outputs = loop.run(
                prompts(rows), [chosen] * rows, max_new_tokens=steps + WARM_UP, ignore_stop=True
            )
        finally:
            compiler.plugins.unregister(clock)
        raise_first_error(outputs)
        progress()
        return clock

    pairs = [(run(None), run(spec)) for _ in range(repetitions + 1)][1:]
    unguided = [step_ms(clock.ends) for clock, _ in pairs]
    guided = [step_ms(clock.ends) for _, clock in pairs]
    main_thread_us = median(clock.median_us(skip=WARM_UP) for _, clock in pairs)
    return {
        "backend": compiler.compile(spec).backend,
        "unguided_ms": median(unguided),
        "guided_ms": median(guided),
        # of each repetition
        "ratio": median(g / u for g, u in zip(guided, unguided, strict=True)),
        # all calls of the plugin in a step, on the host's thread
        "main_thread_us": round(main_thread_us, 1),
        "share": round(main_thread_us / median(guided) / 1e3, 4),
        # of the last repetition; medians, so their sum is not quite the whole
        "calls_us": {call: pairs[-1][1].median_us(call, skip=WARM_UP) for call in _CALLS},
    }


class _Clock(StepCosts):
    """Also notes when each step ended; the loop keeps pace with the device, one step behind."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []

    @hookimpl(trylast=True)
    def after_stop_criteria(self, step: DecodeStep) -> None:
        self.ends.append(time.perf_counter())


def random_model(shape: str, width: int, device: str) -> Any:
    """A model of a known shape with random weights and any output width."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    hidden, layers, intermediate, heads, kv_heads = SHAPES[shape]
    config = Qwen3Config(
        vocab_size=width,
        hidden_size=hidden,
        num_hidden_layers=layers,
        intermediate_size=intermediate,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=128,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    with torch.device(device):
        model: Any = Qwen3ForCausalLM(config)
    return model.to(dtype).eval()
