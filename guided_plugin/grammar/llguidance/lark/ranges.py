"""Numbers between bounds, and their multiples: what a schema demands of numbers; how
demands of one type are combined. Depends on arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from guided_plugin.spec.arithmetic import Value, divides, exact, least_multiple

T = TypeVar("T")

# More multiples than these between two bounds are not all excluded.
_MAX_MEMBERS = 10_000


@dataclass(frozen=True, slots=True)
class Bound:
    """An end of a range."""

    value: Value
    exclusive: bool

    def allows(self, value: Fraction, sign: int) -> bool:
        """Whether it allows a number. `sign`: 1 for a lower bound, -1 for an upper."""
        distance = (value - exact(self.value)) * sign
        if distance == 0:
            return not self.exclusive
        return distance > 0


@dataclass(frozen=True, slots=True)
class Number:
    """Numbers; integers are numbers without a fraction."""

    whole: bool = False
    """Only integers. Those that are none are no multiples of 1."""
    low: Bound | None = None
    high: Bound | None = None
    multiples: frozenset[Value] = frozenset()
    no_multiples: frozenset[Value] = frozenset()
    values: tuple[Value, ...] | None = None
    """If given, the numbers themselves; then nothing else is demanded of them."""
    excluded: frozenset[Value] = frozenset()

    def meet(self, other: Number) -> Number | None:
        met = both(self, other)
        if met.values is None:
            return met if met.count(1) else None
        free = replace(met, values=None)
        kept = tuple(value for value in met.values if free.has(exact(value)))
        return Number(whole=met.whole, values=kept) if kept else None

    @property
    def step(self) -> Fraction | None:
        """The number that all are multiples of."""
        if not self.multiples:
            return Fraction(1) if self.whole else None
        steps = [exact(divisor) for divisor in self.multiples]
        if self.whole:
            steps.append(Fraction(1))
        return least_multiple(steps)

    def count(self, most: int) -> int:
        """How many there are, up to `most`: at least so many."""
        low = self.low
        high = self.high
        step = self.step
        if step is not None and self._refuses_multiples_of(step):
            return 0
        if low is None or high is None:
            return most
        if step is None:
            return most if low.value < high.value else int(self.has(exact(low.value)))
        enough = _MAX_MEMBERS + len(self.excluded)
        several = _multiples(step, low, high)[:enough]
        members = (n for n in several if self.has(n * step))
        return sum(1 for _ in islice(members, most))

    def has(self, value: Fraction) -> bool:
        """Whether a number satisfies all demands."""
        if self.low is not None and not self.low.allows(value, 1):
            return False
        if self.high is not None and not self.high.allows(value, -1):
            return False
        if value in map(exact, self.excluded):
            return False
        step = self.step
        if step is not None and not divides(step, value):
            return False
        return not self._refuses_multiples_of(value)

    def _refuses_multiples_of(self, value: Fraction) -> bool:
        divisors = map(exact, self.no_multiples)
        return any(divides(divisor, value) for divisor in divisors)


def _multiples(step: Fraction, low: Bound, high: Bound) -> range:
    """How many times a step are its multiples between two bounds, these included."""
    first = math.ceil(exact(low.value) / step)
    last = math.floor(exact(high.value) / step)
    return range(first, last + 1)


def _tighter(choose: Callable[..., Bound], one: Bound, two: Bound) -> Bound:
    """The bound that allows less."""
    if one.value == two.value:
        return one if one.exclusive else two
    return choose(one, two, key=lambda bound: bound.value)


def _common(one: tuple[Any, ...], two: tuple[Any, ...]) -> tuple[Any, ...]:
    """The elements of both lists."""
    wanted = set(two)
    return tuple(value for value in one if value in wanted)


def _joined(one: Any, two: Any) -> Any:
    """The elements of two sets, or of two lists without repetitions."""
    if isinstance(one, frozenset):
        return one | two
    return tuple(dict.fromkeys(one + two))


_MEET: dict[str, Callable[[Any, Any], Any]] = {
    "whole": max,
    "low": partial(_tighter, max),
    "high": partial(_tighter, min),
    "shortest": max,
    "longest": min,
    "values": _common,
    "unique": max,
}
"""How fields that do not list demands are combined."""


def both(one: T, two: T) -> T:
    """The demands of two constraints of one type."""
    met = []
    for name in one.__slots__:  # type: ignore[attr-defined]
        ours = getattr(one, name)
        theirs = getattr(two, name)
        # Keywords demand one thing each: most fields are defaults.
        if ours is None or theirs is None or ours == theirs:
            met.append(theirs if ours is None else ours)
        else:
            met.append(_MEET.get(name, _joined)(ours, theirs))
    return type(one)(*met)
