"""What a compiler remembers of specs that compiled, bounded in bytes. Depends on grammar/base.py.

Not thread-safe: the compiler holds its lock.
"""

from __future__ import annotations

from typing import TypeVar

from guided_plugin.grammar.base import Grammar, Prepared
from guided_plugin.spec import OutputSpec
from guided_plugin.spec.memo import Latest

K = TypeVar("K", bound=Grammar | Prepared)


class GrammarCache(Latest[OutputSpec, K]):
    """Compiled grammars, or what they are loaded from; those used least recently go first."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        self.hits = 0

    def get(self, key: OutputSpec) -> K | None:
        """What there is of a spec, if it is there."""
        found = super().get(key)
        self.hits += found is not None
        return found
