"""`Guide`: guided output from `generate` of any transformers model. Imports torch and transformers.

    guide = Guide(tokenizer, model=model)
    model.generate(**inputs, **guide.generate_kwargs(spec))

What runs in a step is in `transformers_step`; continuous batching is in `transformers_batching`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from guided_plugin.compiling.compiler import shared_compiler
from guided_plugin.config import GuidedConfig, Mode
from guided_plugin.errors import ConfigError, GuidedError
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.hosts.transformers.call import GenerateCall
from guided_plugin.hosts.transformers.output import Generated, outputs, prompt_tensors, without_rows
from guided_plugin.hosts.transformers.pool import Loan, PipelinePool
from guided_plugin.spec import OutputSpec

if TYPE_CHECKING:
    from guided_plugin.hosts.transformers.batching import GuidedBatching

__all__ = ["GenerateKwargs", "Generated", "Guide", "GuidedCriterion", "GuidedProcessor"]


class GuidedProcessor(LogitsProcessor):
    """Masks what the specs of a `generate` call don't allow. Made by a `Guide`."""

    supports_continuous_batching = False

    def __init__(self, call: GenerateCall) -> None:
        self._call = call

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Mask the guided rows of [rows, width] scores."""
        return self._call.process(self, input_ids, scores)


class GuidedCriterion(StoppingCriteria):
    """Runs right after sampling: gives the tokens to the grammars. Made by a `Guide`."""

    def __init__(self, call: GenerateCall) -> None:
        self._call = call

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """Which rows ended with a stop token of their spec: [rows] booleans."""
        return self._call.append(input_ids)


class GenerateKwargs(dict[str, Any]):
    """Keyword arguments for one `generate` call; `errors` has the rows that failed in it."""

    def __init__(self, call: GenerateCall, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.call = call

    @property
    def errors(self) -> dict[int, GuidedError]:
        """By row of the output, why what it holds is not what its spec asks for."""
        return self.call.errors


class Guide:
    """Guides the `generate` calls of models that share a tokenizer. May be used by several threads."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        model: Any = None,
        stop_token_ids: int | Iterable[int] | None = None,
        config: GuidedConfig | None = None,
        mode: Mode = "auto",
    ) -> None:
        """`tokenizer`: of transformers, a processor that has one, or a `Vocabulary`.

        `model`: tells the stop tokens (its generation config) and the device, so that specs compile where
        they will run and bad ones are refused at once. `stop_token_ids`: instead of the model's.
        """
        if stop_token_ids is None and model is not None:
            stop_token_ids = getattr(model.generation_config, "eos_token_id", None)
        self._tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
        if isinstance(tokenizer, Vocabulary):
            vocabulary = tokenizer
        else:
            vocabulary = _vocabulary(self._tokenizer, stop_token_ids)
        self._device = None if model is None else torch.device(model.device)
        if model is not None:
            head = model.get_output_embeddings()
            if head is not None:
                vocabulary.check_width(head.weight.shape[0])
        self.compiler = shared_compiler(vocabulary, config)
        self._pool = PipelinePool(self.compiler, mode)
        if self._device is not None and (mode == "process" or self._device.type == "cuda"):
            # A worker takes seconds to start: let it do so while prompts are made.
            self._pool.give_back(self._pool.borrow(self._device, 1))

    def generate_kwargs(
        self,
        spec: Any,
        *,
        logits_processor: Iterable[Any] = (),
        stopping_criteria: Iterable[Any] = (),
        reuse: bool = False,
    ) -> GenerateKwargs:
        """Arguments for one `generate` call: `logits_processor` and `stopping_criteria`.

        `spec`: for all rows, or a list with one for each prompt, None where nothing guides; anything that
        `OutputSpec.parse` takes. Raises the error of a spec that can't be used. Processors and criteria of
        your own go first, so that no processor makes likely what was masked. `reuse`: for one call after
        another, as pipelines make them.
        """
        call = self._call(self._specs(spec), every_row=not _listed(spec), reuse=reuse)
        return GenerateKwargs(
            call,
            logits_processor=LogitsProcessorList([*logits_processor, GuidedProcessor(call)]),
            stopping_criteria=StoppingCriteriaList([*stopping_criteria, GuidedCriterion(call)]),
        )

    def logits_processor(self, spec: Any, *, reuse: bool = False) -> GuidedProcessor:
        """A processor that needs no criterion beside it; each step waits for the tokens of the last."""
        return GuidedProcessor(self._call(self._specs(spec), every_row=not _listed(spec), reuse=reuse))

    def generate(self, model: Any, inputs: Any, spec: Any, **options: Any) -> list[Generated]:
        """Generate, and read the outputs: text, tokens and, for JSON specs, the parsed object.

        `inputs`: a text or a list of texts, or what a tokenizer returns. `options` are those of
        `model.generate`. A row whose spec can't be used has an `error`; the others are generated.
        """
        _check_options(model, options)
        tensors = prompt_tensors(self._tokenizer, inputs, model.device)
        count = next(iter(tensors.values())).shape[0]
        wanted = list(spec) if _listed(spec) else [spec] * count
        if len(wanted) != count:
            raise ConfigError(f"{len(wanted)} specs for {count} prompts", where="spec", hint="one for each")
        specs: list[OutputSpec | None] = []
        refused: dict[int, GuidedError] = {}
        for row, one in enumerate(wanted):
            try:
                parsed = OutputSpec.parse(one)
                self._admit(parsed)
                specs.append(parsed)
            except GuidedError as error:
                refused[row] = error
                specs.append(None)
        rows = [row for row in range(count) if row not in refused]
        each = options.get("num_return_sequences") or model.generation_config.num_return_sequences or 1
        found: list[Generated] = []
        if rows:
            kwargs = self.generate_kwargs(
                [specs[row] for row in rows],
                logits_processor=options.pop("logits_processor", None) or (),
                stopping_criteria=options.pop("stopping_criteria", None) or (),
            )
            try:
                made = model.generate(**without_rows(tensors, refused), **_padding(model, options), **kwargs)
                found = outputs(
                    self._tokenizer,
                    self.compiler.vocabulary,
                    made,
                    kwargs.call,
                    [(specs[row], wanted[row]) for row in rows for _ in range(each)],
                    options,
                    model,
                )
            finally:
                kwargs.call.close()
        by_row = {row: found[n * each : (n + 1) * each] for n, row in enumerate(rows)}
        failed = {row: [Generated("", (), False, None, error)] * each for row, error in refused.items()}
        return [one for row in range(count) for one in {**by_row, **failed}[row]]

    def batching(self, manager: Any) -> GuidedBatching:
        """Guide the requests of a continuous batching manager that has not started yet."""
        from guided_plugin.hosts.transformers.batching import GuidedBatching

        return GuidedBatching(self.compiler, manager)

    def close(self) -> None:
        """End the worker processes. Those of running calls end with them."""
        self._pool.close()

    def __enter__(self) -> Guide:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # Inside

    def _specs(self, spec: Any) -> list[OutputSpec | None]:
        """Parsed; those that are wrong are told by their place."""
        if not _listed(spec):
            return [OutputSpec.parse(spec)]
        found = []
        for row, one in enumerate(spec):
            try:
                found.append(OutputSpec.parse(one))
            except GuidedError as error:
                raise _placed(error, row) from error
        if not found:
            raise ConfigError(
                "an empty list", where="spec", hint="one spec for each prompt, None for free text"
            )
        return found

    def _call(self, specs: list[OutputSpec | None], *, every_row: bool, reuse: bool) -> GenerateCall:
        loan = self._loan(specs)
        try:
            for row, spec in enumerate(specs):
                try:
                    self._admit(spec, loan)
                except GuidedError as error:
                    raise (error if every_row else _placed(error, row)) from error
        except BaseException:
            if loan is not None:
                self._pool.give_back(loan)
            raise
        return GenerateCall(self._pool, specs, every_row=every_row, reuse=reuse, loan=loan)

    def _loan(self, specs: Sequence[OutputSpec | None]) -> Loan | None:
        if self._device is None or all(spec is None for spec in specs):
            return None
        return self._pool.borrow(self._device, len(specs))

    def _admit(self, spec: OutputSpec | None, loan: Loan | None = None) -> None:
        """Compile where it will run, if that is known."""
        if spec is None:
            return
        if loan is not None:
            loan.pipeline.prepare(spec).result()
            return
        passing = self._loan([spec])
        if passing is None:
            self.compiler.compile(spec)
            return
        try:
            passing.pipeline.prepare(spec).result()
        finally:
            self._pool.give_back(passing)


