"""Grammar rules under construction, and how they become llguidance's Lark. Depends on
nothing.

Rules are built in any order, recursion included. Before they are written, rules that
derive nothing are removed with every alternative that needs them: a grammar must not
lead a model into a dead end.
"""

from __future__ import annotations

import ast
import itertools
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, field
from json.encoder import encode_basestring
from typing import NamedTuple

NEVER = "never"
"""The rule of what can't come, behind a token that is never sampled."""


def literal(text: str) -> str:
    """A text in quotes, as llguidance reads it: its lexer takes no DEL there."""
    return encode_basestring(text).replace("\x7f", "\\u007f")


def lone_literal(body: str) -> bytes | None:
    """The text of a body that is one literal; None where it is more, or another
    thing."""
    if not body.startswith('"'):
        return None
    try:
        text = json.loads(body)
    except ValueError:  # there are several
        return None
    return str(text).encode()


class Text(NamedTuple):
    """A terminal's name, or a literal in quotes."""

    text: str


class Reference(NamedTuple):
    """A rule, with what its parameter becomes."""

    rule: str
    argument: str = ""


class Repeated(NamedTuple):
    """Symbols, `low` to `high` times."""

    symbols: tuple[Symbol, ...]
    low: int
    high: int | None


Symbol = Text | Reference | Repeated


@dataclass(frozen=True, slots=True)
class Ends:
    """What the rules of a grammar tell of the ends of its outputs."""

    shortest: bytes | None = None
    """The shortest output, unless it holds what no text spells."""
    names: tuple[bytes, ...] = ()
    """The names, in quotes, that objects need, sorted."""
    texts: tuple[bytes, ...] = ()
    """Short texts of its terminals, without quotes."""
    choices: tuple[bytes, ...] = ()
    """The longest texts that one choice may add."""
    reach: int = 0
    """The most bytes that the rest of a terminal's text may need."""
    longest: bytes | None = None
    """The longest text that an output may need behind the terminal in which it is,
    where there is one."""
    marks: str = ""
    """Characters, besides the quote, that may end a free text; one stands for all
    beyond ASCII."""


