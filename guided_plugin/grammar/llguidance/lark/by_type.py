"""Keywords that constrain one type, as constraints, and what breaks these.

Negated, a minimum is a maximum, and `required` forbids. Values of other types satisfy
these keywords, and don't satisfy their negation. Depends on constraints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

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
    String,
)
from guided_plugin.grammar.llguidance.lark.ranges import Bound, Number
from guided_plugin.spec.arithmetic import canonical
from guided_plugin.spec.formats import WIDE

Keywords = Mapping[str, Any]
Negate = Callable[[Literals], Literals]

_OF_NUMBERS = {
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
}
_OF_STRINGS = {"minLength", "maxLength", "pattern", "format"}
_OF_ARRAYS = {"items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"}
_OF_OBJECTS = {
    *("properties", "patternProperties", "additionalProperties", "propertyNames"),
    *("required", "minProperties", "maxProperties"),
}


class LiteralsOf(Protocol):
    """Numbers a subschema, given its place in the schema."""

    def __call__(self, positive: bool, schema: Any, *path: str | int) -> Literals: ...


def demands(
    keywords: Keywords,
    literals: LiteralsOf,
    negate: Negate,
    positive: bool,
    *,
    wide: bool,
) -> Iterator[tuple[str, tuple[Constraint, ...]]]:
    """What each keyword, or its negation, demands: a type, and alternatives for the
    values of that type.

    `negate`: the negation of a conjunction of subschemas. `wide`: under any reading of
    a format.
    """
    there = keywords.keys()
    for number in _numbers(keywords, positive) if there & _OF_NUMBERS else ():
        yield "number", (number,)
    for strings in _strings(keywords, positive, wide) if there & _OF_STRINGS else ():
        yield "string", strings
    for array in _arrays(keywords, literals) if there & _OF_ARRAYS else ():
        yield "array", (array,) if positive else tuple(negated(array, negate))
    for constraint in _objects(keywords, literals) if there & _OF_OBJECTS else ():
        yield (
            "object",
            (constraint,) if positive else tuple(negated(constraint, negate)),
        )


def _numbers(keywords: Keywords, positive: bool) -> Iterator[Number]:
    for keyword, lower in (("minimum", True), ("maximum", False)):
        value = keywords.get(keyword)
        other = keywords.get(f"exclusive{keyword.title()}")
        ends = [] if value is None else [Bound(canonical(value), other is True)]
        if other is not None and not isinstance(other, bool):
            ends.append(Bound(canonical(other), True))
        for end in ends:
            bound = end if positive else Bound(end.value, not end.exclusive)
            yield Number(low=bound) if lower is positive else Number(high=bound)
    if "multipleOf" in keywords:
        found = frozenset({canonical(keywords["multipleOf"])})
        yield Number(multiples=found) if positive else Number(no_multiples=found)


def _strings(
    keywords: Keywords, positive: bool, wide: bool
) -> Iterator[tuple[String, ...]]:
    for least, most in _lengths(keywords, "Length"):
        if positive:
            yield (
                (String(shortest=least, longest=most),)
                if most is None or least <= most
                else ()
            )
            continue
        shorter = [String(longest=least - 1)] if least else []
        yield (*shorter, *([String(shortest=most + 1)] if most is not None else []))
    if "pattern" in keywords:
        found = frozenset({keywords["pattern"]})
        yield (String(patterns=found) if positive else String(no_patterns=found),)
    if "format" in keywords:
        name = keywords["format"]
        found = frozenset({WIDE[name]})
        if wide:
            yield (String(patterns=found) if positive else String(),)
        else:
            yield (
                String(formats=frozenset({name}))
                if positive
                else String(no_patterns=found),
            )


def _arrays(keywords: Keywords, literals: LiteralsOf) -> Iterator[Array]:
    items = _items(keywords, literals)
    if items is not None:
        yield Array(items=(items,))
    for least, most in _lengths(keywords, "Items"):
        yield Array(shortest=least, longest=most)
    if keywords.get("uniqueItems"):
        yield Array(unique=True)
    if "contains" in keywords:
        item = literals(True, keywords["contains"], "contains")
        yield Array(contains=(Contains(item),), shortest=1)


def _items(keywords: Keywords, literals: LiteralsOf) -> Items | None:
    place = "prefixItems"
    prefix = keywords.get("prefixItems", [])
    name = "items"
    items = keywords.get("items")
    if isinstance(items, list):
        place = "items"
        prefix = items
        name = "additionalItems"
        items = keywords.get("additionalItems")
    if not prefix and items is None:
        return None
    first = tuple(literals(True, schema, place, i) for i, schema in enumerate(prefix))
    return Items(first, literals(True, items, name) if items is not None else None)


def _objects(keywords: Keywords, literals: LiteralsOf) -> Iterator[Object]:
    named = keywords.get("properties", {})
    matching = keywords.get("patternProperties", {})
    others = keywords.get("additionalProperties")
    if named or matching or others is not None:
        properties = Properties(
            tuple(
                (name, literals(True, schema, "properties", name))
                for name, schema in named.items()
            ),
            tuple(
                (s, literals(True, schema, "patternProperties", s))
                for s, schema in matching.items()
            ),
            literals(True, others, "additionalProperties")
            if others is not None
            else None,
        )
        yield Object(properties=(properties,))
    if "required" in keywords:
        asked = tuple(dict.fromkeys(keywords["required"]))
        yield Object(required=asked, asked=asked)
    for least, most in _lengths(keywords, "Properties"):
        yield Object(shortest=least, longest=most)
    if "propertyNames" in keywords:
        names = literals(True, keywords["propertyNames"], "propertyNames")
        yield Object(names=(names,) if names else ())


def _lengths(keywords: Keywords, unit: str) -> Iterator[tuple[int, int | None]]:
    least = keywords.get(f"min{unit}", 0)
    most = keywords.get(f"max{unit}")
    if least or most is not None:
        yield least, most


def negated(constraint: Constraint, negate: Negate) -> Iterator[Constraint]:
    """What breaks one of the demands of an array or an object. `negate`: the negation
    of a conjunction."""
    match constraint:
        case Array():
            yield from _negated_array(constraint, negate)
        case Object():
            yield from _negated_object(constraint, negate)


def _negated_array(array: Array, negate: Negate) -> Iterator[Array]:
    for items in array.items:
        for index, item in enumerate(items.prefix):
            if item:
                wrong = Items((TRUE,) * index + (negate(item),))
                yield Array(items=(wrong,), shortest=index + 1)
        if items.rest:
            start = len(items.prefix)
            other = Contains(negate(items.rest), start)
            yield Array(contains=(other,), shortest=start + 1)
    for contains in array.contains:
        others = Items((TRUE,) * contains.start, negate(contains.item))
        yield Array(items=(others,)) if contains.item else Array(longest=contains.start)
    if array.shortest:
        yield Array(longest=array.shortest - 1)
    if array.longest is not None:
        yield Array(shortest=array.longest + 1)
    if array.unique:
        yield Array(repeats=True, shortest=2)


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
            wrong = Properties(named=((name, negate(value)),), describes=False)
            yield Object(properties=(wrong,), required=(name,))
    for source, value in properties.matching:
        if value:
            yield Object(exists=(Exists(negate(value), pattern=source),), shortest=1)
    if properties.others:
        names = frozenset(name for name, _ in properties.named)
        sources = frozenset(source for source, _ in properties.matching)
        exists = Exists(negate(properties.others), besides=(names, sources))
        yield Object(exists=(exists,), shortest=1)
