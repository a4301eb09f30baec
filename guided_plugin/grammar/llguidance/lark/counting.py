"""How many values satisfy a schema, where those are few. Distinct items can't be more.

Depends on the emitter.
"""

from __future__ import annotations

import math
from fractions import Fraction

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
from guided_plugin.grammar.llguidance.lark.emitter import Emitter
from guided_plugin.grammar.llguidance.lark.reader import closed

# So deep values are counted in values.
_MAX_DEPTH = 4


def most_values(emitter: Emitter, literals: Literals, enough: int, depth: int = 0) -> int:
    """A number that the values are not more than; `enough` where it is at least that or not known."""
    if not literals or depth > _MAX_DEPTH:
        return enough
    total = 0
    for constraints in emitter.algebra.shape(literals).values():
        for constraint in constraints:
            total += _most(emitter, constraint, enough, depth)
            if total >= enough:
                return enough
    return total


def _most(emitter: Emitter, constraint: Constraint, enough: int, depth: int) -> int:
    match constraint:
        case Null():
            return 1
        case Boolean(values):
            return len(values)
        case Number():
            return _numbers(constraint, enough)
        case String(values=tuple(values)):
            return len(values)
        case String(longest=0):
            return 1
        case Array():
            return _arrays(emitter, constraint, enough, depth)
        case Object():
            return _objects(emitter, constraint, enough, depth)
    return enough


def _numbers(number: Number, enough: int) -> int:
    if number.values is not None:
        return len(number.values)
    steps = [Fraction(str(divisor)) for divisor in number.multiples]
    steps += [Fraction(1)] if number.whole else []
    if not steps or number.low is None or number.high is None:
        return enough
    low, high = Fraction(str(number.low.value)), Fraction(str(number.high.value))
    counts = []
    for step in steps:
        first, last = math.ceil(low / step), math.floor(high / step)
        first += number.low.exclusive and first * step == low
        last -= number.high.exclusive and last * step == high
        counts.append(last - first + 1)
    return max(0, min(counts))


def _arrays(emitter: Emitter, array: Array, enough: int, depth: int) -> int:
    if array.longest is None:
        return enough
    total, of_length = 0, 1
    for length in range(array.longest + 1):
        if length >= array.shortest:
            total += of_length
        if total >= enough:
            return enough
        of_length *= most_values(emitter, array.at(length), enough, depth + 1)
        if not of_length:
            break
    return total


def _objects(emitter: Emitter, entries: Object, enough: int, depth: int) -> int:
    if emitter.style.closed and (entries.declared or entries.properties):
        entries = closed(entries, emitter.algebra.negated(TRUE))
    others = [p.others for p in entries.properties if p.others is not None and not p.matching]
    if not any(emitter.algebra.empty(literals) for literals in others):
        return enough
    names = dict.fromkeys(name for properties in entries.properties for name, _ in properties.named)
    total = 1
    for name in names:
        absent = name not in entries.required
        total *= absent + most_values(emitter, entries.of(name), enough, depth + 1)
        if total >= enough:
            return enough
    return total
