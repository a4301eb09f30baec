"""Arrays as rules. Depends on the emitter.

Plain ones are sequences. `contains` and `uniqueItems` need a memory of what came before: a rule's 64-bit
parameter, in which bits and counters are set as items go by and asked for at the end.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from guided_plugin.grammar.llguidance.lark.algebra import Algebra
from guided_plugin.grammar.llguidance.lark.constraints import (
    Array,
    Boolean,
    Contains,
    Literals,
    Null,
    Number,
    String,
)
from guided_plugin.grammar.llguidance.lark.emitter import Emitter
from guided_plugin.grammar.llguidance.lark.rules import Alternative, Reference, Repeated, Symbol, Text
from guided_plugin.grammar.llguidance.lark.terminals import COMMA

OPEN, CLOSE = Text('"["'), Text('"]"')

_MAX_VALUES = 48
_MAX_CONTAINS = 3
_SPARE_BIT = 63


def array_rule(emitter: Emitter, constraint: Array) -> Symbol:
    """The rule of an array constraint."""
    if constraint.repeats:
        raise emitter.refusal("uniqueItems", "can't be enforced under not")
    if constraint.unique and (constraint.longest is None or constraint.longest > 1):
        return _unique(emitter, constraint)
    contains = [c for c in constraint.contains if c.least > 0 or c.most is not None]
    if contains:
        return _containing(emitter, constraint, contains)
    return emitter.grammar.rule((OPEN, *_from(emitter, constraint, 0), CLOSE))


def _from(emitter: Emitter, constraint: Array, index: int) -> tuple[Symbol, ...]:
    """The items from an index on."""
    longest = constraint.longest
    if longest is not None and index >= longest:
        return ()
    item = emitter.value(constraint.at(index))
    comma = (COMMA,) if index else ()
    if index < constraint.prefix_length:
        symbols = (*comma, item, *_from(emitter, constraint, index + 1))
        return symbols if index < constraint.shortest else (Repeated(symbols, 0, 1),)
    low = max(constraint.shortest - index, 0)
    high = None if longest is None else longest - index
    if comma:
        return (Repeated((COMMA, item), low, high),)
    more = Repeated((COMMA, item), max(low - 1, 0), None if high is None else high - 1)
    symbols = (item,) if high == 1 else (item, more)
    return symbols if low else (Repeated(symbols, 0, 1),)


def remembering(emitter: Emitter, value: Symbol, target: str, functions: Sequence[str]) -> tuple[Symbol, ...]:
    """A value, then a rule whose parameter went through functions.

    A rule takes one function, so the others get rules between. These carry the value and have two
    alternatives that cover every case: llguidance 1.9 drops the parameter of a rule that consists of one
    other rule, and folds rules of one alternative.
    """
    if len(functions) <= 1:
        return (value, Reference(target, functions[0] if functions else "_"))
    name = emitter.grammar.name("z")
    inner = remembering(emitter, value, target, functions[1:])
    either = [Alternative(inner, f"bit_clear({_SPARE_BIT})"), Alternative(inner, f"bit_set({_SPARE_BIT})")]
    emitter.grammar.define(name, either, parameter=True)
    return (Reference(name, functions[0]),)


def all_of(conditions: Sequence[str]) -> str:
    """Conditions on a parameter, joined."""
    joined = ""
    for condition in filter(None, conditions):
        joined = f"and({joined}, {condition})" if joined else condition
    return joined


def _unique(emitter: Emitter, constraint: Array) -> Symbol:
    values = _known_values(emitter.algebra, constraint.at(0))
    if values is None or constraint.prefix_length or constraint.contains:
        raise emitter.refusal(
            "uniqueItems", "can only be enforced where the items are a few known values (enum or const)"
        )
    if len(values) > _MAX_VALUES:
        raise emitter.refusal(
            "uniqueItems", f"over {len(values)} values, of {_MAX_VALUES} that can be remembered"
        )
    if constraint.shortest > len(values):
        return emitter.grammar.define(emitter.grammar.name("u"), [])
    name = emitter.grammar.name("u")
    tail = f"{name}t"
    field = f"[0:{_MAX_VALUES}]"
    first, later = [], []
    for bit, value in enumerate(values):
        literals = emitter.algebra.literals({"enum": [value]}, emitter.algebra.document.root_base, ())
        item = emitter.value(literals)
        step: tuple[Symbol, ...] = (item, Reference(tail, f"set_bit({bit})"))
        first.append(Alternative(step))
        fits = f"bit_count_lt({field}, {constraint.longest})" if constraint.longest is not None else ""
        later.append(Alternative((COMMA, *step), all_of([f"bit_clear({bit})", fits])))
    enough = f"bit_count_ge({field}, {constraint.shortest})" if constraint.shortest > 1 else ""
    emitter.grammar.define(tail, [Alternative((), enough), *later], parameter=True)
    emitter.grammar.define(name, first, parameter=True)
    filled = (OPEN, Reference(name, "0x0"), CLOSE)
    return emitter.grammar.rule(filled, *([(OPEN, CLOSE)] if constraint.shortest == 0 else []))


class _Fields:
    """Bits and counters in a parameter."""

    def __init__(self, emitter: Emitter) -> None:
        self.emitter = emitter
        self.used = 0

    def counter(self, most: int) -> str:
        """A field that counts to one more than `most`."""
        width = (most + 1).bit_length() + 1
        low, self.used = self.used, self.used + width
        if self.used > _SPARE_BIT:
            raise self.emitter.refusal("contains", "with counts or length bounds too large to remember")
        return f"[{low}:{self.used}]"


def _containing(emitter: Emitter, constraint: Array, contains: list[Contains]) -> Symbol:
    if len(contains) > _MAX_CONTAINS:
        raise emitter.refusal("contains", f"can be enforced {_MAX_CONTAINS} times in one array at most")
    fields = _Fields(emitter)
    counters = [fields.counter(max(each.least, each.most or 0)) for each in contains]
    ends = []
    for counter, each in zip(counters, contains, strict=True):
        ends.append(f"ge({counter}, {each.least})" if each.least else "")
        ends.append(f"le({counter}, {each.most})" if each.most is not None else "")
    # Positions that differ are rules of their own; from `loop` on all are alike.
    loop = max([constraint.prefix_length, *(each.start for each in contains)])
    shortest, longest = constraint.shortest, constraint.longest
    counted = shortest > loop or longest is not None
    length = fields.counter(max(shortest, longest or 0)) if counted else ""
    fits = f"lt({length}, {longest})" if longest is not None else ""
    name = emitter.grammar.name("c")
    for index in range(loop + 1):
        target = f"{name}n{min(index + 1, loop)}"
        counting = [f"incr({length})"] if length else []
        steps = [
            remembering(emitter, emitter.value(literals), target, counting + functions)
            for literals, functions in _choices(constraint, contains, counters, index)
        ]
        if index == 0:
            emitter.grammar.define(f"{name}h", [Alternative(step) for step in steps], parameter=True)
            if loop:
                continue
        going_on = [Alternative((COMMA, *step), fits) for step in steps]
        enough = f"ge({length}, {shortest})" if length and shortest > index else ""
        end = [Alternative((), all_of([*ends, enough]))] if index >= shortest or index == loop else []
        emitter.grammar.define(f"{name}n{index}", [*end, *going_on], parameter=True)
    filled = (OPEN, Reference(f"{name}h", "0x0"), CLOSE)
    empty = shortest == 0 and all(each.least == 0 for each in contains)
    return emitter.grammar.rule(filled, *([(OPEN, CLOSE)] if empty else []))


def _choices(
    constraint: Array, contains: list[Contains], counters: list[str], index: int
) -> Iterator[tuple[Literals, list[str]]]:
    """What the item at an index may be: each choice of the demands that it counts for, and how it counts."""
    active = [
        (each, counter) for each, counter in zip(contains, counters, strict=True) if index >= each.start
    ]
    for chosen in itertools.product((True, False), repeat=len(active)):
        literals, functions = constraint.at(index), []
        for (each, counter), counts in zip(active, chosen, strict=True):
            if counts:
                literals |= each.item
                functions.append(f"incr({counter})")
            elif each.most is not None:
                # What is not counted must be known not to count.
                if not each.item:
                    break
                literals |= frozenset((not positive, number) for positive, number in each.item)
        else:
            yield literals, functions


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
