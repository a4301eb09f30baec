"""Milliseconds a step of transformers' `generate`, unguided and guided. Imports torch and transformers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria

from guided_plugin.bench.measuring import (
    SCHEMAS,
    WARM_UP,
    StepCosts,
    check_outputs,
    compared,
    environment,
    in_turns,
    prompts,
    step_ms,
)
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.hosts.transformers.guide import Guide
from guided_plugin.spec import OutputSpec

FORWARDS = ("eager", "static")
"""How the model runs: as it is, or with a static cache, with which `generate` compiles it on a GPU."""


def bench_transformers(
    model: Any,
    vocabulary: Vocabulary,
    *,
    rows: Sequence[int],
    schemas: Sequence[str],
    forwards: Sequence[str] = ("eager",),
    steps: int = 64,
    repetitions: int = 3,
    others: Mapping[str, Callable[[str], dict[str, Any]]] | None = None,
    progress: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Generate `steps` tokens a row. `progress` is called after each run.

    `others`: further ways by name, each a function from a schema's name to keywords of `generate`.
    """
    figures = []
    with Guide(vocabulary, model=model) as guide:
        for forward in forwards:
            for count in rows:
                # Another batch size is another graph: without this, compiled ones pile up.
                torch.compiler.reset()
                loop = _Loop(model, vocabulary, count, steps, forward)
                for name in schemas:
                    figure = _figure(loop, guide, name, repetitions, others or {}, progress)
                    figures.append({"rows": count, "schema": name, "forward": forward, **figure})
    return {
        "benchmark": "transformers",
        "environment": environment(str(model.device)),
        "steps": steps,
        "repetitions": repetitions,
        "vocabulary": vocabulary.size,
        "compiled": model.device.type == "cuda",
        "figures": figures,
    }


def _figure(
    loop: _Loop,
    guide: Guide,
    name: str,
    repetitions: int,
    others: Mapping[str, Callable[[str], dict[str, Any]]],
    progress: Callable[[], None],
) -> dict[str, Any]:
    """One configuration."""
    spec = OutputSpec.json_schema(SCHEMAS[name])
    costs = StepCosts()
    outputs: list[Tensor] = []

    def guided() -> float:
        kwargs = guide.generate_kwargs(spec)
        guide.compiler.plugins.register(costs)
        try:
            milliseconds, out = loop.run(dict(kwargs))
            for error in kwargs.errors.values():
                raise error
        finally:
            guide.compiler.plugins.unregister(costs)
            kwargs.call.close()
        outputs[:] = [out]
        return milliseconds

    ways: dict[str, Callable[[], float]] = {"unguided": lambda: loop.run({})[0], "guided": guided}
    for way, keywords in others.items():
        ways[way] = lambda keywords=keywords: loop.run(keywords(name))[0]  # type: ignore[misc]
    in_turns(ways, 2, progress)  # with a static cache the first compiles, the second captures
    costs.costs.clear()
    figure = compared(in_turns(ways, repetitions, progress))
    return {
        "backend": check_outputs(loop.vocabulary, spec, outputs[0].tolist()),
        **figure,
        # all calls of the pipeline in a step, on the host's thread
        "main_thread_us": costs.median_us(),
        # of the last guided run, all accepted by a fresh matcher
        "checked_tokens": outputs[0].numel(),
    }


class _Loop:
    """`generate` for one batch size, timed."""

    def __init__(self, model: Any, vocabulary: Vocabulary, rows: int, steps: int, forward: str) -> None:
        self.model = model
        self.vocabulary = vocabulary
        self._inputs = torch.tensor(prompts(rows), device=model.device)
        self._options: dict[str, Any] = {
            "max_new_tokens": steps + WARM_UP,
            "do_sample": False,
            "eos_token_id": list(vocabulary.stop_token_ids),
            "pad_token_id": vocabulary.stop_token_ids[0],
        }
        if forward == "static":
            self._options["cache_implementation"] = "static"

    def run(self, kwargs: dict[str, Any]) -> tuple[float, Tensor]:
        """Milliseconds a step, and what was generated."""
        clock = _Clock()
        criteria = [clock, *kwargs.pop("stopping_criteria", ())]
        out = self.model.generate(
            inputs=self._inputs,
            attention_mask=torch.ones_like(self._inputs),
            stopping_criteria=criteria,
            **self._options,
            **kwargs,
        )
        return step_ms(clock.ends), out[:, self._inputs.shape[1] :]


class _Clock(StoppingCriteria):
    """Notes when each step is over for the host; `generate` reads from the device right after it."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Any:
        if not self.ends:
            self._none = torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)
        self.ends.append(time.perf_counter())
        return self._none
