"""The demands of a JSON Schema on the values of one type, and the intersection of two
such demands.

One frozen class a type. `meet` gives the values that satisfy both, or None where there
are none (it may overlook that there are none, never the other way round). Subschemas
appear as `Literals` only: sets of numbered schemas, each taken as it is or negated, all
of which must hold. Depends on patterns and spec.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from guided_plugin.grammar.llguidance.lark import patterns
from guided_plugin.spec.arithmetic import Value, divides, exact, least_multiple
from guided_plugin.spec.formats import WIDE

T = TypeVar("T")

Literals = frozenset[tuple[int, bool]]
"""A conjunction: (n, True) for schema n, (n, False) for its negation."""

TRUE: Literals = frozenset()

# More multiples than these between two bounds are not all excluded.
_MAX_MEMBERS = 10_000


@dataclass(frozen=True, slots=True)
class Null:
    """The one null."""

    def meet(self, other: Null) -> Null:
        """There is only one."""
        return other


@dataclass(frozen=True, slots=True)
class Boolean:
    """Some of true and false."""

    values: frozenset[bool] = frozenset({True, False})

    def meet(self, other: Boolean) -> Boolean:
        """Return those that are in both, perhaps none."""
        return Boolean(self.values & other.values)


@dataclass(frozen=True, slots=True)
class Bound:
    """An end of a range."""

    value: Value
    exclusive: bool

    def allows(self, value: Fraction, sign: int) -> bool:
        """True if it allows a number. `sign`: 1 for a lower bound, -1 for an upper."""
        distance = (value - exact(self.value)) * sign
        if distance == 0:
            return not self.exclusive
        return distance > 0


@dataclass(frozen=True, slots=True)
class Number:
    """Numbers; integers are numbers without a fraction."""

    whole: bool = False
    """Only integers. Other numbers are no multiples of 1."""
    low: Bound | None = None
    high: Bound | None = None
    multiples: frozenset[Value] = frozenset()
    no_multiples: frozenset[Value] = frozenset()
    values: tuple[Value, ...] | None = None
    """If given, the numbers themselves; then nothing else is demanded of them."""
    excluded: frozenset[Value] = frozenset()

    def meet(self, other: Number) -> Number | None:
        met = both(self, other)
        if met.values is None:
            return met if met.count(1) else None
        free = replace(met, values=None)
        kept = tuple(value for value in met.values if free.has(exact(value)))
        return Number(whole=met.whole, values=kept) if kept else None

    @property
    def step(self) -> Fraction | None:
        """The number that all are multiples of."""
        if not self.multiples:
            return Fraction(1) if self.whole else None
        steps = [exact(divisor) for divisor in self.multiples]
        if self.whole:
            steps.append(Fraction(1))
        return least_multiple(steps)

    def count(self, most: int) -> int:
        """Return a lower bound on their number, up to `most`."""
        low = self.low
        high = self.high
        step = self.step
        if step is not None and self._refuses_multiples_of(step):
            return 0
        if low is None or high is None:
            return most
        if step is None:
            return most if low.value < high.value else int(self.has(exact(low.value)))
        enough = _MAX_MEMBERS + len(self.excluded)
        several = _multiples(step, low, high)[:enough]
        members = (n for n in several if self.has(n * step))
        return sum(1 for _ in islice(members, most))

    def has(self, value: Fraction) -> bool:
        """True if a number satisfies all demands."""
        if self.low is not None and not self.low.allows(value, 1):
            return False
        if self.high is not None and not self.high.allows(value, -1):
            return False
        if value in map(exact, self.excluded):
            return False
        step = self.step
        if step is not None and not divides(step, value):
            return False
        return not self._refuses_multiples_of(value)

    def _refuses_multiples_of(self, value: Fraction) -> bool:
        divisors = map(exact, self.no_multiples)
        return any(divides(divisor, value) for divisor in divisors)


@dataclass(frozen=True, slots=True)
class String:
    """Strings; lengths count code points. What must not have a format must not match
    its wide pattern."""

    shortest: int = 0
    longest: int | None = None
    patterns: frozenset[str] = frozenset()
    no_patterns: frozenset[str] = frozenset()
    formats: frozenset[str] = frozenset()
    values: tuple[str, ...] | None = None
    excluded: frozenset[str] = frozenset()

    def meet(self, other: String) -> String | None:
        """Return the strings that satisfy both.

        Listed values are checked here, so that they have no other demand.
        """
        met = both(self, other)
        if met.values is not None:
            free = replace(met, values=None)
            kept = tuple(value for value in met.values if free.has(value))
            return String(values=kept)
        required = {*met.patterns, *(WIDE[name] for name in met.formats)}
        if not met.no_patterns.isdisjoint(required):
            return None
        return met

    def has(self, text: str) -> bool:
        """True if a string is one of these."""
        return (
            (self.values is None or text in self.values)
            and self.shortest <= len(text)
            and (self.longest is None or len(text) <= self.longest)
            and text not in self.excluded
            and all(patterns.matches(source, text) for source in self.patterns)
            and not any(patterns.matches(source, text) for source in self.no_patterns)
            and all(patterns.matches_format(name, text) for name in self.formats)
        )


@dataclass(frozen=True, slots=True)
class Items:
    """`prefixItems` and `items` of one schema."""

    prefix: tuple[Literals, ...] = ()
    rest: Literals | None = None
    """None: not mentioned, so anything."""

    def at(self, index: int) -> Literals:
        """Return the schemas that the item at an index must satisfy."""
        if index < len(self.prefix):
            return self.prefix[index]
        return self.rest or TRUE


@dataclass(frozen=True, slots=True)
class Contains:
    """One of the items from index `start` on satisfies this."""

    item: Literals
    start: int = 0


@dataclass(frozen=True, slots=True)
class Array:
    """Arrays."""

    items: tuple[Items, ...] = ()
    contains: tuple[Contains, ...] = ()
    shortest: int = 0
    longest: int | None = None
    unique: str = ""
    """The place of a `uniqueItems`; empty: items may be equal."""

    def meet(self, other: Array) -> Array:
        """Return the arrays that satisfy both."""
        return both(self, other)

    def at(self, index: int) -> Literals:
        """Return the schemas that the item at an index must satisfy."""
        return TRUE.union(*(items.at(index) for items in self.items))

    @property
    def prefix_length(self) -> int:
        """From this index on all items are alike, but for `contains`."""
        return max((len(items.prefix) for items in self.items), default=0)


@dataclass(frozen=True, slots=True)
class Properties:
    """`properties`, `patternProperties` and `additionalProperties` of one schema."""

    named: tuple[tuple[str, Literals], ...] = ()
    matching: tuple[tuple[str, Literals], ...] = ()
    others: Literals | None = None
    """The schemas that all other properties must satisfy.

    None: not mentioned, so anything.
    """
    describes: bool = True
    """True if these are the properties that an object has, as far as the schema says;
    under `not` they are not."""
    by_name: dict[str, Literals] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """`named` again, filled by `Object.of`."""


@dataclass(frozen=True, slots=True)
class Exists:
    """There is a property whose value satisfies `value`."""

    value: Literals
    besides: frozenset[str]
    """Its name is none of these."""


@dataclass(frozen=True, slots=True)
class Object:
    """Objects."""

    properties: tuple[Properties, ...] = ()
    required: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()
    names: tuple[Literals, ...] = ()
    exists: tuple[Exists, ...] = ()
    shortest: int = 0
    longest: int | None = None
    asked: tuple[str, ...] = ()
    """Names of `required` that the schema asks for: where objects are closed they are
    described."""
    unless: tuple[Literals, ...] = ()
    """Conjunctions that the object must not satisfy, kept until everything else about
    it is known."""

    def meet(self, other: Object) -> Object | None:
        """Return the objects that satisfy both; None where a name is required and
        forbidden."""
        met = both(self, other)
        if not set(met.required).isdisjoint(met.forbidden):
            return None
        return met

    def matched(self, name: str) -> tuple[str, ...]:
        """The patterns of names that a name matches."""
        found: dict[str, None] = {}
        for each in self.properties:
            for source, _ in each.matching:
                if patterns.matches(source, name):
                    found[source] = None
        return tuple(found)

    def of(self, name: str | None, matched: Collection[str]) -> Literals:
        """Return the schemas that the value of a property must satisfy whose name
        matches these patterns; None: a name that is not listed."""
        value = TRUE
        for each in self.properties:
            own = []
            if each.named and not each.by_name:
                each.by_name.update(each.named)
            if name in each.by_name:
                own.append(each.by_name[name])
            for source, literals in each.matching:
                if source in matched:
                    own.append(literals)
            if not own and each.others is not None:
                own.append(each.others)
            value = value.union(*own)
        return value


Constraint = Null | Boolean | Number | String | Array | Object


def describes(constraint: Constraint) -> bool:
    """True if a constraint says which properties an object has."""
    return isinstance(constraint, Object) and any(
        each.describes for each in constraint.properties
    )


def _multiples(step: Fraction, low: Bound, high: Bound) -> range:
    """Return the factors of a step's multiples between two bounds, these included."""
    first = math.ceil(exact(low.value) / step)
    last = math.floor(exact(high.value) / step)
    return range(first, last + 1)


