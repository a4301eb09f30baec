"""Where the reasoning part of an output ends, as vLLM's reasoning parsers know it. Imports vLLM lazily."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from guided_plugin.errors import RequestError
from guided_plugin.grammar.vocabulary import Vocabulary


def reasoning_end(
    name: str,
    vllm_config: Any,
    vocabulary: Vocabulary,
    note: Mapping[str, Any],
    prompt_token_ids: list[int] | None,
) -> tuple[int, ...]:
    """The tokens that end the reasoning part; empty if the output has no such part.

    `name` is the parser's. `note` holds `ended` (whether the prompt ends the reasoning, None where the caller
    does not say) and `kwargs` (the parser's arguments, such as those of the chat template).
    """
    ended = note.get("ended")
    if ended:
        return ()
    from vllm.reasoning import ReasoningParserManager
    from vllm.tokenizers import cached_tokenizer_from_config

    tokenizer = cached_tokenizer_from_config(model_config=vllm_config.model_config)
    kwargs = note.get("kwargs") or {}
    parser = ReasoningParserManager.get_reasoning_parser(name)(tokenizer=tokenizer, **kwargs)
    if ended is None and parser.is_reasoning_end(prompt_token_ids or []):
        return ()
    end = getattr(parser, "end_token_id", None)
    if isinstance(end, int):
        return (end,)
    text = parser.reasoning_end_str
    if text:
        return vocabulary.sequence(text)
    raise RequestError(
        f"the reasoning parser {name!r} does not say what ends the reasoning",
        hint="give start_after in the spec",
    )
