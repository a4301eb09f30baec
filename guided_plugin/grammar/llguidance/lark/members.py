"""Properties in any order as rules. Depends on the emitter.

A rule's 64-bit parameter remembers which listed properties were there, and counts. What must come and may be
answered by one of several properties needs a rule for each state.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from guided_plugin.grammar.llguidance.lark.arrays import all_of, remembering
from guided_plugin.grammar.llguidance.lark.emitter import Emitter
from guided_plugin.grammar.llguidance.lark.rules import Alternative, Reference, Symbol
from guided_plugin.grammar.llguidance.lark.terminals import COLON, COMMA

NAMED = 62
"""How many listed properties have a bit in the parameter."""
NAMED_AND_COUNTED = 40
"""How many, where a counter follows."""
MAX_COUNT = 4_000_000
_COUNTER = "[40:62]"
_MAX_EXISTS = 5
# How many states of demands and counts are rules of their own.
_MAX_STATES = 500


@dataclass(frozen=True, slots=True)
class Member:
    """A property, or a class of properties whose names are not listed."""

    key: Symbol
    value: Symbol
    exists: tuple[int, ...] = ()
    """The demands for some property that this one answers."""
    name: str | None = None
    bit: int | None = None
    """Set when the property was there."""


class AnyOrder:
    """The rules of an object's properties."""

    def __init__(self, emitter: Emitter, members: list[Member], required: list[str], demands: int) -> None:
        """`demands`: how many demands for some property there are, besides the required ones."""
        self.emitter = emitter
        self.grammar = emitter.grammar
        self.members = members
        self.required = required
        self.demands = demands

    def rule(self, fewest: int, most: int | None) -> Symbol:
        """At least one property. `fewest` and `most` count those that are not required."""
        name = self.grammar.name("o")
        if self.demands:
            self._states(name, fewest, most)
        else:
            self._counter(name, fewest, most)
        return Reference(f"{name}s0x0", "0x0")

    def _counter(self, name: str, fewest: int, most: int | None) -> None:
        """Objects whose properties are counted in the parameter.

        The first property and those after a comma are one rule: that halves the grammar, and after a value
        llguidance has one item for the comma, where it would have one for each property.
        """
        counted = fewest > 0 or most is not None
        members, tail = f"{name}s0x0", f"{name}t"
        ends = [self._complete, f"ge({_COUNTER}, {fewest})" if fewest else ""]
        fits = f"lt({_COUNTER}, {most})" if most is not None else ""
        steps = []
        for each in self.members:
            counts = counted and each.name not in self.required
            if counts and most == 0:
                continue
            functions = [*([f"incr({_COUNTER})"] if counts else []), *_set(each)]
            step = (each.key, COLON, *remembering(self.emitter, each.value, tail, functions))
            steps.append(Alternative(step, all_of([_fresh(each), fits if counts else ""])))
        more = Alternative((COMMA, Reference(members, "_")), some_of=members)
        self.grammar.define(tail, [Alternative((), all_of(ends)), more], parameter=True)
        self._define_first(members, steps, fewest)

    def _states(self, name: str, fewest: int, most: int | None) -> None:
        """Objects with a rule for each state, so that those from which no end can be reached are removed.

        A state is which demands were answered, as bits, and how many properties there were.
        """
        last = fewest if most is None else most
        everything = (1 << self.demands) - 1
        if self.demands > _MAX_EXISTS or (everything + 1) * (last + 1) > _MAX_STATES:
            raise self.emitter.refusal("not", "asks for too many properties in one object, or counts too far")
        for answered, count in itertools.product(range(everything + 1), range(last + 1)):
            whole = answered == everything and count >= fewest
            alternatives = [Alternative((), self._complete)] if whole else []
            head: list[Alternative] | None = [] if answered == count == 0 else None
            for each in self.members:
                step = self._step(name, each, answered, count, last, most)
                if step is not None:
                    alternatives.append(Alternative((COMMA, *step), _fresh(each)))
                    if head is not None:
                        head.append(Alternative(step))
            self.grammar.define(f"{name}n{answered}x{count}", alternatives, parameter=True)
            if head is not None:
                self._define_first(f"{name}s0x0", head, fewest)

    def _step(
        self, name: str, member: Member, answered: int, count: int, last: int, most: int | None
    ) -> tuple[Symbol, ...] | None:
        """A property, and the state after it; None where there is no such property in this state."""
        counts = member.name not in self.required
        if counts and count == most:
            return None
        for index in member.exists:
            answered |= 1 << index
        target = f"{name}n{answered}x{min(count + counts, last)}"
        return (member.key, COLON, *remembering(self.emitter, member.value, target, _set(member)))

    @property
    def _complete(self) -> str:
        """The condition that all required properties were there."""
        return f"is_ones([0:{len(self.required)}])" if self.required else ""

    def _define_first(self, name: str, alternatives: list[Alternative], fewest: int) -> None:
        """The rule that an object begins with: none where too few properties are possible."""
        optional = (each for each in self.members if each.name not in self.required)
        counted = tuple((each.value, fewest if each.bit is None else 1) for each in optional)
        self.grammar.define(
            name, alternatives, parameter=True, needs=self._needed(), fewest=fewest, counted=counted
        )

    def _needed(self) -> tuple[Symbol, ...]:
        """What must be possible for any object to be."""
        return tuple(each.value for each in self.members if each.name in self.required and not each.exists)


def _fresh(member: Member) -> str:
    return "" if member.bit is None else f"bit_clear({member.bit})"


def _set(member: Member) -> list[str]:
    return [] if member.bit is None else [f"set_bit({member.bit})"]
