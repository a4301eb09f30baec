"""Numbers between bounds, and their multiples: what a schema demands of numbers.
Depends on arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

from guided_plugin.spec.arithmetic import Value, divides, exact, least_multiple

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Bound:
    """An end of a range."""

    value: Value
    exclusive: bool


@dataclass(frozen=True, slots=True)
class Number:
    """Numbers; integers are numbers without a fraction."""

    whole: bool | None = None
    """True: only integers; False: none of them."""
    low: Bound | None = None
    high: Bound | None = None
    multiples: frozenset[Value] = frozenset()
    no_multiples: frozenset[Value] = frozenset()
    values: tuple[Value, ...] | None = None
    excluded: frozenset[Value] = frozenset()

    def meet(self, other: Number) -> Number | None:
        if (
            self.whole is not None
            and other.whole is not None
            and self.whole != other.whole
        ):
            return None
        values = common(self.values, other.values)
        met = Number(
            self.whole if other.whole is None else other.whole,
            _tighter(self.low, other.low, 1),
            _tighter(self.high, other.high, -1),
            self.multiples | other.multiples,
            self.no_multiples | other.no_multiples,
            excluded=self.excluded | other.excluded,
        )
        if values is not None:
            kept = tuple(value for value in values if met.has(exact(value)))
            return Number(met.whole, values=kept) if kept else None
        return met if met.possible() else None

    @property
    def step(self) -> Fraction | None:
        """What all its numbers are multiples of."""
        if not self.multiples:
            return Fraction(1) if self.whole else None
        return least_multiple(
            [*map(exact, self.multiples), *([Fraction(1)] if self.whole else [])]
        )

    @property
    def avoided(self) -> list[Fraction]:
        """The steps of which none of its numbers is a multiple, as multiples of its own
        step."""
        own = [] if self.step is None else [self.step]
        steps = [
            *map(exact, self.no_multiples),
            *([Fraction(1)] if self.whole is False else []),
        ]
        return [
            each for no in steps if (each := least_multiple([no, *own])) is not None
        ]

    def ends(self) -> tuple[Fraction | None, Fraction | None]:
        """The least and the greatest multiple of its step between its bounds."""
        step = self.step or Fraction(1)
        low = self.low
        high = self.high
        first = last = None
        if low is not None:
            at = exact(low.value) / step
            first = step * (math.floor(at) + 1 if low.exclusive else math.ceil(at))
        if high is not None:
            at = exact(high.value) / step
            last = step * (math.ceil(at) - 1 if high.exclusive else math.floor(at))
        return first, last

    def members(self, most: int) -> list[Fraction] | None:
        """Its numbers in order, where they are multiples between two bounds; None for
        others, or too many."""
        step, (first, last) = self.step, self.ends()
        if (
            step is None
            or first is None
            or last is None
            or (last - first) / step >= most
        ):
            return None
        several = range(int(first / step), int(last / step) + 1)
        return [n * step for n in several if self.has(n * step)]

    def possible(self) -> bool:
        """Whether there is such a number."""
        low = self.low
        high = self.high
        step = self.step
        if step is not None and step in self.avoided:
            return False
        if low is None or high is None:
            return True
        if low.value >= high.value:
            return low == high and not low.exclusive and self.has(exact(low.value))
        first, last = self.ends()
        if step is None or first is None or last is None:
            return True
        # More multiples than these are not all excluded.
        several = range(
            min(int((last - first) / step) + 1, _MAX_MEMBERS + len(self.excluded))
        )
        return any(self.has(first + n * step) for n in several)

    def has(self, value: Fraction) -> bool:
        """Whether a number is one of these."""
        low = self.low
        high = self.high
        return (
            (self.values is None or any(value == exact(one) for one in self.values))
            and self.whole in (None, value.denominator == 1)
            and (
                low is None
                or value > exact(low.value)
                or (value == exact(low.value) and not low.exclusive)
            )
            and (
                high is None
                or value < exact(high.value)
                or (value == exact(high.value) and not high.exclusive)
            )
            and not any(value == exact(one) for one in self.excluded)
            and all(divides(exact(divisor), value) for divisor in self.multiples)
            and not any(divides(exact(divisor), value) for divisor in self.no_multiples)
        )


_MAX_MEMBERS = 10_000


def _tighter(one: Bound | None, two: Bound | None, sign: int) -> Bound | None:
    if one is None or two is None:
        return one or two
    if one.value == two.value:
        return one if one.exclusive else two
    return max((one, two), key=lambda bound: bound.value * sign)


def common(
    one: tuple[T, ...] | None, two: tuple[T, ...] | None
) -> tuple[T, ...] | None:
    """What both lists allow; None stands for everything."""
    if one is None or two is None:
        return two if one is None else one
    wanted = set(two)
    return tuple(value for value in one if value in wanted)
