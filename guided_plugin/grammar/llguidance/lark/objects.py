"""Objects as rules. Depends on the emitter.

Where properties keep the schema's order, an object is a sequence of required and
optional parts; members.py writes those whose properties come in any order.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator
from dataclasses import replace

from guided_plugin.grammar.llguidance.lark.constraints import (
    TRUE,
    Exists,
    Literals,
    Object,
    Properties,
    String,
    with_properties,
)
from guided_plugin.grammar.llguidance.lark.emitter import CHANGING, Emitter, all_subsets
from guided_plugin.grammar.llguidance.lark.members import (
    MAX_COUNT,
    NAMED,
    NAMED_AND_COUNTED,
    Member,
    any_order,
)
from guided_plugin.grammar.llguidance.lark.patterns import (
    ANY_CHARACTER,
    also_pattern,
    expression,
    few_strings,
    matches,
    pattern,
)
from guided_plugin.grammar.llguidance.lark.reach import (
    marks_of,
    reach_of,
    texts_of,
)
from guided_plugin.grammar.llguidance.lark.rules import (
    Alternative,
    Repeated,
    Symbol,
    Text,
)
from guided_plugin.grammar.llguidance.lark.terminals import (
    COLON,
    COMMA,
    any_of,
    both_patterns,
    empty_terminal,
    excluding,
    key_text,
    lead,
    string_terminal,
)

OPEN = Text('"{"')
CLOSE = Text('"}"')

# How many ways there may be to let listed properties answer.
_MAX_ANSWERS = 64

# Where names are counted, patterns that match up to so many names list them.
FEW_NAMES = 16

# So many sets of patterns that one name may match are told apart.
_MAX_CLASSES = 64

# Why objects can't be compared with each other, and what to write.
_OPEN = "an item may be, or hold, an object with names that are not listed"
_LIST_NAMES = (
    "list all names in `properties`, with `additionalProperties: false` or `strict`"
)
_COUNTED = "an item may be, or hold, an object whose properties are counted or excluded"
_COUNT_NOTHING = "leave minProperties, maxProperties and `not` out of it"

_Group = tuple[str, ...]
"""Patterns that ask for the same."""


def object_rule(emitter: Emitter, constraint: Object) -> Symbol:
    """The rule of an object constraint."""
    writer = _Writer(emitter, emitter.limited(constraint))
    unanswered = writer.listed_answers()
    if unanswered is None:
        return writer.rule()
    rules = {object_rule(emitter, each): None for each in unanswered}
    return emitter.grammar.define(
        emitter.grammar.name("o"), [Alternative((rule,)) for rule in rules]
    )


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
        self.live: list[str] = []
        self.open: list[Member] = []
        self.bodies: list[str] = []
        """The names of each open member, as the body of a terminal."""
        self.find_members(strings)
        if constraint.exists or constraint.shortest > len(constraint.required):
            # Where names run out, they must be counted as those that are listed.
            limit = max(FEW_NAMES, min(constraint.shortest, MAX_COUNT))
            few = [few_strings(body, limit) for body in self.bodies]
            found = dict.fromkeys(itertools.chain.from_iterable(filter(None, few)))
            if found:
                listed = Properties(
                    named=tuple((name, TRUE) for name in found), describes=False
                )
                self.object = with_properties(constraint, listed)
                self.find_members(strings)
        emitter.together(self.bodies)

    def listed_answers(self) -> list[Object] | None:
        """A demand as alternatives, one for each listed property that can answer it.

        None where no demand needs that: unlisted properties can always come later.
        """
        answered = {index for member in self.open for index in member.exists}
        for index, exists in enumerate(self.object.exists):
            if index in answered:
                continue
            others = tuple(each for each in self.object.exists if each != exists)
            options = [
                self.answered_by(name, exists, others)
                for name in self.live
                if self.may(exists, name)
            ]
            if (
                len(options) > 1
                and len(options) ** len(self.object.exists) > _MAX_ANSWERS
            ):
                raise self.emitter.refusal("not", "requires one of too many properties")
            return options
        return None

    def answered_by(
        self, name: str, exists: Exists, others: tuple[Exists, ...]
    ) -> Object:
        required = tuple(dict.fromkeys((*self.object.required, name)))
        plain = replace(self.object, exists=others, required=required)
        demand = Properties(named=((name, exists.value),), describes=False)
        return with_properties(plain, demand) if exists.value else plain

    def may(self, exists: Exists, name: str) -> bool:
        """Whether a listed property may answer a demand."""
        return self.answers_as(exists, name) and not self.algebra.empty(
            self.object.of(name) | exists.value
        )

    def rule(self) -> Symbol:
        required = self.required
        # Those that are not required: the required ones are there at the end in any
        # case.
        fewest = max(0, self.object.shortest - len(required))
        most = self.object.longest
        if most is not None:
            most -= len(required)
        if most == 0:
            self.live = [name for name in self.live if name in required]
            self.open = []
            most = None
        free = len(self.live) - len(required)
        if most is not None and not self.open and most >= free:
            most = None
        impossible = (most is not None and most < fewest) or (
            not self.open and fewest > free
        )
        if impossible or any(name not in self.live for name in required):
            return self.grammar.define(self.grammar.name("o"), [])
        plain = not fewest and most is None and not self.object.exists
        comparing = self.emitter.comparing is not None
        if comparing and not plain:
            raise self.emitter.incomparable(_COUNTED, _COUNT_NOTHING)
        ordered = self.emitter.style.ordered or comparing
        if plain and (ordered or not self.live or len(required) > NAMED):
            return self.ordered()
        remembered = NAMED if not fewest and most is None else NAMED_AND_COUNTED
        if len(required) > remembered:
            raise self.emitter.refusal(
                "required", f"over {remembered} names, next to counts or negations"
            )
        members = self.any_order(fewest, most, remembered)
        if not required and not fewest and not self.object.exists:
            members = (Repeated(members, 0, 1),) if members else ()
        elif not members:
            return self.grammar.define(self.grammar.name("o"), [])
        return self.grammar.rule((OPEN, *members, CLOSE))

    # What properties there may be

    def find_members(self, strings: tuple[String, ...] | None) -> None:
        self.bodies.clear()
        self.listed = self.listed_names(strings)
        self.live = [name for name in self.listed if self.alive(name)]
        if self.emitter.comparing is not None:
            order = self.emitter.name_order
            order |= {
                name: len(order) + at
                for at, name in enumerate(self.live)
                if name not in order
            }
            self.live.sort(key=order.__getitem__)
        self.open = list(self.open_members(strings))

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
            and (not self.object.names or self.algebra.allows_name(self.object, name))
            and not self.algebra.empty(self.object.of(name))
        )

    def open_members(self, strings: tuple[String, ...] | None) -> Iterator[Member]:
        """Classes of unlisted names: one for each set of patterns that a name may
        match."""
        shapes = [string for string in strings or () if string.values is None]
        if strings is not None and not shapes:
            return
        base: list[str] = []
        if shapes and String() not in shapes:
            allowed = [string_terminal(string) for string in shapes]
            base = allowed if len(allowed) == 1 else [any_of(allowed)]
        groups = self.patterns()
        listed: dict[frozenset[_Group], list[str]] = {}
        if not groups:
            listed[frozenset()] = self.listed
        for name in self.listed if groups else ():
            found = frozenset(
                group
                for group in groups
                if any(matches(source, name) for source in group)
            )
            listed.setdefault(found, []).append(name)
        for class_ in self.classes(groups, base):
            matched = tuple(itertools.chain.from_iterable(class_))
            value = self.open_value(matched)
            if self.algebra.empty(value):
                continue
            if self.emitter.comparing is not None:
                raise self.emitter.incomparable(_OPEN, _LIST_NAMES)
            characters = None
            if strings is None and len(class_) == len(groups) == len(matched):
                characters = lead(replace(String(), patterns=frozenset(matched)))
            # The other listed names are none of this class.
            start = base if base or class_ else [string_terminal(String())]
            body = [
                *_names(start, class_, groups),
                *excluding(listed.get(frozenset(class_), ())),
            ]
            for chosen, keys, extra in self.answers(matched):
                combined = value | extra
                if chosen and self.algebra.empty(combined):
                    continue
                names = " & ".join([*body, *keys])
                if empty_terminal(names):
                    continue
                self.bodies.append(names)
                named = String(patterns=frozenset(matched))
                terminal = self.grammar.terminal(
                    names,
                    reach=reach_of(named),
                    marks=marks_of(named).union(*map(marks_of, shapes)),
                    texts=() if base or keys else texts_of(named),
                )
                key = terminal if keys else self.emitter.led(terminal, characters)
                yield Member(key, self.emitter.value(combined), chosen)

    def classes(
        self, groups: list[_Group], base: list[str]
    ) -> list[tuple[_Group, ...]]:
        """The sets of patterns that one name may match; of many those that some name
        matches."""
        found: list[tuple[_Group, ...]] = [()]
        for index, group in enumerate(groups, 1):
            found += [(*matched, group) for matched in found]
            if len(found) > _MAX_CLASSES:
                names = {m: " & ".join(_names(base, m, groups[:index])) for m in found}
                found = [
                    matched for matched in found if not empty_terminal(names[matched])
                ]
            if len(found) > _MAX_CLASSES:
                raise self.emitter.refusal(
                    "patternProperties", "has too many patterns that one name may match"
                )
        return found

    def patterns(self) -> list[_Group]:
        """The patterns of names, those first that one must match. Those that ask for
        the same are a group."""
        demanded = [
            exists.pattern
            for exists in self.object.exists
            if exists.pattern is not None
        ]
        groups: dict[Hashable, dict[str, None]] = {
            source: {source: None} for source in demanded
        }
        matching = [dict(properties.matching) for properties in self.object.properties]
        besides = [
            exists.besides[1]
            for exists in self.object.exists
            if exists.besides is not None
        ]
        for source in itertools.chain(*matching, *map(sorted, besides)):
            asked = (
                *(each.get(source) for each in matching),
                *(source in each for each in besides),
            )
            groups.setdefault(source if source in demanded else asked, {})[source] = (
                None
            )
        return [tuple(group) for group in groups.values()]

    def open_value(self, matched: tuple[str, ...]) -> Literals:
        value = TRUE
        for properties in self.object.properties:
            own = [
                literals
                for source, literals in properties.matching
                if source in matched
            ]
            value = value.union(*own) if own else value | (properties.others or TRUE)
        return value

    def answers(
        self, matched: tuple[str, ...]
    ) -> Iterator[tuple[tuple[int, ...], list[str], Literals]]:
        """Which demands for some property an unlisted one may answer, under what
        further conditions."""
        possible = [
            i
            for i, exists in enumerate(self.object.exists)
            if _may_answer(exists, matched)
        ]
        for chosen in all_subsets(possible):
            demands = [self.object.exists[i] for i in chosen]
            names = [
                self.algebra.strings(exists.name)
                for exists in demands
                if exists.name is not None
            ]
            if all(names):
                keys = [
                    any_of([string_terminal(string) for string in strings])
                    for strings in names
                ]
                yield chosen, keys, TRUE.union(*(exists.value for exists in demands))

    def named_members(self, remembered: int) -> Iterator[Member]:
        """Listed properties, the required ones with the first bits; several times where
        they may answer."""
        order = sorted(self.live, key=lambda name: name not in self.required)
        bits = {name: bit for bit, name in enumerate(order[:remembered])}
        for name in self.live:
            value = self.object.of(name)
            key = Text(key_text(name))
            possible = [
                i
                for i, exists in enumerate(self.object.exists)
                if self.answers_as(exists, name)
            ]
            for chosen in all_subsets(possible):
                combined = (
                    value.union(*(self.object.exists[i].value for i in chosen))
                    if chosen
                    else value
                )
                if not chosen or not self.algebra.empty(combined):
                    yield Member(
                        key, self.emitter.value(combined), chosen, name, bits.get(name)
                    )

    def answers_as(self, exists: Exists, name: str) -> bool:
        if exists.name is not None:
            return self.algebra.is_string(exists.name, name)
        if exists.pattern is not None:
            return matches(exists.pattern, name)
        names, sources = exists.besides or (frozenset(), frozenset())
        return name not in names and not any(
            matches(source, name) for source in sources
        )

    # Rules

    def ordered(self) -> Symbol:
        """Listed properties in their order, the others after them."""
        members = [
            (Text(key_text(n)), COLON, self.emitter.value(self.object.of(n)))
            for n in self.live
        ]
        others = [(each.key, COLON, each.value) for each in self.open]
        other = self.grammar.rule(*others) if others else None
        tail: tuple[Symbol, ...] = ()
        if other is not None:
            tail = (Repeated((COMMA, other), 0, None),)
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

    def any_order(
        self, fewest: int, most: int | None, remembered: int
    ) -> tuple[Symbol, ...]:
        """At least one property; nothing where none is possible.

        `fewest` and `most` count the properties that are not required.
        """
        members = [*self.named_members(remembered), *self.open]
        if not members:
            return ()
        limit = fewest if most is None else most
        if limit > MAX_COUNT:
            raise self.emitter.refusal(
                "minProperties" if most is None else "maxProperties", "is too large"
            )
        repeatable = [member for member in members if member.bit is None]
        if repeatable and self.object.counts_names:
            # The grammar can't remember these names, and the last value of a name is
            # what counts.
            self.emitter.distinct = True
            mark = self.emitter.marked
            members = [
                m if m.bit is not None else m._replace(key=mark(m.key, CHANGING))
                for m in members
            ]
        demands = len(self.object.exists)
        return (
            any_order(
                self.emitter, members, list(self.required), demands, fewest, most
            ),
        )


def _may_answer(exists: Exists, matched: tuple[str, ...]) -> bool:
    if exists.name is not None:
        return True
    if exists.pattern is not None:
        return exists.pattern in matched
    return exists.besides is not None and exists.besides[1].isdisjoint(matched)


def _names(
    base: list[str], matched: tuple[_Group, ...], groups: list[_Group]
) -> list[str]:
    """The parts of a terminal for the names that match a pattern of each of these
    groups, and no other."""
    # A pattern's expression is a string already.
    parts = base or ([] if matched else [expression(f'"{ANY_CHARACTER}*"')])
    for group in matched:
        parts = (
            both_patterns(parts, group)
            if len(group) == 1
            else [*parts, any_of(list(map(pattern, group)))]
        )
    others = itertools.chain.from_iterable(
        group for group in groups if group not in matched
    )
    return [*parts, *(f"~{also_pattern(source)}" for source in others)]
