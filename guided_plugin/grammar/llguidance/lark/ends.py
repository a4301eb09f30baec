"""What the rules of a grammar tell of the ends of its outputs. Depends on rules and
patterns.

Each rule has a shortest text: a least fixed point over the rules. Where a choice is
open, what is chosen may need more than the shortest: the texts that one choice may add
bound how much longer one token can make the shortest ending.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from guided_plugin.grammar.llguidance.lark.patterns import shortest_text
from guided_plugin.grammar.llguidance.lark.rules import (
    NEVER,
    Ends,
    Reference,
    Repeated,
    Rule,
    RuleSet,
    Symbol,
    Terminal,
    Text,
)
from guided_plugin.grammar.llguidance.lark.terminals import COLON, COMMA

_MOST_CHOICES = 16
"""Texts that a choice may add, the longest: shorter ones need fewer tokens."""
_CONTROL = b"\xff"
"""A control token, which no text spells."""
_CLIENT_REACH = 64
"""For grammars that clients write, whose rules are not read. Chosen, not measured."""


def ends_of(rules: RuleSet | None) -> Ends:
    """What the rules of a grammar tell; little of a client's own grammar."""
    if rules is None:
        return Ends(reach=_CLIENT_REACH)
    reader = _Reader(rules)
    terminals = rules.terminals.values()
    return Ends(
        reader.shortest(),
        tuple(sorted(reader.names())),
        tuple(sorted(reader.texts(), key=len)),
        reader.choices(),
        max((terminal.reach for terminal in terminals), default=0),
        "".join(sorted(frozenset().union(*(one.marks for one in terminals)))),
    )


class _Reader:
    def __init__(self, rules: RuleSet) -> None:
        self._rules = rules
        self._terminals = {
            name: _texts_of(terminal)[0] for name, terminal in rules.terminals.items()
        }
        self._known: dict[str, bytes] = {}
        changed = True
        while changed:
            changed = False
            for name, rule in reversed(rules.rules.items()):
                found = None if name == NEVER else self._of_rule(rule)
                known = self._known.get(name)
                if found is not None and (known is None or len(found) < len(known)):
                    self._known[name] = found
                    changed = True

    def shortest(self) -> bytes | None:
        """The shortest output."""
        return self._of_symbol(self._rules.start)

    def names(self) -> set[bytes]:
        """The names that stand in the shortest text of some object."""
        found: set[bytes] = set()
        for rule in self._rules.rules.values():
            for symbols in rule.needed or self._best(rule):
                for name, after in itertools.pairwise(symbols):
                    text = literal_text(name)
                    if after == COLON and text is not None:
                        found.add(text)
        return found

    def texts(self) -> set[bytes]:
        """Texts of the terminals."""
        terminals = self._rules.terminals.values()
        texts = {text for terminal in terminals for text in _texts_of(terminal)}
        return {text.removeprefix(b'"').removesuffix(b'"') for text in texts} - {b""}

    def choices(self) -> tuple[bytes, ...]:
        """The longest texts that one choice may add."""
        found: set[bytes] = set()
        for rule in self._rules.rules.values():
            for alternative in rule.alternatives:
                text = self._of_symbols(alternative.symbols)
                if text is not None and len(rule.alternatives) > 1:
                    found.add(text)
                for part in _optional(alternative.symbols):
                    found.add(self._of_symbols(part.symbols) or b"")
        return tuple(sorted(found, key=len, reverse=True)[:_MOST_CHOICES])

    def _best(self, rule: Rule) -> Iterator[tuple[Symbol, ...]]:
        """The alternative of a rule with the shortest text."""
        texts = [self._of_symbols(each.symbols) for each in rule.alternatives]
        sizes = [len(text) for text in texts if text is not None]
        for alternative, text in zip(rule.alternatives, texts, strict=True):
            if text is not None and len(text) == min(sizes):
                yield alternative.symbols
                return

    def _of_rule(self, rule: Rule) -> bytes | None:
        if rule.needed:
            parts = [self._of_symbols(part) for part in rule.needed]
            known = [part for part in parts if part is not None]
            comma = self._of_symbol(COMMA) or b","
            return comma.join(known) if len(known) == len(parts) else None
        texts = (self._of_symbols(each.symbols) for each in rule.alternatives)
        return min((text for text in texts if text is not None), key=len, default=None)

    def _of_symbols(self, symbols: tuple[Symbol, ...]) -> bytes | None:
        whole = b""
        for symbol in symbols:
            text = self._of_symbol(symbol)
            if text is None:
                return None
            whole += text
        return whole

    def _of_symbol(self, symbol: Symbol) -> bytes | None:
        if isinstance(symbol, Reference):
            return self._known.get(symbol.rule)
        if isinstance(symbol, Repeated):
            once = self._of_symbols(symbol.symbols) if symbol.low else b""
            return None if once is None else once * symbol.low
        if symbol in (COMMA, COLON) and self._rules.spaced:
            return (literal_text(symbol) or b"") + b" "
        text = literal_text(symbol)
        return self._terminals.get(symbol.text, _CONTROL) if text is None else text


