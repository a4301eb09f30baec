"""Arrays as rules. Depends on the emitter.

Plain ones are sequences. `contains` and `uniqueItems` need a memory of what came before: a rule for each
state, or a rule's 64-bit parameter, in which bits and counters are set as items go by.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable
from dataclasses import replace

from guided_plugin.grammar.llguidance.lark.algebra import Algebra, Shape
from guided_plugin.grammar.llguidance.lark.constraints import (
    TRUE,
    Array,
    Boolean,
    Constraint,
    Literals,
    Null,
    Object,
    String,
)
from guided_plugin.grammar.llguidance.lark.emitter import CHANGING, PLAIN, Emitter
from guided_plugin.grammar.llguidance.lark.numbers import ONE_SPELLING
from guided_plugin.grammar.llguidance.lark.patterns import few_strings
from guided_plugin.grammar.llguidance.lark.ranges import Number
from guided_plugin.grammar.llguidance.lark.rules import Alternative, Reference, Repeated, Symbol, Text
from guided_plugin.grammar.llguidance.lark.terminals import COMMA, string_terminal
from guided_plugin.spec.arithmetic import exact

OPEN, CLOSE = Text('"["'), Text('"]"')

_MAX_VALUES = 48
_MAX_CONTAINS = 8
# How many states of counts and lengths are rules of their own.
_MAX_STATES = 2_000
# Numbers between bounds are listed up to so many, to see whether there are enough that are distinct.
_MAX_MEMBERS = 10_000


def array_rule(emitter: Emitter, constraint: Array) -> Symbol:
    """The rule of an array constraint."""
    if constraint.repeats:
        raise emitter.refusal("uniqueItems", "can't be enforced under not")
    most, first = emitter.style.bounds.max_items, constraint.prefix_length
    if most and constraint.longest is None and not emitter.algebra.empty(constraint.at(first)):
        counted = sum(each.start + each.least for each in constraint.contains)
        constraint = replace(constraint, longest=max(most, constraint.shortest, counted))
    counting = tuple(each for each in constraint.contains if each.least or each.most is not None)
    constraint = replace(constraint, contains=tuple(dict.fromkeys(counting)))
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
    """All items. Each of the first ones has a rule, since llguidance limits how deep groups are nested."""
    longest, first = constraint.longest, constraint.prefix_length
    if longest is not None and longest <= first:
        first, symbols = longest, tuple[Symbol, ...]()
    else:
        symbols = _alike(emitter, constraint, first)
    for index in reversed(range(first)):
        comma = (COMMA,) if index else ()
        symbols = (*comma, _item(emitter, constraint, index), *symbols)
        if index >= constraint.shortest:
            symbols = (Repeated(symbols, 0, 1),)
        symbols = (emitter.grammar.rule(symbols),)
    return symbols


def _item(emitter: Emitter, constraint: Array, index: int, literals: Literals | None = None) -> Symbol:
    """An item, with its mark. `literals`: what it is, if it isn't what any item there may be."""
    value = emitter.value(constraint.at(index) if literals is None else literals)
    if not constraint.unique:
        return emitter.marked(value, PLAIN)
    changes = constraint.contains or index < constraint.prefix_length
    return emitter.marked(value, CHANGING if changes else emitter.mark_of(constraint))


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
    values = _known_values(emitter.algebra, constraint.at(0))
    if values is None or len(values) > _MAX_VALUES or constraint.prefix_length or constraint.contains:
        # The grammar can't remember them: tokens that would repeat one are taken out of its masks.
        emitter.distinct = True
        _refuse_scarce(emitter, constraint)
        with emitter.compared(ONE_SPELLING):
            return _plain(emitter, constraint)
    if constraint.shortest > len(values):
        return emitter.grammar.define(emitter.grammar.name("u"), [])
    name = emitter.grammar.name("u")
    tail = f"{name}t"
    field = f"[0:{_MAX_VALUES}]"
    first, later = [], []
    for bit, value in enumerate(values):
        literals = emitter.algebra.literals({"enum": [value]}, emitter.algebra.document.root_base, ())
        item = emitter.marked(emitter.value(literals), PLAIN)
        step: tuple[Symbol, ...] = (item, Reference(tail, f"set_bit({bit})"))
        first.append(Alternative(step))
        counts = constraint.longest is not None and constraint.longest <= _MAX_VALUES
        fits = f"bit_count_lt({field}, {constraint.longest})" if counts else ""
        later.append(Alternative((COMMA, *step), fits, bit))
    enough = f"bit_count_ge({field}, {constraint.shortest})" if constraint.shortest > 1 else ""
    emitter.grammar.define(tail, [Alternative((), enough), *later], parameter=True)
    emitter.grammar.define(name, first, parameter=True)
    filled = (OPEN, Reference(name, "0x0"), CLOSE)
    return emitter.grammar.rule(filled, *([(OPEN, CLOSE)] if constraint.shortest == 0 else []))