def _tighter(choose: Callable[..., Bound], one: Bound, two: Bound) -> Bound:
    """The bound that allows less."""
    if one.value == two.value:
        return one if one.exclusive else two
    return choose(one, two, key=lambda bound: bound.value)


def _common(one: tuple[Any, ...], two: tuple[Any, ...]) -> tuple[Any, ...]:
    """The elements of both lists."""
    wanted = set(two)
    return tuple(value for value in one if value in wanted)


def _joined(one: Any, two: Any) -> Any:
    """The elements of two sets, or of two lists without repetitions."""
    if isinstance(one, frozenset):
        return one | two
    return tuple(dict.fromkeys(one + two))


_MEET: dict[str, Callable[[Any, Any], Any]] = {
    "whole": max,
    "low": partial(_tighter, max),
    "high": partial(_tighter, min),
    "shortest": max,
    "longest": min,
    "values": _common,
    "unique": max,
}
"""The functions that combine fields which do not list demands."""


def both(one: T, two: T) -> T:
    """The demands of two constraints of one type."""
    met = []
    for name in one.__slots__:  # type: ignore[attr-defined]
        ours = getattr(one, name)
        theirs = getattr(two, name)
        # Keywords demand one thing each: most fields are defaults.
        if ours is None or theirs is None or ours == theirs:
            met.append(theirs if ours is None else ours)
        else:
            met.append(_MEET.get(name, _joined)(ours, theirs))
    return type(one)(*met)
