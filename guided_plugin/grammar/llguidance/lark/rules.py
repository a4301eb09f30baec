"""Grammar rules under construction. Depends on expressions.

Rules are built in any order, recursion included. Before they are written, rules that
derive nothing are removed with every alternative that needs them: a grammar must not
lead a model into a dead end.
"""

from __future__ import annotations

import ast
import itertools
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, get_args

from guided_plugin.grammar.llguidance.lark.expressions import (
    Expression,
    Known,
    Texts,
)
from guided_plugin.ipc.channel import plain_decoder

NEVER = "never"
"""The rule of what can't come."""


class Text(NamedTuple):
    """A literal text."""

    text: str


class Token(NamedTuple):
    """A special token, by its number."""

    number: int


@dataclass(slots=True, eq=False)
class Terminal:
    """An expression that the lexer reads. Equal ones of one grammar are one object."""

    name: str
    expression: Expression
    known: Known
    plain: bool = False
    """It is a list of texts, a string that is free but for its length or for some texts,
    or a number in a range: it takes something, and llguidance takes it."""
    empty: bool | None = None
    """True if it takes nothing; None before that is asked."""

    @property
    def literal(self) -> str | None:
        """Its text, where it has one text only."""
        match self.expression:
            case Texts((text,)):
                return text
        return None

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return Terminal, (self.name, self.expression, self.known)


class Reference(NamedTuple):
    """A rule, with what its parameter becomes."""

    rule: str
    argument: str = ""


class Repeated(NamedTuple):
    """Symbols, `low` to `high` times."""

    symbols: tuple[Symbol, ...]
    low: int
    high: int | None


Symbol = Text | Token | Terminal | Reference | Repeated


@dataclass(frozen=True, slots=True)
class LarkGrammar:
    """A grammar as llguidance reads it, and what is known of it."""

    text: str
    distinct: bool = False
    """True if its outputs must be checked for items or names that are not distinct."""
    left_out: tuple[str, ...] = ()
    """Keywords that a spec asks for and an operator leaves unenforced."""
    forces: bool = True
    """True if text that must follow is short enough to be looked for while a batch
    waits."""
    plain: bool = False
    """True if it consists of texts and plain terminals."""
    rules: RuleSet | None = field(default=None, compare=False, repr=False)
    """The rules that it was written from; None for a client's own grammar, and where it
    is packed."""
    sent: bytes | None = field(default=None, compare=False, repr=False)
    """The rules that another process has packed."""

    def packed(self, *, closes: bool) -> str:
        """The grammar as text, for other processes. `closes`: with its rules, to close
        outputs before their limit."""
        sent = self.rules.packed() if closes and self.rules is not None else None
        return repr((self.text, self.distinct, self.forces, sent))

    @classmethod
    def unpacked(cls, packed: str) -> LarkGrammar:
        """The grammar that was packed."""
        text, distinct, forces, sent = ast.literal_eval(packed)
        return cls(
            text,
            distinct=distinct,
            forces=forces,
            sent=sent,
        )


class Alternative(NamedTuple):
    """Symbols one after the other, under a condition on the parameter."""

    symbols: tuple[Symbol, ...]
    condition: str = ""
    bit: int | None = None
    """A bit of the parameter that must be clear too."""
    some_of: str = ""
    """A rule of which some alternative must be possible with the same parameter: one
    that comes later."""


@dataclass(slots=True)
class Rule:
    """Alternatives of which one is derived."""

    alternatives: list[Alternative]
    parameter: bool = False
    required: tuple[Symbol, ...] = ()
    """Conditions demand that all of these come."""
    others: tuple[Symbol, ...] = ()
    fewest: int = 0
    """They demand so many of these others, each of them once."""
    needed: tuple[Symbol, ...] = ()
    """The symbols of a shortest text, where conditions demand more than one
    alternative."""

    def symbols(self) -> list[Symbol]:
        """The symbols of all alternatives."""
        return [symbol for one in self.alternatives for symbol in one.symbols]

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        own = (getattr(self, field) for field in self.__slots__)
        return Rule, tuple(own)


@dataclass(frozen=True, slots=True)
class RuleSet:
    """The rules of one grammar that are derived from its start."""

    start: Symbol
    rules: dict[str, Rule]
    """Innermost first: as far as rules are not recursive, each comes behind those that it
    needs."""
    terminals: tuple[Terminal, ...]
    tokens: frozenset[int]
    """Tokens that rules name by their number."""
    spaced: bool
    """True if a space follows commas and colons."""

    def packed(self) -> bytes:
        """The rules as plain data, for other processes."""
        rules = tuple(self.rules.items())
        return pickle.dumps((self.start, rules, self.terminals, self.spaced))

    @classmethod
    def unpacked(cls, packed: bytes) -> RuleSet:
        """The rules that were packed. Raises what `plain_decoder` raises."""
        start, rules, terminals, spaced = _decoded(packed)
        return cls(start, dict(rules), terminals, frozenset(), spaced)


_decoded = plain_decoder(
    (Rule, Alternative, Known, *get_args(Symbol), *get_args(Expression))
)


