"""Every output of a benchmark is checked again: by a matcher that saw nothing else. Touches the compiler."""

from __future__ import annotations

from collections.abc import Iterable

from guided_plugin.grammar.compiler import GrammarCompiler
from guided_plugin.spec import OutputSpec

__all__ = ["refused_at"]


def refused_at(compiler: GrammarCompiler, spec: OutputSpec, tokens: Iterable[int]) -> int | None:
    """The place of the first token that a fresh matcher refuses; None if it takes them all."""
    grammar = compiler.compile(spec)
    matcher = compiler.backend(grammar.backend).start(grammar, compiler.vocabulary.stop_token_ids)
    return next((place for place, token in enumerate(tokens) if not matcher.accept(token)), None)
