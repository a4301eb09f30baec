"""Compiled grammars, bounded in bytes. Depends on grammar/base.py and spec/memo.py.

Not thread-safe: the compiler holds its lock.
"""

from __future__ import annotations

from guided_plugin.grammar.base import Grammar
from guided_plugin.spec import OutputSpec
from guided_plugin.spec.memo import Latest


class GrammarCache(Latest[OutputSpec, Grammar]):
    """Compiled grammars; those used least recently go first."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        self.hits = 0

    def get(self, key: OutputSpec) -> Grammar | None:
        """The grammar of a spec, if it is there."""
        grammar = super().get(key)
        self.hits += grammar is not None
        return grammar