@dataclass(slots=True)
class Grammar:
    """Rules by name, and terminals."""

    rules: dict[str, Rule] = field(default_factory=dict)
    terminals: dict[Expression, Terminal] = field(default_factory=dict)
    fragments: dict[Expression, str] = field(default_factory=dict)
    """The names of parts of terminals."""
    distinct: bool = False
    """True if its outputs must be checked for items that are not distinct."""
    left_out: set[str] = field(default_factory=set)
    """Keywords that its schemas ask for and that are left unenforced."""
    marks: Iterator[int] = field(default_factory=itertools.count)
    """Numbers for marks."""
    _shared: dict[tuple[tuple[Symbol, ...], ...], str] = field(default_factory=dict)
    _count: int = 0
    _alive: set[str] = field(default_factory=set)
    """Rules that were found to derive something: nothing that is added later changes
    that."""

    def name(self, prefix: str = "r") -> str:
        """A new rule name."""
        self._count += 1
        return f"{prefix}{self._count}"

    def rule(self, *alternatives: tuple[Symbol, ...]) -> Symbol:
        """A rule without parameter; equal ones are one."""
        if len(alternatives) == 1 and len(alternatives[0]) == 1:
            return alternatives[0][0]
        key = tuple(dict.fromkeys(alternatives))
        name = self._shared.get(key)
        if name is None:
            name = self._shared[key] = self.name()
            self.rules[name] = Rule(list(map(Alternative, key)))
        return Reference(name)

    def terminal(
        self,
        expression: Expression,
        known: Known,
        *,
        plain: bool = False,
    ) -> Terminal:
        """A terminal; equal ones are one."""
        terminal = self.terminals.get(expression)
        if terminal is None:
            name = f"T{len(self.terminals)}"
            terminal = self.terminals[expression] = Terminal(name, expression, known)
        terminal.plain |= plain
        return terminal

    def fragment(self, expression: Expression) -> str:
        """A name for a part of terminals; equal ones are one. It may use fragments that
        are there already."""
        return self.fragments.setdefault(expression, f"F{len(self.fragments)}")

    def productive(
        self, start: Symbol, takes_nothing: Callable[[Expression], bool]
    ) -> bool:
        """Remove what derives nothing; whether anything is left to start with. What was
        looked at in an earlier call is not looked at again.

        `takes_nothing`: whether a terminal's expression is empty.
        """
        alive = self._alive
        dies = False
        for terminal in self.terminals.values():
            if terminal.empty is None:
                terminal.empty = not terminal.plain and takes_nothing(
                    terminal.expression
                )
            dies |= terminal.empty

        def live(symbols: tuple[Symbol, ...]) -> bool:
            for symbol in symbols:
                match symbol:
                    case Reference(rule) if rule not in alive:
                        return False
                    case Terminal(empty=True):
                        return False
                    case Repeated(inner, low) if low and not live(inner):
                        return False
            return True

        def grows(name: str) -> bool:
            rule = fresh[name]
            if rule.parameter and not (
                live(rule.required) and rule.fewest <= sum(map(live, zip(rule.others)))
            ):
                return False
            for one in rule.alternatives:
                if live(one.symbols):
                    alive.add(name)
                    return True
            return False

        # The rules of one object are written after those that they need: few are looked
        # at a second time, and from then on only those that use one which was found to
        # derive something.
        fresh = {name: self.rules[name] for name in self.rules if name not in alive}
        waiting = list(itertools.filterfalse(grows, fresh))
        users = users_of({name: fresh[name] for name in waiting})
        pending = waiting
        while pending:
            grown = filter(grows, itertools.filterfalse(alive.__contains__, pending))
            found = (users.get(name, ()) for name in grown)
            pending = list(dict.fromkeys(itertools.chain.from_iterable(found)))
        dead = list(itertools.filterfalse(alive.__contains__, waiting))
        for name in dead:
            del self.rules[name]
        if dead or dies:
            for rule in fresh.values():
                rule.alternatives = [
                    one._replace(symbols=_without_dead(one.symbols, live))
                    for one in rule.alternatives
                    if live(one.symbols)
                ]
        return live((start,))


def both(one: str, two: str) -> str:
    """A condition that holds where both do; the empty one always does."""
    return f"and({one}, {two})" if one and two else one or two


def _without_dead(
    symbols: tuple[Symbol, ...], live: Callable[[tuple[Symbol, ...]], bool]
) -> tuple[Symbol, ...]:
    """Symbols without the optional parts that derive nothing."""
    kept: list[Symbol] = []
    for symbol in symbols:
        if isinstance(symbol, Repeated):
            if symbol.low == 0 and not live(symbol.symbols):
                continue
            symbol = Repeated(
                _without_dead(symbol.symbols, live), symbol.low, symbol.high
            )
        kept.append(symbol)
    return tuple(kept)


def users_of(rules: Mapping[str, Rule]) -> dict[str, list[str]]:
    """Which of some rules use a rule: its name, and theirs."""
    users: dict[str, list[str]] = {}
    for name, rule in rules.items():
        used: set[str] = set()
        pending = [*rule.symbols(), *rule.required, *rule.others]
        while pending:
            symbol = pending.pop()
            if isinstance(symbol, Repeated):
                pending += symbol.symbols
            elif isinstance(symbol, Reference):
                used.add(symbol.rule)
        for one in used:
            users.setdefault(one, []).append(name)
    return users
