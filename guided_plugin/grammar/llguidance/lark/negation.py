"""The negation of a demand on arrays or objects: alternatives of which one must hold.

Depends on constraints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from guided_plugin.grammar.llguidance.lark.constraints import (
    TRUE,
    Array,
    Constraint,
    Contains,
    Exists,
    Items,
    Literals,
    Object,
    Properties,
)

Negate = Callable[[Literals], Literals]


def negated(constraint: Constraint, negate: Negate) -> Iterator[Constraint]:
    """What breaks one of the demands of an array or an object. `negate`: the negation of a conjunction."""
    match constraint:
        case Array():
            yield from _negated_array(constraint, negate)
        case Object():
            yield from _negated_object(constraint, negate)


def _negated_array(array: Array, negate: Negate) -> Iterator[Array]:
    for items in array.items:
        for index, item in enumerate(items.prefix):
            if item:
                wrong = Items((TRUE,) * index + (negate(item),), evaluates=False)
                yield Array(items=(wrong,), shortest=index + 1)
        if items.rest:
            start = len(items.prefix)
            other = Contains(negate(items.rest), start, evaluates=False)
            yield Array(contains=(other,), shortest=start + 1)
    for contains in array.contains:
        yield from _other_count(contains, negate)
    if array.shortest:
        yield Array(longest=array.shortest - 1)
    if array.longest is not None:
        yield Array(shortest=array.longest + 1)
    if array.unique:
        yield Array(repeats=True, shortest=2)


def _other_count(contains: Contains, negate: Negate) -> Iterator[Array]:
    """Too few items that satisfy `contains`, or too many."""
    item, start, least, most = contains.item, contains.start, contains.least, contains.most
    if least == 1:
        none = Items((TRUE,) * start, negate(item), evaluates=False)
        yield Array(items=(none,)) if item else Array(longest=start)
    elif least > 1:
        yield Array(contains=(Contains(item, start, 0, least - 1, evaluates=False),))
    if most is not None:
        more = Contains(item, start, most + 1, evaluates=False)
        yield Array(contains=(more,), shortest=start + most + 1)


def _negated_object(constraint: Object, negate: Negate) -> Iterator[Object]:
    for properties in constraint.properties:
        yield from _other_values(properties, negate)
    for name in constraint.required:
        yield Object(forbidden=(name,))
    for name in constraint.forbidden:
        yield Object(required=(name,))
    for names in constraint.names:
        yield Object(exists=(Exists(TRUE, name=negate(names)),), shortest=1)
    if constraint.shortest:
        yield Object(longest=constraint.shortest - 1)
    if constraint.longest is not None:
        yield Object(shortest=constraint.longest + 1)


def _other_values(properties: Properties, negate: Negate) -> Iterator[Object]:
    """Objects with a property that has another value than these say."""
    for name, value in properties.named:
        if value:
            wrong = Properties(named=((name, negate(value)),), evaluates=False)
            yield Object(properties=(wrong,), required=(name,))
    for source, value in properties.matching:
        if value:
            yield Object(exists=(Exists(negate(value), pattern=source),), shortest=1)
    if properties.others:
        names = frozenset(name for name, _ in properties.named)
        sources = frozenset(source for source, _ in properties.matching)
        exists = Exists(negate(properties.others), besides=(names, sources))
        yield Object(exists=(exists,), shortest=1)
