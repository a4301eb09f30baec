"""What the rules of a grammar tell of text that must follow, and of how deep they nest.
Depends on rules.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from guided_plugin.grammar.llguidance.lark.rules import (
    Reference,
    Repeated,
    RuleSet,
    Symbol,
    Terminal,
    Text,
)


@dataclass(frozen=True, slots=True)
class _Run:
    """How many bytes of a part must follow each other."""

    whole: bool
    """Whether there is no choice in it."""
    first: int
    """From its beginning on."""
    last: int
    """Up to its end."""
    most: int


_CHOICE = _Run(False, 0, 0, 0)
_NOTHING = _Run(True, 0, 0, 0)


def forced_run(rules: RuleSet) -> float:
    """About the most bytes that may have to follow each other; rather too many."""
    runs = _Runs(rules)
    try:
        # Most rules are written before those that they need.
        found = [runs.of_rule(name) for name in reversed(rules.rules)]
        found.append(runs.of_symbol(rules.start))
    except RecursionError:
        return math.inf
    return max(run.most for run in found)


class _Runs:
    """The runs of one grammar's rules, each found once."""

    def __init__(self, rules: RuleSet) -> None:
        self._rules = rules
        self._known: dict[str, _Run] = {}

    def of_rule(self, name: str) -> _Run:
        """The run of a rule, whatever is chosen in it."""
        known = self._known.get(name)
        if known is not None:
            return known
        self._known[name] = _CHOICE  # where it needs itself
        run = _NOTHING
        alternatives = self._rules.rules[name].alternatives
        for number, alternative in enumerate(alternatives):
            other = self._of_symbols(alternative.symbols)
            run = _either(run, other) if number else other
        self._known[name] = run
        return run

    def of_symbol(self, symbol: Symbol) -> _Run:
        """The run of a symbol."""
        match symbol:
            case Reference():
                return self.of_rule(symbol.rule)
            case Repeated():
                return self._of_repeated(symbol)
            case Text():
                return _of_text(symbol.text)
            case Terminal():
                if symbol.literal is not None:
                    return _of_text(symbol.literal)
                most = symbol.known.most
                return _Run(False, most, most, most)
        return _CHOICE

    def _of_repeated(self, symbol: Repeated) -> _Run:
        once = self._of_symbols(symbol.symbols)
        if symbol.low and once.whole:
            size = symbol.low * once.first
            return _Run(symbol.low == symbol.high, size, size, size)
        most = max(once.most, once.last + once.first)
        return _Run(False, once.first, once.last, most)

    def _of_symbols(self, symbols: tuple[Symbol, ...]) -> _Run:
        run = _NOTHING
        for symbol in symbols:
            run = _joined(run, self.of_symbol(symbol))
        return run


def _of_text(text: str) -> _Run:
    """The run of a literal text."""
    size = len(text.encode())
    return _Run(True, size, size, size)


def _either(one: _Run, two: _Run) -> _Run:
    """The run of a choice. Alternatives of one size may have the same text."""
    return _Run(
        one.first == two.first and (one.whole or two.whole),
        max(one.first, two.first),
        max(one.last, two.last),
        max(one.most, two.most),
    )


def _joined(before: _Run, after: _Run) -> _Run:
    """The run of a part, and another one behind it."""
    first = before.first
    last = after.last
    if before.whole:
        first += after.first
    if after.whole:
        last += before.last
    most = max(before.most, after.most, before.last + after.first)
    return _Run(before.whole and after.whole, first, last, most)


def nesting(rules: RuleSet) -> int:
    """How deep rules and brackets nest as llguidance reads them: from the start, each
    rule where it is first named."""
    seen: set[str] = set()
    deepest = 0
    pending: list[tuple[Symbol, int]] = [(rules.start, 1)]
    while pending:
        symbol, depth = pending.pop()
        inner: list[Symbol] = []
        match symbol:
            case Repeated():
                inner += symbol.symbols
            case Reference():
                if symbol.rule not in seen:
                    seen.add(symbol.rule)
                    inner += rules.rules[symbol.rule].symbols()
            case _:
                continue
        deepest = max(deepest, depth)
        pending.extend((each, depth + 1) for each in reversed(inner))
    return deepest
