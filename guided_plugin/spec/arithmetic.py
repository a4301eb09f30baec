"""Exact arithmetic on the numbers of a schema as they are written: 0.1 is a tenth.
Depends on nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction

Value = int | float


def exact(value: Value) -> Fraction:
    """A number as its text says, not as a double."""
    return Fraction(value) if isinstance(value, int) else Fraction(Decimal(repr(value)))


def canonical(value: Value) -> Value:
    """Return the number as an integer where it is one, so that equal numbers compare as
    equal."""
    if type(value) is int:
        return value
    found = exact(value)
    return int(found) if found.denominator == 1 else value


def divides(divisor: Fraction, value: Fraction) -> bool:
    """True if a number is a multiple of another; nothing but zero is a multiple of
    zero."""
    return (value / divisor).denominator == 1 if divisor else value == 0


def least_multiple(steps: Iterable[Fraction]) -> Fraction | None:
    """The number whose multiples are the multiples of all of them; None if there are
    none."""
    pairs = [step.as_integer_ratio() for step in steps]  # in lowest terms
    if not pairs:
        return None
    numerators, denominators = zip(*pairs, strict=True)
    return Fraction(math.lcm(*numerators), math.gcd(*denominators))


def power_of_ten(number: Fraction) -> int | None:
    """Which power of ten a number is; None for others."""
    text = plain(number)
    digits = text.replace(".", "").lstrip("0")
    if digits.rstrip("0") != "1":
        return None
    return len(digits) - 1 if "." not in text else -len(text.partition(".")[2])


def places(number: Fraction) -> int:
    """Return the number of digits after the point of a number, written out."""
    found = 0
    while (number * 10**found).denominator > 1:
        found += 1
    return found


def plain(value: Value | Fraction) -> str:
    """A number written out, without an exponent and without zeros at the end."""
    if isinstance(value, int):
        return str(value)
    number = value if isinstance(value, Fraction) else exact(value)
    digits = places(number)
    text = str(abs(int(number * 10**digits))).rjust(digits + 1, "0")
    sign = "-" if number < 0 else ""
    return sign + (f"{text[:-digits]}.{text[-digits:]}" if digits else text)
