"""Objects as rules. Depends on the emitter.

Where properties keep the schema's order, an object is a sequence of required and
optional parts; members.py writes those whose properties come in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, groupby
from operator import attrgetter
from typing import NamedTuple

from guided_plugin.grammar.llguidance.lark.constraints import (
    TRUE,
    Literals,
    Object,
    Properties,
    String,
)
from guided_plugin.grammar.llguidance.lark.emitter import Emitter
from guided_plugin.grammar.llguidance.lark.expressions import (
    AND,
    OR,
    Expression,
    Group,
    Opposite,
)
from guided_plugin.grammar.llguidance.lark.members import NAMED, Member, any_order
from guided_plugin.grammar.llguidance.lark.patterns import pattern
from guided_plugin.grammar.llguidance.lark.rules import (
    Repeated,
    Symbol,
    Text,
)
from guided_plugin.grammar.llguidance.lark.strings import (
    ANY_STRING,
    COLON,
    COMMA,
    empty_terminal,
    excluding,
    key_text,
    known_of_string,
    lead,
    string_parts,
)

OPEN = Text("{")
CLOSE = Text("}")

# There is a class of names for each subset of so many patterns.
_MAX_PATTERNS = 6


def object_rule(emitter: Emitter, constraint: Object) -> Symbol:
    """The rule of an object constraint.

    A demand for some property is replaced by alternatives that require one, until none
    is left.
    """
    writer = _Writer(emitter, constraint)
    if not writer.object.exists:
        return writer.rule()
    alternatives = [(object_rule(emitter, each),) for each in writer.answers()]
    return emitter.grammar.rule(*alternatives)


class _Class(NamedTuple):
    """Names that are not listed and match the same patterns."""

    key: Symbol
    value: Literals


class _Writer:
    """Writes the rule of one object constraint.

    Names about which the schema says something are listed: each is a property of its
    own. All other names are in classes, one for each set of patterns that they match;
    every name of a class has the same values.
    """

    def __init__(self, emitter: Emitter, constraint: Object) -> None:
        self.emitter = emitter
        self.algebra = emitter.algebra
        self.grammar = emitter.grammar
        self.object = constraint
        self.required = dict.fromkeys(constraint.required)
        # The strings that `propertyNames` allows.
        allowed: tuple[String, ...] = (String(),)
        if constraint.names:
            allowed = self.algebra.strings(TRUE.union(*constraint.names))
        self.matched: dict[str, tuple[str, ...]] = {}
        """The names about which the schema says something, with the patterns that each
        matches."""
        self.described = self.described_names()
        self.live: dict[str, Literals] = {}
        """The listed names that properties may have, with what their values must
        satisfy."""
        for name in self.listed_names(allowed):
            matched = self.matched[name] = constraint.matched(name)
            described = self.described is None or name in self.described or matched
            if name in constraint.forbidden or not described:
                continue
            value = constraint.of(name, matched)
            is_refused = constraint.names and not self.algebra.allows_name(
                constraint, name
            )
            if not is_refused and not self.algebra.empty(value):
                self.live[name] = value
        self.open = list(self.open_classes(allowed))
        """All other names."""

    def answers(self) -> list[Object]:
        """The first demand for some property as alternatives, one for each listed
        property that can answer it."""
        exists, *others = self.object.exists
        for each in self.open:
            if not self.algebra.empty(each.value | exists.value):
                raise self.emitter.refusal(
                    "not", "asks for some property that need not be a listed one"
                )
        options = []
        for name, value in self.live.items():
            if name in exists.besides or self.algebra.empty(value | exists.value):
                continue
            answer = Properties(named=((name, exists.value),), describes=False)
            options.append(
                replace(
                    self.object,
                    exists=tuple(others),
                    required=(*self.object.required, name),
                    properties=(*self.object.properties, answer),
                )
            )
        return options

    def rule(self) -> Symbol:
        """The rule of an object about which there are no demands left."""
        required = self.required
        # The required ones are there at the end in any case: the others are counted.
        fewest = max(0, self.object.shortest - len(required))
        most = self.object.longest
        if most is not None:
            most -= len(required)
        if most == 0:
            self.live = {
                name: self.live[name] for name in self.live if name in required
            }
            self.open = []
            most = None
        if not self.open:
            optional = len(self.live) - len(required)
            if fewest > optional:
                return self.grammar.rule()
            if most is not None and most >= optional:
                most = None
        if most is not None and most < fewest:
            return self.grammar.rule()
        if not required.keys() <= self.live.keys():
            return self.grammar.rule()
        can_be_empty = not required and not fewest
        is_counted = most is not None or fewest > (0 if required else 1)
        if is_counted and (len(self.live) > NAMED or (self.live and self.open)):
            keyword = "minProperties" if most is None else "maxProperties"
            what = f"counts over {NAMED} listed names, or unlisted ones next to listed ones"
            raise self.emitter.refusal(keyword, what)
        if self.open and fewest > 1:
            # The grammar can't remember these names, and the last value of a name is
            # what counts.
            raise self.emitter.refusal(
                "minProperties", "counts names that are not listed"
            )
        named = self.named_members()
        others = [
            Member(self.emitter.value(each.value), (each.key, COLON))
            for each in self.open
        ]
        is_ordered = self.emitter.style.ordered or len(required) > NAMED
        if not self.live or (is_ordered and not is_counted):
            return self.in_order(named, others, can_be_empty, most)
        inside = any_order(self.emitter, [*named, *others], fewest, most)
        if can_be_empty:
            inside = Repeated((inside,), 0, 1)
        return self.grammar.rule((OPEN, inside, CLOSE))

    # What properties there may be

    def listed_names(self, allowed: tuple[String, ...]) -> Iterable[str]:
        """The names about which the schema says something, in its order."""
        names: list[str] = []
        for properties in self.object.properties:
            names += dict(properties.named)
        names += self.object.required
        names += self.object.forbidden
        for string in allowed:
            names += string.values or ()
        return dict.fromkeys(names)

    def described_names(self) -> set[str] | None:
        """The names that the schema describes, where those and those of patterns are all
        that the object has; else None."""
        names = set(self.object.asked)
        describes = False
        for each in self.object.properties:
            if each.others is not None:
                return None
            if each.describes:
                names.update(dict(each.named))
                describes |= bool(each.named or each.matching)
        return names if describes and self.emitter.style.closed else None

    def open_classes(self, allowed: tuple[String, ...]) -> Iterator[_Class]:
        """Classes of unlisted names: one for each set of patterns that a name may
        match."""
        shapes = [string for string in allowed if string.values is None]
        if not shapes:
            return
        base = [] if String() in shapes else _any_of(shapes)
        properties = self.object.properties
        found = [source for each in properties for source, _ in each.matching]
        sources = list(dict.fromkeys(found))
        if len(sources) > _MAX_PATTERNS:
            what = f"has over {_MAX_PATTERNS} patterns that one name may match"
            raise self.emitter.refusal("patternProperties", what)
        matching: list[tuple[str, ...]] = [()]
        for source in sources:
            matching += [(*patterns, source) for patterns in matching]
        if self.described is not None:
            matching.remove(())
        for patterns in matching:
            value = self.object.of(None, patterns)
            if self.algebra.empty(value):
                continue
            listed = [name for name, own in self.matched.items() if own == patterns]
            # One part at least says what literals are.
            parts = [*base, *map(pattern, patterns)] or [ANY_STRING]
            refused = [source for source in sources if source not in patterns]
            parts += [Opposite(pattern(source)) for source in refused]
            names = Group(AND, (*parts, *excluding(listed)))
            if empty_terminal(names):
                continue
            named = String(patterns=frozenset(patterns))
            characters = None if refused or base else lead(named)
            known = known_of_string(named)
            if base:
                marks = [known_of_string(shape).marks for shape in shapes]
                known = replace(known, texts=(), marks=known.marks.union(*marks))
            terminal = self.grammar.terminal(names, known, plain=not (base or sources))
            key = self.emitter.led(terminal, characters)
            yield _Class(key, value)

    # Rules

    def named_members(self) -> list[Member]:
        """Listed properties. The required ones have the first bits."""
        order = sorted(self.live, key=self.required.__contains__, reverse=True)
        bits = dict(zip(order, range(NAMED), strict=False))
        return [
            Member(
                value=self.emitter.value(value),
                key=(Text(key_text(name)), COLON),
                required=name in self.required,
                bit=bits.get(name),
            )
            for name, value in self.live.items()
        ]

    def in_order(
        self,
        named: list[Member],
        others: list[Member],
        can_be_empty: bool,
        most: int | None,
    ) -> Symbol:
        """Listed properties in their order, the others, at most so many, after them."""
        tail: tuple[Symbol, ...] = ()
        heads: list[tuple[Symbol, ...]] = [()] if can_be_empty else []
        if others:
            alternatives = [(*each.key, each.value) for each in others]
            other = self.grammar.rule(*alternatives)
            more = None if most is None else most - 1
            tail = (Repeated((COMMA, other), 0, more),)
            if not self.required:
                heads.append((other, *tail))
        for is_needed, run in groupby(reversed(named), attrgetter("required")):
            members = [(COMMA, *each.key, each.value) for each in run]
            if is_needed:
                # Nothing that comes later can come first.
                tail = (*chain.from_iterable(reversed(members)), *tail)
                heads = [tail[1:]]
                continue
            for member in members:
                if tail:
                    tail = (self.grammar.rule(tail),)
                heads.append((*member[1:], *tail))
                tail = (Repeated(member, 0, 1), *tail)
        objects = [(OPEN, *head, CLOSE) for head in reversed(heads)]
        return self.grammar.rule(*objects)


def _any_of(strings: list[String]) -> list[Expression]:
    """Return the union of several constraints, as parts of an intersection."""
    parts = [string_parts(string) for string in strings]
    if len(parts) == 1:
        return parts[0]
    return [Group(OR, tuple(Group(AND, tuple(each)) for each in parts))]
