"""Where a schema asks for distinct items or names: an automaton over the places of a JSON text.

A state is what may stand at a place: conjunctions of schemas, of which one must hold. Steps go to a property
or an item, and are computed once. Depends on the lowering's algebra.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from guided_plugin.grammar.llguidance.lark.algebra import Algebra
from guided_plugin.grammar.llguidance.lark.constraints import Array, Literals, Object

# Listed names beyond this many are no longer told apart by the grammar itself.
_MAX_LISTED = 40
# So many properties of one place are remembered.
_MAX_STEPS = 2_000


class Place:
    """What may stand at a place of a JSON text."""

    def __init__(self, demands: Demands, choices: frozenset[Literals]) -> None:
        self._demands = demands
        shapes = [demands.algebra.shape(literals) for literals in choices]
        self._arrays = [cast("Array", array) for shape in shapes for array in shape["array"]]
        self._objects = [cast("Object", entries) for shape in shapes for entries in shape["object"]]
        self.distinct_items = any(array.unique for array in self._arrays)
        """Whether an array here must have distinct items, by any of the alternatives."""
        self.distinct_names = any(entries.counts_names for entries in self._objects)
        """Whether an object's names are counted, which must not count one twice."""
        self.prefix_length = max((array.prefix_length for array in self._arrays), default=0)
        self.contains = any(array.contains for array in self._arrays)
        """Whether what an item may be depends on the items before it."""
        names = [_names(entries) for entries in self._objects]
        self.listed = frozenset.intersection(*names) if names else frozenset()
        """Names that the grammar itself allows once."""
        if len(self.listed) > _MAX_LISTED:
            self.listed = frozenset()
        self._all_names = frozenset().union(*names)
        self._by_pattern = any(p.matching for o in self._objects for p in o.properties)
        self._members: dict[str | None, Place | None] = {}
        self._items: dict[int, Place | None] = {}

    def member(self, name: str) -> Place | None:
        """The place of a property; None where nothing is demanded."""
        key = name if name in self._all_names or self._by_pattern else None
        if key not in self._members:
            if len(self._members) > _MAX_STEPS:
                self._members.clear()
            self._members[key] = self._demands.place(self._member_choices(name))
        return self._members[key]

    def item(self, index: int) -> Place | None:
        """The place of an item; None where nothing is demanded."""
        index = min(index, self.prefix_length)
        if index not in self._items:
            self._items[index] = self._demands.place(self._item_choices(index))
        return self._items[index]

    def _member_choices(self, name: str) -> Iterable[Literals]:
        for entries in self._objects:
            value = entries.of(name)
            yield value
            for exists in entries.exists:
                yield value | exists.value

    def _item_choices(self, index: int) -> Iterable[Literals]:
        for array in self._arrays:
            item = array.at(index)
            yield item
            for contains in array.contains:
                yield item | contains.item


class Demands:
    """The places of one schema."""

    def __init__(self, algebra: Algebra, root: Literals) -> None:
        self.algebra = algebra
        self._places: dict[frozenset[Literals], Place] = {}
        self.root = self.place([root])

    def place(self, choices: Iterable[Literals]) -> Place | None:
        """The place where one of these conjunctions holds; None where nothing is demanded."""
        key = frozenset(literals for literals in choices if literals)
        if not key:
            return None
        found = self._places.get(key)
        if found is None:
            found = self._places[key] = Place(self, key)
        return found


def _names(entries: Object) -> frozenset[str]:
    named = (name for properties in entries.properties for name, _ in properties.named)
    return frozenset((*named, *entries.required))
