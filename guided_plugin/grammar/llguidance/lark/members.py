"""Members in any order as rules: properties of objects, or items of which none comes
twice. Depends on the emitter.

A rule's 64-bit parameter remembers which members were there.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

from guided_plugin.grammar.llguidance.lark.emitter import Emitter
from guided_plugin.grammar.llguidance.lark.rules import (
    Alternative,
    Reference,
    Rule,
    Symbol,
    both,
)
from guided_plugin.grammar.llguidance.lark.strings import COMMA

NAMED = 62
"""The most members that may have a bit in the parameter."""


class Member(NamedTuple):
    """A property, a class of properties whose names are not listed, or an item."""

    value: Symbol
    key: tuple[Symbol, ...] = ()
    """The symbols before the value."""
    required: bool = False
    bit: int | None = None
    """The bit that is set when the member was there. Members that have none may come
    again."""


def any_order(
    emitter: Emitter, members: list[Member], fewest: int = 0, most: int | None = None
) -> Symbol:
    """The rule of at least one member, with commas between them.

    The first bits are those of the required members. `fewest` and `most` count the
    others, which all have bits then. The first member and those after a comma are one rule: that halves the
    grammar, and after a value llguidance has one item for the comma, not one for each
    member.
    """
    grammar = emitter.grammar
    required = sum(each.required for each in members)
    if fewest == 1 and not required:
        fewest = 0  # one comes in any case
    counted = f"[{required}:{len(members)}]"
    enough = f"bit_count_ge({counted}, {fewest})" if fewest else ""
    room = f"bit_count_lt({counted}, {most})" if most is not None else ""
    name = grammar.name("o")
    first = f"{name}s"
    rest = f"{name}t"
    steps = []
    for each in members:
        after = "_" if each.bit is None else f"set_bit({each.bit})"
        symbols = (*each.key, each.value, Reference(rest, after))
        condition = "" if each.required else room
        steps.append(Alternative(symbols, condition, each.bit))
    complete = f"is_ones([0:{required}])" if required else ""
    end = Alternative((), both(complete, enough))
    more = Alternative((COMMA, Reference(first, "_")), some_of=first)
    grammar.rules[rest] = Rule([end, more], parameter=True)
    can_repeat = any(each.bit is None for each in members)
    grammar.rules[first] = Rule(
        steps,
        parameter=True,
        required=tuple(each.value for each in members if each.required),
        others=tuple(each.value for each in members if not each.required),
        fewest=min(fewest, 1) if can_repeat else fewest,
        needed=_shortest(members, fewest),
    )
    return Reference(first, "0x0")


def _shortest(members: list[Member], fewest: int) -> tuple[Symbol, ...]:
    """A shortest text: the required members and `fewest` others."""
    parts = [(COMMA, *each.key, each.value) for each in members if each.required]
    others = [(COMMA, *each.key, each.value) for each in members if not each.required]
    more = itertools.islice(itertools.cycle(others), fewest) if others else ()
    return tuple(itertools.chain(*parts, *more))[1:]
