"""Arrays as rules. Depends on the emitter.

Plain ones are sequences. `contains` and `uniqueItems` need a memory of what came before: a rule for each
state, or a rule's 64-bit parameter, in which bits and counters are set as items go by.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from guided_plugin.grammar.llguidance.lark.algebra import Algebra
from guided_plugin.grammar.llguidance.lark.constraints import (
    TRUE,
    Array,
    Boolean,
    Contains,
    Literals,
    Null,
    String,
)
from guided_plugin.grammar.llguidance.lark.counting import few_values
from guided_plugin.grammar.llguidance.lark.emitter import CHANGING, PLAIN, Emitter
from guided_plugin.grammar.llguidance.lark.ranges import Number
from guided_plugin.grammar.llguidance.lark.rules import Alternative, Reference, Repeated, Symbol, Text
from guided_plugin.grammar.llguidance.lark.spelling import ONE_SPELLING
from guided_plugin.grammar.llguidance.lark.terminals import COMMA

OPEN, CLOSE = Text('"["'), Text('"]"')

_MAX_VALUES = 48
_MAX_CONTAINS = 8
# How many states of counts and lengths are rules of their own.
_MAX_STATES = 2_000
_MAX_COUNT = 1_000_000
# Values of items are listed up to so many, to see whether items compete for them.
_MAX_COMPETING = 100


def array_rule(emitter: Emitter, constraint: Array) -> Symbol:
    """The rule of an array constraint."""
    if constraint.repeats:
        raise emitter.refusal("uniqueItems", "can't be enforced under not")
    constraint = _plain_contains(emitter.algebra, constraint)
    if constraint.longest is not None and constraint.shortest > constraint.longest:
        return emitter.grammar.define(emitter.grammar.name("a"), [])
    if constraint.unique and (constraint.longest is None or constraint.longest > 1):
        return _unique(emitter, constraint)
    return _plain(emitter, replace(constraint, unique=False))


def _plain(emitter: Emitter, constraint: Array) -> Symbol:
    if constraint.contains:
        return _containing(emitter, constraint, list(constraint.contains))
    return emitter.grammar.rule((OPEN, *_items(emitter, constraint), CLOSE))


def _plain_contains(algebra: Algebra, constraint: Array) -> Array:
    """The same arrays, with lengths instead of each `contains` that counts all items or none."""
    found: dict[tuple[Literals, int], Contains] = {}
    shortest, longest = constraint.shortest, constraint.longest
    for each in constraint.contains:
        if not each.item:
            shortest = max(shortest, each.start + each.least) if each.least else shortest
            if each.most is not None:
                end = each.start + each.most
                longest = end if longest is None else min(longest, end)
        elif each.least or (each.most is not None and not algebra.opposite.empty(each.item)):
            other = found.get((each.item, each.start), each)
            limits = [limit for limit in (each.most, other.most) if limit is not None]
            most = min(limits) if limits else None
            found[each.item, each.start] = Contains(each.item, each.start, max(each.least, other.least), most)
    return replace(constraint, contains=tuple(found.values()), shortest=shortest, longest=longest)


def _items(emitter: Emitter, constraint: Array) -> tuple[Symbol, ...]:
    """All items. Each of the first ones has a rule, since llguidance limits how deep groups are nested."""
    longest, first = constraint.longest, constraint.prefix_length
    if longest is not None and longest <= first:
        first, symbols = longest, tuple[Symbol, ...]()
    else:
        symbols = _alike(emitter, constraint, first)
    for index in reversed(range(first)):
        comma = (COMMA,) if index else ()
        symbols = (*comma, _item(emitter, constraint, index), *symbols)
        if index >= constraint.shortest:
            symbols = (Repeated(symbols, 0, 1),)
        symbols = (emitter.grammar.rule(symbols),)
    return symbols


def _item(emitter: Emitter, constraint: Array, index: int, literals: Literals | None = None) -> Symbol:
    """An item, with its mark. `literals`: what it is, if it isn't what any item there may be."""
    value = emitter.value(constraint.at(index) if literals is None else literals)
    if not constraint.unique:
        return emitter.marked(value, PLAIN)
    changes = constraint.contains or index < constraint.prefix_length
    return emitter.marked(value, CHANGING if changes else emitter.mark_of(constraint))


