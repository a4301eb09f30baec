"""A table of grammars over a small vocabulary, and a backend that does what a test
says."""

from __future__ import annotations

import copy

import numpy as np
from compilers import tokens_of

from guided_plugin.grammar.base import Grammar
from guided_plugin.grammar.table import GrammarTable
from guided_plugin.grammar.vocabulary import Vocabulary

_LETTERS = b'abcdefghijklmnopqrstuvwxyz0123456789 {}[]":,-.'
TOKENS = (
    *(bytes([letter]) for letter in _LETTERS),
    *(b'{"', b'":', b"ab", b"12", b'"}'),
    *(b"</s>", b"<end>", b"<think>"),
)
END, OTHER_END, THINK = (TOKENS.index(name) for name in (b"</s>", b"<end>", b"<think>"))
EVERYTHING = set(range(64))


def ids(text):
    """A token for each letter."""
    return [TOKENS.index(letter.encode()) for letter in text]


VOCABULARY = Vocabulary(TOKENS, (END,), frozenset({END, OTHER_END, THINK}), encode=ids)


class Table(GrammarTable):
    """A table over `VOCABULARY`, with helpers."""

    def __init__(self, **options):
        super().__init__(VOCABULARY, **options)

    def start(self, slot, spec, backend, tokens=()):
        """Add a request that is named after its slot."""
        self.add(slot, f"r{slot}", spec, backend.compile(spec), backend, tokens)

    def masks(self, *slots):
        """A step's masks, as sets of token ids."""
        rows = np.full((len(slots), VOCABULARY.words), 0x5A5A5A5A, np.int32)
        self.fill(slots, rows)
        return [set(tokens) for tokens in tokens_of(rows)]

    def feed(self, slot, tokens):
        """Tokens that were sampled without a look at masks."""
        for token in tokens:
            self.accept((slot,), [token])

    def told(self):
        """The failures, as texts."""
        return [(slot, str(error)) for slot, error in self.failures]


class ScriptedBackend:
    """A backend whose matchers take every token; tests say in methods what it does
    instead."""

    name = "scripted"

    def accepts(self, matcher, token):
        return True

    def forks(self, matcher):
        """Before a copy is made."""

    def fills(self, matchers):
        """Before the masks of a batch are filled."""

    def mask(self, matcher):
        return -1

    def compile(self, spec):
        return Grammar(spec, self.name, None, 0, 0.0, bounded=True)

    def start(self, grammar, stop_token_ids):
        return ScriptedMatcher(self, grammar)

    def batch(self, matchers):
        return ScriptedBatch(self, list(matchers))


class ScriptedMatcher:
    """May stop at any time."""

    complete = True

    def __init__(self, backend, grammar):
        self.backend = backend
        self.spec = grammar.spec
        self.handle = grammar.handle
        self.tokens: list[int] = []

    def accept(self, token):
        taken = self.backend.accepts(self, token)
        self.tokens = self.tokens + [token] * taken
        return taken

    def fork(self):
        self.backend.forks(self)
        return copy.copy(self)


class ScriptedBatch:
    def __init__(self, backend, matchers):
        self.backend = backend
        self.matchers = matchers

    def accept(self, tokens):
        assert all(type(token) is int for token in tokens)
        return [
            matcher.accept(token)
            for matcher, token in zip(self.matchers, tokens, strict=True)
        ]

    def fill(self, mask, rows):
        self.backend.fills(self.matchers)
        for matcher, row in zip(self.matchers, rows, strict=True):
            mask[row] = self.backend.mask(matcher)
