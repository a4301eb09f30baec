"""Numbers as expressions over their JSON text. Depends on constraints and expressions.

One is an intersection: an expression for the form of the number, and one for
each demand. Bounds are compared digit by digit. Multiples of a power of ten end in
zeros; other multiples are an automaton over the digits, whose states are remainders.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from operator import attrgetter

from guided_plugin.grammar.llguidance.lark.constraints import Bound, Number
from guided_plugin.grammar.llguidance.lark.expressions import (
    AND,
    OR,
    THEN,
    Expression,
    Fragment,
    Group,
    Known,
    Opposite,
    Regex,
)
from guided_plugin.grammar.llguidance.lark.writer import times
from guided_plugin.spec.arithmetic import Value, exact, places, plain, power_of_ten

INTEGER = "(?:0|[1-9][0-9]*)"
FRACTION = r"(?:\.[0-9]+)?"
ZEROS = r"(?:\.0+)?"
ONE_SPELLING = rf"{INTEGER}|-[1-9][0-9]*|-?{INTEGER}\.[0-9]*[1-9]"
"""Every number in one way, written out without zeros at the end."""

# Exponents of three digits that a double holds next to one digit before the point.
_LONG_EXPONENT = (
    r"[eE](?:\+?(?:[12][0-9][0-9]|30[0-7])|-(?:[12][0-9][0-9]|3[01][0-9]|32[0-3]))"
)

# A double holds all numbers of so many digits before the point: without an exponent,
# and with one of two.
_MOST_BEFORE = 308
_MOST_BEFORE_EXPONENTS = 209

# A state takes 30 microseconds in llguidance, as a text of 100 characters.
_MAX_STATES = 3_000
_MAX_DIVISOR = 1_024
_MAX_DECIMALS = 3

_COUNTED_DIGITS = 15
"""Multiples that nothing bounds have at most so many digits before the point."""

_REACH = 3
"""Characters that a number may still need besides the digits of a bound: behind a sign,
a point or an exponent."""
_TRIED = 10
"""Numbers that are tried, from the one nearest to zero on. Chosen, not measured."""

Naming = Callable[[Expression], str]
"""Gives a name to a part of terminals."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """Which spellings of a number are taken besides the shortest one."""

    fraction_zero: bool = False
    """Integers may be written with a fraction of zero, as 1.0."""
    equal_zero: bool = False
    """A value equal to 1 may be written 1.0 where that is no integer, as in draft 4."""
    only: str = ""
    """If not empty, an expression that every number must match too."""
    digits: int = 0
    """If not 0, the most digits before the point, after it and in an exponent, which is
    one of a double."""


class TooManyStatesError(Exception):
    """A `multipleOf` has too many remainders."""


def known_of_number(number: Number) -> Known:
    """Return what is known of the texts of a constraint."""
    bounds = [bound.value for bound in filter(None, (number.low, number.high))]
    named = map(plain, [*bounds, *(number.values or ()), *number.multiples])
    most = _REACH + max(map(len, named), default=0)
    texts: tuple[str, ...] = ("0",)
    if bounds or number.values or number.no_multiples or number.excluded:
        texts = _shortest(number)
    return Known(texts, most, form="number")


def _shortest(number: Number) -> tuple[str, ...]:
    """The shortest text of those that are listed, or of the first whole number from
    zero on; none where the first multiples are not allowed."""
    if number.values is not None:
        return (min(map(plain, number.values), key=len),)
    bound = number.low
    step = (number.step or Fraction(1)).numerator
    if number.high is not None and number.high.value <= 0:
        bound = number.high
        step = -step
    first = 0 if bound is None else max(0, math.ceil(exact(bound.value) / step))
    near = (step * times for times in range(first, first + _TRIED))
    taken = (str(each) for each in near if number.has(Fraction(each)))
    return tuple(islice(taken, 1))


def number_terminal(number: Number, spelling: Spelling, naming: Naming) -> Expression:
    """The numbers of a constraint. Raises a TooManyStatesError."""
    zeros = spelling.fraction_zero or (spelling.equal_zero and not number.whole)
    terms: list[Expression] = []
    if number.values is None:
        terms += _terms(number, zeros, spelling.digits, naming)
    else:
        texts = [_equal(value, zeros, spelling.digits) for value in number.values]
        terms.append(Regex("|".join(texts)))
    if spelling.only:
        terms.append(Regex(spelling.only))
    return Group(AND, tuple(terms))


def _terms(
    number: Number, zeros: bool, digits: int, naming: Naming
) -> Iterator[Expression]:
    """The parts of the intersection, of which the first says what a number is."""
    step = number.step if number.multiples else None
    refused = list(map(exact, sorted(number.no_multiples)))
    divisors = refused if step is None else [step, *refused]
    most = min(digits, _MOST_BEFORE)
    if None in map(power_of_ten, divisors):
        most = min(most or _COUNTED_DIGITS, _COUNTED_DIGITS)
    before = _digits_before(number, most)
    yield Regex(_form(number, zeros, before, digits))
    if step is not None:
        yield _multiples(step, before, naming)
    if number.low is not None:
        yield _at_least(number.low)
    if number.high is not None:
        yield _at_most(number.high)
    for divisor in refused:
        yield Opposite(_multiples(divisor, before, naming))
    for value in sorted(number.excluded):
        yield Opposite(Regex(_equal(value, zeros=True, digits=0)))


def _form(number: Number, zeros: bool, before: int, digits: int) -> str:
    """All numbers of a kind, written out where anything is demanded of them.

    `before`: the most digits before the point; `digits`: those behind it and in an
    exponent, where no more are needed. 0: any number of digits.
    """
    more = times(0, before - 1 if before else None)
    whole = f"-?(?:0|[1-9][0-9]{more})"
    if number.whole and not zeros:
        return whole
    some = times(1, _digits_behind(number, digits) if digits else None)
    if number.whole:
        return rf"{whole}(?:\.0{some})?"
    fraction = rf"(?:\.[0-9]{some})?"
    if number != Number() or before > _MOST_BEFORE_EXPONENTS:
        return whole + fraction
    exponent = times(1, min(before, 2) or None)
    body = f"{whole}{fraction}(?:[eE][+-]?[0-9]{exponent})?"
    if before > 2:
        body += f"|-?[1-9]{fraction}{_LONG_EXPONENT}"
    return body


def _digits_before(number: Number, most: int) -> int:
    """Return the most digits of a number before the point: `most`, or as many as one
    between the bounds needs. 0: any number of digits."""
    bounds = list(filter(None, (number.low, number.high)))
    distances = [abs(exact(bound.value)) for bound in bounds]
    farthest = max(distances, default=0)
    others = len(number.excluded) + len(number.no_multiples)
    others += any(map(attrgetter("exclusive"), bounds))
    step = (number.multiples and number.step) or 1
    beyond = farthest + step * (others + 1)
    last = math.ceil(beyond) - 1
    needed = len(str(last))
    if not most:
        return needed if len(bounds) == 2 else 0
    if len(bounds) != 2:
        needed = max(most, needed)
    return min(needed, _MOST_BEFORE)


def _digits_behind(number: Number, most: int) -> int:
    """Return the most digits of a number behind the point: `most`, or as many as its
    step, or a number next to those that are named, needs."""
    if number.step is not None:
        return max(most, places(number.step))
    named = [*number.excluded, *number.no_multiples]
    if number.low is not None and number.high is not None:
        named += [number.low.value, number.high.value]
    digits = [places(exact(value)) + 1 for value in named]
    return max([most, *digits])


def _equal(value: Value, zeros: bool, digits: int) -> str:
    """The spellings of one number. `zeros`: of a whole one with a fraction of zero."""
    text = plain(value)
    fraction = text.partition(".")[2]
    most = max(digits - len(fraction), 0) if digits else None
    body = re.escape(text)
    if value == 0:
        body = "-?0"
    if fraction:
        return f"{body}0{times(0, most)}"
    if zeros:
        return rf"{body}(?:\.0{times(1, most)})?"
    return body


def _at_least(bound: Bound) -> Expression:
    """The numbers that a lower bound allows."""
    if bound.value >= 0:
        # Not -0: some who read numbers without a sign refuse it.
        return Regex(_above(bound.value, bound.exclusive))
    return Opposite(_below_zero(bound, not bound.exclusive))


def _at_most(bound: Bound) -> Expression:
    """The numbers that an upper bound allows."""
    if bound.value > 0 or (bound.value == 0 and not bound.exclusive):
        return Opposite(Regex(_above(bound.value, not bound.exclusive)))
    return _below_zero(bound, bound.exclusive)


def _below_zero(bound: Bound, exclusive: bool) -> Regex:
    """Numbers with a sign up to, or below, a bound that is not positive."""
    return Regex(f"-(?:{_above(-bound.value, exclusive)})")


def _above(value: Value, exclusive: bool) -> str:
    """Numbers without a sign that are at least, or above, one that is not negative:
    those with more digits, and those with a larger digit where they first differ."""
    text = plain(value)
    whole, _, fraction = text.partition(".")
    options = [f"[1-9][0-9]{{{len(whole)},}}{FRACTION}"]
    for index, digit in enumerate(text):
        if digit in ".9":
            continue
        same = re.escape(text[:index])
        larger = f"[{int(digit) + 1}-9]"
        left = len(whole) - index - 1
        rest = "[0-9]*"
        if left >= 0:
            rest = f"[0-9]{{{left}}}{FRACTION}"
        options.append(same + larger + rest)
    same = re.escape(text)
    if not exclusive:
        rest = "[0-9]*" if fraction else FRACTION
    else:
        rest = "[0-9]*[1-9][0-9]*"
        if not fraction:
            rest = r"\." + rest
    options.append(same + rest)
    return "|".join(options)


def _multiples(divisor: Fraction, digits: int, naming: Naming) -> Expression:
    """The multiples of a number. Multiples of a power of ten are told by where the
    digits end.

    `digits`: the most before the point, where multiples are counted.
    """
    power = power_of_ten(divisor)
    if power is None:
        counted = _counted(divisor, digits, naming)
        return Group(THEN, (Regex("-?"), counted))
    if power < 0:
        return Regex(rf"-?{INTEGER}(?:\.[0-9]{{1,{-power}}}0*)?")
    return Regex(rf"-?(?:0|[1-9][0-9]*0{{{power}}}){ZEROS}")


def _counted(step: Fraction, digits: int, naming: Naming) -> Expression:
    """Multiples without a sign: an automaton whose states are remainders.

    It is written from its end: `following` names how a number may go on after each
    remainder, first where no digit before the point is left. Empty: in no way.
    """
    decimals = places(step)
    scaled = str(int(step * 10**decimals))
    divisor = int(scaled.rstrip("0"))
    zeros = len(scaled) - len(str(divisor))
    if divisor > _MAX_DIVISOR or decimals > _MAX_DECIMALS:
        raise TooManyStatesError
    remainders = range(divisor)
    ends = [_fraction(remainder, divisor, decimals) for remainder in remainders]
    last = [end and naming(Regex(f"0{{{zeros}}}{end}")) for end in ends]
    following = last
    states = 0
    for _ in range(digits - zeros - 1):
        names: list[str] = []
        for remainder, end in enumerate(last):
            options = _digits(remainder, following, range(10))
            if end:
                options.append(Fragment(end))
            names.append(naming(Group(OR, tuple(options))) if options else "")
        following = names
        states += len(set(following))
        if states > _MAX_STATES:
            raise TooManyStatesError
    first = _digits(0, following, range(1, 10))
    return Group(OR, (*first, Regex(f"0{ends[0]}")))


def _digits(
    remainder: int, following: list[str], digits: Iterable[int]
) -> list[Expression]:
    """Each digit that may come after a remainder, and what follows it then."""
    options: dict[str, str] = {}
    for digit in digits:
        after = (remainder * 10 + digit) % len(following)
        name = following[after]
        if name:
            options[name] = options.get(name, "") + str(digit)
    return [Fragment(name, f"[{some}]") for name, some in options.items()]


def _fraction(remainder: int, divisor: int, decimals: int) -> str:
    """The point and the digits that make a multiple of what leaves a remainder before
    it; empty if none do."""
    first = -remainder * 10**decimals % divisor
    found = []
    for digits in range(first, 10**decimals, divisor):
        text = f"{digits:0{decimals}}"
        found.append(text.rstrip("0") or "0")
    if not found:
        return ""
    texts = "|".join(found)
    fraction = rf"(?:\.(?:{texts})0*)"
    if first == 0:
        fraction += "?"
    return fraction
