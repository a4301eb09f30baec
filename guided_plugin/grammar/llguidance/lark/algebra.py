"""JSON Schema as Boolean algebra: which values of each type a schema, or its negation, allows.

Touches document and constraints. A `Shape` lists, for each type, alternatives of which one must hold.
Negation is pushed down to where a type's own keywords take it: `not minimum` is a maximum, `not required`
forbids, `not items` says that some item differs. Subschemas of items and properties stay numbers, so
recursion through them costs nothing and ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar, cast

from guided_plugin.errors import UnsupportedSpecError
from guided_plugin.grammar.llguidance.lark.constraints import (
    TRUE,
    Array,
    Boolean,
    Bound,
    Constraint,
    Contains,
    Exists,
    Items,
    Literals,
    Null,
    Number,
    Object,
    Properties,
    String,
    merged,
    with_properties,
)
from guided_plugin.grammar.llguidance.lark.document import Document, Path
from guided_plugin.spec.schema import pointer

__all__ = ["TYPES", "Algebra", "Shape"]

TYPES = ("null", "boolean", "number", "string", "array", "object")

Shape = dict[str, tuple[Constraint, ...]]

_ANYTHING: Mapping[str, Constraint] = {
    "null": Null(),
    "boolean": Boolean(),
    "number": Number(),
    "string": String(),
    "array": Array(),
    "object": Object(),
}


class _InPlace(UnsupportedSpecError):
    """A schema that has to be known to find out what it is."""


# How many steps a schema may cost before it counts as too entangled.
_MAX_MEETS = 400_000
_MAX_ALTERNATIVES = 3_000

C = TypeVar("C", bound=Constraint)


_ALL: Mapping[str, tuple[Constraint, ...]] = {kind: (each,) for kind, each in _ANYTHING.items()}


def anything() -> Shape:
    """Every value."""
    return dict(_ALL)


def nothing() -> Shape:
    """No value."""
    return dict.fromkeys(TYPES, ())


class Algebra:
    """Shapes of one document's schemas, worked out once each."""

    def __init__(self, document: Document, *, closing: bool) -> None:
        self.document = document
        # Where something is forbidden that the others don't describe, a weaker alternative may not swallow
        # one that describes more.
        self._closing = closing or document.unevaluated
        self._shapes: dict[tuple[bool, int], Shape] = {}
        self._conjunctions: dict[Literals, Shape] = {}
        self._running: set[tuple[bool, int]] = set()
        self._empty: dict[Literals, bool] = {}
        self._asking: set[Literals] = set()
        self._meets = 0

    # Shapes

    def literals(self, schema: Any, base: str, path: Path, positive: bool = True) -> Literals:
        """A schema, or its negation, as a conjunction of one; nothing to say is the empty one."""
        if schema is True or schema == {}:
            schema = True
        if isinstance(schema, bool):
            return TRUE if schema is positive else frozenset({(True, self.document.number(False))})
        number = self.document.number(schema, base, path)
        node = self.document.nodes[number]
        if isinstance(node.schema, bool) or not node.keywords:
            return self.literals(node.schema if isinstance(node.schema, bool) else True, base, path, positive)
        return frozenset({(positive, number)})

    def shape(self, literals: Literals) -> Shape:
        """What satisfies all of them."""
        found = self._conjunctions.get(literals)
        if found is None:
            found = anything()
            for positive, number in sorted(literals, key=lambda literal: (literal[1], literal[0])):
                found = self.both(found, self._of(positive, number))
            found = self._conjunctions[literals] = self.pruned(found)
        return found

    def empty(self, literals: Literals) -> bool:
        """Whether nothing satisfies all of them. Says no where it can't tell."""
        if not literals:
            return False
        known = self._empty.get(literals)
        if known is not None:
            return known
        if any((not positive, number) in literals for positive, number in literals):
            return True
        if literals in self._asking or len(self._asking) > 12 or not self._running.isdisjoint(literals):
            return False
        self._asking.add(literals)
        try:
            answer = not any(self.shape(literals).values())
        except _InPlace:
            # Asked in the middle of finding out about a schema that this one contains.
            return False
        finally:
            self._asking.discard(literals)
        if not self._asking and not self._running:
            self._empty[literals] = answer
        return answer

    def both(self, one: Shape, two: Shape) -> Shape:
        """The values of both shapes."""
        result: Shape = {}
        for kind in TYPES:
            lefts, rights = one[kind], two[kind]
            if lefts is _ALL[kind] or rights is _ALL[kind]:
                result[kind] = rights if lefts is _ALL[kind] else lefts
                continue
            met: dict[Constraint, None] = {}
            for left in lefts:
                for right in rights:
                    self._meets += 1
                    constraint = merged(left, right)
                    if constraint is not None:
                        met[constraint] = None
            result[kind] = self._reduced(kind, met)
        return result

    def either(self, shapes: Iterable[Shape]) -> Shape:
        """The values of any of the shapes."""
        result: dict[str, dict[Constraint, None]] = {kind: {} for kind in TYPES}
        for shape in shapes:
            for kind in TYPES:
                result[kind].update(dict.fromkeys(shape[kind]))
        return {kind: self._reduced(kind, result[kind]) for kind in TYPES}

    def pruned(self, shape: Shape) -> Shape:
        """Without alternatives that nothing satisfies."""
        return {
            **shape,
            **{
                kind: tuple(filter(self._possible, shape[kind]))
                for kind in ("array", "object")
                if shape[kind] is not _ALL[kind]
            },
        }

    def _reduced(self, kind: str, met: dict[Constraint, None]) -> tuple[Constraint, ...]:
        if self._meets > _MAX_MEETS or len(met) > _MAX_ALTERNATIVES:
            raise UnsupportedSpecError(
                "combines too many alternatives",
                where="json_schema",
                hint="use fewer alternatives under allOf, oneOf and not, or give them a discriminating const",
            )
        if _ANYTHING[kind] in met:
            return _ALL[kind]
        if kind != "object" or not 1 < len(met) <= 200:
            return tuple(met)
        objects = cast("list[Object]", list(met))
        return tuple(
            one
            for index, one in enumerate(objects)
            if not any(
                self._covers(other, one) and (at < index or not self._covers(one, other))
                for at, other in enumerate(objects)
                if at != index
            )
        )

    def _covers(self, one: Object, two: Object) -> bool:
        return one.covers(two) and not (self._closing and set(one.properties) != set(two.properties))

    def _possible(self, constraint: Constraint) -> bool:
        if isinstance(constraint, Object):
            return not any(
                not self.allows_name(constraint, name) or self.empty(constraint.of(name))
                for name in constraint.required
            )
        if isinstance(constraint, Array):
            first = min(constraint.shortest, 8)
            return not any(self.empty(constraint.at(index)) for index in range(first)) and not any(
                contains.least > 0 and self.empty(contains.item) for contains in constraint.contains
            )
        return True

    def allows_name(self, constraint: Object, name: str) -> bool:
        """Whether `propertyNames` lets a property have this name."""
        return all(self.is_string(literals, name) for literals in constraint.names)

    def is_string(self, literals: Literals, text: str) -> bool:
        """Whether a string satisfies all of them."""
        return any(cast("String", alternative).has(text) for alternative in self.shape(literals)["string"])

    # One schema

    def _of(self, positive: bool, number: int) -> Shape:
        key = (positive, number)
        shape = self._shapes.get(key)
        if shape is None:
            if key in self._running:
                raise _InPlace(
                    "contains itself in place",
                    where=pointer(self.document.nodes[number].path),
                    hint="recursion must go through a property or an item",
                )
            self._running.add(key)
            try:
                shape = self._worked_out(positive, number)
            finally:
                self._running.discard(key)
            self._shapes[key] = shape
        return shape

    def _worked_out(self, positive: bool, number: int) -> Shape:
        node = self.document.nodes[number]
        if isinstance(node.schema, bool):
            return anything() if node.schema is positive else nothing()
        reader = _Reader(self, number)
        parts = [*reader.in_place(positive), *reader.by_type(positive)]
        if not positive:
            for keyword in ("unevaluatedProperties", "unevaluatedItems"):
                if keyword in node.keywords:
                    raise reader.refuse(keyword, "under not")
            return self.pruned(self.either(parts))
        shape = anything()
        for part in parts:
            shape = self.pruned(self.both(shape, part))
        return reader.unevaluated(shape)


