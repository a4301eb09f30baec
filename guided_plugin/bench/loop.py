"""Milliseconds a step of the reference loop, unguided and guided, in one run. Imports torch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from guided_plugin.bench.environment import environment
from guided_plugin.bench.graphs import GraphedModel
from guided_plugin.bench.schemas import SCHEMAS
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.hookspecs import hookimpl
from guided_plugin.hosts.loop import DecodeLoop
from guided_plugin.metrics import StepStatistics
from guided_plugin.spec import OutputSpec
from guided_plugin.step import DecodeStep

__all__ = ["SHAPES", "LoopFigure", "bench_loop", "random_model"]

_WARM_UP = 8

# hidden, layers, intermediate, heads, key-value heads
SHAPES = {"qwen3-0.6b": (1024, 28, 3072, 16, 8), "qwen3-1.7b": (2048, 28, 6144, 16, 8)}


@dataclass(frozen=True, slots=True)
class LoopFigure:
    """One configuration; every time is the median over the repetitions."""

    rows: int
    schema: str
    backend: str
    unguided_ms: float
    guided_ms: float
    ratio: float
    """Median of the ratios of neighbouring repetitions."""
    main_thread_us: float
    """Time all plugin calls took on the host's thread, a step."""
    share: float
    """That time over the guided step."""
    calls_us: dict[str, float]
    """The same by call: medians, so their sum is not quite the whole."""


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
    clock = _Clock()
    compiler.plugins.register(clock)
    figures = []
    for count in rows:
        prompts = [[1 + row % 7, 2, 3] for row in range(count)]
        runs: Any = GraphedModel(model, count, 3 + _WARM_UP + steps) if graph else model
        loop = DecodeLoop(runs, compiler, max_rows=count)
        for name in schemas:
            spec = OutputSpec.json_schema(SCHEMAS[name], backend=backend)
            unguided: list[float] = []
            guided: list[float] = []
            main_thread: list[float] = []
            for repetition in range(repetitions + 1):
                for chosen, found in ((None, unguided), (spec, guided)):
                    clock.reset()
                    outputs = loop.run(
                        prompts, [chosen] * count, max_new_tokens=steps + _WARM_UP, ignore_stop=True
                    )
                    for output in outputs:
                        if output.error is not None:
                            raise output.error
                    progress()
                    if repetition:  # the first one warms up
                        found.append(clock.milliseconds())
                if repetition:
                    main_thread.append(clock.main_thread_us())
            ratio = statistics.median(g / u for g, u in zip(guided, unguided, strict=True))
            step, main = statistics.median(guided), statistics.median(main_thread)
            figures.append(
                LoopFigure(
                    count,
                    name,
                    compiler.compile(spec).backend,
                    round(statistics.median(unguided), 4),
                    round(step, 4),
                    round(ratio, 4),
                    round(main, 1),
                    round(main / step / 1e3, 4),
                    clock.calls_us(),
                )
            )
    return {
        "benchmark": "loop",
        "environment": environment(str(model.device)),
        "steps": steps,
        "repetitions": repetitions,
        "graph": graph,
        "vocabulary": vocabulary.size,
        "figures": [asdict(figure) for figure in figures],
    }


class _Clock:
    """Hears the end of every step."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._ends: list[float] = []
        self._costs: list[StepStatistics] = []

    @hookimpl(trylast=True)
    def after_stop_criteria(self, step: DecodeStep) -> None:
        self._ends.append(time.perf_counter())

    @hookimpl
    def step_finished(self, statistics: StepStatistics) -> None:
        self._costs.append(statistics)

    def milliseconds(self) -> float:
        """Mean of a step, after the warm-up; the loop keeps pace with the device, one step behind."""
        ends = self._ends[_WARM_UP - 1 :]
        return (ends[-1] - ends[0]) * 1e3 / (len(ends) - 1)

    def main_thread_us(self) -> float:
        """Median cost of the plugin's calls in a step."""
        if not self._costs:
            return 0.0
        return statistics.median(cost.main_thread for cost in self._costs[_WARM_UP:]) * 1e6

    def calls_us(self) -> dict[str, float]:
        """The same for each call, of the newest run."""
        return {
            name: round(statistics.median(getattr(cost, name) for cost in self._costs[_WARM_UP:]) * 1e6, 1)
            for name in ("plan", "fill_mask", "apply_mask", "schedule_update", "finish_update")
        }


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
