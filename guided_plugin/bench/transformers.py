"""Milliseconds a step of transformers' `generate`: unguided, guided, and xgrammar's own processor.

One run measures all three in turn, every other time in reverse order, so that an effect of the order has no
favourite. Imports torch and transformers.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria

from guided_plugin.bench.environment import environment
from guided_plugin.bench.measuring import WARM_UP, StepCosts, median, prompts, step_ms
from guided_plugin.bench.recheck import refused_at
from guided_plugin.bench.schemas import SCHEMAS
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import GuidedConfig
from guided_plugin.errors import RequestError
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
    forwards: Sequence[str] = FORWARDS,
    steps: int = 64,
    repetitions: int = 3,
    backend: str = "auto",
    compare: bool = True,
    progress: Callable[[], None] = lambda: None,
    found: Callable[[dict[str, Any]], None] = lambda so_far: None,
) -> dict[str, Any]:
    """Generate `steps` tokens a row. `progress` is called after each run, `found` with the result so far
    after each figure."""
    figures: list[dict[str, Any]] = []
    result = {
        "benchmark": "transformers",
        "environment": environment(str(model.device)),
        "steps": steps,
        "repetitions": repetitions,
        "vocabulary": vocabulary.size,
        "compiled": model.device.type == "cuda",
        "figures": figures,
    }
    processors = {name: _xgrammar_processor(model, vocabulary, name) for name in schemas} if compare else {}
    with Guide(vocabulary, model=model) as guide:
        for forward in forwards:
            for count in rows:
                # Another batch size is another graph: without this, compiled ones pile up.
                torch.compiler.reset()
                loop = _Loop(model, vocabulary, count, steps, forward)
                for name in schemas:
                    figure = _figure(loop, guide, name, backend, repetitions, processors.get(name), progress)
                    figures.append({"rows": count, "schema": name, "forward": forward, **figure})
                    found(result)
    return result


def _figure(
    loop: _Loop,
    guide: Guide,
    name: str,
    backend: str,
    repetitions: int,
    xgrammar_processor: Callable[[], Any] | None,
    progress: Callable[[], None],
) -> dict[str, Any]:
    """One configuration. Every time is the median over the repetitions after the warm-up."""
    spec = OutputSpec.json_schema(SCHEMAS[name], backend=backend)
    costs = StepCosts()
    chosen, checked = "", 0

    def unguided() -> float:
        return loop.run({})[0]

    def guided() -> float:
        nonlocal chosen, checked
        kwargs = guide.generate_kwargs(spec)
        guide.compiler.plugins.register(costs)
        try:
            milliseconds, out = loop.run(dict(kwargs))
            for error in kwargs.errors.values():
                raise error
            if not checked:
                chosen, checked = _check(loop.vocabulary, spec, out), out.numel()
        finally:
            guide.compiler.plugins.unregister(costs)
            kwargs.call.close()
        return milliseconds

    ways = {"unguided": unguided, "guided": guided}
    if xgrammar_processor is not None:
        ways["xgrammar"] = lambda: loop.run({"logits_processor": [xgrammar_processor()]})[0]
    times: dict[str, list[float]] = {way: [] for way in ways}
    # Two to warm up: with a static cache the first compiles, the second captures.
    for repetition in range(-2, repetitions):
        if repetition == 0:
            costs.costs.clear()
        for way in list(ways) if repetition % 2 == 0 else reversed(ways):
            milliseconds = ways[way]()
            progress()
            if repetition >= 0:
                times[way].append(round(milliseconds, 4))

    def ratio(way: str) -> float:
        """The mean of the median ratio in one order and of that in reverse."""
        ratios = [t / u for t, u in zip(times[way], times["unguided"], strict=True)]
        orders = [order for order in (ratios[0::2], ratios[1::2]) if order]
        return round(statistics.mean(map(statistics.median, orders)), 4)

    return {
        "backend": chosen,
        "unguided_ms": median(times["unguided"]),
        "guided_ms": median(times["guided"]),
        "ratio": ratio("guided"),
        # all calls of the pipeline in a step, on the host's thread
        "main_thread_us": costs.median_us(),
        "xgrammar_ms": median(times["xgrammar"]) if xgrammar_processor else None,
        "xgrammar_ratio": ratio("xgrammar") if xgrammar_processor else None,
        "runs_ms": times,
        # guided tokens of the warm-up, all accepted by a fresh matcher
        "checked_tokens": checked,
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


def _xgrammar_processor(model: Any, vocabulary: Vocabulary, name: str) -> Callable[[], Any]:
    """Makes `xgrammar.contrib.hf.LogitsProcessor`, one for each call as it requires, with the schema as it
    is. Compiling the schema can take a minute."""
    import xgrammar
    import xgrammar.contrib.hf

    info = xgrammar.TokenizerInfo(
        list(vocabulary.text_tokens),
        xgrammar.VocabType.RAW,
        vocab_size=model.get_output_embeddings().weight.shape[0],
        stop_token_ids=list(vocabulary.stop_token_ids),
    )
    compiler = xgrammar.GrammarCompiler(info)
    grammar = compiler.compile_json_schema(json.dumps(SCHEMAS[name]), any_whitespace=False)
    return lambda: xgrammar.contrib.hf.LogitsProcessor(grammar)


def _check(vocabulary: Vocabulary, spec: OutputSpec, rows: Tensor) -> str:
    """The backend; raises if a fresh matcher refuses a token."""
    compiler = GrammarCompiler(vocabulary, config=GuidedConfig(isolate_compiles=False))
    for row, tokens in enumerate(rows.tolist()):
        place = refused_at(compiler, spec, tokens)
        if place is not None:
            raise RequestError(
                f"a fresh matcher refuses token {tokens[place]}", where=f"row {row}, token {place}"
            )
    return compiler.compile(spec).backend
