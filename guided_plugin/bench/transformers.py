"""Milliseconds a step of transformers' `generate`: unguided, guided, and xgrammar's own processor.

One run measures all three in turn, every other time in reverse: what a host does to whoever comes first or
last, it does to both ends. Imports torch and transformers.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria

from guided_plugin.bench.environment import environment
from guided_plugin.bench.recheck import refused_at
from guided_plugin.bench.schemas import SCHEMAS
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import GuidedConfig
from guided_plugin.errors import RequestError
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.hookspecs import hookimpl
from guided_plugin.hosts.transformers.guide import Guide
from guided_plugin.metrics import StepStatistics
from guided_plugin.spec import OutputSpec

__all__ = ["FORWARDS", "TransformersFigure", "bench_transformers"]

FORWARDS = ("eager", "static")
"""How the model runs: as it is, or with a static cache, with which `generate` compiles it on a GPU."""

_WARM_UP = 8
_PROMPT = 3


@dataclass(frozen=True, slots=True)
class TransformersFigure:
    """One configuration; every time is the median over the repetitions."""

    rows: int
    schema: str
    forward: str
    backend: str
    unguided_ms: float
    guided_ms: float
    ratio: float
    """Of each repetition; the mean of the median of those in one order and of those in reverse."""
    main_thread_us: float
    """Microseconds of the host's thread in the pipeline's calls of a step: median of all measured steps."""
    xgrammar_ms: float | None
    """`xgrammar.contrib.hf.LogitsProcessor`; None where it was not measured."""
    xgrammar_ratio: float | None
    runs_ms: dict[str, list[float]]
    """Every repetition, in order."""
    checked_tokens: int
    """Guided tokens of the warm-up that a fresh matcher accepted, first to last; it refused none."""


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
    theirs = {name: _Theirs(model, vocabulary, name) for name in schemas} if compare else {}
    with Guide(vocabulary, model=model) as guide:
        for forward in forwards:
            for count in rows:
                # Another batch size is another graph: without this, compiled ones pile up.
                torch.compiler.reset()
                loop = _Loop(model, vocabulary, count, steps, forward)
                for name in schemas:
                    figure = _figure(loop, guide, name, backend, repetitions, theirs.get(name), progress)
                    figures.append(asdict(figure))
                    found(result)
    return result


def _figure(
    loop: _Loop,
    guide: Guide,
    name: str,
    backend: str,
    repetitions: int,
    theirs: _Theirs | None,
    progress: Callable[[], None],
) -> TransformersFigure:
    spec = OutputSpec.json_schema(SCHEMAS[name], backend=backend)
    clock = _MainThread()
    chosen, checked = "", 0

    def unguided() -> float:
        return loop.run({})[0]

    def guided() -> float:
        nonlocal chosen, checked
        kwargs = guide.generate_kwargs(spec)
        guide.compiler.plugins.register(clock)
        try:
            milliseconds, out = loop.run(dict(kwargs))
            for error in kwargs.errors.values():
                raise error
            if not checked:
                chosen, checked = _check(loop.vocabulary, spec, out)
        finally:
            guide.compiler.plugins.unregister(clock)
            kwargs.call.close()
        return milliseconds

    ways = {"unguided": unguided, "guided": guided}
    if theirs is not None:
        ways["xgrammar"] = lambda: loop.run({"logits_processor": [theirs.processor()]})[0]
    times: dict[str, list[float]] = {who: [] for who in ways}
    # Two to warm up: with a static cache the first compiles, the second captures.
    for repetition in range(-2, repetitions):
        if repetition == 0:
            clock.seconds.clear()
        for who in list(ways) if repetition % 2 == 0 else reversed(ways):
            milliseconds = ways[who]()
            progress()
            if repetition >= 0:
                times[who].append(round(milliseconds, 4))

    def ratio(who: str) -> float:
        ratios = [t / u for t, u in zip(times[who], times["unguided"], strict=True)]
        orders = [order for order in (ratios[0::2], ratios[1::2]) if order]
        return round(statistics.mean(map(statistics.median, orders)), 4)

    return TransformersFigure(
        rows=loop.rows,
        schema=name,
        forward=loop.forward,
        backend=chosen,
        unguided_ms=round(statistics.median(times["unguided"]), 4),
        guided_ms=round(statistics.median(times["guided"]), 4),
        ratio=ratio("guided"),
        main_thread_us=round(1e6 * statistics.median(clock.seconds), 1),
        xgrammar_ms=round(statistics.median(times["xgrammar"]), 4) if theirs is not None else None,
        xgrammar_ratio=ratio("xgrammar") if theirs is not None else None,
        runs_ms=times,
        checked_tokens=checked,
    )


class _Loop:
    """`generate` for one batch size, timed."""

    def __init__(self, model: Any, vocabulary: Vocabulary, rows: int, steps: int, forward: str) -> None:
        self.model = model
        self.vocabulary = vocabulary
        self.rows = rows
        self.forward = forward
        prompts = [[1 + row % 7, 2, 3] for row in range(rows)]
        self._inputs = torch.tensor(prompts, device=model.device)
        self._options: dict[str, Any] = {
            "max_new_tokens": steps + _WARM_UP,
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
        return clock.milliseconds(), out[:, _PROMPT:]


class _Clock(StoppingCriteria):
    """Notes when each step is over for the host; `generate` reads from the device right after it."""

    def __init__(self) -> None:
        self._ends: list[float] = []

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Any:
        if not self._ends:
            self._none = torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)
        self._ends.append(time.perf_counter())
        return self._none

    def milliseconds(self) -> float:
        """Mean of a step, after the warm-up."""
        ends = self._ends[_WARM_UP - 1 :]
        return (ends[-1] - ends[0]) * 1e3 / max(1, len(ends) - 1)


class _MainThread:
    """Hears what the pipeline took of the host's thread in each step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    @hookimpl
    def step_finished(self, statistics: StepStatistics) -> None:
        """Note it."""
        self.seconds.append(statistics.main_thread)


class _Theirs:
    """xgrammar's processor for transformers, with the schema as it is. Compiling that can take a minute."""

    def __init__(self, model: Any, vocabulary: Vocabulary, name: str) -> None:
        import xgrammar
        import xgrammar.contrib.hf

        self._make = xgrammar.contrib.hf.LogitsProcessor
        width = model.get_output_embeddings().weight.shape[0]
        info = xgrammar.TokenizerInfo(
            list(vocabulary.text_tokens),
            xgrammar.VocabType.RAW,
            vocab_size=width,
            stop_token_ids=list(vocabulary.stop_token_ids),
        )
        compiler = xgrammar.GrammarCompiler(info)
        self._grammar = compiler.compile_json_schema(json.dumps(SCHEMAS[name]), any_whitespace=False)

    def processor(self) -> Any:
        """A new one for each call, as it asks for."""
        return self._make(self._grammar)


def _check(vocabulary: Vocabulary, spec: OutputSpec, rows: Tensor) -> tuple[str, int]:
    """Which backend it was, and how many tokens a fresh matcher accepts: all, or this raises."""
    compiler = GrammarCompiler(vocabulary, config=GuidedConfig(isolate_compiles=False))
    for row, tokens in enumerate(rows.tolist()):
        place = refused_at(compiler, spec, tokens)
        if place is not None:
            raise RequestError(
                f"a fresh matcher refuses token {tokens[place]}", where=f"row {row}, token {place}"
            )
    return compiler.compile(spec).backend, rows.numel()
