"""The keywords of one schema as a shape; keywords that constrain one type are read in
by_type.

Negation is pushed down to the subschemas. Depends on the algebra.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from guided_plugin.errors import UnsupportedSpecError
from guided_plugin.grammar.llguidance.lark.algebra import (
    ALL,
    Algebra,
    Shape,
    anything,
    nothing,
)
from guided_plugin.grammar.llguidance.lark.by_type import demands
from guided_plugin.grammar.llguidance.lark.constraints import (
    TRUE,
    Boolean,
    Constraint,
    Literals,
    Null,
    Object,
    Properties,
    String,
    with_properties,
)
from guided_plugin.grammar.llguidance.lark.ranges import Number
from guided_plugin.spec.arithmetic import canonical
from guided_plugin.spec.schema import pointer


def read_schema(algebra: Algebra, number: int, positive: bool) -> Shape:
    """The shape of a numbered schema, or of its negation."""
    node = algebra.document.nodes[number]
    if isinstance(node.schema, bool):
        return anything() if node.schema is positive else nothing()
    reader = _Reader(algebra, number, positive)
    if positive:
        return algebra.all_of(reader.parts())
    return algebra.pruned(algebra.either(reader.parts()))


class _Reader:
    """Reads one schema's keywords: shapes of which all must hold, or under negation
    any."""

    def __init__(self, algebra: Algebra, number: int, positive: bool) -> None:
        self.algebra = algebra
        self.number = number
        self.node = algebra.document.nodes[number]
        self.keywords = self.node.keywords
        self.positive = positive
        self.draft = algebra.document.draft

    def literals(self, positive: bool, schema: Any, *path: str | int) -> Literals:
        return self.algebra.literals(
            schema, self.node.base, (*self.node.path, *path), positive
        )

    def shape(self, positive: bool, schema: Any, *path: str | int) -> Shape:
        """The shape of a subschema in place."""
        return self.algebra.in_place(self.literals(positive, schema, *path))

    def refusal(self, keyword: str, why: str) -> UnsupportedSpecError:
        where = pointer((*self.node.path, keyword))
        hint = f"write it without {keyword}, or with fewer alternatives"
        return UnsupportedSpecError(f"{keyword} {why}", where=where, hint=hint)

    def parts(self) -> Iterator[Shape]:
        positive = self.positive
        for keyword, value in self.keywords.items():
            match keyword:
                case "$ref":
                    yield self.referred(value)
                case "type":
                    yield self.types(value)
                case "enum":
                    yield self.values(value)
                case "const":
                    yield self.values([value])
                case "allOf" | "anyOf" | "oneOf":
                    yield self.combined(keyword, value)
                case "either":
                    yield self.either(value)
                case "not":
                    yield self.shape(not positive, value, "not")
                case "if":
                    yield self.conditional()
        negate = self.algebra.negated
        wide = self.algebra.wide
        for kind, constraints in demands(
            self.keywords, self.literals, negate, positive, wide=wide
        ):
            yield {**(anything() if positive else nothing()), kind: constraints}
        yield from self.dependencies()

    def combined(self, keyword: str, schemas: list[Any]) -> Shape:
        algebra = self.algebra
        branches = [
            self.literals(True, schema, keyword, i) for i, schema in enumerate(schemas)
        ]
        match keyword, self.positive:
            case "allOf", True:
                return algebra.all_of(map(algebra.in_place, branches))
            case "allOf", False:
                return algebra.either(
                    map(algebra.in_place, map(algebra.negated, branches))
                )
            case "anyOf", True:
                return algebra.either(map(algebra.in_place, branches))
            case "anyOf", False:
                return self.outside(branches, ALL)
        return self.one_of(branches)

    def referred(self, reference: str) -> Shape:
        path = (*self.node.path, "$ref")
        target = self.algebra.document.resolve(reference, self.node.base, path)
        literals = self.algebra.literals(
            target.schema, target.base, target.path, self.positive
        )
        return self.algebra.in_place(literals)

    def types(self, value: Any) -> Shape:
        named = {value} if isinstance(value, str) else set(value)
        if "any" in named:
            return anything() if self.positive else nothing()
        shape = {
            kind: every if (kind in named) is self.positive else ()
            for kind, every in ALL.items()
        }
        if "integer" in named and "number" not in named:
            # Draft 4 takes 1.0 for no integer: where any reading counts, that may be
            # what is meant.
            either = self.draft <= 4 and self.algebra.wide
            fractions = Number() if either else Number(no_multiples=frozenset({1}))
            shape["number"] = (Number(whole=True) if self.positive else fractions,)
        return shape

    def values(self, values: list[Any]) -> Shape:
        strings = tuple(dict.fromkeys(v for v in values if isinstance(v, str)))
        booleans = frozenset(v for v in values if isinstance(v, bool))
        numbers = tuple(
            dict.fromkeys(
                canonical(v)
                for v in values
                if isinstance(v, int | float) and not isinstance(v, bool)
            )
        )
        compound = [self.described(v) for v in values if isinstance(v, list | dict)]
        shapes = [self.shape(self.positive, value, "enum") for value in compound]
        if self.positive:
            shape: Shape = {
                "null": (Null(),) if None in values else (),
                "boolean": (Boolean(booleans),) if booleans else (),
                "number": (Number(values=numbers),) if numbers else (),
                "string": (String(values=strings),) if strings else (),
            }
            return self.algebra.either([nothing() | shape, *shapes])
        left = frozenset({True, False}) - booleans
        shape = {
            "null": () if None in values else ALL["null"],
            "boolean": (Boolean(left),) if left else (),
            "number": (Number(excluded=frozenset(numbers)),),
            "string": (String(excluded=frozenset(strings)),),
        }
        return self.algebra.all_of([anything() | shape, *shapes])

    def described(self, value: list[Any] | dict[str, Any]) -> dict[str, Any]:
        """A schema that only this value satisfies."""
        if isinstance(value, dict):
            properties = {name: {"enum": [member]} for name, member in value.items()}
            closed = {
                "type": "object",
                "properties": properties,
                "additionalProperties": False,
            }
            return {**closed, "required": list(value)}
        schema = {"type": "array", "minItems": len(value), "maxItems": len(value)}
        prefix = "items" if self.draft <= 2019 else "prefixItems"
        return (
            {**schema, prefix: [{"enum": [member]} for member in value]}
            if value
            else schema
        )

    def either(self, options: tuple[Literals, ...]) -> Shape:
        """One of some conjunctions holds; under negation none."""
        if self.positive:
            return self.algebra.either(map(self.algebra.in_place, options))
        return self.outside(options, ALL)

    def one_of(self, branches: list[Literals]) -> Shape:
        """Exactly one branch holds; under negation none, or two at once."""
        algebra = self.algebra
        # What is in one only as we read formats may be in others under wider readings.
        wide = algebra.widest if self.positive else algebra
        held = list(map(wide.in_place, branches))
        overlaps = {
            (i, j): wide.overlap(held[i], held[j])
            for i, j in combinations(range(len(branches)), 2)
        }
        if not self.positive:
            return algebra.either([self.outside(branches, ALL), *overlaps.values()])
        exact = []
        for i, branch in enumerate(branches):
            only = algebra.in_place(branch)
            for pair, shared in overlaps.items():
                if i in pair:
                    other = branches[sum(pair) - i]
                    only = algebra.overlap(only, self.outside([other], shared))
            exact.append(only)
        return algebra.either(exact)

    def outside(
        self, branches: Sequence[Literals], shared: Mapping[str, tuple[Constraint, ...]]
    ) -> Shape:
        """The values that satisfy none of some branches; of the types that are not
        shared, all.

        Objects remember the branches until the rest of the conjunction is known, which
        may exclude them.
        """
        algebra = self.algebra
        found = anything()
        if shared["object"]:
            found["object"] = (Object(unless=tuple(branches)),)
        kinds = [kind for kind in ALL if kind != "object" and shared[kind]]
        for branch in branches if kinds else ():
            excluded = algebra.in_place(algebra.negated(branch))
            found = algebra.both(
                found, {**anything(), **{kind: excluded[kind] for kind in kinds}}
            )
        return found

    def conditional(self) -> Shape:
        algebra = self.algebra
        condition = self.keywords["if"]
        branches = []
        for holds, keyword in ((True, "then"), (False, "else")):
            branch = self.shape(
                self.positive, self.keywords.get(keyword, True), keyword
            )
            branches.append(algebra.both(self.shape(holds, condition, "if"), branch))
        return algebra.pruned(algebra.either(branches))

    def dependencies(self) -> Iterator[Shape]:
        algebra = self.algebra
        for keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
            for name, needed in self.keywords.get(keyword, {}).items():
                present = {**nothing(), "object": (Object(required=(name,)),)}
                absent = {**anything(), "object": (Object(forbidden=(name,)),)}
                if isinstance(needed, str | list):
                    names = [needed] if isinstance(needed, str) else needed
                    others = tuple(
                        dict.fromkeys(other for other in names if other != name)
                    )
                    if not self.positive:
                        without = [
                            Object(required=(name,), forbidden=(other,))
                            for other in others
                        ]
                        yield {**nothing(), "object": tuple(without)}
                    elif others:
                        with_others = Object(required=(name, *others), asked=others)
                        yield algebra.either(
                            [absent, {**nothing(), "object": (with_others,)}]
                        )
                    continue
                met = algebra.both(
                    present, self.shape(self.positive, needed, keyword, name)
                )
                yield algebra.either([absent, met]) if self.positive else met


def closed(constraint: Object, rest: Literals) -> Object:
    """The same objects, with a demand on every property that nothing else describes."""
    described = [
        properties for properties in constraint.properties if properties.describes
    ]
    if any(properties.others is not None for properties in described):
        return constraint
    named = dict.fromkeys(
        name for properties in described for name, _ in properties.named
    )
    matching = dict.fromkeys(
        source for properties in described for source, _ in properties.matching
    )
    return with_properties(
        constraint,
        Properties(
            tuple((name, TRUE) for name in named),
            tuple((source, TRUE) for source in matching),
            rest,
        ),
    )
