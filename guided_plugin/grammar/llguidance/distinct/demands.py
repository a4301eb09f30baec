"""Where a schema asks for distinct items or names: an automaton over the places of a JSON text.

A state is what may stand at a place: conjunctions of schemas, of which one must hold; they may be of several
documents. Steps go to a property or an item, and are computed once. Depends on the lowering's algebra.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from guided_plugin.grammar.llguidance.lark.algebra import Algebra
from guided_plugin.grammar.llguidance.lark.constraints import Array, Literals, Object

# Listed names beyond this many are no longer told apart by the grammar itself.
_MAX_LISTED = 40
Choice = tuple[Algebra, Literals]
"""A conjunction of schemas of one document."""

# So many properties of one place are remembered.
_MAX_STEPS = 2_000


class Place:
    """What may stand at a place of a JSON text."""

    def __init__(self, demands: Demands, choices: frozenset[Choice]) -> None:
        self._demands = demands
        shapes = [(algebra, algebra.shape(literals)) for algebra, literals in choices]
        self._arrays = [
            (algebra, cast("Array", each)) for algebra, shape in shapes for each in shape["array"]
        ]
        self._objects = [
            (algebra, cast("Object", each)) for algebra, shape in shapes for each in shape["object"]
        ]
        arrays, objects = [array for _, array in self._arrays], [entries for _, entries in self._objects]
        self.distinct_items = any(array.unique for array in arrays)
        """Whether an array here must have distinct items, by any of the alternatives."""
        self.distinct_names = any(entries.counts_names for entries in objects)
        """Whether an object's names are counted, which must not count one twice."""
        self.prefix_length = max((array.prefix_length for array in arrays), default=0)
        self.contains = any(array.contains for array in arrays)
        """Whether what an item may be depends on the items before it."""
        names = [_names(entries) for entries in objects]
        self.listed = frozenset.intersection(*names) if names else frozenset()
        """Names that the grammar itself allows once."""
        if len(self.listed) > _MAX_LISTED:
            self.listed = frozenset()
        self._all_names = frozenset().union(*names)
        self._by_pattern = any(p.matching for o in objects for p in o.properties)
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

    def _member_choices(self, name: str) -> Iterable[Choice]:
        for algebra, entries in self._objects:
            value = entries.of(name)
            yield algebra, value
            for exists in entries.exists:
                yield algebra, value | exists.value

    def _item_choices(self, index: int) -> Iterable[Choice]:
        for algebra, array in self._arrays:
            item = array.at(index)
            yield algebra, item
            for contains in array.contains:
                yield algebra, item | contains.item


class Demands:
    """The places of one text."""

    def __init__(self, roots: Iterable[Choice]) -> None:
        """`roots`: what the whole text may be."""
        self._places: dict[frozenset[Choice], Place] = {}
        self.root = self.place(roots)

    def place(self, choices: Iterable[Choice]) -> Place | None:
        """The place where one of these conjunctions holds; None where nothing is demanded."""
        key = frozenset(choice for choice in choices if choice[1])
        if not key:
            return None
        found = self._places.get(key)
        if found is None:
            found = self._places[key] = Place(self, key)
        return found


def _names(entries: Object) -> frozenset[str]:
    named = (name for properties in entries.properties for name, _ in properties.named)
    return frozenset((*named, *entries.required))
