"""Prompts in, outputs out: what `Guide.generate` does around `model.generate`. Imports torch."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from guided_plugin.errors import ConfigError, GuidedError, RequestError
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.hosts.transformers.call import GenerateCall
from guided_plugin.spec import OutputSpec

__all__ = ["Generated", "outputs", "prompt_tensors", "without_rows"]


@dataclass(frozen=True, slots=True)
class Generated:
    """One output. With an `error`, nothing in it may be taken for what its spec asks for."""

    text: str
    tokens: tuple[int, ...]
    """Generated tokens, the stop token left out."""
    complete: bool
    """Whether it ended as its spec allows; without a spec, with a stop token. If not, it was cut."""
    parsed: Any = None
    """Of a complete output to a JSON spec: the value; an instance, if the spec was a pydantic model."""
    error: GuidedError | None = None


def prompt_tensors(tokenizer: Any, inputs: Any, device: Any) -> dict[str, Tensor]:
    """Tensors for `generate`: of texts, padded on the left; of what a tokenizer returns, as they are."""
    if isinstance(inputs, str):
        inputs = [inputs]
    if isinstance(inputs, Tensor):
        inputs = {"input_ids": inputs}
    if isinstance(inputs, Mapping):
        tensors = {name: value for name, value in inputs.items() if value is not None}
        if not tensors or not all(isinstance(value, Tensor) for value in tensors.values()):
            raise ConfigError("must hold tensors", where="inputs", hint='tokenizer(..., return_tensors="pt")')
        return {name: value.to(device) for name, value in tensors.items()}
    if not isinstance(inputs, Sequence) or not inputs or not all(isinstance(one, str) for one in inputs):
        raise ConfigError(
            f"must be a text, texts or a tokenizer's output, not {type(inputs).__name__}",
            where="inputs",
            hint="apply a chat template first: tokenizer.apply_chat_template(...)",
        )
    ids = [tokenizer(text)["input_ids"] for text in inputs]
    width = max(map(len, ids))
    if min(map(len, ids)) == 0:
        raise ConfigError("an empty prompt", where="inputs", hint="give at least one token")
    pad = getattr(tokenizer, "pad_token_id", None) or 0
    return {
        "input_ids": torch.tensor([[pad] * (width - len(one)) + one for one in ids], device=device),
        "attention_mask": torch.tensor([[0] * (width - len(one)) + [1] * len(one) for one in ids]).to(device),
    }


def without_rows(tensors: dict[str, Tensor], refused: Mapping[int, GuidedError]) -> dict[str, Tensor]:
    """The inputs of the rows that are generated."""
    if not refused:
        return tensors
    count = next(iter(tensors.values())).shape[0]
    if any(value.shape[0] != count for value in tensors.values()):
        # Images, say: nobody knows which of them belong to the row that is left out.
        raise next(iter(refused.values()))
    keep = [row for row in range(count) if row not in refused]
    return {name: value[keep] for name, value in tensors.items()}


def outputs(
    tokenizer: Any,
    vocabulary: Vocabulary,
    made: Any,
    call: GenerateCall,
    specs: Sequence[tuple[OutputSpec | None, Any]],
    options: Mapping[str, Any],
    model: Any,
) -> list[Generated]:
    """Read what `generate` returned; `specs` has the spec of each row, parsed and as given."""
    sequences: Tensor = made if isinstance(made, Tensor) else made.sequences
    rows = sequences[:, call.prompt_length :].tolist()
    errors, complete = call.errors, call.complete()
    host_stops = _host_stops(model, options)
    found = []
    for row, (tokens, (spec, given)) in enumerate(zip(rows, specs, strict=True)):
        stops = host_stops if spec is None else {*(spec.stop_token_ids or vocabulary.stop_token_ids)}
        end = next((i for i, token in enumerate(tokens) if token in stops), None)
        kept = tuple(tokens[:end])
        if spec is None:
            text = str(tokenizer.decode(kept, skip_special_tokens=True))
            found.append(Generated(text, kept, end is not None))
            continue
        # The bytes that the grammar saw: decoders strip spaces and tidy up punctuation.
        text = _text(vocabulary, kept)
        whole, error = complete[row], errors.get(row)
        parsed = None
        if whole and error is None and spec.kind in ("json_schema", "json_object"):
            try:
                parsed = _parsed(_text(vocabulary, kept[_start(vocabulary, spec, kept) :]), given)
            except ValueError as wrong:
                error = RequestError(f"can't be parsed: {wrong}", where=f"row {row}", hint="see `text`")
        found.append(Generated(text, kept, whole, parsed, error))
    return found


def _text(vocabulary: Vocabulary, tokens: Sequence[int]) -> str:
    return b"".join(vocabulary.tokens[token] for token in tokens if token < vocabulary.size).decode(
        errors="replace"
    )


def _start(vocabulary: Vocabulary, spec: OutputSpec, tokens: tuple[int, ...]) -> int:
    """Where the constrained part begins."""
    if spec.start_after is None:
        return 0
    trigger = vocabulary.sequence(spec.start_after)
    ends = range(len(trigger), len(tokens) + 1)
    # Without it the output ended before the constrained part: nothing is left to parse.
    return next((end for end in ends if tokens[end - len(trigger) : end] == trigger), len(tokens))


def _parsed(text: str, given: Any) -> Any:
    if not text:
        return None
    if isinstance(given, type) and hasattr(given, "model_validate_json"):
        return given.model_validate_json(text)
    return json.loads(text)


def _host_stops(model: Any, options: Mapping[str, Any]) -> Container[int]:
    config = options.get("generation_config") or model.generation_config
    eos = options.get("eos_token_id", getattr(config, "eos_token_id", None))
    return {eos} if isinstance(eos, int) else {*(eos or ())}
