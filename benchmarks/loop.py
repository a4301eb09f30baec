"""Milliseconds a step of the reference loop, unguided and guided, in one run."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.measuring import WARM_UP, StepCosts, prompts, step_ms
from guided_plugin.bench import SCHEMAS, Plan, Ways
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
    plan: Plan,
    *,
    model_for: Callable[[int], Any] | None = None,
) -> dict[str, Any]:
    """Decode some tokens a row, unguided and guided in turn.

    `model_for`: what runs batches of one size instead of the model itself, such as its
    CUDA graph.
    """
    compiler = GrammarCompiler(vocabulary)
    clock = _Clock()
    compiler.plugins.register(clock)

    def run(loop: DecodeLoop, rows: int, spec: OutputSpec | None) -> float:
        clock.ends.clear()
        if spec is not None:
            clock.costs.clear()
        limit = plan.steps + WARM_UP
        for output in loop.run(
            prompts(rows), [spec] * rows, max_new_tokens=limit, ignore_stop=True
        ):
            if output.error is not None:
                raise output.error
        return step_ms(clock.ends)

    def case(rows: int, name: str) -> tuple[Ways, Callable[[], dict[str, Any]]]:
        loop = DecodeLoop(
            model if model_for is None else model_for(rows), compiler, max_rows=rows
        )
        spec = OutputSpec.json_schema(SCHEMAS[name])
        ways = {
            "unguided": partial(run, loop, rows, None),
            "guided": partial(run, loop, rows, spec),
        }
        return ways, lambda: {
            "backend": compiler.compile(spec).backend,
            # of the plugin's calls in a step of the last guided run, on the host's
            # thread
            "main_thread_us": clock.median_us(),
            "calls_us": {call: clock.median_us(call) for call in _CALLS},
        }

    figures = plan.figures(case)
    return plan.result(
        "loop",
        str(model.device),
        vocabulary,
        graph=model_for is not None,
        figures=figures,
    )


class _Clock(StepCosts):
    """Also notes when each step ended; the loop keeps pace with the device, one step
    behind."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []

    @hookimpl(trylast=True)
    def after_stop_criteria(self, step: DecodeStep) -> None:
        self.ends.append(time.perf_counter())