class _Reader:
    """One schema's keywords, turned into shapes of which all must hold (negated: any)."""

    def __init__(self, algebra: Algebra, number: int) -> None:
        self.algebra = algebra
        self.node = algebra.document.nodes[number]
        self.keywords = self.node.keywords
        self.draft = algebra.document.draft

    def literals(self, schema: Any, *path: str | int, positive: bool = True) -> Literals:
        return self.algebra.literals(schema, self.node.base, (*self.node.path, *path), positive)

    def shape(self, schema: Any, *path: str | int, positive: bool = True) -> Shape:
        """The shape of a subschema in place: it may not be this schema again."""
        literals = self.literals(schema, *path, positive=positive)
        shape = anything()
        for sign, number in literals:
            shape = self.algebra._of(sign, number)
        return shape

    def refuse(self, keyword: str, why: str) -> UnsupportedSpecError:
        return UnsupportedSpecError(f"{keyword} {why}", where=pointer((*self.node.path, keyword)))

    # Keywords of any type

    def in_place(self, positive: bool) -> Iterator[Shape]:
        for keyword, value in self.keywords.items():
            match keyword:
                case "$ref" | "$dynamicRef" | "$recursiveRef":
                    yield self._referred(keyword, value, positive)
                case "type":
                    yield self._types(value, positive)
                case "enum":
                    yield self._values(value, positive)
                case "const":
                    yield self._values([value], positive)
                case "allOf" | "anyOf":
                    yield from self._all_or_any(keyword, value, positive)
                case "oneOf":
                    yield self._one_of(value, positive)
                case "not":
                    yield self.shape(value, "not", positive=not positive)
                case "if":
                    yield self._conditional(positive)

    def _referred(self, keyword: str, reference: str, positive: bool) -> Shape:
        document = self.algebra.document
        resolve = document.resolve if keyword == "$ref" else document.dynamic
        schema, base, path = resolve(reference, self.node.base, (*self.node.path, keyword))
        shape = anything()
        literals = self.algebra.literals(schema, base, path, positive)
        for sign, number in literals:
            shape = self.algebra._of(sign, number)
        return shape

    def _types(self, value: Any, positive: bool) -> Shape:
        named = {value} if isinstance(value, str) else set(value)
        if "any" in named:
            return anything() if positive else nothing()
        shape: Shape = {}
        for kind, constraint in _ANYTHING.items():
            full: tuple[Constraint, ...] = (constraint,)
            if kind == "object" and positive:
                full = (Object(declared=True),)
            if kind == "number" and "integer" in named and "number" not in named:
                shape[kind] = (Number(whole=positive),)
            else:
                shape[kind] = full if (kind in named) is positive else ()
        return shape

    def _values(self, values: list[Any], positive: bool) -> Shape:
        strings = tuple(dict.fromkeys(v for v in values if isinstance(v, str)))
        booleans = frozenset(v for v in values if isinstance(v, bool))
        numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
        compound = [self._described(v) for v in values if isinstance(v, list | dict)]
        shapes = [self.shape(schema, "enum", positive=positive) for schema in compound]
        shape = nothing() if positive else anything()
        if positive:
            if strings:
                shape["string"] = (String(values=strings),)
            if booleans:
                shape["boolean"] = (Boolean(booleans),)
            if numbers:
                shape["number"] = (Number(values=tuple(dict.fromkeys(numbers))),)
            if None in values:
                shape["null"] = (Null(),)
            return self.algebra.either([shape, *shapes])
        if strings:
            shape["string"] = (String(excluded=frozenset(strings)),)
        if booleans:
            left = frozenset({True, False}) - booleans
            shape["boolean"] = (Boolean(left),) if left else ()
        if numbers:
            shape["number"] = (Number(excluded=frozenset(numbers)),)
        if None in values:
            shape["null"] = ()
        for other in shapes:
            shape = self.algebra.both(shape, other)
        return shape

    def _described(self, value: list[Any] | dict[str, Any]) -> dict[str, Any]:
        """A schema that only this value satisfies."""
        if isinstance(value, dict):
            properties = {name: {"enum": [member]} for name, member in value.items()}
            closed = {"type": "object", "properties": properties, "additionalProperties": False}
            return {**closed, "required": list(value)}
        schema = {"type": "array", "minItems": len(value), "maxItems": len(value)}
        prefix = "items" if self.draft <= 2019 else "prefixItems"
        return {**schema, prefix: [{"enum": [member]} for member in value]} if value else schema

    def _all_or_any(self, keyword: str, schemas: list[Any], positive: bool) -> Iterator[Shape]:
        shapes = [self.shape(s, keyword, i, positive=positive) for i, s in enumerate(schemas)]
        if (keyword == "allOf") is positive:
            # All must hold, or under not: any of the negations.
            yield from shapes if positive else [self._all(shapes)]
        elif positive:
            yield self.algebra.either(shapes)
        else:
            yield from [self.algebra.either(shapes)] if keyword == "allOf" else [self._all(shapes)]

    def _all(self, shapes: Iterable[Shape]) -> Shape:
        result = anything()
        for shape in shapes:
            result = self.algebra.pruned(self.algebra.both(result, shape))
        return result

    def _one_of(self, schemas: list[Any], positive: bool) -> Shape:
        algebra = self.algebra
        yes = [self.shape(schema, "oneOf", i) for i, schema in enumerate(schemas)]
        count = len(schemas)
        overlaps = {}
        for i in range(count):
            for j in range(i + 1, count):
                shared = algebra.pruned(algebra.both(yes[i], yes[j]))
                if any(shared.values()):
                    overlaps[i, j] = shared
        if not positive:
            none = self._all(self.shape(s, "oneOf", i, positive=False) for i, s in enumerate(schemas))
            return algebra.either([none, *overlaps.values()])
        exact = []
        for i, shape in enumerate(yes):
            only = shape
            for j in range(count):
                if (min(i, j), max(i, j)) in overlaps:
                    excluded = self.shape(schemas[j], "oneOf", j, positive=False)
                    only = algebra.pruned(algebra.both(only, excluded))
            exact.append(only)
        return algebra.either(exact)

    def _conditional(self, positive: bool) -> Shape:
        algebra = self.algebra
        held = self.shape(self.keywords["if"], "if")
        failed = self.shape(self.keywords["if"], "if", positive=False)
        then = self.shape(self.keywords.get("then", True), "then", positive=positive)
        otherwise = self.shape(self.keywords.get("else", True), "else", positive=positive)
        return algebra.pruned(algebra.either([algebra.both(held, then), algebra.both(failed, otherwise)]))

    # Keywords of one type: a value of another type satisfies them, and not their negation

    def by_type(self, positive: bool) -> Iterator[Shape]:
        def only(kind: str, *constraints: Constraint) -> Shape:
            rest = anything() if positive else nothing()
            return {**rest, kind: constraints}

        for number in self._numbers(positive):
            yield only("number", number)
        for strings in self._strings(positive):
            yield only("string", *strings)
        for arrays in self._arrays(positive):
            yield only("array", *arrays)
        for objects in self._objects(positive):
            yield only("object", *objects)
        yield from self._dependencies(positive)

    def _numbers(self, positive: bool) -> Iterator[Number]:
        for keyword, lower in (("minimum", True), ("maximum", False)):
            strict = f"exclusive{keyword.title()}"
            value, other = self.keywords.get(keyword), self.keywords.get(strict)
            ends = [] if value is None else [Bound(value, other is True)]
            if other is not None and not isinstance(other, bool):
                ends.append(Bound(other, True))
            for end in ends:
                if lower is positive:
                    yield Number(low=end if positive else Bound(end.value, not end.exclusive))
                else:
                    yield Number(high=end if positive else Bound(end.value, not end.exclusive))
        divisor = self.keywords.get("multipleOf")
        if divisor is not None:
            found = frozenset({divisor})
            yield Number(multiples=found) if positive else Number(no_multiples=found)

    def _strings(self, positive: bool) -> Iterator[tuple[String, ...]]:
        shortest, longest = self.keywords.get("minLength"), self.keywords.get("maxLength")
        if shortest:
            yield (String(shortest=shortest) if positive else String(longest=shortest - 1),)
        elif shortest == 0 and not positive:
            yield ()
        if longest is not None:
            yield (String(longest=longest) if positive else String(shortest=longest + 1),)
        if "pattern" in self.keywords:
            found = frozenset({self.keywords["pattern"]})
            yield (String(patterns=found) if positive else String(no_patterns=found),)
        if "format" in self.keywords:
            found = frozenset({self.keywords["format"]})
            yield (String(formats=found) if positive else String(no_formats=found),)

    def _arrays(self, positive: bool) -> Iterator[tuple[Array, ...]]:
        yield from self._items(positive)
        shortest, longest = self.keywords.get("minItems"), self.keywords.get("maxItems")
        if shortest:
            yield (Array(shortest=shortest) if positive else Array(longest=shortest - 1),)
        elif shortest == 0 and not positive:
            yield ()
        if longest is not None:
            yield (Array(longest=longest) if positive else Array(shortest=longest + 1),)
        if self.keywords.get("uniqueItems"):
            yield (Array(unique=True) if positive else Array(repeats=True, shortest=2),)
        if "contains" in self.keywords:
            yield self._contains(positive)

    def _items(self, positive: bool) -> Iterator[tuple[Array, ...]]:
        items, prefix, name = self.keywords.get("items"), self.keywords.get("prefixItems"), "items"
        if isinstance(items, list):
            prefix, items, name = items, self.keywords.get("additionalItems"), "additionalItems"
        place = "items" if name == "additionalItems" else "prefixItems"
        prefix = prefix or []
        if not prefix and items is None:
            return
        if positive:
            first = tuple(self.literals(schema, place, i) for i, schema in enumerate(prefix))
            rest = self.literals(items, name) if items is not None else None
            yield (Array(items=(Items(first, rest),)),)
            return
        wrong = []
        for i, schema in enumerate(prefix):
            different = self.literals(schema, place, i, positive=False)
            wrong.append(Array(items=(Items((*[TRUE] * i, different)),), shortest=i + 1))
        if items is not None:
            different = self.literals(items, name, positive=False)
            wrong.append(Array(contains=(Contains(different, start=len(prefix)),), shortest=len(prefix) + 1))
        yield tuple(wrong)

    def _contains(self, positive: bool) -> tuple[Array, ...]:
        least = self.keywords.get("minContains", 1)
        most = self.keywords.get("maxContains")
        item = self.literals(self.keywords["contains"], "contains")
        if positive:
            if least == 0 and most is None:
                return (Array(),)
            return (Array(contains=(Contains(item, 0, least, most),), shortest=least),)
        wrong = []
        if least == 1:
            different = self.literals(self.keywords["contains"], "contains", positive=False)
            wrong.append(Array(items=(Items(rest=different),)))
        elif least > 1:
            wrong.append(Array(contains=(Contains(item, 0, 0, least - 1),)))
        if most is not None:
            wrong.append(Array(contains=(Contains(item, 0, most + 1),), shortest=most + 1))
        return tuple(wrong)

    def _objects(self, positive: bool) -> Iterator[tuple[Object, ...]]:
        yield from self._properties(positive)
        required = tuple(dict.fromkeys(self.keywords.get("required", ())))
        if required and positive:
            yield (Object(required=required),)
        elif "required" in self.keywords and not positive:
            yield tuple(Object(forbidden=(name,)) for name in required)
        fewest, most = self.keywords.get("minProperties"), self.keywords.get("maxProperties")
        if fewest:
            yield (Object(fewest=fewest) if positive else Object(most=fewest - 1),)
        elif fewest == 0 and not positive:
            yield ()
        if most is not None:
            yield (Object(most=most) if positive else Object(fewest=most + 1),)
        if "propertyNames" in self.keywords:
            names = self.literals(self.keywords["propertyNames"], "propertyNames", positive=positive)
            if positive:
                yield (Object(names=(names,)) if names else Object(),)
            else:
                yield (Object(exists=(Exists(TRUE, name=names),)),)

    def _properties(self, positive: bool) -> Iterator[tuple[Object, ...]]:
        named = self.keywords.get("properties", {})
        matching = self.keywords.get("patternProperties", {})
        others = self.keywords.get("additionalProperties")
        if not named and not matching and others is None:
            return
        if positive:
            yield (
                Object(
                    properties=(
                        Properties(
                            tuple((k, self.literals(s, "properties", k)) for k, s in named.items()),
                            tuple((k, self.literals(s, "patternProperties", k)) for k, s in matching.items()),
                            self.literals(others, "additionalProperties") if others is not None else None,
                        ),
                    )
                ),
            )
            return
        wrong = []
        for name, schema in named.items():
            different = self.literals(schema, "properties", name, positive=False)
            of_one = Properties(named=((name, different),), evaluates=False)
            wrong.append(Object(properties=(of_one,), required=(name,)))
        for source, schema in matching.items():
            different = self.literals(schema, "patternProperties", source, positive=False)
            wrong.append(Object(exists=(Exists(different, pattern=source),), fewest=1))
        if others is not None:
            different = self.literals(others, "additionalProperties", positive=False)
            besides = (frozenset(named), frozenset(matching))
            wrong.append(Object(exists=(Exists(different, besides=besides),), fewest=1))
        yield tuple(wrong)

    def _dependencies(self, positive: bool) -> Iterator[Shape]:
        algebra = self.algebra
        for keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
            for name, needed in self.keywords.get(keyword, {}).items():
                present = {**nothing(), "object": (Object(required=(name,)),)}
                absent = {**anything(), "object": (Object(forbidden=(name,)),)}
                if isinstance(needed, str):
                    needed = [needed]
                if isinstance(needed, list):
                    others = tuple(dict.fromkeys(other for other in needed if other != name))
                    if positive and others:
                        with_others = {**nothing(), "object": (Object(required=(name, *others)),)}
                        yield algebra.either([absent, with_others])
                    elif not positive:
                        without = [Object(required=(name,), forbidden=(other,)) for other in others]
                        yield {**nothing(), "object": tuple(without)}
                    continue
                inner = self.shape(needed, keyword, name, positive=positive)
                met = algebra.both(present, inner)
                yield algebra.either([absent, met]) if positive else met

    # Keywords that look at what the others have described

    def unevaluated(self, shape: Shape) -> Shape:
        """With `unevaluatedProperties` and `unevaluatedItems`, which speak for each alternative."""
        if "unevaluatedProperties" in self.keywords:
            rest = self.literals(self.keywords["unevaluatedProperties"], "unevaluatedProperties")
            shape = {**shape, "object": tuple(closed(cast("Object", o), rest) for o in shape["object"])}
        if "unevaluatedItems" in self.keywords:
            rest = self.literals(self.keywords["unevaluatedItems"], "unevaluatedItems")
            shape = {**shape, "array": tuple(self._rest(cast("Array", a), rest) for a in shape["array"])}
        return self.algebra.pruned(shape)

    def _rest(self, array: Array, rest: Literals) -> Array:
        if any(items.rest is not None for items in array.items):
            return array
        if array.contains and self.draft >= 2020:
            raise self.refuse("unevaluatedItems", "beside contains")
        prefix = (TRUE,) * array.prefix_length
        return replace(array, items=(*array.items, Items(prefix, rest)))


def closed(constraint: Object, rest: Literals) -> Object:
    """The same objects, with a demand on every property that nothing else has described."""
    described = [properties for properties in constraint.properties if properties.evaluates]
    if any(properties.others is not None for properties in described):
        return constraint
    named = dict.fromkeys(name for properties in described for name, _ in properties.named)
    matching = dict.fromkeys(source for properties in described for source, _ in properties.matching)
    return with_properties(
        constraint,
        Properties(tuple((name, TRUE) for name in named), tuple((source, TRUE) for source in matching), rest),
    )
