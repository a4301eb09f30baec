"""The end of the reasoning part of an output, as vLLM's reasoning parsers know it.
Imports vLLM lazily.

A parser answers for tokens that are there; a grammar has to know the end before it
comes. So the ends are read from a parser's attributes, and it is asked whether they are
ends: one that can't be read is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from guided_plugin.config import SpecLimits
from guided_plugin.errors import RequestError
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.hosts.vllm.common import is_within, tokenizer_of
from guided_plugin.spec.triggers import Trigger

_MOST_PARSERS = 32
_SMALL = SpecLimits(max_spec_bytes=4096)
"""Parsers are kept by their arguments, which come from clients: so many, with arguments
so long."""

_ENDS = "_guided_ends"
"""The attribute of a parser with what ends the reasoning, once that was asked for."""

_SEQUENCES = ("_think_close_ids", "_end_token_ids")
"""Attributes in which parsers keep the tokens of an end that is more than one."""

_FIRSTS_AND_REST = ("think_end_first_token_ids", "think_end_rest_token_ids")
"""Attributes of a parser whose end may begin with several tokens."""


@dataclass(slots=True, eq=False)
class Said:
    """The statement of AsyncLLM's caller on the reasoning of a request."""

    ended: bool | None
    """True if the prompt ends it; None where the caller does not say."""
    kwargs: Mapping[str, Any]
    """The parser's arguments, such as those of the chat template."""

    def __deepcopy__(self, memo: Any) -> Said:
        # vLLM clones the params of each request, and clients give the arguments
        return self


class Reasoning:
    """The reasoning parts of the outputs of one engine."""

    def __init__(self, name: str, vllm_config: Any, vocabulary: Vocabulary) -> None:
        """`name` is the parser's."""
        self._name = name
        self._config = vllm_config
        self._vocabulary = vocabulary
        self._parsers: dict[str, Any] = {}
        """By their arguments. To make one takes as long as its tokenizer takes to list
        its vocabulary."""

    def ends(self, said: Said, prompt_token_ids: Sequence[int]) -> tuple[Trigger, ...]:
        """Return what ends the reasoning part of an output; empty if it has none.
        Raises RequestError."""
        if said.ended:
            return ()
        parser = self._kept(said.kwargs)
        if said.ended is None and parser.is_reasoning_end(prompt_token_ids):
            return ()
        if not hasattr(parser, _ENDS):
            setattr(parser, _ENDS, self._ends_of(parser, said.kwargs))
        ends: tuple[Trigger, ...] = getattr(parser, _ENDS)
        return ends

    def _kept(self, kwargs: Mapping[str, Any]) -> Any:
        """A parser of these arguments, which is kept if they are small."""
        if not is_within(kwargs, _SMALL):
            return self._parser(kwargs)
        key = json.dumps(kwargs, sort_keys=True, default=repr)
        parser = self._parsers.get(key)
        if parser is None:
            parser = self._parser(kwargs)
            if len(self._parsers) >= _MOST_PARSERS:
                self._parsers.clear()
            self._parsers[key] = parser
        return parser

    def _parser(self, kwargs: Mapping[str, Any]) -> Any:
        from vllm.reasoning import ReasoningParserManager

        make = ReasoningParserManager.get_reasoning_parser(self._name)
        try:
            return make(tokenizer=tokenizer_of(self._config), **kwargs)
        except Exception as error:  # clients give the arguments
            raise RequestError(
                f"the reasoning parser {self._name!r} can't be made: {error}",
                where="reasoning",
                hint="check chat_template_kwargs and the model's tokenizer",
            ) from error

    def _ends_of(self, parser: Any, kwargs: Mapping[str, Any]) -> tuple[Trigger, ...]:
        found = tuple(dict.fromkeys(self._candidates(parser)))
        # Its answers may change what it remembers, so another one is asked.
        if found and all(_is_end(self._parser(kwargs), one) for one in found):
            return found
        if _is_end(self._parser(kwargs), Trigger((0,))):
            return ()  # any token is: there is no reasoning
        raise RequestError(
            f"the reasoning parser {self._name!r} does not say which tokens end the reasoning",
            hint="give start_after in the spec, or constrain the reasoning too (enable_in_reasoning)",
        )

    def _candidates(self, parser: Any) -> list[Trigger]:
        """Return the ends of the reasoning that a parser's attributes name."""
        inner = getattr(parser, "_parser", None)
        if hasattr(inner, "is_reasoning_end_streaming"):
            parser = inner  # it leaves the work to another one
        text: str | None = parser.reasoning_end_str
        ids = getattr(parser, "reasoning_end_token_ids", None)
        if ids:
            own = tokenizer_of(self._config).get_vocab().get(text)
            return [Trigger((token,), kept=token != own) for token in sorted(ids)]
        single = getattr(parser, "end_token_id", None)
        if isinstance(single, int):
            return [Trigger((single,))]
        for name in _SEQUENCES:
            if getattr(parser, name, None):
                return [Trigger(tuple(getattr(parser, name)))]
        firsts, rest = (getattr(parser, name, ()) for name in _FIRSTS_AND_REST)
        if firsts:
            return [Trigger((first, *rest)) for first in firsts]
        return [Trigger(self._vocabulary.sequence(text))] if text else []


def _is_end(parser: Any, trigger: Trigger) -> bool:
    """True if a parser takes these tokens for the end, and nothing before the last of
    them."""
    tokens = list(trigger.tokens)
    *before, last = [
        parser.is_reasoning_end_streaming(tokens[:i], tokens[i - 1 : i])
        for i in range(1, len(tokens) + 1)
    ]
    return bool(last) and not any(before)
