"""Vocabularies that are small enough to reason about."""

from guided_plugin.grammar.vocabulary import Vocabulary

MULTI_BYTE_TOKENS = (
    b'{"',
    b'":',
    b'",',
    b'"}',
    b"true",
    b"false",
    b"null",
    b" the",
    "é".encode(),
    b"12",
)
"""Ids 256 and up of `byte_vocabulary`; its stop token `</s>` comes after them."""

_TOKENS = [*(bytes([byte]) for byte in range(256)), *MULTI_BYTE_TOKENS, b"</s>"]

BYTES = Vocabulary.from_tokens(_TOKENS, [len(_TOKENS) - 1])
"""Token i is byte i for i < 256, then a few tokens of several bytes, then the stop
token `</s>`."""
