"""What a terminal takes, asked of llguidance: anything, one text, and which texts where they are few."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from guided_plugin.spec.memo import remembered, texts_bytes

# Patterns that meet length bounds need fuel: requests that end with llguidance's own limits work with these.
# A mask that needs all of a step's takes 60 ms; the next ones in the same state take none.
FUEL = {"initial_lexer_fuel": 4_000_000, "step_lexer_fuel": 4_000_000}
"""The work that a lexer may do when it is made, and for one mask."""

_MATCHER_BYTES = 200_000
"""A guess at what a matcher and what its lexer learns take."""
_QUOTE = ord('"')
# How many bytes are tried to find out whether a terminal takes only a few texts, and how long these may be.
_MAX_STEPS = 3_000
_MAX_BYTES = 100


class _Bytes:
    """A vocabulary of single bytes."""

    eos_token_id = 256
    bos_token_id = unk_token_id = None
    tokens = (*(bytes([byte]) for byte in range(256)), b"</s>")
    special_token_ids = (256,)

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


@cache
def _tokenizer() -> Any:
    import llguidance

    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()), n_vocab=257)


def _matcher(body: str) -> Any:
    import llguidance

    text = f'%llguidance {{"no_forcing": true}}\nstart: T\nT: {body}\n'
    limits = llguidance.LLParserLimits(**FUEL, verbose_errors=False)
    return llguidance.LLMatcher(_tokenizer(), text, log_level=0, limits=limits)


@remembered(texts_bytes)
def takes_nothing(body: str) -> bool:
    """Whether a terminal takes no text. False where llguidance can't tell."""
    matcher = _matcher(body)
    return not matcher.get_error() and not _next_bytes(matcher)


@remembered(lambda body, _: _MATCHER_BYTES + texts_bytes(body))
def _start(body: str) -> Any:
    return _matcher(body)


def takes(body: str, text: bytes) -> bool | None:
    """Whether a terminal takes a text, in time linear in its length; None where llguidance can't tell.

    Python's `re` would take exponential time for some patterns, and clients write them.
    """
    matcher = _start(body).deep_copy()
    tokens = list(text)
    if matcher.is_error() or matcher.validate_tokens(tokens) != len(tokens):
        return None if matcher.is_error() else False
    return bool(not tokens or matcher.consume_tokens(tokens)) and bool(matcher.is_accepting())


@remembered(texts_bytes)
def few_strings(body: str, limit: int) -> tuple[str, ...] | None:
    """The strings whose JSON a terminal takes, where these are short and at most so many; else None."""
    matcher = _matcher(body)
    if matcher.get_error():
        return None
    found: dict[str, None] = {}
    text = bytearray()
    levels = [_next_bytes(matcher)]
    for _ in range(_MAX_STEPS):
        if not levels[-1]:
            levels.pop()
            if not levels:
                return tuple(found)
            text.pop()
            matcher.rollback(1)
            continue
        byte = levels[-1].pop()
        matcher.consume_token(byte)
        text.append(byte)
        if byte == _QUOTE and len(text) > 1 and matcher.is_accepting():
            found[json.loads(text)] = None
            if len(found) > limit:
                return None
        if len(text) > _MAX_BYTES:
            return None
        levels.append(_next_bytes(matcher))
    return None


def _next_bytes(matcher: Any) -> list[int]:
    """What may come next; quotes last, where they are taken first."""
    bits = int.from_bytes(matcher.compute_bitmask()[:32], "little")
    found = [byte for byte in range(256) if bits >> byte & 1 and byte != _QUOTE]
    return [*found, _QUOTE] if bits >> _QUOTE & 1 else found
