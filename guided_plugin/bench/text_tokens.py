"""Texts as the tokens in which a model would write them. Depends on the vocabulary."""

from __future__ import annotations

from functools import cached_property

from guided_plugin.errors import VocabularyError
from guided_plugin.grammar.vocabulary import Vocabulary


class TextTokens:
    """Encodes texts with the tokenizer, or with the longest tokens that fit where that changes the text.

    A tokenizer may normalise a text, or read a part of it as a control token.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def __call__(self, text: str) -> list[int]:
        """The tokens whose bytes are the text's."""
        data = text.encode()
        encode, pieces = self._vocabulary.encode, self._vocabulary.text_tokens
        if encode is not None:
            tokens = encode(text)
            if b"".join(pieces[token] for token in tokens) == data:
                return tokens
        return self.longest(data)

    def longest(self, data: bytes) -> list[int]:
        """From left to right, each time the longest token that fits."""
        by_bytes, longest = self._by_bytes, self._longest
        tokens = []
        position = 0
        while position < len(data):
            for size in range(min(longest, len(data) - position), 0, -1):
                token = by_bytes.get(data[position : position + size])
                if token is not None:
                    tokens.append(token)
                    position += size
                    break
            else:
                raise VocabularyError(
                    f"no token spells byte {data[position]:#04x}", hint="the vocabulary lacks single bytes"
                )
        return tokens

    @cached_property
    def _by_bytes(self) -> dict[bytes, int]:
        return {piece: token for token, piece in enumerate(self._vocabulary.text_tokens) if piece}

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._by_bytes), default=0)
