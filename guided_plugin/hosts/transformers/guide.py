"""`Guide`: guided output from `generate` of any transformers model. Depends on the
pipeline.

    guide = Guide(tokenizer, model=model)
    model.generate(**inputs, **guide.generate_kwargs(spec))

What runs in a step is in `call`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)

from guided_plugin.compiling.compiler import shared_compiler
from guided_plugin.config import GuidedConfig, Mode
from guided_plugin.errors import ConfigError, GuidedError
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.hosts.transformers.call import GenerateCall
from guided_plugin.hosts.transformers.output import (
    Generated,
    option,
    outputs,
    prompt_tensors,
    without_rows,
)
from guided_plugin.hosts.transformers.pool import PipelinePool
from guided_plugin.pipeline.runtime import resolve_mode
from guided_plugin.spec import reader_of
from guided_plugin.step import RequestInfo


class GuidedCriterion(StoppingCriteria):
    """Gives the tokens to the grammars, right after sampling. Made by a `Guide`."""

    def __init__(self, call: GenerateCall) -> None:
        self._call = call

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """Which rows ended with a stop token of their spec: [rows] booleans."""
        return self._call.append(input_ids)


class GenerateKwargs(dict[str, Any]):
    """Keyword arguments for one `generate` call; `errors` has the rows that failed in
    it."""

    def __init__(self, call: GenerateCall, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.call = call

    @property
    def errors(self) -> dict[int, GuidedError]:
        """By row of the output, why what it holds is not what its spec asks for. Raises
        PipelineError where no `generate` call has used these arguments."""
        return self.call.run.failures()

    @property
    def requests(self) -> dict[int, RequestInfo]:
        """By guided row of the output, what became of its request: `closed`,
        `unenforced`."""
        return self.call.run.told()


class Guide:
    """Guides the `generate` calls of models that share a tokenizer. Thread-safe."""

    def __init__(
        self,
        tokenizer: Any,
        model: Any = None,
        *,
        stop_token_ids: int | Iterable[int] | None = None,
        config: GuidedConfig | None = None,
        mode: Mode = "auto",
    ) -> None:
        """`tokenizer`: of transformers, a processor that has one, or a `Vocabulary`.

        `model`: tells the stop tokens (its generation config) and the device, so that
        specs compile where they will run and bad ones are refused at once.
        `stop_token_ids`: instead of the model's.
        """
        if model is not None:
            _check_model(model, "Guide(tokenizer, model=model)")
            if stop_token_ids is None:
                stop_token_ids = getattr(model.generation_config, "eos_token_id", None)
        self._tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
        if isinstance(tokenizer, Vocabulary):
            vocabulary = tokenizer
        else:
            vocabulary = Vocabulary.from_tokenizer(
                self._tokenizer, stop_token_ids=stop_token_ids
            )
        self._device = None if model is None else torch.device(model.device)
        head = None if model is None else model.get_output_embeddings()
        if head is not None:
            vocabulary.check_width(head.weight.shape[0])
        self.compiler = shared_compiler(vocabulary, config)
        self._pool = PipelinePool(self.compiler, mode)
        if self._device and resolve_mode(mode, self._device) == "process":
            # A worker takes seconds to start: let it do so while prompts are made.
            self._pool.give_back([self._pool.borrow(self._device, 1)])

    def generate_kwargs(
        self,
        spec: Any = (),
        *,
        logits_processor: Iterable[Any] = (),
        stopping_criteria: Iterable[Any] = (),
        reuse: bool = False,
    ) -> GenerateKwargs:
        """Arguments for one `generate` call: `logits_processor` and
        `stopping_criteria`.

        `spec`: for all rows, or a list with one for each prompt, None where nothing
        guides; anything that `OutputSpec.parse` takes, types too. Raises
        the error of a spec that can't be used. Processors and criteria of your own go
        first, so that no processor makes likely what was masked. `reuse`: for one call
        after another, as pipelines make them.
        """
        wanted = list(spec) if _listed(spec) else [spec]
        if not wanted:
            raise ConfigError(
                "an empty list",
                where="spec",
                hint="one spec for each prompt, None for free text",
            )
        every_row = not _listed(spec)
        call = GenerateCall(
            self._pool, wanted, every_row=every_row, reuse=reuse, device=self._device
        )
        if call.refused:
            call.close()
            row, error = min(call.refused.items())
            raise error if every_row else error.under(f"spec {row}")
        return _kwargs(call, logits_processor, stopping_criteria)

    def generate(
        self, model: Any, inputs: Any, spec: Any = (), **options: Any
    ) -> list[Generated]:
        """Generate, and read the outputs: text, tokens and the parsed object: of JSON
        its value, of a type given as the spec an instance.

        `inputs`: a text, the messages of a chat, a list of these, or what a tokenizer
        returns. `options` are those of `model.generate`. A row of a list of specs whose
        own can't be used has an `error`; the others are generated. One spec for all
        that can't be used raises its error.
        """
        _check_model(model, "guide.generate(model, inputs, spec)")
        tensors = prompt_tensors(self._tokenizer, inputs, model.device)
        count = next(iter(tensors.values())).shape[0]
        wanted = list(spec) if _listed(spec) else [spec] * count
        if len(wanted) != count:
            what = f"{len(wanted)} specs for {count} prompts"
            raise ConfigError(
                what,
                where="spec",
                hint="one for each, or one for all; None is free text",
            )
        each = option(model, options, "num_return_sequences") or 1
        call = GenerateCall(
            self._pool,
            wanted,
            every_row=False,
            reuse=False,
            device=self._device,
            keeps_rows=True,
        )
        refused = call.refused
        found: list[Generated] = []
        try:
            if refused and not _listed(spec):
                raise refused[0]
            if call.specs:
                processors = options.pop("logits_processor", None) or ()
                criteria = options.pop("stopping_criteria", None) or ()
                kwargs = _kwargs(call, processors, criteria)
                made = model.generate(
                    **without_rows(tensors, refused),
                    **options,
                    **kwargs,
                )
                given = [one for row, one in enumerate(wanted) if row not in refused]
                readers = [
                    reader_of(one, spec)
                    for one, spec in zip(given, call.specs, strict=True)
                ]
                found = outputs(self._tokenizer, made, call, readers, model, options)
        finally:
            call.close()
        made_rows = iter(found)
        return [
            Generated("", (), False, None, refused[row])
            if row in refused
            else next(made_rows)
            for row in range(count)
            for _ in range(each)
        ]

    def close(self) -> None:
        """End the worker processes, also those of running calls."""
        self._pool.close()

    def __enter__(self) -> Guide:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _kwargs(
    call: GenerateCall, processors: Iterable[Any], criteria: Iterable[Any]
) -> GenerateKwargs:
    return GenerateKwargs(
        call,
        logits_processor=LogitsProcessorList([*processors, call]),
        stopping_criteria=StoppingCriteriaList([*criteria, GuidedCriterion(call)]),
    )


def _listed(spec: Any) -> bool:
    return isinstance(spec, list | tuple)


def _check_model(model: Any, hint: str) -> None:
    if not hasattr(model, "get_output_embeddings"):
        what = f"must be a model of transformers, not {type(model).__name__}"
        raise ConfigError(what, where="model", hint=hint)
