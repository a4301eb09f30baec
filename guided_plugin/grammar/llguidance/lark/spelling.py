"""How JSON numbers are spelled, as regular expressions. Depends on nothing.

An exponent has one or two digits here, so that it can be compared; in a number without any demands it may
have more.
"""

from __future__ import annotations

from dataclasses import dataclass

INTEGER = "(?:0|[1-9][0-9]*)"
FRACTION = r"(?:\.[0-9]+)?"
ZEROS = r"(?:\.0+)?"
ANY = rf"-?{INTEGER}{FRACTION}(?:[eE][+-]?[0-9]+)?"
WRITTEN_OUT = rf"-?{INTEGER}{FRACTION}"
FRACTIONAL = rf"-?{INTEGER}\.[0-9]*[1-9][0-9]*"
ONE_SPELLING = rf"{INTEGER}|-[1-9][0-9]*|-?{INTEGER}\.[0-9]*[1-9]"
"""Every number in one way only: written out, without zeros at the end."""
MANTISSA = r"[1-9][0-9]{0,15}(?:\.[0-9]{1,16})?"
"""Of a number with an exponent: at least 1,"""
SHORT_MANTISSA = r"[1-9](?:\.[0-9]{1,16})?"
"""or between 1 and 10."""

_MAX_POWER = 99
# So many digits after the point may be shifted before it.
_MAX_SHIFTED = 6


@dataclass(frozen=True, slots=True)
class Spelling:
    """Which spellings of a number are taken besides the shortest one."""

    fraction_zero: bool = False
    """Integers may be written with a fraction of zero, as 1.0."""
    exponents: bool = False
    """Numbers under a demand may have an exponent. Integers may where both are set."""
    only: str = ""
    """If not empty, an expression that every number must match too."""


def exponent(powers: str | None = None) -> str:
    """An exponent, of any power or of those that an expression describes."""
    return f"[eE](?:{'[+-]?[0-9]{1,2}' if powers is None else powers})"


def at_least(power: int) -> str | None:
    """Powers from one on; None if there are none."""
    if power > _MAX_POWER:
        return None
    if power > 0:
        return rf"\+?(?:{_from(power)})"
    return "[+-]?[0-9]{1,2}" if power <= -_MAX_POWER else rf"\+?[0-9]{{1,2}}|-(?:{_up_to(-power)})"


def at_most(power: int) -> str | None:
    """Powers up to one; None if there are none."""
    if power < -_MAX_POWER:
        return None
    if power < 0:
        return f"-(?:{_from(-power)})"
    return "[+-]?[0-9]{1,2}" if power >= _MAX_POWER else rf"-[0-9]{{1,2}}|\+?(?:{_up_to(power)})"


def tens(power: int) -> str:
    """Multiples of a power of ten, above or below zero, with an exponent."""
    options = []
    for digits in range(_MAX_SHIFTED + 1):
        powers = at_least(power + digits)
        if powers is not None:
            fraction = rf"\.[0-9]{{{digits}}}0*" if digits else ZEROS
            options.append(f"{fraction}{exponent(powers)}")
    return f"-?[1-9][0-9]{{0,15}}(?:{'|'.join(options)})" if options else NOTHING


NOTHING = r"[^\x00-\U0010FFFF]"
"""An expression that matches nothing."""


def _from(power: int) -> str:
    if power < 10:
        return f"0?[{power}-9]|[1-9][0-9]"
    ten, one = divmod(power, 10)
    return f"{ten}[{one}-9]" + (f"|[{ten + 1}-9][0-9]" if ten < 9 else "")


def _up_to(power: int) -> str:
    if power < 10:
        return f"0?[0-{power}]"
    ten, one = divmod(power, 10)
    return "0?[0-9]|" + (f"[1-{ten - 1}][0-9]|" if ten > 1 else "") + f"{ten}[0-{one}]"
