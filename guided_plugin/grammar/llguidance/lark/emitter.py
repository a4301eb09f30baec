"""Shapes of schemas, written as grammar rules. Depends on the algebra, rules and
terminals.

One rule for each conjunction of schemas that some value must satisfy. Scalars are
terminals; arrays.py and objects.py write the rules of the rest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, cast

from guided_plugin.errors import CompileLimitError, UnsupportedSpecError
from guided_plugin.grammar.llguidance.lark.algebra import ALL, Algebra, Shape
from guided_plugin.grammar.llguidance.lark.constraints import (
    TRUE,
    Array,
    Boolean,
    Constraint,
    Literals,
    Null,
    Number,
    Object,
    String,
)
from guided_plugin.grammar.llguidance.lark.expressions import Known, Regex, Texts
from guided_plugin.grammar.llguidance.lark.numbers import (
    ONE_SPELLING,
    Spelling,
    TooManyStatesError,
    known_of_number,
    number_terminal,
)
from guided_plugin.grammar.llguidance.lark.patterns import NOTHING
from guided_plugin.grammar.llguidance.lark.rules import (
    NEVER,
    Alternative,
    Grammar,
    Reference,
    Repeated,
    Rule,
    Symbol,
    Terminal,
    Token,
)
from guided_plugin.grammar.llguidance.lark.strings import (
    NULL,
    is_listed,
    known_of_string,
    lead,
    string_terminal,
    value_terminal,
)
from guided_plugin.spec.arithmetic import exact

CONTROL = 257
"""A special token of a vocabulary of bytes, in front of a control token's number."""
MARKS = range(258, 320)
"""The marks of that vocabulary."""
CHANGING = 1
"""The bit of items that may be something else each time, or have none of their own."""
PLAIN = 2
"""The bit of items that need not differ."""

_MOST_AT_ONCE = 7_900
"""Items of a row of llguidance's parser for what an object may begin with, of 8,000
(see `backend.py`)."""

SIMPLER = "leave one of the keywords out, or use smaller bounds and fewer alternatives"


@dataclass(frozen=True, slots=True)
class Style:
    """The choices that a schema leaves open."""

    closed: bool
    """Objects that describe some properties have no others, unless the schema opens
    them."""
    ordered: bool
    """Properties come in the order of the schema, where that order can be kept."""
    spelling: Spelling
    """The spellings that numbers may have."""
    marked: bool = False
    """Marks, which are never taken, may stand where items begin: see `distinct/`."""