def _texts_of(terminal: Terminal) -> tuple[bytes, ...]:
    """Short texts of a terminal; where none are found, what is as long as one."""
    if terminal.texts:
        return terminal.texts
    found = shortest_text(terminal.body)
    return (b"?" * max(terminal.reach, 1) if found is None else found,)


def literal_text(symbol: Symbol) -> bytes | None:
    """The text of a literal; None of other symbols."""
    if not isinstance(symbol, Text) or not symbol.text.startswith('"'):
        return None
    return _lone_literal(symbol.text)


def _lone_literal(body: str) -> bytes | None:
    try:
        text = json.loads(body)
    except ValueError:  # there are several, or none
        return None
    return text.encode() if isinstance(text, str) else None


def _optional(symbols: Iterable[Symbol]) -> Iterator[Repeated]:
    """The parts that may come once more."""
    for symbol in symbols:
        if isinstance(symbol, Repeated):
            if symbol.high != symbol.low:
                yield symbol
            yield from _optional(symbol.symbols)


@dataclass(frozen=True, slots=True)
class _Run:
    """How many bytes of a part must follow each other."""

    whole: bool
    """Whether there is no choice in it."""
    first: int = 0
    """From its beginning on."""
    last: int = 0
    """Up to its end."""
    most: int = 0


def forced_run(rules: RuleSet) -> int:
    """About the most bytes that may have to follow each other; rather too many."""
    runs: dict[str, _Run] = {}
    for name, rule in reversed(rules.rules.items()):
        if name not in runs:
            _run_of_rule(name, rule, rules, runs)
    start = _run_of(rules.start, rules, runs)
    return max(run.most for run in (start, *runs.values()))


def nesting(rules: RuleSet) -> int:
    """How deep rules and brackets nest as llguidance reads them: from the start, each
    rule where it is first named."""
    depths: dict[str, int] = {}
    deepest = 0
    pending: list[tuple[Symbol, int]] = [(rules.start, 1)]
    while pending:
        symbol, depth = pending.pop()
        inner: list[Symbol] = []
        if not isinstance(symbol, Text):
            deepest = max(deepest, depth)
        if isinstance(symbol, Repeated):
            inner += symbol.symbols
        elif isinstance(symbol, Reference) and symbol.rule not in depths:
            depths[symbol.rule] = depth
            for alternative in rules.rules[symbol.rule].alternatives:
                inner += alternative.symbols
        pending += [(each, depth + 1) for each in reversed(inner)]
    return deepest


def _run_of_rule(name: str, rule: Rule, rules: RuleSet, runs: dict[str, _Run]) -> _Run:
    runs[name] = _Run(False)  # where it needs itself
    found = [_run_of_all(each.symbols, rules, runs) for each in rule.alternatives]
    if len(found) == 1:
        runs[name] = found[0]
    else:
        # Alternatives of one size may have the same text.
        alike = len({run.first for run in found}) == 1
        runs[name] = _Run(
            alike and any(run.whole for run in found),
            max((run.first for run in found), default=0),
            max((run.last for run in found), default=0),
            max((run.most for run in found), default=0),
        )
    return runs[name]


def _run_of_all(
    symbols: tuple[Symbol, ...], rules: RuleSet, runs: dict[str, _Run]
) -> _Run:
    parts = (_run_of(symbol, rules, runs) for symbol in symbols)
    return functools.reduce(_joined, parts, _Run(True))


def _run_of(symbol: Symbol, rules: RuleSet, runs: dict[str, _Run]) -> _Run:
    if isinstance(symbol, Reference):
        if symbol.rule in rules.rules and symbol.rule not in runs:
            return _run_of_rule(symbol.rule, rules.rules[symbol.rule], rules, runs)
        return runs.get(symbol.rule, _Run(False))
    if isinstance(symbol, Repeated):
        once = _run_of_all(symbol.symbols, rules, runs)
        size = symbol.low * once.first
        if symbol.low and once.whole:
            return _Run(symbol.low == symbol.high, size, size, size)
        return _Run(
            False, once.first, once.last, max(once.most, once.last + once.first)
        )
    terminal = rules.terminals.get(symbol.text)
    text = _lone_literal(symbol.text if terminal is None else terminal.body)
    if text is not None:
        return _Run(True, len(text), len(text), len(text))
    size = 0 if terminal is None else terminal.reach
    return _Run(False, size, size, size)


def _joined(before: _Run, after: _Run) -> _Run:
    """The run of a part, and another one behind it."""
    first = before.first + after.first if before.whole else before.first
    last = before.last + after.last if after.whole else after.last
    most = max(before.most, after.most, before.last + after.first)
    return _Run(before.whole and after.whole, first, last, most)
