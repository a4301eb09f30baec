"""A table of grammars over a small vocabulary, step by step."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from guided_plugin.grammar.table import GrammarTable, Phase
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.grammar.xgrammar.backend import XGrammarBackend
from guided_plugin.spec import OutputSpec

__all__ = ["END", "EVERYTHING", "OTHER_END", "PAD", "THINK", "TOKENS", "VOCABULARY", "Table", "ids"]

TOKENS = (
    *(bytes([letter]) for letter in b"abcdefghijklmnopqrstuvwxyz0123456789 "),
    b"</s>",
    b"<end>",
    b"<think>",
)
END, OTHER_END, THINK = (TOKENS.index(name) for name in (b"</s>", b"<end>", b"<think>"))


PAD = 0  # the letter a: hosts pad with ordinary tokens too


EVERYTHING = set(range(64))


def ids(text: str) -> list[int]:
    return [TOKENS.index(letter.encode()) for letter in text]


VOCABULARY = Vocabulary(TOKENS, (END,), frozenset({END, OTHER_END, THINK}), encode=lambda text: ids(text))


class Table:
    """A `GrammarTable` with helpers; `mask` shows a step's masks as sets of token ids."""

    def __init__(self, backend: XGrammarBackend) -> None:
        self.inner = GrammarTable(VOCABULARY)
        self.backend = backend

    def add(self, slot: int, spec: OutputSpec, tokens: Iterable[int] = (), backend: object = None) -> None:
        chosen = backend or self.backend
        self.inner.add(slot, f"r{slot}", spec, chosen.compile(spec), chosen, tokens)

    def mask(self, *slots: int) -> list[set[int]]:
        rows = np.full((len(slots), VOCABULARY.words), 0x5A5A5A5A, np.int32)
        self.inner.fill(slots, rows)
        bits = np.unpackbits(rows.view(np.uint8), axis=1, bitorder="little")
        return [set(np.flatnonzero(row).tolist()) for row in bits]

    def phases(self, *slots: int) -> list[Phase]:
        return [self.inner.phase(slot) for slot in slots]

    def feed(self, slot: int, tokens: Iterable[int]) -> None:
        for token in tokens:
            self.inner.accept((slot,), [token])

    def failures(self) -> list[tuple[int, str]]:
        return [(slot, str(error)) for slot, error in self.inner.failures]
