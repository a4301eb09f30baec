"""How JSON numbers are spelled, as regular expressions. Depends on nothing.

Under a demand, a number with an exponent has one digit before the point, as 1.5e+300 has, and is a double. So
powers and digits are compared one after the other, and a text that is complete may end. Multiples of anything
but a power of ten have no exponent; numbers without a demand may have any.
"""

from __future__ import annotations

from dataclasses import dataclass

INTEGER = "(?:0|[1-9][0-9]*)"
FRACTION = r"(?:\.[0-9]+)?"
ZEROS = r"(?:\.0+)?"
ANY = rf"-?{INTEGER}{FRACTION}(?:[eE][+-]?[0-9]+)?"
WRITTEN_OUT = rf"-?{INTEGER}{FRACTION}"
FRACTIONAL = rf"-?{INTEGER}\.[0-9]*[1-9][0-9]*"
ONE_SPELLING = rf"{INTEGER}|-[1-9][0-9]*|(?:0|-?[1-9][0-9]*)\.0|-?{INTEGER}\.[0-9]*[1-9]"
"""Every number in one way, written out without zeros at the end, and integers also as 1.0."""
MANTISSA = r"[1-9](?:\.[0-9]{1,16})?"
"""Of a number with an exponent: between 1 and 10."""

# The last powers of ten that have doubles with every mantissa, and the doubles beyond them.
_LEAST_POWER, _MOST_POWER = -323, 307
_LEAST = "5"
_MOST = r"1(?:\.(?:[0-6][0-9]{0,15}|7(?:[0-8][0-9]{0,14}|9769313486231(?:[0-4][0-9]?|5[0-7]?)?)?))?"


@dataclass(frozen=True, slots=True)
class Spelling:
    """Which spellings of a number are taken besides the shortest one."""

    fraction_zero: bool = False
    """Integers may be written with a fraction of zero, as 1.0."""
    exponents: bool = False
    """Numbers under a demand may have an exponent. Integers may where both are set."""
    only: str = ""
    """If not empty, an expression that every number must match too."""


def scaled(mantissa: str, least: int, most: int) -> list[str]:
    """A mantissa with an exponent between two powers: one expression, or none where there are no powers."""
    signs = []
    if most >= max(least, 0):
        signs.append(rf"\+?(?:{_between(max(least, 0), most)})")
    if least <= min(most, 0):
        signs.append(f"-(?:{_between(max(-most, 0), -least)})")
    return [f"{mantissa}[eE](?:{'|'.join(signs)})"] if signs else []


def with_powers(least: int | None = None, most: int | None = None) -> str:
    """Numbers above zero with any of some powers."""
    low, high = (_LEAST_POWER if least is None else least), (_MOST_POWER if most is None else most)
    return "|".join(
        [
            *scaled(MANTISSA, max(low, _LEAST_POWER), min(high, _MOST_POWER)),
            *_beyond(least, most),
        ]
    )


def with_power(mantissa: str, power: int) -> list[str]:
    """A mantissa with one power; nothing where no double has it."""
    return scaled(mantissa, power, power) if power + 1 >= _LEAST_POWER and power <= _MOST_POWER + 1 else []


def _beyond(least: int | None, most: int | None) -> list[str]:
    """Those of the least and the greatest doubles that have one of some powers."""
    found = []
    for mantissa, power in ((_LEAST, _LEAST_POWER - 1), (_MOST, _MOST_POWER + 1)):
        if (least is None or least <= power) and (most is None or power <= most):
            found += scaled(mantissa, power, power)
    return found


def _between(low: int, high: int) -> str:
    """Natural numbers of up to three digits; one digit may have a zero before it."""
    options = []
    for digits in (1, 2, 3):
        first = max(low, 10 ** (digits - 1) if digits > 1 else 0)
        last = min(high, 10**digits - 1)
        if first <= last:
            options.append(("0?" if digits == 1 else "") + _as_long(str(first), str(last)))
    return "|".join(options)


def _as_long(first: str, last: str) -> str:
    """Numbers between two of the same length."""
    if not first or first == last:
        return first
    rest = len(first) - 1
    if first[1:] == "0" * rest and last[1:] == "9" * rest:
        return f"[{first[0]}-{last[0]}]" + "[0-9]" * rest
    if first[0] == last[0]:
        return first[0] + _as_long(first[1:], last[1:])
    between = f"{first[0]}{_as_long(first[1:], '9' * rest)}|{last[0]}{_as_long('0' * rest, last[1:])}"
    middle = f"|[{int(first[0]) + 1}-{int(last[0]) - 1}]" + "[0-9]" * rest
    return f"(?:{between}{middle if int(last[0]) - int(first[0]) > 1 else ''})"