def _alike(emitter: Emitter, constraint: Array, index: int) -> tuple[Symbol, ...]:
    """The items from an index on where all are alike."""
    item = _item(emitter, constraint, index)
    low = max(constraint.shortest - index, 0)
    high = None if constraint.longest is None else constraint.longest - index
    if index:
        return (Repeated((COMMA, item), low, high),)
    more = Repeated((COMMA, item), max(low - 1, 0), None if high is None else high - 1)
    symbols = (item,) if high == 1 else (item, more)
    return symbols if low else (Repeated(symbols, 0, 1),)


def remembering(emitter: Emitter, value: Symbol, target: str, functions: Sequence[str]) -> tuple[Symbol, ...]:
    """A value, then a rule whose parameter went through functions.

    A rule takes one function, so the others get rules between. These carry the value, since llguidance 1.9
    drops the parameter of a rule that consists of one other rule.
    """
    if len(functions) <= 1:
        return (value, Reference(target, functions[0] if functions else "_"))
    name = emitter.grammar.name("z")
    inner = remembering(emitter, value, target, functions[1:])
    emitter.grammar.define(name, [Alternative(inner)], parameter=True)
    return (Reference(name, functions[0]),)


def all_of(conditions: Sequence[str]) -> str:
    """Conditions on a parameter, joined."""
    joined = ""
    for condition in filter(None, conditions):
        joined = f"and({joined}, {condition})" if joined else condition
    return joined


def _unique(emitter: Emitter, constraint: Array) -> Symbol:
    values = _known_values(emitter.algebra, constraint.at(0))
    if values is None or len(values) > _MAX_VALUES or constraint.prefix_length or constraint.contains:
        # The grammar can't remember them: tokens that would repeat one are taken out of its masks.
        emitter.distinct = True
        if _too_few(emitter, constraint):
            return emitter.grammar.define(emitter.grammar.name("u"), [])
        _refuse_competing(emitter, constraint)
        with emitter.compared(ONE_SPELLING):
            return _plain(emitter, constraint)
    if constraint.shortest > len(values):
        return emitter.grammar.define(emitter.grammar.name("u"), [])
    name = emitter.grammar.name("u")
    tail = f"{name}t"
    field = f"[0:{_MAX_VALUES}]"
    first, later = [], []
    for bit, value in enumerate(values):
        literals = emitter.algebra.literals({"enum": [value]}, emitter.algebra.document.root_base, ())
        item = emitter.marked(emitter.value(literals), PLAIN)
        step: tuple[Symbol, ...] = (item, Reference(tail, f"set_bit({bit})"))
        first.append(Alternative(step))
        fits = f"bit_count_lt({field}, {constraint.longest})" if constraint.longest is not None else ""
        later.append(Alternative((COMMA, *step), all_of([f"bit_clear({bit})", fits])))
    enough = f"bit_count_ge({field}, {constraint.shortest})" if constraint.shortest > 1 else ""
    emitter.grammar.define(tail, [Alternative((), enough), *later], parameter=True)
    emitter.grammar.define(name, first, parameter=True)
    filled = (OPEN, Reference(name, "0x0"), CLOSE)
    return emitter.grammar.rule(filled, *([(OPEN, CLOSE)] if constraint.shortest == 0 else []))


def _too_few(emitter: Emitter, constraint: Array) -> bool:
    """Whether there are surely fewer values than distinct items are asked for."""
    item = constraint.at(constraint.prefix_length)
    rest = constraint.shortest - constraint.prefix_length
    if _fewer(emitter, item, rest):
        return True
    if constraint.prefix_length:
        return False
    for contains in constraint.contains:
        if contains.least > 1 and _fewer(emitter, item | contains.item, contains.least):
            return True
        if contains.most is not None and not contains.start:
            others = item | emitter.algebra.negated(contains.item)
            if _fewer(emitter, others, rest - contains.most):
                return True
    return False


