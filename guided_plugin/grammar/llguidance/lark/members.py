"""Properties in any order as rules. Depends on the emitter.

A rule's 64-bit parameter remembers which listed properties were there, and counts. What
must come and may be answered by one of several properties needs rules of its own.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

from guided_plugin.grammar.llguidance.lark.emitter import Emitter
from guided_plugin.grammar.llguidance.lark.rules import (
    Alternative,
    Reference,
    Symbol,
    both,
)
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


class Member(NamedTuple):
    """A property, or a class of properties whose names are not listed."""

    key: Symbol
    value: Symbol
    exists: tuple[int, ...] = ()
    """The demands for some property that this one answers."""
    name: str | None = None
    bit: int | None = None
    """Set when the property was there."""


def any_order(
    emitter: Emitter,
    members: list[Member],
    required: list[str],
    demands: int,
    fewest: int,
    most: int | None,
) -> Symbol:
    """At least one property. `demands`: how many there are for some property, besides
    the required ones.

    `fewest` and `most` count those that are not required. There is a pair of rules for
    each set of answered demands, and next to `most` for each count, so that those from
    which no end can be reached are removed. Without demands the parameter counts. The
    first property and those after a comma are one rule: that halves the grammar, and
    after a value llguidance has one item for the comma, not one for each property.
    """
    name = emitter.grammar.name("o")
    everything = (1 << demands) - 1
    last = most if demands and most is not None else 0
    if demands > _MAX_EXISTS or (everything + 1) * (last + 1) > _MAX_STATES:
        raise emitter.refusal(
            "not", "requires too many properties in one object, or counts too many"
        )
    in_parameter = not last and (fewest > 0 or most is not None)
    complete = f"is_ones([0:{len(required)}])" if required else ""
    ends = both(
        complete, f"ge({_COUNTER}, {fewest})" if in_parameter and fewest else ""
    )
    fits = f"lt({_COUNTER}, {most})" if in_parameter and most is not None else ""
    for answered, count in itertools.product(range(everything + 1), range(last + 1)):
        rule = f"{name}s{answered}x{count}"
        steps = []
        for each in members:
            counts = each.name not in required
            after = count + (counts and last > 0)
            if after > last:
                continue
            functions = [f"incr({_COUNTER})"] if counts and in_parameter else []
            functions += [] if each.bit is None else [f"set_bit({each.bit})"]
            tail = (
                f"{name}t{answered | sum(1 << index for index in each.exists)}x{after}"
            )
            step = (
                each.key,
                COLON,
                *_remembering(emitter, each.value, tail, functions),
            )
            steps.append(Alternative(step, fits if counts else "", each.bit))
        # An object begins only where enough properties are possible.
        least, counted = (
            (0, ()) if answered or count else _needed(members, required, fewest)
        )
        emitter.grammar.define(
            rule,
            steps,
            parameter=True,
            fewest=least,
            counted=counted,
            needed=_asked(members, required, fewest),
        )
        whole = answered == everything and (in_parameter or count >= fewest)
        more = Alternative((COMMA, Reference(rule, "_")), some_of=rule)
        tail_rule = [*([Alternative((), ends)] if whole else []), more]
        emitter.grammar.define(f"{name}t{answered}x{count}", tail_rule, parameter=True)
    return Reference(f"{name}s0x0", "0x0")


def _needed(
    members: list[Member], required: list[str], fewest: int
) -> tuple[int, tuple[tuple[Symbol, int], ...]]:
    """What each property counts for, and how much is needed: all required ones, and
    `fewest` others."""
    counted = [
        (each.value, fewest if each.bit is None else 1)
        for each in members
        if each.name not in required
    ]
    each_required = 1 + sum(count for _, count in counted)
    needed = [
        each.value for each in members if each.name in required and not each.exists
    ]
    return fewest + each_required * len(needed), (
        *counted,
        *((value, each_required) for value in needed),
    )


def _asked(
    members: list[Member], required: list[str], fewest: int
) -> tuple[tuple[Symbol, ...], ...]:
    """The properties of a shortest object: the required ones and `fewest` others."""
    parts = [(each.key, COLON, each.value) for each in members if each.name in required]
    others = [
        (each.key, COLON, each.value) for each in members if each.name not in required
    ]
    more = itertools.islice(itertools.cycle(others), fewest) if others else ()
    return (*parts, *more)


def _remembering(
    emitter: Emitter, value: Symbol, target: str, functions: list[str]
) -> tuple[Symbol, ...]:
    """A value, then a rule whose parameter went through functions.

    A rule takes one function, so the others get rules between. These carry the value,
    since llguidance 1.9 drops the parameter of a rule that consists of one other rule.
    """
    if len(functions) <= 1:
        return (value, Reference(target, functions[0] if functions else "_"))
    name = emitter.grammar.name("z")
    inner = _remembering(emitter, value, target, functions[1:])
    emitter.grammar.define(name, [Alternative(inner)], parameter=True)
    return (Reference(name, functions[0]),)