def _vocabulary(tokenizer: Any, stop_token_ids: int | Iterable[int] | None) -> Vocabulary:
    stops = stop_token_ids if stop_token_ids is not None else getattr(tokenizer, "eos_token_id", None)
    if stops is None or (not isinstance(stops, int) and not list(stops)):
        raise ConfigError(
            "neither the model's generation config nor the tokenizer says which token ends an output",
            where="eos_token_id",
            hint="pass stop_token_ids, or set model.generation_config.eos_token_id",
        )
    return Vocabulary.from_tokenizer(tokenizer, stop_token_ids=stops)


def _listed(spec: Any) -> bool:
    return isinstance(spec, list | tuple)


def _placed(error: GuidedError, row: int) -> GuidedError:
    where = f"spec {row}: {error.where}" if error.where else f"spec {row}"
    return type(error)(error.what, where=where, hint=error.hint, request_id=error.request_id)


def _check_options(model: Any, options: Mapping[str, Any]) -> None:
    """Refuse before the first step what can't be guided."""
    chosen = options.get("generation_config") or model.generation_config
    beams = options.get("num_beams") or getattr(chosen, "num_beams", None) or 1
    lookup = options.get("prompt_lookup_num_tokens") or getattr(chosen, "prompt_lookup_num_tokens", None)
    if beams > 1 or options.get("assistant_model") is not None or lookup:
        raise ConfigError(
            "beam search and assisted generation can't be guided",
            where="generate",
            hint="num_beams=1, no assistant_model, no prompt_lookup_num_tokens",
        )
    if options.get("cache_implementation") == "paged":
        raise ConfigError(
            "a paged cache is continuous batching, which ignores what generate is given",
            where="cache_implementation",
            hint="use Guide.batching with model.init_continuous_batching()",
        )


def _padding(model: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options; where nobody names a padding token, with the one that `generate` would take, loudly."""
    chosen = options.get("generation_config") or model.generation_config
    if options.get("pad_token_id") is not None or getattr(chosen, "pad_token_id", None) is not None:
        return dict(options)
    eos = options.get("eos_token_id", getattr(chosen, "eos_token_id", None))
    first = cast("int | None", eos[0] if isinstance(eos, list | tuple) else eos)
    return dict(options) if first is None else {**options, "pad_token_id": first}
