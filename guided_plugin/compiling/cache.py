"""What a compiler remembers: grammars, bounded in bytes, and facts on specs, bounded in number.

Depends on grammar/base.py. Not thread-safe: the compiler holds its lock.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

from guided_plugin.grammar.base import Grammar
from guided_plugin.spec import OutputSpec

T = TypeVar("T")


class Latest(OrderedDict[OutputSpec, T]):
    """A dictionary that keeps the entries that were set or touched last."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, spec: OutputSpec, value: T) -> None:
        super().__setitem__(spec, value)
        self.move_to_end(spec)
        if len(self) > self._most:
            self.popitem(last=False)


class GrammarCache:
    """Compiled grammars; those used least recently go first."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.size_bytes = self.hits = self.evictions = 0
        self._grammars: OrderedDict[OutputSpec, Grammar] = OrderedDict()

    def __len__(self) -> int:
        return len(self._grammars)

    def get(self, spec: OutputSpec) -> Grammar | None:
        """The grammar of a spec, if it is there."""
        grammar = self._grammars.get(spec)
        if grammar is not None:
            self._grammars.move_to_end(spec)
            self.hits += 1
        return grammar

    def put(self, spec: OutputSpec, grammar: Grammar) -> None:
        """Keep a grammar, unless it is larger than the whole cache."""
        if grammar.size_bytes > self.limit_bytes:
            return
        self._grammars[spec] = grammar
        self.size_bytes += grammar.size_bytes
        while self.size_bytes > self.limit_bytes:
            self.drop(next(iter(self._grammars)))
            self.evictions += 1

    def drop(self, spec: OutputSpec) -> None:
        """Forget the grammar of a spec, if it is there."""
        dropped = self._grammars.pop(spec, None)
        self.size_bytes -= dropped.size_bytes if dropped is not None else 0
