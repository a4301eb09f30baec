"""Numbers between bounds, and their multiples: what a schema demands of numbers.
Depends on arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import TypeVar

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
        met = Number(
            whole=self.whole or other.whole,
            low=_tighter(self.low, other.low, 1),
            high=_tighter(self.high, other.high, -1),
            multiples=self.multiples | other.multiples,
            no_multiples=self.no_multiples | other.no_multiples,
            excluded=self.excluded | other.excluded,
        )
        values = common(self.values, other.values)
        if values is None:
            return met if met.count(1) else None
        kept = tuple(value for value in values if met.has(exact(value)))
        if not kept:
            return None
        return Number(whole=met.whole, values=kept)

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


def _tighter(one: Bound | None, two: Bound | None, sign: int) -> Bound | None:
    """The bound that allows less."""
    if one is None or two is None:
        return one or two
    if one.value == two.value:
        return one if one.exclusive else two
    if one.value * sign > two.value * sign:
        return one
    return two


def common(
    one: tuple[T, ...] | None, two: tuple[T, ...] | None
) -> tuple[T, ...] | None:
    """What both lists allow; None stands for everything."""
    if one is None:
        return two
    if two is None:
        return one
    wanted = set(two)
    return tuple(value for value in one if value in wanted)