def _fewer(emitter: Emitter, item: Literals, count: int) -> bool:
    """Whether there are fewer values than so many."""
    return count > 0 and (emitter.algebra.empty(item) or few_values(emitter, item, count - 1) is not None)


def _refuse_competing(emitter: Emitter, constraint: Array) -> None:
    """Refuse arrays whose first items may take the only values that a later one can be."""
    if sum(each.most is not None for each in constraint.contains) > 1 and constraint.shortest > 1:
        item = constraint.at(constraint.prefix_length)
        if few_values(emitter, item, _MAX_COMPETING) is not None:
            raise emitter.refusal("maxContains", "next to another one, of few values that must be distinct")
    first = constraint.prefix_length
    for contains in constraint.contains if first else ():
        # The first items may count for less than they could, and for more.
        item, rest = constraint.at(first), constraint.shortest - first
        others = item | emitter.algebra.negated(contains.item)
        if contains.least > 1 and _fewer(emitter, item | contains.item, contains.least):
            raise emitter.refusal("minContains", "behind prefixItems, of few values that must be distinct")
        if contains.most is not None and rest > 0 and _fewer(emitter, others, constraint.shortest):
            raise emitter.refusal("maxContains", "behind prefixItems, of few values that must be distinct")
    shortest = max([constraint.shortest, *(each.start + each.least for each in constraint.contains)])
    for index in {*range(1, min(shortest, first)), max(shortest - 1, 0)}:
        item = constraint.at(index)
        values = few_values(emitter, item, index)
        if values is None:
            continue
        taken = max(index - first, 0)
        taken += sum(_share(emitter, constraint.at(i), item, values) for i in range(min(index, first)))
        if taken and taken >= len(values):
            raise emitter.refusal(
                "uniqueItems", f"can't be enforced: the items before item {index} may take all its values"
            )


def _share(emitter: Emitter, one: Literals, two: Literals, values: frozenset[Hashable]) -> bool:
    """Whether an item may be a value of another item, which has these."""
    if emitter.algebra.empty(one | two):
        return False
    own = few_values(emitter, one, _MAX_COMPETING)
    return own is None or not own.isdisjoint(values)


@dataclass(frozen=True, slots=True)
class _State:
    """How far an array is: its items so far, and how many of them each `contains` has counted."""

    length: int
    counts: tuple[int, ...]


def _containing(emitter: Emitter, constraint: Array, contains: list[Contains]) -> Symbol:
    """A rule for each state, so that those from which no end can be reached are removed."""
    # From here on all items are alike.
    loop = max([constraint.prefix_length, *(each.start for each in contains)])
    last = constraint.longest if constraint.longest is not None else max(constraint.shortest, loop, 1)
    states = (last + 1) * math.prod(_last_count(each) + 1 for each in contains)
    if len(contains) > _MAX_CONTAINS:
        raise emitter.refusal("contains", f"can be enforced {_MAX_CONTAINS} times in one array at most")
    if states > _MAX_STATES and (loop or len(contains) > 1):
        raise emitter.refusal("contains", "with counts or length bounds too large to remember")
    if states > _MAX_STATES:
        return _counting(emitter, constraint, contains[0])
    grammar, name = emitter.grammar, emitter.grammar.name("c")
    start = _State(0, (0,) * len(contains))
    numbers, pending = {start: 0}, [start]
    choices: dict[tuple[int, tuple[bool, ...]], Symbol | None] = {}
    while pending:
        state = pending.pop()
        ends = state.length >= constraint.shortest and all(map(_enough, contains, state.counts))
        alternatives = [Alternative(())] if ends else []
        index = min(state.length, loop)
        for chosen in itertools.product((True, False), repeat=len(contains)):
            after = _after(state, chosen, constraint, contains, last)
            if after is None:
                continue
            if (index, chosen) not in choices:
                choices[index, chosen] = _chosen_item(emitter, constraint, contains, index, chosen)
            item = choices[index, chosen]
            if item is None:
                continue
            if after not in numbers:
                numbers[after] = len(numbers)
                pending.append(after)
            comma = (COMMA,) if state.length else ()
            alternatives.append(Alternative((*comma, item, Reference(f"{name}s{numbers[after]}"))))
        grammar.define(f"{name}s{numbers[state]}", alternatives)
    return grammar.rule((OPEN, Reference(f"{name}s0"), CLOSE))


