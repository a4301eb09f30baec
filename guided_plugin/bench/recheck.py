"""Checks an output again, with a fresh matcher. Depends on the compiler."""

from __future__ import annotations

from collections.abc import Iterable

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.grammar.renewal import rebuilds_shared
from guided_plugin.spec import OutputSpec


def refused_at(compiler: GrammarCompiler, spec: OutputSpec, tokens: Iterable[int]) -> int | None:
    """The index of the first token that a fresh matcher refuses; None if it accepts all."""
    grammar = compiler.compile(spec)
    backend, stops = compiler.backend(grammar.backend), compiler.vocabulary.stop_token_ids
    tokens = list(tokens)
    for _ in range(2):
        matcher = backend.start(grammar, stops)
        refused = next((place for place, token in enumerate(tokens) if not matcher.accept(token)), None)
        # A lexer that it shares with earlier matchers may be exhausted: then the next one has another.
        if refused is None or not rebuilds_shared(matcher):
            break
    return refused
