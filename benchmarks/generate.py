"""Milliseconds a step of transformers' `generate`, unguided and guided. Imports torch
and transformers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria

from benchmarks.measuring import WARM_UP, StepCosts, prompts, step_ms
from guided_plugin.bench import SCHEMAS, Plan, Ways, check_outputs
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.hosts.transformers.guide import Guide
from guided_plugin.spec import OutputSpec

FORWARDS = ("eager", "static")
"""How the model runs: as it is, or with a static cache, with which `generate` compiles
it on a GPU."""
WARM_UPS = 2
"""Runs: with a static cache the first compiles, the second captures."""


def bench_transformers(
    model: Any,
    vocabulary: Vocabulary,
    plan: Plan,
    *,
    forwards: Sequence[str] = ("eager",),
    others: Mapping[str, Callable[[str], dict[str, Any]]] | None = None,
) -> dict[str, Any]:
    """Generate some tokens a row, unguided and guided in turn.

    `others`: further ways by name, each a function from a schema's name to keywords of
    `generate`.
    """
    stops = list(vocabulary.stop_token_ids)
    costs = StepCosts()
    outputs: list[Tensor] = []

    def generate(forward: str, rows: int, keywords: dict[str, Any]) -> float:
        clock = _Clock()
        inputs = torch.tensor(prompts(rows), device=model.device)
        static = {"cache_implementation": "static"} if forward == "static" else {}
        out = model.generate(
            inputs=inputs,
            attention_mask=torch.ones_like(inputs),
            stopping_criteria=[clock, *keywords.pop("stopping_criteria", ())],
            max_new_tokens=plan.steps + WARM_UP,
            do_sample=False,
            eos_token_id=stops,
            pad_token_id=stops[0],
            **static,
            **keywords,
        )
        outputs[:] = [out[:, inputs.shape[1] :]]
        return step_ms(clock.ends)

    def case(
        guide: Guide, forward: str, rows: int, name: str
    ) -> tuple[Ways, Callable[[], dict[str, Any]]]:
        # Another batch size is another graph: without this, compiled ones pile up.
        torch.compiler.reset()
        run = partial(generate, forward, rows)
        spec = OutputSpec.json_schema(SCHEMAS[name])
        checked: list[Tensor] = []

        def guided() -> float:
            costs.costs.clear()
            kwargs = guide.generate_kwargs(spec)
            try:
                milliseconds = run(dict(kwargs))
                for error in kwargs.errors.values():
                    raise error
            finally:
                kwargs.call.close()
            checked[:] = outputs
            return milliseconds

        ways: dict[str, Callable[[], float]] = {
            "unguided": lambda: run({}),
            "guided": guided,
        }
        for way, keywords in (others or {}).items():
            ways[way] = lambda keywords=keywords: run(keywords(name))  # type: ignore[misc]
        return ways, lambda: {
            "forward": forward,
            "backend": check_outputs(vocabulary, spec, checked[0].tolist()),
            # of the pipeline's calls in a step of the last guided run, on the host's
            # thread
            "main_thread_us": costs.median_us(),
            # of that run, all accepted by a fresh matcher
            "checked_tokens": checked[0].numel(),
        }

    with Guide(vocabulary, model=model) as guide:
        guide.compiler.plugins.register(costs)
        try:
            found = [
                each
                for one in forwards
                for each in plan.figures(partial(case, guide, one), warm_ups=WARM_UPS)
            ]
        finally:
            guide.compiler.plugins.unregister(costs)
    compiled = model.device.type == "cuda"
    return plan.result(
        "transformers", str(model.device), vocabulary, compiled=compiled, figures=found
    )


class _Clock(StoppingCriteria):
    """Notes when each step is over for the host; `generate` reads from the device right
    after it."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Any:
        if not self.ends:
            self._none = torch.zeros(
                input_ids.shape[0], dtype=torch.bool, device=input_ids.device
            )
        self.ends.append(time.perf_counter())
        return self._none
