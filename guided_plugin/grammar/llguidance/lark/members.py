"""Members in any order as rules: properties of objects, or items of which none comes
twice. Depends on the emitter.

A rule's 64-bit parameter remembers which members were there, or counts them.
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
from guided_plugin.grammar.llguidance.lark.terminals import COMMA

NAMED = 62
"""How many members may have a bit in the parameter."""
_NAMED_AND_COUNTED = 40
"""How many, where a counter follows."""
_COUNTER = "[40:62]"
_MAX_COUNT = 4_000_000


class Member(NamedTuple):
    """A property, a class of properties whose names are not listed, or an item."""

    value: Symbol
    key: tuple[Symbol, ...] = ()
    """What comes before the value."""
    required: bool = False
    bit: int | None = None
    """The bit that is set when the member was there. Members that have none may come
    again."""


class _Count(NamedTuple):
    """How the members that are not required are counted."""

    enough: str = ""
    """The condition that there are as many as there must be."""
    room: str = ""
    """The condition that another one may come."""
    step: str = "_"
    """What the parameter becomes where a member without a bit comes."""


def any_order(
    emitter: Emitter, members: list[Member], fewest: int = 0, most: int | None = None
) -> Symbol:
    """The rule of at least one member, with commas between them.

    The first bits are those of the required members. `fewest` and `most` count the
    others. The first member and those after a comma are one rule: that halves the
    grammar, and after a value llguidance has one item for the comma, not one for each
    member.
    """
    grammar = emitter.grammar
    required = sum(each.required for each in members)
    if fewest == 1 and not required:
        fewest = 0  # one comes in any case
    count = _count(emitter, members, required, fewest, most)
    name = grammar.name("o")
    first = f"{name}s"
    rest = f"{name}t"
    steps = []
    for each in members:
        after = count.step if each.bit is None else f"set_bit({each.bit})"
        symbols = (*each.key, each.value, Reference(rest, after))
        room = "" if each.required else count.room
        steps.append(Alternative(symbols, room, each.bit))
    can_repeat = any(each.bit is None for each in members)
    grammar.rules[first] = Rule(
        steps,
        parameter=True,
        required=tuple(each.value for each in members if each.required),
        others=tuple(each.value for each in members if not each.required),
        fewest=min(fewest, 1) if can_repeat else fewest,
        needed=_shortest(members, fewest),
    )
    complete = f"is_ones([0:{required}])" if required else ""
    end = Alternative((), both(complete, count.enough))
    more = Alternative((COMMA, Reference(first, "_")), some_of=first)
    grammar.rules[rest] = Rule([end, more], parameter=True)
    return Reference(first, "0x0")


def _shortest(members: list[Member], fewest: int) -> tuple[tuple[Symbol, ...], ...]:
    """The members of a shortest text: the required ones and `fewest` others."""
    parts = [(*each.key, each.value) for each in members if each.required]
    others = [(*each.key, each.value) for each in members if not each.required]
    more = itertools.islice(itertools.cycle(others), fewest) if others else ()
    return (*parts, *more)


def _count(
    emitter: Emitter,
    members: list[Member],
    required: int,
    fewest: int,
    most: int | None,
) -> _Count:
    """Members that all have bits are counted by these, those of which none has one by a
    counter."""
    if not fewest and most is None:
        return _Count()
    bits = [each.bit for each in members if each.bit is not None]
    if len(bits) == len(members):
        field = f"[{required}:{len(members)}]"
        compare = "bit_count_"
        step = "_"
    else:
        field = _COUNTER
        compare = ""
        step = f"incr({_COUNTER})"
        keyword = "maxProperties" if most is not None else "minProperties"
        if len(bits) > required:
            raise emitter.refusal(
                keyword, "can't count optional properties together with others"
            )
        if required > _NAMED_AND_COUNTED:
            raise emitter.refusal(
                keyword, f"is next to over {_NAMED_AND_COUNTED} required properties"
            )
        if max(fewest, most or 0) > _MAX_COUNT:
            raise emitter.refusal(keyword, f"is over {_MAX_COUNT}")
    enough = f"{compare}ge({field}, {fewest})" if fewest else ""
    room = f"{compare}lt({field}, {most})" if most is not None else ""
    return _Count(enough, room, step)