@dataclass(frozen=True, slots=True)
class LarkGrammar:
    """A grammar as llguidance reads it, and what is known of it."""

    text: str
    probes: tuple[str, ...] = ()
    """Small grammars of its terminals that may come next at one place, where some are
    intersections."""
    distinct: bool = False
    """Whether its outputs must be checked for items or names that are not distinct."""
    endless: bool = False
    """Whether it names a token that is never sampled."""
    forces: bool = True
    """Whether text that must follow is short enough to be looked for while a batch
    waits."""
    ends: Ends | None = None
    """What is needed to close its outputs before their limit."""
    rules: RuleSet | None = field(default=None, compare=False, repr=False)
    """What it was written from; None for a client's own grammar."""

    def packed(self) -> str:
        """The grammar as text, for other processes; those that read it do not probe
        it."""
        ends = None if self.ends is None else astuple(self.ends)
        return repr((self.text, self.distinct, self.endless, self.forces, ends))

    @classmethod
    def unpacked(cls, packed: str) -> LarkGrammar:
        """The grammar that was packed."""
        text, distinct, endless, forces, ends = ast.literal_eval(packed)
        return cls(
            text,
            distinct=distinct,
            endless=endless,
            forces=forces,
            ends=None if ends is None else Ends(*ends),
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
    fewest: int = 0
    """It derives nothing where those of `counted` that derive something count for less
    than this together."""
    counted: tuple[tuple[Symbol, int], ...] = ()
    needed: tuple[tuple[Symbol, ...], ...] = ()
    """The parts that conditions demand of its texts, with commas between."""


class Terminal(NamedTuple):
    """An expression over characters, and what is known of its texts."""

    body: str
    reach: int
    """The most characters that may still be needed inside of it."""
    marks: frozenset[str]
    """Characters that end a text in it, or make another one of it, where most may
    come."""
    texts: tuple[bytes, ...]
    """Short texts of it, a shortest first; none where they are to be found out."""


@dataclass(frozen=True, slots=True)
class RuleSet:
    """The rules of one grammar that are derived from its start."""

    start: Symbol
    rules: dict[str, Rule]
    terminals: dict[str, Terminal]
    spaced: bool
    """Whether a space follows commas and colons."""


@dataclass(slots=True)
class Grammar:
    """Rules and terminals by name."""

    rules: dict[str, Rule] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)
    """The names of terminals, by their bodies."""
    terminals: dict[str, Terminal] = field(default_factory=dict)
    """By name."""
    _filled: set[str] = field(default_factory=set)
    """Terminals that are known to take something."""
    fragments: dict[str, str] = field(default_factory=dict)
    _shared: dict[tuple[Alternative, ...], str] = field(default_factory=dict)
    _count: int = 0
    marks: Iterator[int] = field(default_factory=itertools.count)
    """Numbers for marks."""
    groups: dict[tuple[str, ...], None] = field(default_factory=dict)
    _alive: set[str] = field(default_factory=set)
    """Rules that were found to derive something: nothing that is added later changes
    that."""
    _dead: dict[str, bool] = field(default_factory=dict)
    """Whether a terminal takes nothing, of those that were asked about."""

    def name(self, prefix: str = "r") -> str:
        """A new rule name."""
        self._count += 1
        return f"{prefix}{self._count}"

    def define(
        self,
        name: str,
        alternatives: list[Alternative],
        *,
        parameter: bool = False,
        fewest: int = 0,
        counted: tuple[tuple[Symbol, int], ...] = (),
        needed: tuple[tuple[Symbol, ...], ...] = (),
    ) -> Reference:
        """Give a named rule its alternatives."""
        self.rules[name] = Rule(alternatives, parameter, fewest, counted, needed)
        return Reference(name)

    def rule(self, *alternatives: tuple[Symbol, ...]) -> Symbol:
        """A rule without parameter; equal ones are one."""
        if len(alternatives) == 1 and len(alternatives[0]) == 1:
            return alternatives[0][0]
        key = tuple(dict.fromkeys(Alternative(symbols) for symbols in alternatives))
        name = self._shared.get(key)
        if name is None:
            name = self._shared[key] = self.name()
            self.define(name, list(key))
        return Reference(name)

    def terminal(
        self,
        body: str,
        *,
        filled: bool = False,
        reach: int | None = None,
        marks: frozenset[str] = frozenset(),
        texts: tuple[bytes, ...] = (),
    ) -> Text:
        """A terminal; equal ones are one. `filled`: it is known to take something. The
        others are those of a `Terminal`."""
        name = self._names.get(body)
        if name is None:
            name = self._names[body] = f"T{len(self._names)}"
            most = len(body) if reach is None else reach
            self.terminals[name] = Terminal(body, most, marks, texts)
        if filled:
            self._filled.add(name)
        return Text(name)

    def together(self, bodies: Iterable[str]) -> None:
        """Say that these terminals may come next at one place: `probe` tries whether
        that takes too long."""
        self.groups[tuple(self.terminal(body).text for body in bodies)] = None

    def fragment(self, body: str) -> str:
        """A name for a part of terminals; equal ones are one. It may use fragments that
        are there already."""
        name = self.fragments.get(body)
        if name is None:
            name = self.fragments[body] = f"F{len(self.fragments)}"
        return name

    def productive(self, start: Symbol, takes_nothing: Callable[[str], bool]) -> bool:
        """Remove what derives nothing; whether anything is left to start with. What was
        looked at in an earlier call is not looked at again.

        `takes_nothing`: whether a terminal is empty, by its body.
        """
        alive = self._alive
        fresh = {n: rule for n, rule in self.rules.items() if n not in self._alive}
        for body, name in itertools.islice(self._names.items(), len(self._dead), None):
            self._dead[name] = name not in self._filled and takes_nothing(body)

        def lives(symbol: Symbol) -> bool:
            if isinstance(symbol, Reference):
                return symbol.rule in alive
            if isinstance(symbol, Text):
                return not self._dead.get(symbol.text, False)
            return symbol.low == 0 or all(map(lives, symbol.symbols))

        def grows(name: str) -> bool:
            rule = fresh[name]
            if rule.fewest > sum(
                weight for symbol, weight in rule.counted if lives(symbol)
            ):
                return False
            if not any(all(map(lives, a.symbols)) for a in rule.alternatives):
                return False
            alive.add(name)
            return True

        # Rules are mostly written before those that they need: few are looked at a
        # second time, and from then on only those that use one which was found to
        # derive something.
        waiting = [name for name in reversed(fresh) if not grows(name)]
        users = users_of(waiting, fresh)
        pending = deque(waiting)
        while pending:
            name = pending.popleft()
            if name not in alive and grows(name):
                pending += users.get(name, ())
        waiting = [name for name in waiting if name not in alive]
        if not waiting and not any(self._dead.values()):
            return lives(start)
        for name, rule in fresh.items():
            if name not in alive:
                del self.rules[name]
                continue
            kept = [a for a in rule.alternatives if all(map(lives, a.symbols))]
            rule.alternatives = [
                a._replace(symbols=_without_dead(a.symbols, lives)) for a in kept
            ]
        return lives(start)


def both(one: str, two: str) -> str:
    """A condition that holds where both do; the empty one always does."""
    return f"and({one}, {two})" if one and two else one or two


def _without_dead(
    symbols: tuple[Symbol, ...], lives: Callable[[Symbol], bool]
) -> tuple[Symbol, ...]:
    """Symbols without the optional parts that derive nothing."""
    kept: list[Symbol] = []
    for symbol in symbols:
        if isinstance(symbol, Repeated):
            if symbol.low == 0 and not all(map(lives, symbol.symbols)):
                continue
            symbol = Repeated(
                _without_dead(symbol.symbols, lives), symbol.low, symbol.high
            )
        kept.append(symbol)
    return tuple(kept)


def users_of(names: Iterable[str], rules: Mapping[str, Rule]) -> dict[str, list[str]]:
    """Which of the named rules use a rule: its name, and theirs."""
    users: dict[str, list[str]] = {}
    for name in names:
        counted = [symbol for symbol, _ in rules[name].counted]
        for each in {
            *named(counted),
            *named(s for a in rules[name].alternatives for s in a.symbols),
        }:
            users.setdefault(each, []).append(name)
    return users


def named(symbols: Iterable[Symbol]) -> Iterator[str]:
    """The rules that symbols name."""
    for symbol in symbols:
        if isinstance(symbol, Repeated):
            yield from named(symbol.symbols)
        elif isinstance(symbol, Reference):
            yield symbol.rule
