"""Arrays as rules. Depends on the emitter.

Plain ones are sequences. `contains` and `uniqueItems` need a memory of what came
before: a rule for each state, or a rule's 64-bit parameter, in which bits and counters
are set as items go by.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

from guided_plugin.grammar.llguidance.lark.algebra import Algebra, Shape
from guided_plugin.grammar.llguidance.lark.constraints import (
    Array,
    Boolean,
    Constraint,
    Literals,
    Null,
    Object,
    String,
)
from guided_plugin.grammar.llguidance.lark.emitter import (
    CHANGING,
    PLAIN,
    Emitter,
    all_subsets,
)
from guided_plugin.grammar.llguidance.lark.patterns import few_strings
from guided_plugin.grammar.llguidance.lark.ranges import Number
from guided_plugin.grammar.llguidance.lark.rules import (
    Alternative,
    Reference,
    Repeated,
    Symbol,
    Text,
)
from guided_plugin.grammar.llguidance.lark.terminals import COMMA, string_terminal
from guided_plugin.spec.arithmetic import exact

OPEN = Text('"["')
CLOSE = Text('"]"')

_MAX_VALUES = 48
_MAX_CONTAINS = 8
# How many states of an array with `contains` are rules of their own.
_MAX_STATES = 2_000
# Among so many times as many multiples between bounds as are asked for, `not` leaves
# enough.
_MULTIPLES = 20


def array_rule(emitter: Emitter, constraint: Array) -> Symbol:
    """The rule of an array constraint."""
    if constraint.longest is not None and constraint.shortest > constraint.longest:
        return emitter.grammar.define(emitter.grammar.name("a"), [])
    if constraint.unique and (constraint.longest is None or constraint.longest > 1):
        return _unique(emitter, constraint)
    return _plain(emitter, replace(constraint, unique=False))


def _plain(emitter: Emitter, constraint: Array) -> Symbol:
    if constraint.contains:
        return _containing(emitter, constraint)
    return emitter.grammar.rule((OPEN, *_items(emitter, constraint), CLOSE))


def _items(emitter: Emitter, constraint: Array) -> tuple[Symbol, ...]:
    """All items. Each of the first ones has a rule, since llguidance limits how deep
    groups are nested."""
    longest = constraint.longest
    first = constraint.prefix_length
    if longest is not None and longest <= first:
        first = longest
        symbols = tuple[Symbol, ...]()
    else:
        symbols = _alike(emitter, constraint, first)
    for index in reversed(range(first)):
        comma = (COMMA,) if index else ()
        symbols = (*comma, _item(emitter, constraint, index), *symbols)
        if index >= constraint.shortest:
            symbols = (Repeated(symbols, 0, 1),)
        symbols = (emitter.grammar.rule(symbols),)
    return symbols


def _item(
    emitter: Emitter, constraint: Array, index: int, literals: Literals | None = None
) -> Symbol:
    """An item, with its mark. `literals`: what it is, if it isn't what any item there
    may be."""
    value = emitter.value(constraint.at(index) if literals is None else literals)
    if not constraint.unique:
        return emitter.marked(value, PLAIN)
    is_first = index < constraint.prefix_length
    return emitter.marked(value, CHANGING if is_first else emitter.mark_of(constraint))


def _alike(emitter: Emitter, constraint: Array, index: int) -> tuple[Symbol, ...]:
    """The items from an index on where all are alike."""
    item = _item(emitter, constraint, index)
    low = max(constraint.shortest - index, 0)
    high = None if constraint.longest is None else constraint.longest - index
    if index:
        return (Repeated((COMMA, item), low, high),)
    more = Repeated((COMMA, item), max(low - 1, 0), None if high is None else high - 1)
    symbols = (item,) if high == 1 else (item, more)
    return symbols if low else (Repeated(symbols, 0, 1),)


def _unique(emitter: Emitter, constraint: Array) -> Symbol:
    values = _listed_items(emitter.algebra, constraint)
    if values is None:
        # The grammar can't remember them: tokens that would repeat one are taken out of
        # its masks.
        emitter.distinct = True
        around = emitter.comparing
        emitter.comparing = constraint.items if around is None else around
        _refuse_incomparable(emitter, constraint)
        symbol = _plain(emitter, constraint)
        emitter.comparing = around
        return symbol
    if constraint.shortest > len(values):
        return emitter.grammar.define(emitter.grammar.name("u"), [])
    name = emitter.grammar.name("u")
    tail = f"{name}t"
    field = f"[0:{_MAX_VALUES}]"
    first = []
    later = []
    for bit, value in enumerate(values):
        literals = emitter.algebra.literals(
            {"enum": [value]}, emitter.algebra.document.root_base, ()
        )
        item = emitter.marked(emitter.value(literals), PLAIN)
        step: tuple[Symbol, ...] = (item, Reference(tail, f"set_bit({bit})"))
        first.append(Alternative(step))
        counts = constraint.longest is not None and constraint.longest <= _MAX_VALUES
        fits = f"bit_count_lt({field}, {constraint.longest})" if counts else ""
        later.append(Alternative((COMMA, *step), fits, bit))
    enough = (
        f"bit_count_ge({field}, {constraint.shortest})"
        if constraint.shortest > 1
        else ""
    )
    emitter.grammar.define(tail, [Alternative((), enough), *later], parameter=True)
    least = [each.symbols[:1] for each in first[: constraint.shortest]]
    emitter.grammar.define(name, first, parameter=True, needed=tuple(least))
    filled = (OPEN, Reference(name, "0x0"), CLOSE)
    return emitter.grammar.rule(
        filled, *([(OPEN, CLOSE)] if constraint.shortest == 0 else [])
    )


def _listed_items(algebra: Algebra, constraint: Array) -> list[Any] | None:
    """All that the items of an array may be, where that is a short list of scalars."""
    shape = algebra.shape(constraint.at(0))
    if (
        shape["array"]
        or shape["object"]
        or constraint.prefix_length
        or constraint.contains
    ):
        return None
    values = _few_scalars(shape, _MAX_VALUES)
    if values is None or any(
        isinstance(value, Fraction) and value.denominator > 1 for value in values
    ):
        return None
    return [int(value) if isinstance(value, Fraction) else value for value in values]


def _refuse_incomparable(emitter: Emitter, constraint: Array) -> None:
    """Refuse arrays whose items are counted, or may take all values that one which must
    come can be."""
    if constraint.contains:
        raise emitter.incomparable(
            "`contains` counts the items", "leave one of the two out"
        )
    least = constraint.shortest
    if least < 2 or emitter.is_apart:
        return
    if (
        constraint.prefix_length
        or least_count(emitter, constraint.at(0), least) < least
    ):
        raise emitter.incomparable(f"there may be fewer than {least} different items")


def least_count(emitter: Emitter, literals: Literals, most: int) -> int:
    """How many values satisfy literals at least, up to `most`."""
    found: dict[Literals, int] = {}

    def of(literals: Literals) -> int:
        if not literals:
            return most
        if literals not in found:
            found[literals] = 0  # inside itself
            shape = emitter.algebra.shape(literals)
            # Alternatives may have values in common.
            compound = [
                max(map(of_compound, shape[kind]), default=0)
                for kind in ("array", "object")
            ]
            scalars = _few_scalars(shape, most)
            found[literals] = (
                most if scalars is None else min(most, len(scalars) + sum(compound))
            )
        return found[literals]

    def of_compound(constraint: Constraint) -> int:
        if not emitter.apart().satisfies(constraint):
            return 0
        match constraint:
            case Array(contains=()) if constraint.longest != 0:
                return (constraint.shortest == 0) + of(constraint.at(0))
            case Object(exists=(), names=()):
                listed = {
                    name for each in constraint.properties for name, _ in each.named
                }
                names = listed.union(constraint.required).difference(
                    constraint.forbidden
                )
                counts = [
                    of(constraint.of(name)) + (name not in constraint.required)
                    for name in names
                ]
                return max(1, math.prod(counts))
        return 1

    return of(literals)


def _few_scalars(shape: Shape, most: int) -> list[Any] | None:
    """The scalars of a shape, each once; None where there may be more than so many."""
    found: dict[tuple[str, Hashable], Any] = {}
    for kind, constraint in (
        (kind, each) for kind, every in shape.items() for each in every
    ):
        some: Iterable[Any] | None = ()
        match constraint:
            case Null():
                some = [None]
            case Boolean():
                some = sorted(constraint.values)
            case Number(values=None):
                some = constraint.members(_MULTIPLES * most + len(constraint.excluded))
            case Number():
                found |= {
                    (kind, exact(value)): value for value in constraint.values or ()
                }
            case String(values=None):
                some = few_strings(string_terminal(constraint), most)
            case String():
                some = constraint.values
        if some is None:
            return None
        found |= {(kind, value): value for value in some}
    return list(found.values()) if len(found) <= most else None


def _containing(emitter: Emitter, constraint: Array) -> Symbol:
    """A rule for each state, so that those from which no end can be reached are
    removed: how many items there were, and which `contains` were met."""
    contains = constraint.contains
    # From here on all items are alike.
    loop = max([constraint.prefix_length, *(each.start for each in contains)])
    last = (
        constraint.longest
        if constraint.longest is not None
        else max(constraint.shortest, loop, 1)
    )
    if len(contains) > _MAX_CONTAINS:
        raise emitter.refusal(
            "contains", f"can be enforced {_MAX_CONTAINS} times in one array at most"
        )
    if (last + 1) << len(contains) > _MAX_STATES:
        raise emitter.refusal("contains", "with length bounds too large to track")
    grammar = emitter.grammar
    name = grammar.name("c")
    everything = frozenset(range(len(contains)))
    start = _Items(0, frozenset())
    numbers = {start: 0}
    pending = [start]
    known: dict[tuple[int, frozenset[int]], Symbol | None] = {}
    while pending:
        state = pending.pop()
        alternatives = []
        if state.met == everything and state.length >= constraint.shortest:
            alternatives.append(Alternative(()))
        index = min(state.length, loop)
        open_ones = [
            i for i in everything - state.met if contains[i].start <= state.length
        ]
        for chosen in (
            map(frozenset, all_subsets(open_ones))
            if state.length != constraint.longest
            else ()
        ):
            if (index, chosen) not in known:
                known[index, chosen] = _chosen_item(emitter, constraint, index, chosen)
            item = known[index, chosen]
            if item is None:
                continue
            after = _Items(min(state.length + 1, last), state.met | chosen)
            if after not in numbers:
                numbers[after] = len(numbers)
                pending.append(after)
            comma = (COMMA,) if state.length else ()
            alternatives.append(
                Alternative((*comma, item, Reference(f"{name}s{numbers[after]}")))
            )
        grammar.define(f"{name}s{numbers[state]}", alternatives)
    return grammar.rule((OPEN, Reference(f"{name}s0"), CLOSE))


class _Items(NamedTuple):
    """What is known of an array so far."""

    length: int
    met: frozenset[int]
    """The `contains` that an item met."""


def _chosen_item(
    emitter: Emitter, constraint: Array, index: int, chosen: frozenset[int]
) -> Symbol | None:
    """An item that meets these `contains`; None where there is no such item."""
    item = constraint.at(index).union(*(constraint.contains[i].item for i in chosen))
    return (
        None if emitter.algebra.empty(item) else _item(emitter, constraint, index, item)
    )
