"""Reads prompts and outputs: what `Guide.generate` does around `model.generate`. Depends on `call`."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from guided_plugin.errors import ConfigError, GuidedError, OutputError
from guided_plugin.grammar.request_state import Phase, RequestState
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.hosts.transformers.call import GenerateCall


@dataclass(frozen=True, slots=True)
class Generated:
    """One output. With an `error`, it is not what its spec asks for."""

    text: str
    tokens: tuple[int, ...]
    """Generated tokens, the stop token left out."""
    complete: bool
    """Whether it ended as its spec allows; without a spec, with a stop token. If not, it was cut."""
    parsed: Any = None
    """Of a complete output to JSON its value; to a type, a function or a compiled regex what `TypedSpec.read`
    returns."""
    error: GuidedError | None = None
    unenforced: tuple[str, ...] = ()
    """Keywords of its spec that nothing enforced, as `unenforced_keywords` allows: check it by them."""
    closed: bool = False
    """Whether it was led to its end before its token limit (`close_before_length`)."""


def option(model: Any, options: Mapping[str, Any], name: str) -> Any:
    """An option of a `generate` call, else of its generation config."""
    if name in options:
        return options[name]
    return getattr(options.get("generation_config") or model.generation_config, name, None)


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
        # Images, say: which of them belong to the row that is left out is not known.
        raise next(iter(refused.values()))
    keep = [row for row in range(count) if row not in refused]
    return {name: value[keep] for name, value in tensors.items()}


def outputs(
    tokenizer: Any,
    made: Any,
    call: GenerateCall,
    readers: Sequence[Callable[[str], Any] | None],
    model: Any,
    options: Mapping[str, Any],
) -> list[Generated]:
    """Read what `generate` returned. `readers`: what makes the value of an output, of each spec."""
    sequences: Tensor = made if isinstance(made, Tensor) else made.sequences
    rows = sequences[:, call.prompt_length :].tolist()
    vocabulary, errors, complete, led = call.vocabulary, call.errors, call.complete(), call.led
    eos = option(model, options, "eos_token_id")
    host_stops = (eos,) if isinstance(eos, int) else tuple(eos or ())
    found = []
    for row, tokens in enumerate(rows):
        place = row * len(call.specs) // len(rows)
        spec, read = call.specs[place], readers[place]
        stops = host_stops if spec is None else spec.stop_token_ids or vocabulary.stop_token_ids
        state = RequestState(vocabulary.triggers(None if spec is None else spec.start_after), stops)
        state.extend(array("q", tokens))
        done = state.phase is Phase.DONE
        kept = tuple(state.tokens[:-1] if done else state.tokens)
        if spec is None:
            text = str(tokenizer.decode(kept, skip_special_tokens=True))
            found.append(Generated(text, kept, done))
            continue
        error, parsed = errors.get(row), None
        guided = _text(vocabulary, kept[state.start :])
        readable = guided or not spec.is_json
        if complete[row] and error is None and read is not None and readable:
            try:
                parsed = read(guided)
            except OutputError as wrong:
                error = wrong
        left = call.unenforced.get(row, ())
        text, closed = _text(vocabulary, kept), row in led
        found.append(Generated(text, kept, complete[row], parsed, error, left, closed))
    return found


def _text(vocabulary: Vocabulary, tokens: Sequence[int]) -> str:
    """The bytes that the grammar saw: decoders strip spaces and tidy up punctuation."""
    known = (vocabulary.tokens[token] for token in tokens if token < vocabulary.size)
    return b"".join(known).decode(errors="replace")
