"""JSON Schema as Boolean algebra: which values of each type satisfy a schema, or its
negation.

A `Shape` lists, for each type, alternatives of which one must hold. Subschemas of items
and properties stay numbers, so recursion through them ends. Depends on document,
constraints and strings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property, partial, reduce
from itertools import product
from operator import attrgetter
from typing import Any, cast

from guided_plugin.errors import UnsupportedSpecError
from guided_plugin.grammar.llguidance.lark.constraints import (
    TRUE,
    Array,
    Boolean,
    Constraint,
    Literals,
    Null,
    Number,
    Object,
    String,
    describes,
)
from guided_plugin.grammar.llguidance.lark.document import Document
from guided_plugin.grammar.llguidance.lark.strings import is_empty
from guided_plugin.spec.references import Path, pointer

Alternatives = tuple[Constraint, ...]
Shape = dict[str, Alternatives]

ALL: Shape = {
    "null": (Null(),),
    "boolean": (Boolean(),),
    "number": (Number(),),
    "string": (String(),),
    "array": (Array(),),
    "object": (Object(),),
}
"""The shape of every value."""

NONE: Shape = dict.fromkeys(ALL, ())
"""The shape of no value."""

# How many steps a schema may cost before it counts as too entangled.
_MAX_MEETS = 400_000
_MAX_ALTERNATIVES = 3_000
# How many questions whether something is empty may depend on each other.
_MAX_ASKING = 12
# How many first items of an array are looked at.
_MAX_ITEMS = 8

_COMBINING = ("anyOf", "oneOf", "allOf", "enum", "dependencies", "dependentRequired")


def _combined(value: Any) -> int:
    """Return how many alternatives the value of one of these keywords makes."""
    members = value.values() if isinstance(value, dict) else value
    return sum(isinstance(one, dict | list) for one in members)


class _RecursionInPlace(UnsupportedSpecError):
    """A schema whose own shape is part of its shape."""


class Algebra:
    """The shapes of one document's schemas, each computed once."""

    def __init__(
        self,
        document: Document,
        read: Callable[[Algebra, int, bool], Shape],
        *,
        closing: bool,
        wide: bool = False,
    ) -> None:
        """`read`: the shape of a numbered schema, or of its negation, from its
        keywords."""
        self.document = document
        self.wide = wide
        """True if a value is in a shape: if any reading of formats, and of draft 4's
        integers, puts it there, not all of them."""
        self._read = read
        self._closing = closing
        self._shapes: dict[tuple[int, bool], Shape] = {}
        self._conjunctions: dict[Literals, Shape] = {}
        self._running: set[tuple[int, bool]] = set()
        self._empty: dict[Literals, bool] = {}
        self._asking: set[Literals] = set()
        self._meets = 0

    @cached_property
    def widest(self) -> Algebra:
        """The algebra of the same document that is `wide`: what isn't in its shapes
        satisfies the negation here."""
        document = self.document
        # Formats, and the integers of draft 4, have several readings.
        ambiguous = document.draft <= 4 or '"format"' in json.dumps(document.root)
        if self.wide or not ambiguous:
            return self
        return Algebra(document, self._read, closing=self._closing, wide=True)

    def literals(self, schema: Any, path: Path) -> Literals:
        """A schema as a conjunction of one; the empty one where it allows
        everything."""
        number = self.document.number(schema, path)
        node = self.document.nodes[number]
        if node.keywords or node.schema is False:
            return frozenset({(number, True)})
        return TRUE

    def negated(self, literals: Literals) -> Literals:
        """The negation of a conjunction of one, or of none."""
        if not literals:
            return self.literals(False, ())
        [(number, positive)] = literals
        return frozenset({(number, not positive)})

    def shape(self, literals: Literals) -> Shape:
        """The values that satisfy all of them, with alternatives in place of what
        objects must not satisfy."""
        shape = self._conjunctions.get(literals)
        if shape is None:
            shape = self.in_place(literals)
            while any(map(attrgetter("unless"), shape["object"])):
                met: dict[Constraint, None] = {}
                for one in cast("tuple[Object, ...]", shape["object"]):
                    met.update(dict.fromkeys(self._settled_once(one)))
                shape = {**shape, "object": self._reduced("object", met)}
            self._conjunctions[literals] = shape
        return shape

    def in_place(self, literals: Literals) -> Shape:
        """The shape of parts of the schema that is being read: none may be that schema
        again."""
        return self.all_of(map(self._of, sorted(literals)))

    def empty(self, literals: Literals) -> bool:
        """True if no value satisfies all of them. False where that is not known."""
        if not literals:
            return False
        answer = self._empty.get(literals)
        if answer is None:
            asking = self._asking
            inside = literals in asking or not self._running.isdisjoint(literals)
            if inside or len(asking) > _MAX_ASKING:
                return False
            asking.add(literals)
            try:
                answer = self._empty[literals] = self._allows_nothing(literals)
            except _RecursionInPlace:
                # Asked while a schema is read that contains this one.
                return False
            finally:
                asking.discard(literals)
        return answer

    def overlap(self, one: Shape, two: Shape) -> Shape:
        """The values of both shapes, without what is added that nothing satisfies."""
        result: Shape = {}
        for kind, every in ALL.items():
            lefts = one[kind]
            rights = two[kind]
            if lefts == every or not rights:
                result[kind] = rights
                continue
            if rights == every or not lefts:
                result[kind] = lefts
                continue
            met: dict[Constraint, None] = {}
            for left, right in product(lefts, rights):
                self._meets += 1
                constraint = left.meet(right)  # type: ignore[arg-type]
                if constraint is not None and self._possible(constraint):
                    met[constraint] = None
            result[kind] = self._reduced(kind, met)
        return result

    def all_of(self, shapes: Iterable[Shape]) -> Shape:
        """The values of all shapes."""
        return reduce(self.overlap, list(shapes) or [ALL])

    def either(self, shapes: Iterable[Shape]) -> Shape:
        """The values of any of the shapes. Alternatives that nothing satisfies stay."""
        result: dict[str, dict[Constraint, None]] = {kind: {} for kind in ALL}
        for shape in shapes:
            for kind, constraints in shape.items():
                result[kind].update(dict.fromkeys(constraints))
        return {kind: self._reduced(kind, met) for kind, met in result.items()}

    def allows_name(self, constraint: Object, name: str) -> bool:
        """True if `propertyNames` lets a property have this name."""
        return all(
            any(string.has(name) for string in self.strings(literals))
            for literals in constraint.names
        )

    def strings(self, literals: Literals) -> tuple[String, ...]:
        """The strings that satisfy all of them."""
        return cast("tuple[String, ...]", self.shape(literals)["string"])

    def _of(self, literal: tuple[int, bool]) -> Shape:
        """The shape of one schema, or of its negation, read when it is first asked for,
        without alternatives that nothing satisfies."""
        shape = self._shapes.get(literal)
        if shape is None:
            number, positive = literal
            if literal in self._running:
                raise _RecursionInPlace(
                    "contains itself in place",
                    where=pointer(self.document.nodes[number].path),
                    hint="recursion must go through a property or an item",
                )
            self._running.add(literal)
            try:
                read = self._read(self, number, positive)
                shape = self._shapes[literal] = {
                    kind: tuple(filter(self._possible, read[kind])) for kind in read
                }
            finally:
                self._running.discard(literal)
        return shape

    def _allows_nothing(self, literals: Literals) -> bool:
        """True if no value satisfies all of them, as far as shapes and the terminals
        of strings tell."""
        shape = self.shape(literals)
        strings: Any = shape["string"]
        found = sum(map(len, shape.values()))
        return found == len(strings) and all(map(is_empty, strings))

    def _settled_once(self, one: Object) -> Iterable[Constraint]:
        """An object without the first of its `unless`, as alternatives where it could
        satisfy that."""
        if not one.unless:
            return (one,)
        excluded = one.unless[0]
        rest = replace(one, unless=one.unless[1:])
        alone = {**NONE, "object": (rest,)}
        wide = self.widest
        shared = wide.overlap(alone, wide.in_place(excluded))
        if not shared["object"]:
            return (rest,)
        others = self.in_place(self.negated(excluded))
        return self.overlap(alone, others)["object"]

    def _reduced(self, kind: str, met: dict[Constraint, None]) -> Alternatives:
        """Alternatives, or the one that covers all others."""
        if self._meets > _MAX_MEETS or len(met) > _MAX_ALTERNATIVES:
            raise UnsupportedSpecError(
                "combines too many alternatives",
                where=self.document.place(*_COMBINING, weigh=_combined),
                hint="use fewer there, or give each one a const of a required property",
            )
        # Where objects are closed, one that describes nothing must not replace those
        # that do: together with another description they allow more.
        if ALL[kind][0] in met and not (self._closing and any(map(describes, met))):
            return ALL[kind]
        return tuple(met)

    def _possible(self, constraint: Constraint) -> bool:
        """True if nothing shows that no value satisfies a constraint."""
        if getattr(constraint, "values", None) in ((), frozenset()):
            return False
        needed: list[Literals] = []
        match constraint:
            case Array():
                first = range(min(constraint.shortest, _MAX_ITEMS))
                needed += map(constraint.at, first)
                needed += [contains.item for contains in constraint.contains]
            case Object():
                required = constraint.required
                if len(required) > constraint.shortest:
                    constraint = replace(constraint, shortest=len(required))
                allowed = partial(self.allows_name, constraint)
                if constraint.names and not all(map(allowed, required)):
                    return False
                for name in required:
                    needed.append(constraint.of(name, constraint.matched(name)))
            case String():
                pass
            case _:
                return True
        if constraint.longest is not None and constraint.shortest > constraint.longest:
            return False
        return not any(map(self.empty, needed))
