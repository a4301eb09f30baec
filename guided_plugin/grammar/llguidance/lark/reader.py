"""The keywords of one schema as a shape; keywords that constrain one type are read in
by_type.

Negation is pushed down to the subschemas. Depends on the algebra.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from guided_plugin.errors import UnsupportedSpecError
from guided_plugin.grammar.llguidance.lark.algebra import (
    ALL,
    NONE,
    Algebra,
    Shape,
)
from guided_plugin.grammar.llguidance.lark.by_type import (
    DEMANDS,
    NEVER_NEGATED,
    Reading,
)
from guided_plugin.grammar.llguidance.lark.constraints import (
    Boolean,
    Constraint,
    Literals,
    Number,
    Object,
    String,
)
from guided_plugin.keywords import KEYWORDS
from guided_plugin.spec.arithmetic import canonical
from guided_plugin.spec.references import pointer

_DEPENDENCIES = ("dependencies", "dependentRequired", "dependentSchemas")

_TYPES_OF_VALUES = {
    type(None): "null",
    bool: "boolean",
    int: "number",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}


def read_schema(algebra: Algebra, number: int, positive: bool) -> Shape:
    """The shape of a numbered schema, or of its negation."""
    node = algebra.document.nodes[number]
    if isinstance(node.schema, bool):
        return ALL if node.schema is positive else NONE
    joined = algebra.all_of if positive else algebra.either
    return joined(_Reader(algebra, node, positive).parts())


class _Reader(Reading):
    """Reads one schema's keywords: shapes of which all must hold, or under negation
    any."""

    def shape(self, positive: bool, schema: Any, *path: str | int) -> Shape:
        """The shape of a subschema in place, or of its negation."""
        literals = self.literals(schema, *path)
        return self.signed(positive, literals)

    def signed(self, positive: bool, literals: Literals) -> Shape:
        """The shape of a conjunction of subschemas in place, or of its negation."""
        if not positive:
            literals = self.algebra.negated(literals)
        return self.algebra.in_place(literals)

    def parts(self) -> Iterator[Shape]:
        """Yield the values that each keyword, or its negation, allows.

        Keywords for which nothing is yielded allow everything, and their negation
        nothing.
        """
        types: set[str] = set()
        for keyword, value in self.keywords.items():
            types |= KEYWORDS[keyword].types
            if keyword in NEVER_NEGATED and not self.positive:
                raise UnsupportedSpecError(
                    f"{keyword} can't be enforced where its opposite is asked for",
                    where=pointer((*self.node.path, keyword)),
                    hint=f"leave {keyword} out of `not`, `oneOf` and `if`, or write anyOf for oneOf",
                )
            match keyword:
                case "$ref":
                    yield self.shape(self.positive, {"$ref": value})
                case "type":
                    yield self.types(value)
                case "enum":
                    yield self.values(value)
                case "const":
                    yield self.values([value])
                case "allOf" | "anyOf" | "oneOf":
                    yield self.combined(keyword, value)
                case "not":
                    yield self.shape(not self.positive, value, "not")
                case "if":
                    yield self.conditional(value)
        for kind in filter(types.__contains__, DEMANDS):  # in one order, always
            yield self.demanded(kind)
        # Names that they describe come after those of `properties`.
        for keyword in _DEPENDENCIES:
            for name, needed in self.keywords.get(keyword, {}).items():
                yield self.dependent(keyword, name, needed)

    # Keywords

    def demanded(self, kind: str) -> Shape:
        """Return the values that the keywords of one type allow; under negation, what
        does not satisfy one of them."""
        demands = DEMANDS[kind](self)
        if not self.positive:
            return {**NONE, kind: tuple(demands)}
        found: Constraint | None = next(demands, ALL[kind][0])
        for demand in demands:
            found = found and found.meet(demand)  # type: ignore[arg-type]
        return {**ALL, kind: () if found is None else (found,)}

    def types(self, value: Any) -> Shape:
        """The values of the types that `type` names; integers are numbers."""
        named = {value} if isinstance(value, str) else set(value)
        shape = {
            kind: every if (kind in named) is self.positive else ()
            for kind, every in ALL.items()
        }
        if "integer" in named and "number" not in named:
            # Draft 4 takes 1.0 for no integer: where any reading counts, that may be
            # what is meant.
            if self.positive:
                number = Number(whole=True)
            elif self.algebra.document.draft <= 4 and self.algebra.wide:
                number = Number()
            else:
                number = Number(no_multiples=frozenset({1}))
            shape["number"] = (number,)
        return shape

    def values(self, values: list[Any]) -> Shape:
        """These values alone; under negation all others.

        Arrays and objects are values of a schema that describes them.
        """
        found: dict[str, list[Any]] = {kind: [] for kind in ALL}
        for value in values:
            found[_TYPES_OF_VALUES[type(value)]].append(value)
        booleans = frozenset(found["boolean"])
        numbers = tuple(dict.fromkeys(map(canonical, found["number"])))
        strings = tuple(dict.fromkeys(found["string"]))
        shapes = [
            self.shape(self.positive, self.described(value), "enum")
            for value in (*found["array"], *found["object"])
        ]
        scalars = dict(NONE if self.positive else ALL)
        scalars["null"] = ALL["null"] if bool(found["null"]) is self.positive else ()
        if self.positive:
            scalars["boolean"] = (Boolean(booleans),)
            scalars["number"] = (Number(values=numbers),)
            scalars["string"] = (String(values=strings),)
            return self.algebra.either([scalars, *shapes]) if shapes else scalars
        scalars["boolean"] = (Boolean(Boolean().values - booleans),)
        scalars["number"] = (Number(excluded=frozenset(numbers)),)
        scalars["string"] = (String(excluded=frozenset(strings)),)
        return self.algebra.all_of([scalars, *shapes])

    def described(self, value: list[Any] | dict[str, Any]) -> dict[str, Any]:
        """A schema that only this value satisfies."""
        if isinstance(value, dict):
            return {
                "type": "object",
                "properties": {name: {"enum": [v]} for name, v in value.items()},
                "additionalProperties": False,
                "required": list(value),
            }
        prefix = "items" if self.algebra.document.draft <= 2019 else "prefixItems"
        return {
            "type": "array",
            prefix: [{"enum": [item]} for item in value],
            "minItems": len(value),
            "maxItems": len(value),
        }

    def combined(self, keyword: str, schemas: list[Any]) -> Shape:
        """The values that satisfy all, any or exactly one of some branches; under
        negation all others."""
        algebra = self.algebra
        branches = [
            self.literals(schema, keyword, index)
            for index, schema in enumerate(schemas)
        ]
        if keyword == "oneOf":
            return self.one_of(branches)
        if keyword == "anyOf" and not self.positive:
            return algebra.all_of(map(self.outside, branches))
        shapes = [self.signed(self.positive, branch) for branch in branches]
        if keyword == "allOf" and self.positive:
            return algebra.all_of(shapes)
        return algebra.either(shapes)

    def one_of(self, branches: list[Literals]) -> Shape:
        """Exactly one branch holds; under negation none, or two at once."""
        algebra = self.algebra
        # What is in one only as we read formats may be in others under wider readings.
        wide = algebra.widest if self.positive else algebra
        held = [wide.in_place(branch) for branch in branches]
        exact = [algebra.in_place(branch) for branch in branches]
        twice = []
        for i, j in combinations(range(len(branches)), 2):
            shared = wide.overlap(held[i], held[j])
            twice.append(shared)
            if self.positive:
                for one, other in ((i, j), (j, i)):
                    alone = self.outside(branches[other], shared)
                    exact[one] = algebra.overlap(exact[one], alone)
        if self.positive:
            return algebra.either(exact)
        none = algebra.all_of(map(self.outside, branches))
        return algebra.either([none, *twice])

    def outside(self, branch: Literals, shared: Shape = ALL) -> Shape:
        """The values that do not satisfy a branch; of the types that are not shared,
        all.

        Objects remember the branch until the rest of the conjunction is known, which
        may exclude it.
        """
        found = dict(ALL)
        scalars = [kind for kind in shared if kind != "object" and shared[kind]]
        if scalars:
            excluded = self.signed(False, branch)
            for kind in scalars:
                found[kind] = excluded[kind]
        if shared["object"]:
            found["object"] = (Object(unless=(branch,)),)
        return found

    def conditional(self, condition: Any) -> Shape:
        """The values that satisfy `if` and `then`, and those that satisfy `else` but
        not `if`."""
        branches = []
        for holds, keyword in ((True, "then"), (False, "else")):
            case = self.shape(holds, condition, "if")
            branch = self.keywords.get(keyword, True)
            demanded = self.shape(True, branch, keyword)
            branches.append(self.algebra.overlap(case, demanded))
        return self.algebra.either(branches)

    def dependent(self, keyword: str, name: str, needed: Any) -> Shape:
        """Return what the presence of a property demands of the object."""
        if isinstance(needed, list):
            needed = {"required": needed}
        present = {**NONE, "object": (Object(required=(name,)),)}
        absent = {**ALL, "object": (Object(forbidden=(name,)),)}
        demanded = self.shape(True, needed, keyword, name)
        met = self.algebra.overlap(present, demanded)
        return self.algebra.either([absent, met])
