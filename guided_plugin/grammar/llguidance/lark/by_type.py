"""Keywords that constrain one type, as constraints. Negated, a minimum is a maximum, and `required` forbids.

Values of other types satisfy these keywords, and don't satisfy their negation. Depends on constraints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from guided_plugin.grammar.llguidance.lark.constraints import (
    Array,
    Constraint,
    Contains,
    Items,
    Literals,
    Object,
    Properties,
    String,
)
from guided_plugin.grammar.llguidance.lark.negation import Negate, negated
from guided_plugin.grammar.llguidance.lark.ranges import Bound, Number
from guided_plugin.spec.arithmetic import canonical
from guided_plugin.spec.formats import WIDE

Keywords = Mapping[str, Any]

_OF_NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
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
    keywords: Keywords, literals: LiteralsOf, negate: Negate, positive: bool, *, wide: bool
) -> Iterator[tuple[str, tuple[Constraint, ...]]]:
    """What each keyword, or its negation, demands: a type, and alternatives for the values of that type.

    `negate`: the negation of a conjunction of subschemas. `wide`: under any reading of a format.
    """
    there = keywords.keys()
    for number in _numbers(keywords, positive) if there & _OF_NUMBERS else ():
        yield "number", (number,)
    for strings in _strings(keywords, positive, wide) if there & _OF_STRINGS else ():
        yield "string", strings
    for array in _arrays(keywords, literals) if there & _OF_ARRAYS else ():
        yield "array", (array,) if positive else tuple(negated(array, negate))
    for constraint in _objects(keywords, literals) if there & _OF_OBJECTS else ():
        yield "object", (constraint,) if positive else tuple(negated(constraint, negate))


def _numbers(keywords: Keywords, positive: bool) -> Iterator[Number]:
    for keyword, lower in (("minimum", True), ("maximum", False)):
        value, other = keywords.get(keyword), keywords.get(f"exclusive{keyword.title()}")
        ends = [] if value is None else [Bound(canonical(value), other is True)]
        if other is not None and not isinstance(other, bool):
            ends.append(Bound(canonical(other), True))
        for end in ends:
            bound = end if positive else Bound(end.value, not end.exclusive)
            yield Number(low=bound) if lower is positive else Number(high=bound)
    if "multipleOf" in keywords:
        found = frozenset({canonical(keywords["multipleOf"])})
        yield Number(multiples=found) if positive else Number(no_multiples=found)


def _strings(keywords: Keywords, positive: bool, wide: bool) -> Iterator[tuple[String, ...]]:
    for least, most in _lengths(keywords, "Length"):
        if positive:
            yield (String(shortest=least, longest=most),) if most is None or least <= most else ()
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
            yield (String(formats=frozenset({name})) if positive else String(no_patterns=found),)


def _arrays(keywords: Keywords, literals: LiteralsOf) -> Iterator[Array]:
    items = _items(keywords, literals)
    if items is not None:
        yield Array(items=(items,))
    for least, most in _lengths(keywords, "Items"):
        yield Array(shortest=least, longest=most)
    if keywords.get("uniqueItems"):
        yield Array(unique=True)
    if "contains" in keywords:
        least, most = keywords.get("minContains", 1), keywords.get("maxContains")
        item = literals(True, keywords["contains"], "contains")
        yield Array(contains=(Contains(item, 0, least, most),), shortest=least)


def _items(keywords: Keywords, literals: LiteralsOf) -> Items | None:
    place, prefix = "prefixItems", keywords.get("prefixItems", [])
    name, items = "items", keywords.get("items")
    if isinstance(items, list):
        place, prefix = "items", items
        name, items = "additionalItems", keywords.get("additionalItems")
    if not prefix and items is None:
        return None
    first = tuple(literals(True, schema, place, i) for i, schema in enumerate(prefix))
    return Items(first, literals(True, items, name) if items is not None else None)


def _objects(keywords: Keywords, literals: LiteralsOf) -> Iterator[Object]:
    named, matching = keywords.get("properties", {}), keywords.get("patternProperties", {})
    others = keywords.get("additionalProperties")
    if named or matching or others is not None:
        properties = Properties(
            tuple((name, literals(True, schema, "properties", name)) for name, schema in named.items()),
            tuple((s, literals(True, schema, "patternProperties", s)) for s, schema in matching.items()),
            literals(True, others, "additionalProperties") if others is not None else None,
        )
        yield Object(properties=(properties,))
    if "required" in keywords:
        yield Object(required=tuple(dict.fromkeys(keywords["required"])))
    for least, most in _lengths(keywords, "Properties"):
        yield Object(shortest=least, longest=most)
    if "propertyNames" in keywords:
        names = literals(True, keywords["propertyNames"], "propertyNames")
        yield Object(names=(names,) if names else ())


def _lengths(keywords: Keywords, unit: str) -> Iterator[tuple[int, int | None]]:
    least, most = keywords.get(f"min{unit}", 0), keywords.get(f"max{unit}")
    if least or most is not None:
        yield least, most
