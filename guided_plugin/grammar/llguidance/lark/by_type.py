"""Keywords that constrain one type, as alternatives for the values of that type.

Negated, a minimum is a maximum, and `required` forbids. Values of other types satisfy
these keywords, and don't satisfy their negation. Depends on the algebra.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from guided_plugin.grammar.llguidance.lark.algebra import Algebra
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
from guided_plugin.grammar.llguidance.lark.document import Numbered
from guided_plugin.spec.arithmetic import canonical
from guided_plugin.spec.formats import WIDE
from guided_plugin.spec.references import pointer

NEVER_NEGATED = (
    "patternProperties",
    "propertyNames",
    "contains",
    "uniqueItems",
    "if",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
)
"""Keywords whose negation is refused: none of 1,082 real schemas needs it."""

Named = tuple[tuple[str, Literals], ...]


class Reading:
    """A schema that is read, or its negation: its keywords and subschemas.

    `positive`: whether its own values are asked for, not those of its negation.
    """

    def __init__(self, algebra: Algebra, node: Numbered, positive: bool) -> None:
        self.algebra = algebra
        self.node = node
        self.keywords = node.keywords
        self.positive = positive

    def literals(self, schema: Any, *path: str | int) -> Literals:
        """Numbers a subschema, given its place in the schema."""
        place = (*self.node.path, *path)
        return self.algebra.literals(schema, place)

    def below(self, keyword: str) -> Literals | None:
        """Numbers the subschema of a keyword, if it is there."""
        if keyword not in self.keywords:
            return None
        return self.literals(self.keywords[keyword], keyword)


def _numbers(schema: Reading) -> Iterator[Number]:
    """Bounds and divisors. What is not above a bound is at most that."""
    for lower, bound in _bounds(schema.keywords):
        if not schema.positive:
            lower = not lower
            bound = Bound(bound.value, not bound.exclusive)
        if lower:
            yield Number(low=bound)
        else:
            yield Number(high=bound)
    if "multipleOf" in schema.keywords:
        divisors = frozenset({canonical(schema.keywords["multipleOf"])})
        if schema.positive:
            yield Number(multiples=divisors)
        else:
            yield Number(no_multiples=divisors)


def _bounds(keywords: Mapping[str, Any]) -> Iterator[tuple[bool, Bound]]:
    """Each bound, with whether it is a lower one."""
    for name, lower in (("minimum", True), ("maximum", False)):
        exclusive = keywords.get(f"exclusive{name.title()}")
        if name in keywords:
            # In draft 4, `exclusiveMinimum` says how `minimum` is meant.
            yield lower, Bound(canonical(keywords[name]), exclusive is True)
        if exclusive is not None and not isinstance(exclusive, bool):
            yield lower, Bound(canonical(exclusive), True)


def _strings(schema: Reading) -> Iterator[Constraint]:
    """Patterns, formats and lengths.

    A string has a format if it has it by every reading, and does not have it if it has
    it by none; where any reading counts (`wide`), more strings may do either.
    """
    keywords = schema.keywords
    if "pattern" in keywords:
        sources = frozenset({keywords["pattern"]})
        if schema.positive:
            yield String(patterns=sources)
        else:
            yield String(no_patterns=sources)
    if "format" in keywords:
        name = keywords["format"]
        widest = frozenset({WIDE[name]})
        match schema.positive, schema.algebra.wide:
            case True, False:
                yield String(formats=frozenset({name}))
            case True, True:
                yield String(patterns=widest)
            case False, False:
                yield String(no_patterns=widest)
            case False, True:
                yield String()
    yield from _lengths(schema, "Length", String)


def _arrays(schema: Reading) -> Iterator[Constraint]:
    """Items by their place, `contains`, `uniqueItems` and lengths.

    Before draft 2020-12, `items` may list the first ones, and `additionalItems` says
    what the others are.
    """
    keywords = schema.keywords
    listed = "prefixItems"
    others = "items"
    if isinstance(keywords.get("items"), list):
        listed = "items"
        others = "additionalItems"
    prefix = [
        schema.literals(item, listed, index)
        for index, item in enumerate(keywords.get(listed, ()))
    ]
    rest = schema.below(others)
    if not schema.positive:
        yield from _wrong_items(schema.algebra, prefix, rest)
    elif prefix or rest:
        items = Items(tuple(prefix), rest)
        yield Array(items=(items,))
    if keywords.get("uniqueItems"):
        yield Array(unique=pointer((*schema.node.path, "uniqueItems")))
    item = schema.below("contains")
    if item is not None:
        yield Array(contains=(Contains(item),), shortest=1)
    yield from _lengths(schema, "Items", Array)


def _wrong_items(
    algebra: Algebra, prefix: list[Literals], rest: Literals | None
) -> Iterator[Array]:
    """Arrays with an item that is not as said."""
    for index, item in enumerate(prefix):
        if item:
            wrong = Items((TRUE,) * index + (algebra.negated(item),))
            yield Array(items=(wrong,), shortest=index + 1)
    if rest:
        start = len(prefix)
        wrong_one = Contains(algebra.negated(rest), start)
        yield Array(contains=(wrong_one,), shortest=start + 1)


def _objects(schema: Reading) -> Iterator[Constraint]:
    """Properties by their names, `required`, `propertyNames` and lengths."""
    keywords = schema.keywords
    named = _named(schema, "properties")
    matching = _named(schema, "patternProperties")
    others = schema.below("additionalProperties")
    required = tuple(dict.fromkeys(keywords.get("required", ())))
    if not schema.positive:
        yield from _wrong_properties(schema.algebra, named, others)
        for name in required:
            yield Object(forbidden=(name,))
    else:
        described = named or matching or others is not None
        properties = (Properties(named, matching, others),) if described else ()
        yield Object(properties, required, asked=required)
    names = schema.below("propertyNames")
    if names:
        yield Object(names=(names,))
    yield from _lengths(schema, "Properties", Object)


def _named(schema: Reading, keyword: str) -> Named:
    """The subschemas that a keyword lists by name."""
    return tuple(
        (name, schema.literals(value, keyword, name))
        for name, value in schema.keywords.get(keyword, {}).items()
    )


def _wrong_properties(
    algebra: Algebra, named: Named, others: Literals | None
) -> Iterator[Object]:
    """Objects with a property whose value is not as said."""
    for name, value in named:
        if value:
            wrong = Properties(named=((name, algebra.negated(value)),), describes=False)
            yield Object(properties=(wrong,), required=(name,))
    if others:
        names = frozenset(name for name, _ in named)
        exists = Exists(algebra.negated(others), besides=names)
        yield Object(exists=(exists,), shortest=1)


def _lengths(
    schema: Reading, unit: str, constraint: Callable[..., Constraint]
) -> Iterator[Constraint]:
    """The least and the greatest length."""
    least = schema.keywords.get(f"min{unit}", 0)
    most = schema.keywords.get(f"max{unit}")
    if schema.positive:
        if least or most is not None:
            yield constraint(shortest=least, longest=most)
        return
    if least:
        yield constraint(longest=least - 1)
    if most is not None:
        yield constraint(shortest=most + 1)


DEMANDS: dict[str, Callable[[Reading], Iterator[Constraint]]] = {
    "number": _numbers,
    "string": _strings,
    "array": _arrays,
    "object": _objects,
}
"""The demands of each type's keywords on its values; under negation, what does not
satisfy one of them."""