def _refuse_scarce(emitter: Emitter, constraint: Array) -> None:
    """Refuse arrays in which earlier items may take all values that a later one can be."""
    for each in constraint.contains:
        if each.least > 1 or each.most is not None or each.start:
            raise emitter.refusal("contains", "can't be counted for items that must be distinct")
    if emitter.is_apart:
        return
    first, last = constraint.prefix_length, constraint.shortest - 1
    for index in {*range(1, min(first, last)), *range(max(last, 1), last + 1)}:
        item = constraint.at(index)
        before = [constraint.at(i) for i in range(min(index, first))]
        taken = max(index - first, 0) + sum(not emitter.algebra.empty(item | one) for one in before)
        if taken and least_count(emitter, item, taken + 1) <= taken:
            why = f"can't be enforced: the items before item {index} may take all its values"
            raise emitter.refusal("uniqueItems", why)


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
            compound = [max(map(of_compound, shape[kind]), default=0) for kind in ("array", "object")]
            found[literals] = min(most, _count_scalars(shape, most) + sum(compound))
        return found[literals]

    def of_compound(constraint: Constraint) -> int:
        if not emitter.apart().satisfies(constraint):
            return 0
        match constraint:
            case Array(contains=()) if constraint.longest != 0 and not (
                constraint.unique and constraint.prefix_length
            ):
                return (constraint.shortest == 0) + of(constraint.at(0))
            case Object(exists=()):
                free = constraint.longest is None and not constraint.names
                if free and not any(
                    each.others is not None for each in emitter.limited(constraint).properties
                ):
                    return most
                listed = [name for each in constraint.properties for name, _ in each.named] if free else []
                names = dict.fromkeys((*constraint.required, *listed)).keys() - {*constraint.forbidden}
                counts = [of(constraint.of(name)) + (name not in constraint.required) for name in names]
                return max(1, math.prod(counts) - (constraint.shortest > len(constraint.required)))
        return 1

    return of(literals)


def _count_scalars(shape: Shape, most: int) -> int:
    """How many scalars a shape has, up to `most`."""
    found: set[tuple[str, Hashable]] = set()
    for kind, constraint in ((kind, each) for kind, every in shape.items() for each in every):
        some: Iterable[Hashable] | None = ()
        match constraint:
            case Null():
                some = [None]
            case Boolean():
                some = constraint.values
            case Number(values=None):
                some = constraint.members(_MAX_MEMBERS)
            case Number():
                some = map(exact, constraint.values or ())
            case String(values=None):
                some = few_strings(string_terminal(constraint), most)
            case String():
                some = constraint.values
        if some is None:
            return most
        found.update((kind, value) for value in some)
    return min(most, len(found))


def _containing(emitter: Emitter, constraint: Array) -> Symbol:
    """A rule for each state, so that those from which no end can be reached are removed: how many items there
    were, and how many of them each `contains` has counted."""
    contains = constraint.contains
    # What has enough needs no more.
    enough = [each.least if each.most is None else each.most for each in contains]
    # From here on all items are alike.
    loop = max([constraint.prefix_length, *(each.start for each in contains)])
    last = constraint.longest if constraint.longest is not None else max(constraint.shortest, loop, 1)
    if len(contains) > _MAX_CONTAINS:
        raise emitter.refusal("contains", f"can be enforced {_MAX_CONTAINS} times in one array at most")
    if (last + 1) * math.prod(count + 1 for count in enough) > _MAX_STATES:
        raise emitter.refusal("contains", "with counts or length bounds too large to track")
    grammar, name = emitter.grammar, emitter.grammar.name("c")
    start = (0, (0,) * len(contains))
    numbers, pending = {start: 0}, [start]
    items: dict[tuple[int, tuple[bool, ...]], Symbol | None] = {}
    while pending:
        state = pending.pop()
        length, counts = state
        whole = all(count >= each.least for each, count in zip(contains, counts, strict=True))
        alternatives = [Alternative(())] if whole and length >= constraint.shortest else []
        index = min(length, loop)
        choices = [
            (False,) if count == most or length < each.start else (True, False)
            for each, count, most in zip(contains, counts, enough, strict=True)
        ]
        for chosen in itertools.product(*choices) if length != constraint.longest else ():
            if (index, chosen) not in items:
                items[index, chosen] = _chosen_item(emitter, constraint, index, chosen)
            item = items[index, chosen]
            if item is None:
                continue
            after = min(length + 1, last), tuple(map(sum, zip(counts, chosen, strict=True)))
            if after not in numbers:
                numbers[after] = len(numbers)
                pending.append(after)
            comma = (COMMA,) if length else ()
            alternatives.append(Alternative((*comma, item, Reference(f"{name}s{numbers[after]}"))))
        grammar.define(f"{name}s{numbers[state]}", alternatives)
    return grammar.rule((OPEN, Reference(f"{name}s0"), CLOSE))


def _chosen_item(emitter: Emitter, constraint: Array, index: int, chosen: tuple[bool, ...]) -> Symbol | None:
    """An item that these `contains` count; None where there is no such item."""
    literals = [constraint.at(index)]
    for each, counted in zip(constraint.contains, chosen, strict=True):
        if counted:
            literals.append(each.item)
        elif each.most is not None and index >= each.start:
            # What is not counted must be known not to count.
            literals.append(emitter.algebra.negated(each.item))
    item = TRUE.union(*literals)
    return None if emitter.algebra.empty(item) else _item(emitter, constraint, index, item)


def _known_values(algebra: Algebra, literals: Literals) -> list[object] | None:
    """The values that satisfy them, where those are finitely many scalars."""
    values: list[object] = []
    for constraint in itertools.chain.from_iterable(algebra.shape(literals).values()):
        match constraint:
            case Null():
                values.append(None)
            case Boolean(some):
                values += sorted(some)
            case Number(values=tuple(some)) | String(values=tuple(some)):
                values += some
            case _:
                return None
    return values
