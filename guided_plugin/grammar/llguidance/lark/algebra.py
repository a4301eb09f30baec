"""JSON Schema as Boolean algebra: which values of each type satisfy a schema, or its
negation.

A `Shape` lists, for each type, alternatives of which one must hold. Subschemas of items
and properties stay numbers, so recursion through them ends. Depends on document,
constraints and terminals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

from guided_plugin.errors import UnsupportedSpecError
from guided_plugin.grammar.llguidance.lark.constraints import (
    TRUE,
    Array,
    Boolean,
    Constraint,
    Literals,
    Null,
    Object,
    String,
    describes,
)
from guided_plugin.grammar.llguidance.lark.document import Document
from guided_plugin.grammar.llguidance.lark.ranges import Number
from guided_plugin.grammar.llguidance.lark.terminals import (
    empty_terminal,
    string_terminal,
)
from guided_plugin.spec.references import Path
from guided_plugin.spec.schema import pointer

Shape = dict[str, tuple[Constraint, ...]]

ALL: Mapping[str, tuple[Constraint, ...]] = {
    "null": (Null(),),
    "boolean": (Boolean(),),
    "number": (Number(),),
    "string": (String(),),
    "array": (Array(),),
    "object": (Object(),),
}
"""The shape of every value."""

# How many steps a schema may cost before it counts as too entangled.
_MAX_MEETS = 400_000
_MAX_ALTERNATIVES = 3_000
# Beyond so many, alternatives are no longer compared with each other.
_MAX_COMPARED = 200
_LISTS = ("required", "forbidden", "properties", "names", "exists", "unless")
# How many questions whether something is empty may depend on each other.
_MAX_ASKING = 12
# How many first items of an array are looked at.
_MAX_ITEMS = 8


class _RecursionInPlace(UnsupportedSpecError):
    """A schema whose own shape is part of its shape."""


def anything() -> Shape:
    """Every value."""
    return dict(ALL)


def nothing() -> Shape:
    """No value."""
    return dict.fromkeys(ALL, ())


class Algebra:
    """The shapes of one document's schemas, each computed once."""

    def __init__(
        self,
        document: Document,
        read: Callable[[Algebra, int, bool], Shape],
        *,
        closing: bool,
        opposite: Algebra | None = None,
    ) -> None:
        """`read`: the shape of a numbered schema, or of its negation, from its
        keywords."""
        self.wide = opposite is not None
        """Whether a value is in a shape if any reading puts it there, not all of
        them."""
        self._opposite = opposite
        self.document = document
        self._read = read
        # Where something is forbidden that the others don't describe, a weaker
        # alternative must not replace one that describes more.
        self._closing = closing
        self._shapes: dict[tuple[bool, int], Shape] = {}
        self._conjunctions: dict[Literals, Shape] = {}
        self._running: set[tuple[bool, int]] = set()
        self._empty: dict[Literals, bool] = {}
        self._asking: set[Literals] = set()
        self._meets = 0

    @property
    def opposite(self) -> Algebra:
        """The algebra that reads formats, and draft 4's integers, the other way: what
        isn't in its shapes satisfies the negation."""
        if not self.document.formats and self.document.draft > 4:
            return self
        if self._opposite is None:
            self._opposite = Algebra(
                self.document, self._read, closing=self._closing, opposite=self
            )
        return self._opposite

    @property
    def widest(self) -> Algebra:
        """The algebra of those two that reads formats in the wider way."""
        return self if self.wide else self.opposite

    def literals(
        self, schema: Any, base: str, path: Path, positive: bool = True
    ) -> Literals:
        """A schema, or its negation, as a conjunction of one; the empty one where it
        allows everything."""
        if not isinstance(schema, bool):
            number = self.document.number(schema, base, path)
            node = self.document.nodes[number]
            if node.keywords:
                return frozenset({(positive, number)})
            schema = node.schema is not False
        return (
            TRUE
            if schema is positive
            else frozenset({(True, self.document.number(False))})
        )

    def negated(self, literals: Literals) -> Literals:
        """The negation of a conjunction."""
        others = [
            frozenset({(not positive, number)}) for positive, number in sorted(literals)
        ]
        if len(others) == 1:
            return others[0]
        return self.either_of(others)

    def either_of(self, options: Iterable[Literals]) -> Literals:
        """At least one of some conjunctions."""
        distinct = tuple(dict.fromkeys(options))
        if TRUE in distinct:
            return TRUE
        if len(distinct) == 1:
            return distinct[0]
        number = (
            self.document.either(distinct) if distinct else self.document.number(False)
        )
        return frozenset({(True, number)})

    def shape(self, literals: Literals) -> Shape:
        """The values that satisfy all of them."""
        found = self._conjunctions[literals] = self.settled(self._unsettled(literals))
        return found

    def settled(self, shape: Shape) -> Shape:
        """The same values, with alternatives in place of what objects must not
        satisfy."""
        objects = shape["object"]
        while left := [each for one in objects for each in cast("Object", one).unless]:
            met = (
                each
                for one in objects
                for each in self._excluding(cast("Object", one), left[0])
            )
            objects = self._reduced("object", dict.fromkeys(met))
        return {**shape, "object": objects}

    def in_place(self, literals: Literals) -> Shape:
        """The shape of parts of the schema that is being read: none may be that schema
        again."""
        shapes = [
            self._of(literal)
            for literal in sorted(literals, key=lambda literal: literal[::-1])
        ]
        return shapes[0] if len(shapes) == 1 else self.all_of(shapes)

    def empty(self, literals: Literals) -> bool:
        """Whether no value satisfies all of them. False where that is not known."""
        if not literals:
            return False
        known = self._empty.get(literals)
        if known is not None:
            return known
        if len(literals) > 1 and any(
            (not positive, number) in literals for positive, number in literals
        ):
            return True
        asking = self._asking
        running = self._running
        if (
            literals in asking
            or len(asking) > _MAX_ASKING
            or not running.isdisjoint(literals)
        ):
            return False
        asking.add(literals)
        try:
            answer = self._allows_nothing(literals)
        except _RecursionInPlace:
            # Asked while a schema is read that contains this one.
            return False
        finally:
            asking.discard(literals)
        if not asking and not running:
            self._empty[literals] = answer
        return answer

    def overlap(self, one: Shape, two: Shape) -> Shape:
        """The values of both shapes, without alternatives that nothing satisfies."""
        return self.pruned(self.both(one, two))

    def both(self, one: Shape, two: Shape) -> Shape:
        """The values of both shapes."""
        result: Shape = {}
        for kind, every in ALL.items():
            lefts = one[kind]
            rights = two[kind]
            if lefts is every or rights is every:
                result[kind] = rights if lefts is every else lefts
                continue
            if not lefts or not rights:
                result[kind] = ()
                continue
            met: dict[Constraint, None] = {}
            for left in lefts:
                for right in rights:
                    self._meets += 1
                    constraint = left.meet(right)  # type: ignore[arg-type]
                    if constraint is not None:
                        met[constraint] = None
            result[kind] = self._reduced(kind, met)
        return result

    def all_of(self, shapes: Iterable[Shape]) -> Shape:
        """The values of all shapes."""
        result = anything()
        for shape in shapes:
            result = self.both(result, shape)
            # One alternative a type multiplies nothing.
            if max(map(len, result.values())) > 1:
                result = self.pruned(result)
        return self.pruned(result)

    def either(self, shapes: Iterable[Shape]) -> Shape:
        """The values of any of the shapes."""
        result: dict[str, dict[Constraint, None]] = {kind: {} for kind in ALL}
        for shape in shapes:
            for kind, constraints in shape.items():
                result[kind].update(dict.fromkeys(constraints))
        return {kind: self._reduced(kind, met) for kind, met in result.items()}

    def pruned(self, shape: Shape) -> Shape:
        """Without alternatives that nothing satisfies."""
        possible = self._possible
        return {
            kind: every
            if not every or every is ALL[kind]
            else tuple(filter(possible, every))
            for kind, every in shape.items()
        }

    def allows_name(self, constraint: Object, name: str) -> bool:
        """Whether `propertyNames` lets a property have this name."""
        return all(self.is_string(literals, name) for literals in constraint.names)

    def is_string(self, literals: Literals, text: str) -> bool:
        """Whether a string satisfies all of them."""
        return any(string.has(text) for string in self.strings(literals))

    def strings(self, literals: Literals) -> tuple[String, ...]:
        """The strings that satisfy all of them."""
        return cast("tuple[String, ...]", self.shape(literals)["string"])

    def _of(self, literal: tuple[bool, int]) -> Shape:
        shape = self._shapes.get(literal)
        if shape is None:
            positive, number = literal
            if literal in self._running:
                raise _RecursionInPlace(
                    "contains itself in place",
                    where=pointer(self.document.nodes[number].path),
                    hint="recursion must go through a property or an item",
                )
            self._running.add(literal)
            try:
                shape = self._shapes[literal] = self._read(self, number, positive)
            finally:
                self._running.discard(literal)
        return shape

    def _unsettled(self, literals: Literals) -> Shape:
        """The values that satisfy all of them, where objects may still have
        `unless`."""
        found = self._conjunctions.get(literals)
        if found is None:
            found = self._conjunctions[literals] = self.pruned(self.in_place(literals))
        return found

    def _allows_nothing(self, literals: Literals) -> bool:
        """Whether no value satisfies all of them, asked in the order of what an answer
        costs."""
        found = self._unsettled(literals)
        if any(found[kind] for kind in ("null", "boolean", "number", "array")):
            return False
        strings = cast("tuple[String, ...]", found["string"])
        if not all(empty_terminal(string_terminal(string)) for string in strings):
            return False
        return not self.shape(literals)["object"]

    def _excluding(self, one: Object, literals: Literals) -> Iterable[Constraint]:
        """An object without these in `unless`, as alternatives where it could satisfy
        them."""
        if literals not in one.unless:
            return (one,)
        rest = replace(
            one, unless=tuple(each for each in one.unless if each != literals)
        )
        alone = {**nothing(), "object": (rest,)}
        if not self.widest.overlap(alone, self.widest.in_place(literals))["object"]:
            return (rest,)
        return self.overlap(alone, self.in_place(self.negated(literals)))["object"]

    def _reduced(
        self, kind: str, met: dict[Constraint, None]
    ) -> tuple[Constraint, ...]:
        """Alternatives without those that others cover."""
        if self._meets > _MAX_MEETS or len(met) > _MAX_ALTERNATIVES:
            raise UnsupportedSpecError(
                "combines too many alternatives",
                where="json_schema",
                hint="use fewer under allOf, oneOf and not, or give each one a const of a required property",
            )
        if ALL[kind][0] in met and not (
            kind == "object" and self._closing and any(map(describes, met))
        ):
            return ALL[kind]
        if kind != "object" or len(met) > _MAX_COMPARED:
            return tuple(met)
        kept: list[Object] = []
        for one in cast("Iterable[Object]", met):
            if not any(self._covers(other, one) for other in kept):
                kept = [other for other in kept if not self._covers(one, other)] + [one]
        return tuple(kept)

    def _covers(self, one: Object, two: Object) -> bool:
        """Whether every demand of one object is among the other's, so that the other
        adds nothing."""
        if self._closing and (
            set(one.properties) != set(two.properties)
            or set(one.asked) != set(two.asked)
        ):
            return False
        # Compared rather than hashed: a hash looks at everything in them.
        return (
            one.shortest <= two.shortest
            and (
                one.longest is None
                or (two.longest is not None and two.longest <= one.longest)
            )
            and all(
                each in getattr(two, name)
                for name in _LISTS
                for each in getattr(one, name)
            )
        )

    def _possible(self, constraint: Constraint) -> bool:
        match constraint:
            case (
                Array(shortest=least, longest=int(most))
                | Object(shortest=least, longest=int(most))
            ) if least > most:
                return False
            case Object():
                allowed = not constraint.names or all(
                    self.allows_name(constraint, name) for name in constraint.required
                )
                return allowed and not any(
                    map(self.empty, map(constraint.of, constraint.required))
                )
            case Array():
                first = range(min(constraint.shortest, _MAX_ITEMS))
                wanted = [contains.item for contains in constraint.contains]
                return not any(map(self.empty, [*map(constraint.at, first), *wanted]))
        return True
