"""Keywords that constrain one type, as constraints. Negated, a minimum is a maximum, and `required` forbids.

Values of other types satisfy these keywords, and don't satisfy their negation. Depends on constraints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

from guided_plugin.grammar.llguidance.lark.constraints import (
    TRUE,
    Array,
    Bound,
    Constraint,
    Contains,
    Exists,
    Items,
    Literals,
    Number,
    Object,
    Properties,
    String,
)

Keywords = Mapping[str, Any]

C = TypeVar("C", String, Array, Object)


class LiteralsOf(Protocol):
    """Numbers a subschema, given its place in the schema."""

    def __call__(self, positive: bool, schema: Any, *path: str | int) -> Literals: ...


def demands(
    keywords: Keywords, literals: LiteralsOf, positive: bool
) -> Iterator[tuple[str, tuple[Constraint, ...]]]:
    """What each keyword, or its negation, demands: a type, and alternatives for the values of that type."""
    for number in _numbers(keywords, positive):
        yield "number", (number,)
    for strings in _strings(keywords, positive):
        yield "string", strings
    for arrays in _arrays(keywords, literals, positive):
        yield "array", arrays
    for objects in _objects(keywords, literals, positive):
        yield "object", objects


def _numbers(keywords: Keywords, positive: bool) -> Iterator[Number]:
    for keyword, lower in (("minimum", True), ("maximum", False)):
        value, other = keywords.get(keyword), keywords.get(f"exclusive{keyword.title()}")
        ends = [] if value is None else [Bound(value, other is True)]
        if other is not None and not isinstance(other, bool):
            ends.append(Bound(other, True))
        for end in ends:
            bound = end if positive else Bound(end.value, not end.exclusive)
            yield Number(low=bound) if lower is positive else Number(high=bound)
    if "multipleOf" in keywords:
        found = frozenset({keywords["multipleOf"]})
        yield Number(multiples=found) if positive else Number(no_multiples=found)


def _sizes(
    keywords: Keywords, unit: str, constraint: Callable[..., C], positive: bool
) -> Iterator[tuple[C, ...]]:
    least, most = keywords.get(f"min{unit}"), keywords.get(f"max{unit}")
    if least:
        yield (constraint(shortest=least) if positive else constraint(longest=least - 1),)
    elif least == 0 and not positive:
        yield ()
    if most is not None:
        yield (constraint(longest=most) if positive else constraint(shortest=most + 1),)


def _strings(keywords: Keywords, positive: bool) -> Iterator[tuple[String, ...]]:
    yield from _sizes(keywords, "Length", String, positive)
    if "pattern" in keywords:
        found = frozenset({keywords["pattern"]})
        yield (String(patterns=found) if positive else String(no_patterns=found),)
    if "format" in keywords:
        found = frozenset({keywords["format"]})
        yield (String(formats=found) if positive else String(no_formats=found),)


def _arrays(keywords: Keywords, literals: LiteralsOf, positive: bool) -> Iterator[tuple[Array, ...]]:
    yield from _items(keywords, literals, positive)
    yield from _sizes(keywords, "Items", Array, positive)
    if keywords.get("uniqueItems"):
        yield (Array(unique=True) if positive else Array(repeats=True, shortest=2),)
    if "contains" in keywords:
        yield _contains(keywords, literals, positive)


def _items(keywords: Keywords, literals: LiteralsOf, positive: bool) -> Iterator[tuple[Array, ...]]:
    place, prefix = "prefixItems", keywords.get("prefixItems", [])
    name, items = "items", keywords.get("items")
    if isinstance(items, list):
        place, prefix = "items", items
        name, items = "additionalItems", keywords.get("additionalItems")
    if not prefix and items is None:
        return
    first = [literals(positive, schema, place, i) for i, schema in enumerate(prefix)]
    rest = literals(positive, items, name) if items is not None else None
    if positive:
        yield (Array(items=(Items(tuple(first), rest),)),)
        return
    wrong = [Array(items=(Items((*[TRUE] * i, item)),), shortest=i + 1) for i, item in enumerate(first)]
    if rest is not None:
        wrong.append(Array(contains=(Contains(rest, start=len(prefix)),), shortest=len(prefix) + 1))
    yield tuple(wrong)


def _contains(keywords: Keywords, literals: LiteralsOf, positive: bool) -> tuple[Array, ...]:
    least, most = keywords.get("minContains", 1), keywords.get("maxContains")
    item = literals(True, keywords["contains"], "contains")
    if positive:
        if least == 0 and most is None:
            return (Array(),)
        return (Array(contains=(Contains(item, 0, least, most),), shortest=least),)
    wrong = []
    if least == 1:
        wrong.append(Array(items=(Items(rest=literals(False, keywords["contains"], "contains")),)))
    elif least > 1:
        wrong.append(Array(contains=(Contains(item, 0, 0, least - 1),)))
    if most is not None:
        wrong.append(Array(contains=(Contains(item, 0, most + 1),), shortest=most + 1))
    return tuple(wrong)


def _objects(keywords: Keywords, literals: LiteralsOf, positive: bool) -> Iterator[tuple[Object, ...]]:
    yield from _properties(keywords, literals, positive)
    required = tuple(dict.fromkeys(keywords.get("required", ())))
    if required and positive:
        yield (Object(required=required),)
    elif "required" in keywords and not positive:
        yield tuple(Object(forbidden=(name,)) for name in required)
    yield from _sizes(keywords, "Properties", Object, positive)
    if "propertyNames" in keywords:
        names = literals(positive, keywords["propertyNames"], "propertyNames")
        if not positive:
            yield (Object(exists=(Exists(TRUE, name=names),)),)
        else:
            yield (Object(names=(names,)) if names else Object(),)


def _properties(keywords: Keywords, literals: LiteralsOf, positive: bool) -> Iterator[tuple[Object, ...]]:
    named, matching = keywords.get("properties", {}), keywords.get("patternProperties", {})
    others = keywords.get("additionalProperties")
    if not named and not matching and others is None:
        return
    of_names = [(name, literals(positive, schema, "properties", name)) for name, schema in named.items()]
    of_patterns = [(s, literals(positive, schema, "patternProperties", s)) for s, schema in matching.items()]
    rest = literals(positive, others, "additionalProperties") if others is not None else None
    if positive:
        yield (Object(properties=(Properties(tuple(of_names), tuple(of_patterns), rest),)),)
        return
    wrong = []
    for name, different in of_names:
        of_one = Properties(named=((name, different),), evaluates=False)
        wrong.append(Object(properties=(of_one,), required=(name,)))
    for source, different in of_patterns:
        wrong.append(Object(exists=(Exists(different, pattern=source),), shortest=1))
    if rest is not None:
        besides = (frozenset(named), frozenset(matching))
        wrong.append(Object(exists=(Exists(rest, besides=besides),), shortest=1))
    yield tuple(wrong)