def _last_count(contains: Contains) -> int:
    return contains.least if contains.most is None else contains.most


def _enough(contains: Contains, count: int) -> bool:
    return count >= contains.least


def _after(
    state: _State, chosen: tuple[bool, ...], constraint: Array, contains: list[Contains], last: int
) -> _State | None:
    """The state after an item that these `contains` count; None where there is none, or no need for it."""
    if state.length == constraint.longest:
        return None
    counts = []
    for each, count, counted in zip(contains, state.counts, chosen, strict=True):
        # What has enough needs no more, and what lies before its start doesn't count.
        if counted and (state.length < each.start or count == _last_count(each)):
            return None
        counts.append(count + counted)
    return _State(min(state.length + 1, last), tuple(counts))


def _chosen_item(
    emitter: Emitter, constraint: Array, contains: list[Contains], index: int, chosen: tuple[bool, ...]
) -> Symbol | None:
    """An item that these `contains` count; None where there is no such item."""
    literals = [constraint.at(index)]
    for each, counted in zip(contains, chosen, strict=True):
        if counted:
            literals.append(each.item)
        elif each.most is not None and index >= each.start:
            # What is not counted must be known not to count.
            literals.append(emitter.algebra.negated(each.item))
    item = TRUE.union(*literals)
    return None if emitter.algebra.empty(item) else _item(emitter, constraint, index, item)


def _counting(emitter: Emitter, constraint: Array, contains: Contains) -> Symbol:
    """Large counts, in the fields of a parameter: items that count, items that don't, and all of them."""
    algebra, grammar, name = emitter.algebra, emitter.grammar, emitter.grammar.name("c")
    least, most, shortest, longest = contains.least, contains.most, constraint.shortest, constraint.longest
    if max(least, most or 0, shortest, longest or 0) > _MAX_COUNT:
        raise emitter.refusal("contains", "with counts or length bounds too large to remember")
    counted, others, length = "[0:20]", "[20:40]", "[40:60]"
    fits = "" if longest is None else f"lt({length}, {longest})"
    counts = all_of([fits, "" if most is None else f"lt({counted}, {most})"])
    # Room is kept for those that must still come.
    counts_not = all_of([fits, "" if longest is None else f"lt({others}, {longest - least})"])
    item = constraint.at(0)
    # Known not to count, so that one text is counted in one way.
    other = item | algebra.negated(contains.item)
    first, later = [], []
    for literals, field, condition in (
        (item | contains.item, counted, counts),
        (other, others, counts_not),
    ):
        if not algebra.empty(literals):
            functions = [f"incr({field})", f"incr({length})"]
            step = remembering(emitter, _item(emitter, constraint, 0, literals), f"{name}t", functions)
            first.append(Alternative(step, condition))
            later.append(Alternative((COMMA, *step), condition))
    ends = [f"ge({counted}, {least})" if least else "", f"ge({length}, {shortest})" if shortest else ""]
    grammar.define(f"{name}t", [Alternative((), all_of(ends)), *later], parameter=True)
    grammar.define(name, first, parameter=True)
    empty = [(OPEN, CLOSE)] if shortest == least == 0 else []
    return grammar.rule((OPEN, Reference(name, "0x0"), CLOSE), *empty)


def _known_values(algebra: Algebra, literals: Literals) -> list[object] | None:
    """The values that satisfy them, where those are finitely many scalars."""
    values: list[object] = []
    for constraint in itertools.chain.from_iterable(algebra.shape(literals).values()):
        match constraint:
            case Null():
                values.append(None)
            case Boolean(some):
                values += sorted(some)
            case Number(values=tuple(some)) | String(values=tuple(some)):
                values += some
            case _:
                return None
    return values
