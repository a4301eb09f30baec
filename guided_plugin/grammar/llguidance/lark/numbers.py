"""Numbers as regular expressions over their JSON text. Depends on constraints.

Ranges are compared digit by digit, so numbers under a range are written out, without an exponent. One
expression a bound; a terminal is the intersection of all that apply.
"""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction

from guided_plugin.grammar.llguidance.lark.constraints import Bound, Number, Value

_INTEGER = "(?:0|[1-9][0-9]*)"
_ANY = rf"-?{_INTEGER}(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
WRITTEN_OUT = rf"-?{_INTEGER}(?:\.[0-9]+)?"
_FRACTIONAL = rf"-?{_INTEGER}\.[0-9]*[1-9][0-9]*"
_ZEROS = r"(?:\.0+)?"

ONE_SPELLING = rf"{_INTEGER}|-[1-9][0-9]*|-?{_INTEGER}\.[0-9]*[1-9]"
"""Every number in one way only: written out, without zeros at the end."""


def number_terms(number: Number, *, fraction_zero: bool) -> tuple[list[str], list[str]] | None:
    """Expressions of which all must match and of which none may; None where a `multipleOf` has none.

    `fraction_zero`: whether 1.0 is written for the integer 1, as drafts after 4 allow.
    """
    zeros = _ZEROS if fraction_zero else ""
    if number.values is not None:
        return ["|".join(_spellings(value, zeros) for value in number.values)], []
    multiples = [_multiples(divisor) for divisor in number.multiples]
    no_multiples = [_multiples(divisor) for divisor in number.no_multiples]
    if None in multiples or None in no_multiples:
        return None
    terms = [
        f"-?{_INTEGER}{zeros}" if number.whole else None,
        _FRACTIONAL if number.whole is False else None,
        *multiples,
        _at_least(number.low) if number.low is not None else None,
        _at_most(number.high) if number.high is not None else None,
    ]
    excluded = [*(_spellings(value, _ZEROS) for value in number.excluded), *filter(None, no_multiples)]
    return [*filter(None, terms)] or [WRITTEN_OUT if excluded else _ANY], excluded


def plain(value: Value) -> str:
    """A number written out, without an exponent and without zeros at the end."""
    text = format(Decimal(repr(value)), "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def _spellings(value: Value, zeros: str) -> str:
    text = plain(value)
    sign = "-?" if text == "0" else ""
    return sign + re.escape(text) + ("0*" if "." in text else zeros)


def _multiples(divisor: Value) -> str | None:
    """Multiples of powers of ten are a matter of where the digits end; others are not regular enough."""
    exponent = 0
    rest = Fraction(Decimal(repr(divisor)))
    while rest.denominator > 1 and exponent > -30:
        rest, exponent = rest * 10, exponent - 1
    while rest.numerator % 10 == 0 and rest.numerator and exponent < 30:
        rest, exponent = rest / 10, exponent + 1
    if rest != 1:
        return None
    if exponent > 0:
        return rf"-?(?:0|[1-9][0-9]*0{{{exponent}}}){_ZEROS}"
    return rf"-?{_INTEGER}{_ZEROS}" if exponent == 0 else rf"-?{_INTEGER}(?:\.[0-9]{{1,{-exponent}}}0*)?"


def _at_least(bound: Bound) -> str:
    text = plain(bound.value)
    if text.startswith("-"):
        # Everything without a sign, and what is nearer to zero.
        return f"{WRITTEN_OUT[2:]}|-(?:{_below(text[1:], bound.exclusive)})"
    zero = rf"|-0{_ZEROS}" if text == "0" and not bound.exclusive else ""
    return _above(text, bound.exclusive) + zero


def _at_most(bound: Bound) -> str:
    text = plain(bound.value)
    if text.startswith("-"):
        return f"-(?:{_above(text[1:], bound.exclusive)})"
    negative = rf"-{WRITTEN_OUT[2:]}"
    if text == "0":
        # -0 is zero.
        below = rf"-(?:{_above('0', True)})"
        return below if bound.exclusive else rf"{below}|-?0{_ZEROS}"
    return f"{negative}|{_below(text, bound.exclusive)}"


def _above(text: str, exclusive: bool) -> str:
    """Numbers without a sign that are at least, or above, one without a sign."""
    whole, _, fraction = text.partition(".")
    digits = len(whole)
    options = [rf"[1-9][0-9]{{{digits},}}(?:\.[0-9]+)?"]
    for i, digit in enumerate(whole):
        if digit < "9":
            rest = digits - i - 1
            options.append(rf"{whole[:i]}[{int(digit) + 1}-9]{_digits(rest)}(?:\.[0-9]+)?")
    for i, digit in enumerate(fraction):
        if digit < "9":
            options.append(rf"{whole}\.{fraction[:i]}[{int(digit) + 1}-9][0-9]*")
    options.append(rf"{whole}\.{fraction}[0-9]*[1-9][0-9]*")
    if not exclusive:
        options.append(rf"{whole}\.{fraction}0*" if fraction else whole + _ZEROS)
    return "|".join(options)


def _below(text: str, exclusive: bool) -> str:
    """Numbers without a sign that are at most, or below, one without a sign."""
    whole, _, fraction = text.partition(".")
    digits = len(whole)
    options = []
    if digits > 1:
        options.append(rf"(?:0|[1-9][0-9]{{0,{digits - 2}}})(?:\.[0-9]+)?")
    for i, digit in enumerate(whole):
        lowest = 1 if i == 0 and digits > 1 else 0
        if int(digit) > lowest:
            rest = digits - i - 1
            options.append(rf"{whole[:i]}[{lowest}-{int(digit) - 1}]{_digits(rest)}(?:\.[0-9]+)?")
    for i, digit in enumerate(fraction):
        options.append(rf"{whole}\.{fraction[:i]}" if i else whole)
        if digit > "0":
            options.append(rf"{whole}\.{fraction[:i]}[0-{int(digit) - 1}][0-9]*")
    if not exclusive:
        options.append(rf"{whole}\.{fraction}0*" if fraction else whole + _ZEROS)
    return "|".join(options) if options else r"[^\x00-\U0010FFFF]"


def _digits(count: int) -> str:
    return f"[0-9]{{{count}}}" if count > 1 else "[0-9]" * count
