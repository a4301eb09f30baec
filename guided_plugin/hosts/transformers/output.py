"""Reads prompts and outputs: what `Guide.generate` does around `model.generate`.
Depends on `call`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from guided_plugin.errors import ConfigError, GuidedError, OutputError, shown
from guided_plugin.grammar.request_state import Phase
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.hosts.batch import left_padded
from guided_plugin.hosts.transformers.call import GenerateCall


@dataclass(frozen=True, slots=True)
class Generated:
    """One output. With an `error`, it is not what its spec asks for."""

    text: str
    tokens: tuple[int, ...]
    """Generated tokens, the stop token left out."""
    complete: bool
    """True if it ended as its spec allows; without a spec, with a stop token. If not,
    it was cut."""
    parsed: Any = None
    """The value of a complete output: JSON's, or what `TypedSpec.read` returns for a
    type."""
    error: GuidedError | None = None
    unenforced: tuple[str, ...] = ()
    """Keywords of its spec that nothing enforced, as `unenforced_keywords` allows:
    check it by them."""
    closed: str = ""
    """With `close_before_length`: `led`, if it was led to its end before its token
    limit, or `unprotected: ...`, why it could be cut there. Else empty."""


def option(model: Any, options: Mapping[str, Any], name: str) -> Any:
    """An option of a `generate` call, else of its generation config."""
    if name in options:
        return options[name]
    return getattr(
        options.get("generation_config") or model.generation_config, name, None
    )


def prompt_tensors(tokenizer: Any, inputs: Any, device: Any) -> dict[str, Tensor]:
    """Tensors for `generate`: of texts and chats, padded on the left; of a tokenizer's
    output, as it is."""
    if isinstance(inputs, str) or _is_chat(inputs):
        inputs = [inputs]
    if isinstance(inputs, Tensor):
        inputs = {"input_ids": inputs}
    if isinstance(inputs, Mapping):
        tensors = {name: value for name, value in inputs.items() if value is not None}
        if not tensors or not all(
            isinstance(value, Tensor) for value in tensors.values()
        ):
            raise ConfigError(
                "must hold tensors",
                where="inputs",
                hint='tokenizer(..., return_tensors="pt")',
            )
        return {name: value.to(device) for name, value in tensors.items()}
    listed = isinstance(inputs, Sequence) and bool(inputs)
    if not listed or not all(isinstance(one, str) or _is_chat(one) for one in inputs):
        raise ConfigError(
            f"must be texts, chats or a tokenizer's output, not {shown(inputs)}",
            where="inputs",
            hint='a chat is [{"role": "user", "content": "..."}]',
        )
    ids = [_token_ids(tokenizer, one) for one in inputs]
    if min(map(len, ids)) == 0:
        raise ConfigError(
            "an empty prompt", where="inputs", hint="give at least one token"
        )
    pad = getattr(tokenizer, "pad_token_id", None) or 0
    tokens, seen = left_padded(ids, pad, device)
    return {"input_ids": tokens, "attention_mask": seen}


def _is_chat(prompt: Any) -> bool:
    listed = isinstance(prompt, list | tuple) and bool(prompt)
    return listed and all(
        isinstance(message, Mapping) and "role" in message for message in prompt
    )


def _token_ids(tokenizer: Any, prompt: Any) -> list[int]:
    """Return the token ids of a text, or of the messages of a chat, whose last one goes
    on if it is an assistant's."""
    if isinstance(prompt, str):
        return list(tokenizer(prompt)["input_ids"])
    if not getattr(tokenizer, "chat_template", None):
        hint = "set tokenizer.chat_template, or give texts"
        raise ConfigError(
            "the tokenizer has no chat template", where="inputs", hint=hint
        )
    last = prompt[-1]["role"] == "assistant"
    how = {"add_generation_prompt": not last, "continue_final_message": last}
    text = tokenizer.apply_chat_template(list(prompt), tokenize=False, **how)
    # the template writes the first ones
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def without_rows(
    tensors: dict[str, Tensor], refused: Mapping[int, GuidedError]
) -> dict[str, Tensor]:
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
    """Read what `generate` returned. `readers`: what makes the value of an output, of
    each spec."""
    sequences: Tensor = made if isinstance(made, Tensor) else made.sequences
    run = call.run
    rows = sequences[:, run.prompt_length :].tolist()
    vocabulary = call.vocabulary
    errors = run.failures()
    states = run.states()
    told = run.told()
    eos = option(model, options, "eos_token_id")
    stops = (eos,) if isinstance(eos, int) else tuple(eos or ())
    found = []
    for row, tokens in enumerate(rows):
        place = row * len(call.specs) // len(rows)
        spec = call.specs[place]
        read = readers[place]
        if spec is None:
            end = next((i for i, token in enumerate(tokens) if token in stops), None)
            text = str(tokenizer.decode(tokens[:end], skip_special_tokens=True))
            found.append(Generated(text, tuple(tokens[:end]), end is not None))
            continue
        state = states[row]
        done = state.phase is Phase.DONE
        kept = tuple(state.tokens[:-1] if done else state.tokens)
        error = errors.get(row)
        parsed = None
        guided = _text(vocabulary, kept[state.start :])
        readable = guided or not spec.is_json
        if done and error is None and read is not None and readable:
            try:
                parsed = read(guided)
            except OutputError as wrong:
                error = wrong
        info = told[row]
        how = info.unenforced, info.closed
        text = _text(vocabulary, kept)
        found.append(Generated(text, kept, done, parsed, error, *how))
    return found


def _text(vocabulary: Vocabulary, tokens: Sequence[int]) -> str:
    """The bytes that the grammar saw: decoders strip spaces and tidy up punctuation."""
    return b"".join(
        vocabulary.tokens[token] for token in tokens if token < vocabulary.size
    ).decode(errors="replace")
