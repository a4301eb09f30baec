"""What a JSON Schema demands of the values of one type, and the intersection of two
such demands.

One frozen class a type. `meet` gives the values that satisfy both, or None where there
are none (it may overlook that there are none, never the other way round). Subschemas
appear as `Literals` only: sets of numbered schemas, each taken as it is or negated, all
of which must hold. Depends on patterns and spec.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from guided_plugin.grammar.llguidance.lark import patterns
from guided_plugin.grammar.llguidance.lark.ranges import Number, both
from guided_plugin.spec.formats import WIDE

Literals = frozenset[tuple[int, bool]]
"""A conjunction: (n, True) for schema n, (n, False) for its negation."""

TRUE: Literals = frozenset()


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
        """Whether a string is one of these."""
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
        """What the item at an index must satisfy."""
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
    """What all other properties must satisfy.

    None: not mentioned, so anything.
    """
    describes: bool = True
    """Whether these are the properties that an object has, as far as the schema says;
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
    """Those of `required` that the schema asks for by name: where objects are closed
    they are described."""
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
        """What the value of a property must satisfy whose name matches these patterns;
        None: a name that is not listed."""
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
    """Whether a constraint says which properties an object has."""
    return isinstance(constraint, Object) and any(
        each.describes for each in constraint.properties
    )
