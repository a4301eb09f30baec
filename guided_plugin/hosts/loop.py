"""A decode loop over a transformers model; the demo runs on it. Depends on the
pipeline.

    logits -> logits processors (mask) -> sample -> post_sampling -> append -> stop criteria
           -> after_stop_criteria

`DecodeLoop.step` shows the hooks and the five verbs in their order.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import Mode
from guided_plugin.errors import ConfigError, GuidedError, shown
from guided_plugin.hosts.batch import Batch
from guided_plugin.pipeline.pipeline import StepPipeline
from guided_plugin.spec import OutputSpec
from guided_plugin.step import UNGUIDED, DecodeStep, RequestInfo

__all__ = ["DecodeLoop", "Output"]

_GUIDED = "guided"
"""The pipeline, among a loop's processors."""


@dataclass(frozen=True, slots=True)
class Output:
    """The output of one prompt. With an `error`, `tokens` is not guided output."""

    tokens: tuple[int, ...]
    """Generated tokens, the stop token left out."""
    stopped: bool
    """True if a stop token ended it; otherwise it ran into max_new_tokens."""
    error: GuidedError | None = None
    unenforced: tuple[str, ...] = ()
    """Keywords of its spec that nothing enforced, as `unenforced_keywords` allows:
    check it by them."""
    closed: str = ""
    """With `close_before_length`: `led`, if it was led to its end before its token
    limit, or `unprotected: ...`, why it could be cut there. Else empty."""


class DecodeLoop:
    """Decodes batches of prompts with a transformers causal LM, each row with its own
    spec or none."""

    def __init__(
        self,
        model: Any,
        compiler: GrammarCompiler,
        *,
        max_rows: int = 64,
        mode: Mode = "auto",
        processors: Sequence[str] = (_GUIDED,),
    ) -> None:
        """`processors`: in their order, by the names that plugins gave them; `guided`
        is the mask."""
        if not isinstance(compiler, GrammarCompiler):
            hint = "DecodeLoop(model, GrammarCompiler(Vocabulary.from_tokenizer(tokenizer)))"
            what = f"must be a GrammarCompiler, not {type(compiler).__name__}"
            raise ConfigError(what, where="compiler", hint=hint)
        if _GUIDED not in processors:
            hint = "plugins come before or after it"
            raise ConfigError(f"must name {_GUIDED!r}", where="processors", hint=hint)
        self._model = model
        self._plugins = compiler.plugins
        self.pipeline = StepPipeline(
            compiler, max_slots=max_rows, device=model.device, mode=mode
        )
        compiler.vocabulary.check_width(model.get_output_embeddings().weight.shape[0])
        self._processors = [
            self._mask
            if name == _GUIDED
            else self._plugins.logits_processor(name, _GUIDED)(self.pipeline)
            for name in processors
        ]
        self._request_ids = itertools.count()

    def run(
        self,
        prompts: Sequence[Sequence[int]],
        specs: Sequence[Any],
        *,
        max_new_tokens: int = 256,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> list[Output]:
        """Decode until every row stopped. A row whose spec can't be used has an `error`
        and no tokens.

        `prompts`: token ids of each, without padding. `specs`: one for each prompt,
        anything that `OutputSpec.parse` takes; None where nothing guides.
        `temperature`: 0 takes the likeliest token.
        """
        if len(prompts) != len(specs):
            what = f"{len(specs)} specs for {len(prompts)} prompts"
            raise ConfigError(what, where="specs", hint="one for each, or None")
        if not temperature >= 0.0:
            what = f"must be at least 0, not {temperature}"
            raise ConfigError(what, where="temperature")
        width = self._model.get_input_embeddings().weight.shape[0]
        outputs: dict[int, Output] = {}
        requests: dict[int, RequestInfo | None] = {}
        default = self.pipeline.compiler.vocabulary.stop_token_ids
        for row, (prompt, spec) in enumerate(zip(prompts, specs, strict=True)):
            try:
                _check_prompt(prompt, f"prompt {row}", width)
                requests[row] = self._begin(OutputSpec.parse(spec), max_new_tokens)
            except GuidedError as error:
                outputs[row] = Output((), False, error)
        try:
            if requests:
                chosen = [prompts[row] for row in requests]
                infos = requests.values()
                slots = [info.slot if info else UNGUIDED for info in infos]
                stops = [
                    (info and info.spec.stop_token_ids) or default for info in infos
                ]
                batch = Batch(self._model, chosen, slots, stops, temperature, seed)
                for index in range(max_new_tokens):
                    self.step(batch, index)
                    if batch.all_stopped():
                        break
                for (row, info), (tokens, stopped) in zip(
                    requests.items(), batch.outputs(), strict=True
                ):
                    told: tuple[Any, ...] = ()
                    if info:
                        request = self.pipeline.request(info.request_id)
                        told = request.error, request.unenforced, request.closed
                    outputs[row] = Output(tokens, stopped, *told)
        finally:
            for info in filter(None, requests.values()):
                self.pipeline.remove_request(info.request_id)
        return [outputs[row] for row in range(len(prompts))]

    def _begin(self, spec: OutputSpec | None, room: int) -> RequestInfo | None:
        if spec is None:
            return None
        name = f"row-{next(self._request_ids)}"
        self.pipeline.add_request(name, spec.within(room))
        return self.pipeline.request(name)

    @torch.inference_mode()
    def step(self, batch: Batch, index: int) -> None:
        """One decode step."""
        step = DecodeStep(index, batch.slots)
        logits = batch.forward()
        for process in self._processors:
            logits = process(logits, step)
        step.tokens = batch.sample(logits)
        self.pipeline.schedule_update(step.tokens)
        self._plugins.post_sampling(step)
        batch.append(step.tokens)
        batch.check_stop()
        self.pipeline.finish_update()
        if self.pipeline.mode == "process":
            self.pipeline.plan(batch.slots)
            self.pipeline.fill_mask()
        self._plugins.after_stop_criteria(step)

    def _mask(self, logits: Tensor, step: DecodeStep) -> Tensor:
        slots = tuple(step.slots)
        if not self.pipeline.filled or self.pipeline.planned != slots:
            self.pipeline.plan(slots)
            self.pipeline.fill_mask()
        return self.pipeline.apply_mask(logits)


def _check_prompt(prompt: Any, where: str, width: int) -> None:
    """Raise unless a prompt has tokens of a model that has so many."""
    try:
        tokens = list(map(operator.index, prompt))
    except TypeError:
        hint = "prompts first, then specs: run([tokenizer.encode(text)], [spec])"
        what = f"must be token ids, not {shown(prompt)}"
        raise ConfigError(what, where=where, hint=hint) from None
    if not tokens:
        raise ConfigError("is empty", where=where, hint="give at least one token")
    if not 0 <= min(tokens) <= max(tokens) < width:
        what = f"has token {max(tokens, key=abs)}, and the model has {width}"
        raise ConfigError(what, where=where, hint="use the model's own tokenizer")
