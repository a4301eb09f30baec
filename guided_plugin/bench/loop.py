"""Milliseconds a step of the reference loop, unguided and guided, in one run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from guided_plugin.bench.measuring import (
    SCHEMAS,
    WARM_UP,
    StepCosts,
    compared,
    environment,
    in_turns,
    prompts,
    step_ms,
)
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.hookspecs import hookimpl
from guided_plugin.hosts.loop import DecodeLoop
from guided_plugin.spec import OutputSpec
from guided_plugin.step import DecodeStep

_CALLS = ("plan", "fill_mask", "apply_mask", "schedule_update", "finish_update")


def bench_loop(
    model: Any,
    vocabulary: Vocabulary,
    *,
    rows: Sequence[int],
    schemas: Sequence[str],
    steps: int = 64,
    repetitions: int = 3,
    model_for: Callable[[int], Any] | None = None,
    progress: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Decode `steps` tokens a row, unguided and guided in turn; `progress` is called after each run.

    `model_for`: what runs batches of one size instead of the model itself, such as its CUDA graph.
    """
    compiler = GrammarCompiler(vocabulary)
    figures = []
    for count in rows:
        loop = DecodeLoop(model if model_for is None else model_for(count), compiler, max_rows=count)
        for name in schemas:
            spec = OutputSpec.json_schema(SCHEMAS[name])
            clock = _Clock()
            compiler.plugins.register(clock)
            try:
                figure = _figure(loop, spec, count, steps, repetitions, clock, progress)
            finally:
                compiler.plugins.unregister(clock)
            figures.append(
                {"rows": count, "schema": name, "backend": compiler.compile(spec).backend, **figure}
            )
    return {
        "benchmark": "loop",
        "environment": environment(str(model.device)),
        "steps": steps,
        "repetitions": repetitions,
        "graph": model_for is not None,
        "vocabulary": vocabulary.size,
        "figures": figures,
    }


def _figure(
    loop: DecodeLoop,
    spec: OutputSpec,
    rows: int,
    steps: int,
    repetitions: int,
    clock: _Clock,
    progress: Callable[[], None],
) -> dict[str, Any]:
    """One configuration."""

    def run(chosen: OutputSpec | None) -> float:
        clock.ends.clear()
        outputs = loop.run(prompts(rows), [chosen] * rows, max_new_tokens=steps + WARM_UP, ignore_stop=True)
        for output in outputs:
            if output.error is not None:
                raise output.error
        return step_ms(clock.ends)

    ways = {"unguided": lambda: run(None), "guided": lambda: run(spec)}
    in_turns(ways, 1, progress)
    clock.costs.clear()
    figure = compared(in_turns(ways, repetitions, progress))
    # all calls of the plugin in a step, on the host's thread
    microseconds = clock.median_us()
    return {
        **figure,
        "main_thread_us": microseconds,
        "share": round(microseconds / figure["guided_ms"] / 1e3, 4),
        "calls_us": {call: clock.median_us(call) for call in _CALLS},
    }


class _Clock(StepCosts):
    """Also notes when each step ended; the loop keeps pace with the device, one step behind."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []

    @hookimpl(trylast=True)
    def after_stop_criteria(self, step: DecodeStep) -> None:
        self.ends.append(time.perf_counter())