class Emitter:
    """Writes one schema's rules into one grammar."""

    def __init__(
        self,
        algebra: Algebra,
        style: Style,
        writers: Mapping[type[Constraint], Callable[[Emitter, Any], Symbol]],
        grammar: Grammar,
    ) -> None:
        """`writers`: what writes the rules of arrays and objects. `grammar` may hold
        other schemas."""
        self.algebra = algebra
        self.style = style
        self.grammar = grammar
        self._writers = writers
        self._values: dict[Literals, Symbol] = {}
        self._pending: list[tuple[str, Literals, Shape]] = []
        self._writing = TRUE
        self._marks: dict[Constraint, int] = {}

    def root(self, literals: Literals) -> Symbol:
        """The rule of a whole document, everything that it needs included."""
        symbol = self.value(literals)
        while self._pending:
            name, pending, shape = self._pending.pop()
            rules = zip(dict.fromkeys(self._constraints(pending, shape)))
            self.grammar.rules[name] = Rule(list(map(Alternative, rules)))
        return symbol

    def value(self, literals: Literals) -> Symbol:
        """A value that satisfies all of them. Its rule is written later, so recursion
        is fine."""
        if not literals:
            return self.anything()
        symbol = self._values.get(literals)
        if symbol is None:
            shape = self.algebra.shape(literals)
            if shape["array"] or shape["object"]:
                symbol = Reference(self.grammar.name("v"))
                self._pending.append((symbol.rule, literals, shape))
            else:
                symbol = self.grammar.rule(*zip(self._constraints(literals, shape)))
            self._values[literals] = symbol
        return symbol

    def compared(self, array: Array, index: int) -> Symbol:
        """The item at an index of an array whose items must differ: equal ones have one
        text."""
        shape = self.algebra.shape(array.at(index))
        if shape["array"] or shape["object"]:
            raise incomparable(
                array,
                "an item may be an array, an object or of any type",
                "say what `type` items have: string, number, integer, boolean or null",
            )
        scalars = chain.from_iterable(shape.values())
        symbols = [(self._constraint(one, compared=True),) for one in scalars]
        mark = CHANGING if index < array.prefix_length else self._mark_of(array)
        return self.marked(self.grammar.rule(*symbols), mark)

    def marked(self, symbol: Symbol, bit: int) -> Symbol:
        """A symbol with a mark before it, by its bit."""
        if not self.style.marked:
            return symbol
        mark = Token(MARKS.start + bit.bit_length() - 1)
        return self.grammar.rule((Repeated((mark,), 0, 1), symbol))

    def _mark_of(self, array: Array) -> int:
        """The mark of the items of an array; there are only so many."""
        if array not in self._marks:
            number = next(self.grammar.marks)
            self._marks[array] = 4 << number if number < len(MARKS) - 2 else CHANGING
        return self._marks[array]

    def anything(self) -> Symbol:
        """Any JSON value."""
        value = Reference("any")
        if value.rule not in self.grammar.rules:
            rule = self.grammar.rules[value.rule] = Rule([])  # items may be anything
            symbols = self._constraints(TRUE, ALL)
            rule.alternatives += map(Alternative, zip(symbols))
        return value

    def refusal(
        self,
        keyword: str,
        why: str,
        hint: str = SIMPLER,
        weigh: Callable[[Any], int] = lambda value: 0,
    ) -> UnsupportedSpecError:
        """An error about a keyword, with its place in what is written, else of its first
        use; the root where what combines schemas asks for the same without it."""
        where = self.algebra.document.place(keyword, weigh=weigh, first=self._writing)
        return UnsupportedSpecError(f"{keyword} {why}", where=where, hint=hint)

    def led(self, terminal: Terminal, characters: str | None) -> Symbol:
        """A string literal as an alternative to endless ones that begin with the same
        characters.

        The endless ones allow nothing new, since what they begin with can always become
        a string of the terminal, and they are never complete: what must follow takes no
        text. But they say in a way that llguidance sees at once that all these
        characters may come next. It then adds most of the vocabulary as one precomputed
        piece, where it would walk through all tokens.
        """
        if characters is None:
            return terminal
        # It counts as plain: else the endless ones would be removed.
        nothing = self.grammar.terminal(Regex(NOTHING), Known((), 0), plain=True)
        never = Reference(NEVER)
        self.grammar.rules.setdefault(NEVER, Rule([Alternative((nothing,))]))
        opening = Regex(f'"{characters}*')
        endless = self.grammar.terminal(opening, Known(('"',), 0))
        return self.grammar.rule((terminal,), (endless, never))

    def _constraints(self, literals: Literals, shape: Shape) -> list[Symbol]:
        self._writing = literals
        if shape["object"] and not self.style.ordered:
            self._check_row(cast("Sequence[Object]", shape["object"]))
        return list(map(self._constraint, chain.from_iterable(shape.values())))

    def _check_row(self, objects: Sequence[Object]) -> None:
        """Refuse objects of more properties, in any order, than may come at one
        place."""
        items = 2 * len(objects) + sum(
            len(each.named) for one in objects for each in one.properties
        )
        if items > _MOST_AT_ONCE:
            raise CompileLimitError(
                f"{items} properties in any order may come at one place; llguidance reads {_MOST_AT_ONCE}",
                where=self.algebra.document.place(
                    "properties", "anyOf", "oneOf", "enum", weigh=len
                ),
                hint="use fewer properties, fewer alternatives of the object, or `strict`, which orders them",
            )

    def _constraint(self, constraint: Constraint, *, compared: bool = False) -> Symbol:
        match constraint:
            case Array() | Object():
                return self._writers[type(constraint)](self, constraint)
            case Null():
                return NULL
            case Boolean(values):
                ordered = sorted(values, reverse=True)  # the shorter one first
                texts = tuple(map(json.dumps, ordered))
                known = Known(texts, len("false"))
                return self.grammar.terminal(Texts(texts), known, plain=True)
            case Number():
                return self._number(constraint, compared)
            case String():
                written = string_terminal if compared else value_terminal
                terminal = self.grammar.terminal(
                    written(constraint),
                    known_of_string(constraint),
                    plain=is_listed(constraint),
                )
                return self.led(terminal, lead(constraint))

    def _number(self, number: Number, compared: bool) -> Symbol:
        spelling = self.style.spelling
        if compared:
            # There must be more numbers than an array may have to have:
            # `max_repetition`.
            digits = spelling.digits and max(spelling.digits, 7)
            spelling = replace(
                spelling, equal_zero=False, only=ONE_SPELLING, digits=digits
            )
        try:
            expression = number_terminal(number, spelling, self.grammar.fragment)
        except TooManyStatesError:
            raise self.refusal(
                "multipleOf",
                "has too many remainders to count",
                "list the values in an enum, or take a divisor of at most 1024 and three decimals",
                lambda divisor: exact(divisor).numerator,
            ) from None
        # A range without numbers is no constraint; what is left out of one may be all
        # there is.
        return self.grammar.terminal(
            expression,
            known_of_number(number),
            plain=not (number.multiples or number.no_multiples or number.excluded),
        )


def incomparable(array: Array, why: str, hint: str = SIMPLER) -> UnsupportedSpecError:
    """An error about the `uniqueItems` of an array, with its place."""
    what = f"uniqueItems can't be enforced: {why}"
    return UnsupportedSpecError(what, where=array.unique, hint=hint)
