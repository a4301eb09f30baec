"""What the rules of a grammar tell of text that must follow, and of how deep they nest.
Depends on rules.
"""

from __future__ import annotations

import math

from guided_plugin.grammar.llguidance.lark.rules import (
    Reference,
    Repeated,
    RuleSet,
    Symbol,
    Terminal,
    Text,
)


def forced_run(rules: RuleSet) -> float:
    """About the most bytes that may have to follow each other."""
    runs = _Runs(rules)
    try:
        # Most rules are written before those that they need.
        for name in reversed(rules.rules):
            runs.of_rule(name)
        runs.of_symbols((rules.start,))
    except RecursionError:
        return math.inf
    return runs.most


class _Runs:
    """The bytes of one grammar's parts without a choice in them; None for others."""

    def __init__(self, rules: RuleSet) -> None:
        self._rules = rules
        self._known: dict[str, int | None] = {}
        self.most = 0
        """The most bytes in a row, as far as it was asked."""

    def of_rule(self, name: str) -> int | None:
        """The bytes of a rule."""
        if name not in self._known:
            self._known[name] = None  # where it needs itself
            alternatives = self._rules.rules[name].alternatives
            sizes = [self.of_symbols(one.symbols) for one in alternatives]
            self._known[name] = sizes[0] if len(sizes) == 1 else None
        return self._known[name]

    def of_symbols(self, symbols: tuple[Symbol, ...]) -> int | None:
        """The bytes of symbols one after the other."""
        run = 0
        whole = True
        for symbol in symbols:
            size = self._of_symbol(symbol)
            whole = whole and size is not None
            run = 0 if size is None else run + size
            self.most = max(self.most, run)
        return run if whole else None

    def _of_symbol(self, symbol: Symbol) -> int | None:
        match symbol:
            case Reference():
                return self.of_rule(symbol.rule)
            case Repeated(symbols, low, high):
                size = self.of_symbols(symbols)
                run = low * (size or 0)
                self.most = max(self.most, run)
                return run if size is not None and low == high else None
            case Text(text):
                return len(text.encode())
            case Terminal(literal=str(text)):
                return len(text.encode())
            case Terminal():
                self.most = max(self.most, symbol.known.most)
        return None


def nesting(rules: RuleSet) -> int:
    """How deep rules and brackets nest as llguidance reads them: from the start, each
    rule where it is first named."""
    seen: set[str] = set()
    deepest = 0
    pending: list[tuple[Symbol, int]] = [(rules.start, 1)]
    while pending:
        symbol, depth = pending.pop()
        match symbol:
            case Repeated():
                inner = [*symbol.symbols]
            case Reference(name) if name not in seen:
                seen.add(name)
                inner = rules.rules[name].symbols()
            case _:
                continue
        deepest = max(deepest, depth)
        pending.extend((each, depth + 1) for each in reversed(inner))
    return deepest
