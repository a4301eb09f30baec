"""The values that satisfy a schema, where those are few. Distinct items can't be more.

Depends on the emitter.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import chain, repeat

from guided_plugin.grammar.llguidance.lark.constraints import (
    TRUE,
    Array,
    Boolean,
    Constraint,
    Contains,
    Literals,
    Null,
    Object,
    String,
)
from guided_plugin.grammar.llguidance.lark.emitter import Emitter
from guided_plugin.grammar.llguidance.lark.languages import few_strings
from guided_plugin.grammar.llguidance.lark.patterns import pattern
from guided_plugin.grammar.llguidance.lark.ranges import Number
from guided_plugin.grammar.llguidance.lark.reader import closed
from guided_plugin.grammar.llguidance.lark.terminals import empty_terminal, string_terminal
from guided_plugin.spec.arithmetic import exact

# So deep values are looked at.
_MAX_DEPTH = 4
# So many steps are taken to find the values, and so many strings or names of one pattern.
_MAX_STEPS = 20_000
_MAX_STRINGS = 300


class _Endless(Exception):
    """There are many values, or too many steps are needed to find out."""


def few_values(emitter: Emitter, literals: Literals, most: int) -> frozenset[Hashable] | None:
    """All values, where they are at most so many; None where there are more, or that is not known."""
    found: set[Hashable] = set()
    try:
        for value in _Values(emitter, most).of(literals):
            found.add(value)
            if len(found) > most:
                return None
    except _Endless:
        return None
    return frozenset(found)


class _Values:
    """Lists values. What it does not look into closely has more values than it really has."""

    def __init__(self, emitter: Emitter, most: int) -> None:
        self._emitter = emitter
        self._algebra = emitter.algebra
        self._most = most
        self._steps = 0
        self._depth = 0

    def of(self, literals: Literals) -> Iterator[Hashable]:
        """The values that satisfy them all; some may come twice."""
        if not literals or self._depth > _MAX_DEPTH:
            raise _Endless
        shape = self._algebra.shape(literals)
        self._depth += 1
        for constraint in chain.from_iterable(shape.values()):
            for value in self._of(constraint):
                self._steps += 1
                if self._steps > _MAX_STEPS:
                    raise _Endless
                yield value
        self._depth -= 1

    def _of(self, constraint: Constraint) -> Iterator[Hashable]:
        match constraint:
            case Null():
                yield "null", None
            case Boolean(values):
                yield from (("boolean", value) for value in values)
            case Number():
                yield from (("number", value) for value in self._numbers(constraint))
            case String():
                yield from (("string", value) for value in self._strings(constraint))
            case Array():
                yield from (("array", value) for value in self._arrays(constraint))
            case Object():
                yield from (("object", value) for value in self._objects(constraint))

    def _numbers(self, number: Number) -> Iterator[Hashable]:
        if number.values is not None:
            return iter([exact(value) for value in number.values])
        members = number.members(_MAX_STEPS)
        if members is None:
            raise _Endless
        return iter(members)

    def _strings(self, string: String) -> Iterator[str]:
        if string.values is not None:
            return iter(string.values)
        if string.longest == 0:
            return iter([""])
        return iter(_few(string_terminal(string), self._most))

    def _arrays(self, array: Array) -> Iterator[Hashable]:
        if array.longest is None:
            last = array.prefix_length
            item = array.at(last)
            if array.unique:
                last += len(self._all(item))
            elif self._all(item):
                raise _Endless
        else:
            last = array.longest
        items: list[list[Hashable]] = []
        for length in range(last + 1):
            if length >= array.shortest:
                contains = [self._counted(array, each, length) for each in array.contains]
                for found in self._products(items, unique=array.unique):
                    if all(map(_counts, array.contains, contains, repeat(found))):
                        yield found
            if length < last:
                items.append(self._all(array.at(length)))
                if not items[-1]:
                    break

    def _counted(self, array: Array, contains: Contains, length: int) -> list[frozenset[Hashable]]:
        """The values of each item that a `contains` counts."""
        found = [self._all(array.at(index) | contains.item) for index in range(length)]
        if any(len(values) > self._most for values in found):
            raise _Endless
        return [frozenset(values if index >= contains.start else ()) for index, values in enumerate(found)]

    def _all(self, literals: Literals) -> list[Hashable]:
        if self._algebra.empty(literals):
            return []
        depth = self._depth
        found: dict[Hashable, None] = {}
        try:
            for value in self.of(literals):
                found[value] = None
                if len(found) > self._most:
                    # The first of them are enough to have more than is asked for.
                    break
        except _Endless:
            # There may be none for a reason that only the grammar shows.
            if not self._nothing(literals):
                raise
        self._depth = depth
        return list(found)

    def _nothing(self, literals: Literals) -> bool:
        if not literals or self._emitter.is_apart:
            return False
        emitter = self._emitter.apart()
        return not emitter.grammar.productive(emitter.root(literals), empty_terminal)

    def _products(
        self, items: Sequence[list[Hashable]], *, unique: bool, before: tuple[Hashable, ...] = ()
    ) -> Iterator[tuple[Hashable, ...]]:
        if len(before) == len(items):
            yield before
            return
        for value in items[len(before)]:
            self._steps += 1
            if self._steps > _MAX_STEPS:
                raise _Endless
            if not (unique and value in before):
                yield from self._products(items, unique=unique, before=(*before, value))

    def _objects(self, entries: Object) -> Iterator[Hashable]:
        opened = any(properties.others is not None for properties in entries.properties)
        if self._emitter.style.closed and not opened and (entries.declared or entries.properties):
            entries = closed(entries, self._algebra.negated(TRUE))
        members: list[list[Hashable]] = []
        for name in self._names(entries):
            if self._algebra.allows_name(entries, name) and name not in entries.forbidden:
                values = self._all(entries.of(name))
                members.append(
                    [*((name, value) for value in values), *([] if name in entries.required else [None])]
                )
            elif name in entries.required:
                return
        for found in self._products(members, unique=False):
            filled = frozenset(member for member in found if member is not None)
            if entries.shortest <= len(filled) and (
                entries.longest is None or len(filled) <= entries.longest
            ):
                yield filled

    def _names(self, entries: Object) -> dict[str, None]:
        """All names that there may be."""
        names: dict[str, None] = dict.fromkeys(entries.required)
        if entries.longest == 0 or entries.longest == len(entries.required):
            return names
        for string in self._algebra.strings(TRUE.union(*entries.names)) if entries.names else ():
            names.update(dict.fromkeys(self._strings(string)))
        if entries.names:
            return names
        limits = [p for p in entries.properties if p.others is not None and self._algebra.empty(p.others)]
        if not limits:
            raise _Endless
        for properties in entries.properties:
            names.update(dict.fromkeys(name for name, _ in properties.named))
        for source, _ in limits[0].matching:
            names.update(dict.fromkeys(_few(pattern(source), _MAX_STRINGS)))
        return names


def _counts(contains: Contains, counted: list[frozenset[Hashable]], array: tuple[Hashable, ...]) -> bool:
    """Whether so many items are counted as must be."""
    count = sum(value in values for value, values in zip(array, counted, strict=True))
    return contains.least <= count and (contains.most is None or count <= contains.most)


def _few(body: str, most: int) -> tuple[str, ...]:
    found = few_strings(body, max(_MAX_STRINGS, most))
    if found is None:
        raise _Endless
    return found
