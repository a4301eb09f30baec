"""Arrays as rules. Depends on the emitter and members.

Plain ones are sequences. Which strings of a short list were there is remembered in a
rule's parameter; other items that must differ are checked by `distinct/`.
"""

from __future__ import annotations

from dataclasses import replace

from guided_plugin.grammar.llguidance.lark.constraints import (
    Array,
    Boolean,
    Constraint,
    Contains,
    Null,
    Number,
    String,
)
from guided_plugin.grammar.llguidance.lark.emitter import PLAIN, Emitter, incomparable
from guided_plugin.grammar.llguidance.lark.members import NAMED, Member, any_order
from guided_plugin.grammar.llguidance.lark.rules import Repeated, Symbol, Text
from guided_plugin.grammar.llguidance.lark.strings import COMMA, key_text

OPEN = Text("[")
CLOSE = Text("]")

_LONG = 4
"""There are more strings of so many characters than an array may have to have items."""


def array_rule(emitter: Emitter, constraint: Array) -> Symbol:
    """The rule of an array constraint."""
    shortest = constraint.shortest
    longest = constraint.longest
    if longest is not None and shortest > longest:
        return emitter.grammar.rule()
    if constraint.unique and longest in (0, 1):
        constraint = replace(constraint, unique="")
    if constraint.unique:
        strings = _listed_strings(emitter, constraint)
        if strings is None:
            return _distinct(emitter, constraint)
        return _selection(emitter, strings, shortest, longest)
    if constraint.contains:
        return _containing(emitter, constraint)
    return _sequence(emitter, constraint)


def _sequence(emitter: Emitter, constraint: Array) -> Symbol:
    """Items one after the other. Each of the first ones has a rule, since llguidance
    limits how deep groups are nested."""
    longest = constraint.longest
    first = constraint.prefix_length
    symbols: tuple[Symbol, ...] = ()
    if longest is not None and longest <= first:
        first = longest
    else:
        symbols = _alike(emitter, constraint, first)
    for index in reversed(range(first)):
        comma = (COMMA,) if index else ()
        symbols = (*comma, _item(emitter, constraint, index), *symbols)
        none = ((),) if index >= constraint.shortest else ()
        symbols = (emitter.grammar.rule(*none, symbols),)
    return emitter.grammar.rule((OPEN, *symbols, CLOSE))


def _alike(emitter: Emitter, constraint: Array, index: int) -> tuple[Symbol, ...]:
    """The items from an index on where all are alike."""
    item = _item(emitter, constraint, index)
    low = max(constraint.shortest - index, 0)
    high = None if constraint.longest is None else constraint.longest - index
    if index:
        return (Repeated((COMMA, item), low, high),)
    symbols: tuple[Symbol, ...] = (item,)
    if high != 1:
        most = None if high is None else high - 1
        symbols = (item, Repeated((COMMA, item), max(low - 1, 0), most))
    return symbols if low else (Repeated(symbols, 0, 1),)


def _item(emitter: Emitter, constraint: Array, index: int) -> Symbol:
    """The item at an index, with its mark."""
    if constraint.unique:
        return emitter.compared(constraint, index)
    return emitter.marked(emitter.value(constraint.at(index)), PLAIN)


def _containing(emitter: Emitter, constraint: Array) -> Symbol:
    """Arrays that contain an item which satisfies one schema, of any length."""
    wanted = constraint.contains[0]
    plain = Array(constraint.items, (Contains(wanted.item),), shortest=1)
    if constraint.prefix_length or constraint != plain:
        what = "can't be enforced twice in one array, or next to prefixItems or length bounds"
        raise emitter.refusal("contains", what)
    any_item = constraint.at(0)
    item = emitter.marked(emitter.value(any_item), PLAIN)
    found = emitter.marked(emitter.value(any_item | wanted.item), PLAIN)
    before = Repeated((item, COMMA), 0, None)
    behind = Repeated((COMMA, item), 0, None)
    return emitter.grammar.rule((OPEN, before, found, behind, CLOSE))


def _listed_strings(emitter: Emitter, constraint: Array) -> tuple[str, ...] | None:
    """All that the items of an array may be, where that is a short list of strings."""
    if constraint.prefix_length or constraint.contains:
        return None
    shape = emitter.algebra.shape(constraint.at(0))
    match [each for every in shape.values() for each in every]:
        case [String(values=tuple(strings))] if len(strings) <= NAMED:
            return strings
    return None


def _selection(
    emitter: Emitter, strings: tuple[str, ...], shortest: int, longest: int | None
) -> Symbol:
    """Some of a list of strings, each once."""
    if shortest > len(strings):
        return emitter.grammar.rule()
    items = []
    for bit, string in enumerate(strings):
        item = emitter.marked(Text(key_text(string)), PLAIN)
        items.append(Member(item, bit=bit))
    inside = any_order(emitter, items, shortest, longest)
    if not shortest:
        inside = Repeated((inside,), 0, 1)
    return emitter.grammar.rule((OPEN, inside, CLOSE))


def _distinct(emitter: Emitter, constraint: Array) -> Symbol:
    """Scalars that must differ in a way that the grammar can't remember: tokens that
    would repeat one are taken out of its masks."""
    emitter.grammar.distinct = True
    if constraint.contains:
        raise incomparable(constraint, "it stands next to `contains`")
    symbol = _sequence(emitter, constraint)
    least = constraint.shortest
    if least > 1 and constraint.prefix_length:
        raise incomparable(constraint, "it stands next to `prefixItems` and `minItems`")
    count = 0
    for alternatives in emitter.algebra.shape(constraint.at(0)).values():
        # Alternatives of one type may have values in common.
        count += max((_count(each, least) for each in alternatives), default=0)
    if count < least and least > 1:
        raise incomparable(
            constraint,
            f"there may be fewer than {least} different items",
            "use a smaller minItems, or items of a type with enough values",
        )
    return symbol


def _count(constraint: Constraint, most: int) -> int:
    """Return a lower bound, up to `most`, on the number of values that satisfy a
    constraint of scalars. Values of patterns and formats are not counted."""
    match constraint:
        case Null():
            return 1
        case (
            Boolean(values)
            | Number(values=tuple(values))
            | String(values=tuple(values))
        ):
            return len(values)
        case Number():
            return constraint.count(most)
        case String(longest=longest):
            free = String(constraint.shortest, longest) == constraint
            return most if free and (longest is None or longest >= _LONG) else 0
    return 0
