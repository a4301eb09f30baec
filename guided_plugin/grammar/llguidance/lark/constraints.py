"""What a JSON Schema demands of the values of one type, and the intersection of two
such demands.

One frozen class a type. `meet` gives the values that satisfy both, or None where there
are none (it may overlook that there are none, never the other way round). Subschemas
appear as `Literals` only: sets of numbered schemas, each taken as it is or negated, all
of which must hold. Depends on patterns and spec.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from guided_plugin.grammar.llguidance.lark import patterns
from guided_plugin.grammar.llguidance.lark.ranges import Number, common
from guided_plugin.spec.formats import WIDE

Literals = frozenset[tuple[bool, int]]
"""A conjunction: (True, n) for schema n, (False, n) for its negation."""

TRUE: Literals = frozenset()

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Null:
    """The one null."""

    def meet(self, other: Null) -> Null:
        return other


@dataclass(frozen=True, slots=True)
class Boolean:
    """Some of true and false."""

    values: frozenset[bool] = frozenset({True, False})

    def meet(self, other: Boolean) -> Boolean | None:
        values = self.values & other.values
        return Boolean(values) if values else None


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
        values = common(self.values, other.values)
        met = String(
            max(self.shortest, other.shortest),
            _least(self.longest, other.longest),
            self.patterns | other.patterns,
            self.no_patterns | other.no_patterns,
            self.formats | other.formats,
            None,
            self.excluded | other.excluded,
        )
        if values is not None:
            kept = tuple(value for value in values if met.has(value))
            return String(values=kept) if kept else None
        if met.longest is not None and met.shortest > met.longest:
            return None
        if not met.no_patterns.isdisjoint(
            {*met.patterns, *(WIDE[name] for name in met.formats)}
        ):
            return None
        return met

    def has(self, text: str) -> bool:
        """Whether a string is one of these."""
        if self.values is not None and text not in self.values:
            return False
        return (
            self.shortest <= len(text)
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
        """What the item at an index must satisfy."""
        return self.prefix[index] if index < len(self.prefix) else self.rest or TRUE


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
    unique: bool = False
    repeats: bool = False
    """Two items are equal: what `not: {uniqueItems: true}` asks for."""

    def meet(self, other: Array) -> Array | None:
        met = Array(
            _union(self.items, other.items),
            _union(self.contains, other.contains),
            max(self.shortest, other.shortest),
            _least(self.longest, other.longest),
            self.unique or other.unique,
            self.repeats or other.repeats,
        )
        if met.longest is not None and met.shortest > met.longest:
            return None
        return None if met.unique and met.repeats else met

    def at(self, index: int) -> Literals:
        """What the item at an index must satisfy."""
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
    """None: not mentioned, so anything."""
    describes: bool = True
    """Whether these are the properties that an object has, as far as the schema says;
    under `not` they are not."""
    _by_name: dict[str, Literals] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """`named` again, filled at the first question."""

    def of(self, name: str) -> Literals:
        """What the value of a property must satisfy."""
        if len(self._by_name) < len(self.named):
            self._by_name.update(self.named)
        listed = self._by_name.get(name)
        if not self.matching:
            return listed if listed is not None else self.others or TRUE
        found = [] if listed is None else [listed]
        found += [
            literals
            for source, literals in self.matching
            if patterns.matches(source, name)
        ]
        return TRUE.union(*found) if found else self.others or TRUE


@dataclass(frozen=True, slots=True)
class Exists:
    """There is a property whose name is as said and whose value satisfies `value`."""

    value: Literals
    name: Literals | None = None
    """The name, as a string, satisfies this;"""
    pattern: str | None = None
    """or matches this;"""
    besides: tuple[frozenset[str], frozenset[str]] | None = None
    """or is none of these names and matches none of these patterns."""


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
    """Those of `required` that the schema asks for by name: where objects are closed
    they are described."""
    unless: tuple[Literals, ...] = ()
    """Conjunctions that the object must not satisfy, kept until everything else about
    it is known."""

    def meet(self, other: Object) -> Object | None:
        met = Object(
            _joined(self.properties, other.properties),
            _joined(self.required, other.required),
            _joined(self.forbidden, other.forbidden),
            _joined(self.names, other.names),
            _joined(self.exists, other.exists),
            max(self.shortest, other.shortest),
            _least(self.longest, other.longest),
            _joined(self.asked, other.asked),
            _joined(self.unless, other.unless),
        )
        if not set(met.required).isdisjoint(met.forbidden):
            return None
        if (
            met.longest is not None
            and max(len(met.required), met.shortest) > met.longest
        ):
            return None
        return met

    def of(self, name: str) -> Literals:
        """What the value of a property must satisfy."""
        if len(self.properties) == 1:
            return self.properties[0].of(name)
        return TRUE.union(*(properties.of(name) for properties in self.properties))


Constraint = Null | Boolean | Number | String | Array | Object


def _least(one: int | None, two: int | None) -> int | None:
    return two if one is None else one if two is None else min(one, two)


def _union(one: tuple[T, ...], two: Iterable[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys((*one, *two)))


def _joined(one: tuple[T, ...], two: tuple[T, ...]) -> tuple[T, ...]:
    """The same of two without repetitions."""
    return _union(one, two) if one and two else one or two


def describes(constraint: Constraint) -> bool:
    """Whether a constraint says which properties an object has."""
    return isinstance(constraint, Object) and any(
        each.describes for each in constraint.properties
    )


def with_properties(constraint: Object, properties: Properties) -> Object:
    """The same objects with one more demand on their properties."""
    return replace(constraint, properties=_union(constraint.properties, (properties,)))
