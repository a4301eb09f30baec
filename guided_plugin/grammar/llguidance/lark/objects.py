"""Objects as rules. Depends on the emitter.

Where properties keep the schema's order, an object is a sequence of required and optional parts. Where
they may come in any order, or are counted, a rule's 64-bit parameter remembers which were there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from guided_plugin.grammar.llguidance.lark.arrays import all_of, remembering
from guided_plugin.grammar.llguidance.lark.constraints import TRUE, Exists, Literals, Object, String
from guided_plugin.grammar.llguidance.lark.emitter import Emitter
from guided_plugin.grammar.llguidance.lark.patterns import ANY_CHARACTER, matches
from guided_plugin.grammar.llguidance.lark.reader import closed
from guided_plugin.grammar.llguidance.lark.rules import Alternative, Reference, Repeated, Symbol, Text
from guided_plugin.grammar.llguidance.lark.terminals import (
    COLON,
    COMMA,
    any_of,
    excluding,
    expression,
    key_text,
    lead,
    matching,
    string_terminal,
)

OPEN, CLOSE = Text('"{"'), Text('"}"')

# The parameter: a bit for each of so many properties, then one for each `Exists`, then a counter.
_NAMED = 48
_EXISTS = 50
_MAX_EXISTS = 5
_COUNTER = "[56:63]"
_MAX_COUNT = 126

# Up to so many patterns of names, each set of them that one name may match is a class of its own.
_MAX_CROSSED = 5

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Member:
    """A property, or a class of properties whose names are not listed."""

    key: Symbol
    value: Symbol
    exists: tuple[int, ...] = ()
    """The demands for some property that this one answers."""
    name: str | None = None
    bit: int | None = None
    """Set when the property was there."""


def object_rule(emitter: Emitter, constraint: Object) -> Symbol:
    """The rule of an object constraint."""
    opened = any(properties.others is not None for properties in constraint.properties)
    if emitter.style.closed and not opened and (constraint.declared or constraint.properties):
        constraint = closed(constraint, emitter.algebra.literals(False, "", ()))
    return _Writer(emitter, constraint).rule()


class _Writer:
    def __init__(self, emitter: Emitter, constraint: Object) -> None:
        self.emitter = emitter
        self.algebra = emitter.algebra
        self.grammar = emitter.grammar
        self.object = constraint
        self.required = dict.fromkeys(constraint.required)
        # What `propertyNames` allows; None where that is everything.
        names = TRUE.union(*constraint.names)
        strings = self.algebra.strings(names) if names else None
        self.listed = self.listed_names(strings)
        self.live = [name for name in self.listed if self.alive(name)]
        self.open = list(self.open_members(strings))

    def rule(self) -> Symbol:
        required = self.required
        fewest = self.object.shortest if self.object.shortest > len(required) else 0
        most = self.object.longest
        if most is not None and not self.open and most >= len(self.live):
            most = None
        if any(name not in self.live for name in required) or (not self.open and fewest > len(self.live)):
            return self.grammar.define(self.grammar.name("o"), [])
        plain = not fewest and most is None and not self.object.exists
        if plain and (self.emitter.style.ordered or not self.live or len(required) > _NAMED):
            return self.ordered()
        if len(required) > _NAMED:
            raise self.emitter.refusal("required", f"with over {_NAMED} names, next to counts or negations")
        filled = () if most == 0 else self.any_order(fewest, most)
        empty = not required and not fewest and not self.object.exists
        return self.grammar.rule(*filled, *([(OPEN, CLOSE)] if empty else []))

    # What properties there may be

    def listed_names(self, strings: tuple[String, ...] | None) -> list[str]:
        listed: dict[str, None] = {}
        for properties in self.object.properties:
            listed.update(dict.fromkeys(name for name, _ in properties.named))
        listed.update(dict.fromkeys((*self.object.required, *self.object.forbidden)))
        for exists in self.object.exists:
            if exists.besides is not None:
                listed.update(dict.fromkeys(sorted(exists.besides[0])))
        for string in strings or ():
            listed.update(dict.fromkeys(string.values or ()))
        return list(listed)

    def alive(self, name: str) -> bool:
        return (
            name not in self.object.forbidden
            and self.algebra.allows_name(self.object, name)
            and not self.algebra.empty(self.object.of(name))
        )

    def open_members(self, strings: tuple[String, ...] | None) -> Iterator[_Member]:
        """Classes of unlisted names: one for each set of patterns that a name may match."""
        shapes = [string for string in strings or () if string.values is None]
        if strings is not None and not shapes:
            return
        base = [expression(f'"{ANY_CHARACTER}*"')]
        if shapes and String() not in shapes:
            allowed = [string_terminal(string) for string in shapes]
            base = allowed if len(allowed) == 1 else [any_of(allowed)]
        sources = self.patterns()
        for matched in _subsets(sources):
            value = self.open_value(matched)
            if self.algebra.empty(value):
                continue
            characters = None
            if strings is None and set(matched) == set(sources):
                characters = lead(String(patterns=frozenset(matched)))
            body = (
                [] if matched and strings is None else [*base]
            )  # A pattern's expression is a string already.
            body += [matching(source) for source in matched]
            body += [f"~{matching(source)}" for source in sources if source not in matched]
            body += excluding(self.listed)
            for chosen, keys, extra in self.answers(matched):
                combined = value | extra
                if chosen and self.algebra.empty(combined):
                    continue
                terminal = self.grammar.terminal(" & ".join([*body, *keys]))
                key = terminal if keys else self.emitter.led(terminal, characters)
                yield _Member(key, self.emitter.value(combined), chosen)

    def patterns(self) -> list[str]:
        found: dict[str, None] = {}
        for properties in self.object.properties:
            found.update(dict.fromkeys(source for source, _ in properties.matching))
        for exists in self.object.exists:
            found.update(dict.fromkeys([exists.pattern] if exists.pattern is not None else []))
            found.update(dict.fromkeys(sorted(exists.besides[1]) if exists.besides is not None else []))
        return list(found)

    def open_value(self, matched: tuple[str, ...]) -> Literals:
        value = TRUE
        for properties in self.object.properties:
            own = [literals for source, literals in properties.matching if source in matched]
            value = value.union(*own) if own else value | (properties.others or TRUE)
        return value

    def answers(self, matched: tuple[str, ...]) -> Iterator[tuple[tuple[int, ...], list[str], Literals]]:
        """Which demands for some property an unlisted one may answer, under what further conditions."""
        possible = [i for i, exists in enumerate(self.object.exists) if _may_answer(exists, matched)]
        for chosen in _all_subsets(possible):
            demands = [self.object.exists[i] for i in chosen]
            names = [self.algebra.strings(exists.name) for exists in demands if exists.name is not None]
            if all(names):
                keys = [any_of([string_terminal(string) for string in strings]) for strings in names]
                yield chosen, keys, TRUE.union(*(exists.value for exists in demands))

    def named_members(self) -> Iterator[_Member]:
        """Listed properties, the required ones with the first bits; several times where they may answer."""
        order = sorted(self.live, key=lambda name: name not in self.required)
        bits = {name: bit for bit, name in enumerate(order[:_NAMED])}
        for name in self.live:
            value = self.object.of(name)
            possible = [i for i, exists in enumerate(self.object.exists) if self.answers_as(exists, name)]
            for chosen in _all_subsets(possible):
                combined = value.union(*(self.object.exists[i].value for i in chosen))
                if not chosen or not self.algebra.empty(combined):
                    key = Text(key_text(name))
                    yield _Member(key, self.emitter.value(combined), chosen, name, bits.get(name))

    def answers_as(self, exists: Exists, name: str) -> bool:
        if exists.name is not None:
            return self.algebra.is_string(exists.name, name)
        if exists.pattern is not None:
            return matches(exists.pattern, name)
        names, sources = exists.besides or (frozenset(), frozenset())
        return name not in names and not any(matches(source, name) for source in sources)

    # Rules

    def ordered(self) -> Symbol:
        """Listed properties in their order, the others after them."""
        members = [(Text(key_text(n)), COLON, self.emitter.value(self.object.of(n))) for n in self.live]
        others = [(each.key, COLON, each.value) for each in self.open]
        other = self.grammar.rule(*others) if others else None
        tail: tuple[Symbol, ...] = (Repeated((COMMA, other), 0, None),) if other is not None else ()
        heads: list[tuple[Symbol, ...]] = []
        if not self.required:
            heads.append(())
            if other is not None:
                heads.append((other, *tail))
        for name, member in zip(reversed(self.live), reversed(members), strict=True):
            if name in self.required:
                # Nothing that comes later can come first.
                heads = [(*member, *tail)]
                tail = (COMMA, *member, *tail)
            else:
                heads.append((*member, *tail))
                tail = (Repeated((COMMA, *member), 0, 1), *tail)
            tail = (self.grammar.rule(tail),)
        return self.grammar.rule(*((OPEN, *head, CLOSE) for head in reversed(heads)))

    def any_order(self, fewest: int, most: int | None) -> list[tuple[Symbol, ...]]:
        """Objects with at least one property, as alternatives: none, or one."""
        if len(self.object.exists) > _MAX_EXISTS:
            raise self.emitter.refusal("not", f"asks for over {_MAX_EXISTS} properties in one object")
        members = [*self.named_members(), *self.open]
        if not members:
            return []
        by_bits = not self.open and len(self.live) <= _NAMED
        counted = fewest > 0 or most is not None
        field = f"[0:{_NAMED}]" if by_bits else _COUNTER
        count = "bit_count_" if by_bits else ""
        if counted and not by_bits and max(fewest, most or 0) > _MAX_COUNT:
            keyword = "maxProperties" if most is not None else "minProperties"
            raise self.emitter.refusal(keyword, f"over {_MAX_COUNT}")
        ends = [f"is_ones([0:{len(self.required)}])" if self.required else ""]
        ends += [f"bit_set({_EXISTS + i})" for i in range(len(self.object.exists))]
        ends.append(f"{count}ge({field}, {fewest})" if fewest else "")
        fits = f"{count}lt({field}, {most})" if most is not None else ""
        counting = [f"incr({_COUNTER})"] if counted and not by_bits else []

        rule = self.grammar.name("o")
        tail = f"{rule}t"
        first, later = [], []
        for each in members:
            bits = [*([] if each.bit is None else [each.bit]), *(_EXISTS + i for i in each.exists)]
            step = (each.key, COLON, *remembering(self.emitter, each.value, tail, [*counting, *_set(bits)]))
            first.append(Alternative(step))
            fresh = "" if each.bit is None else f"bit_clear({each.bit})"
            later.append(Alternative((COMMA, *step), all_of([fresh, fits])))
        needs = tuple(each.value for each in members if each.name in self.required and not each.exists)
        self.grammar.define(tail, [Alternative((), all_of(ends)), *later], parameter=True)
        self.grammar.define(rule, first, parameter=True, needs=needs)
        return [(OPEN, Reference(rule, "0x0"), CLOSE)]


def _may_answer(exists: Exists, matched: tuple[str, ...]) -> bool:
    if exists.name is not None:
        return True
    if exists.pattern is not None:
        return exists.pattern in matched
    return exists.besides is not None and exists.besides[1].isdisjoint(matched)


def _set(bits: list[int]) -> list[str]:
    if len(bits) == 1:
        return [f"set_bit({bits[0]})"]
    return [f"bit_or({hex(sum(1 << bit for bit in bits))})"] if bits else []


def _subsets(sources: list[str]) -> Iterable[tuple[str, ...]]:
    """Sets of patterns that one name may match; with many patterns only none or one."""
    if len(sources) <= _MAX_CROSSED:
        return _all_subsets(sources)
    return [(), *((source,) for source in sources)]


def _all_subsets(items: list[T]) -> Iterator[tuple[T, ...]]:
    return itertools.chain.from_iterable(
        itertools.combinations(items, count) for count in range(len(items) + 1)
    )
