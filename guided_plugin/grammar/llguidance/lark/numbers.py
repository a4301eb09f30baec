"""Numbers as regular expressions over their JSON text. Depends on ranges.

Ranges are compared digit by digit. One expression a bound; a terminal is the
intersection of all that apply. Multiples are an automaton over the digits. Steps are
scaled to integers; after each digit a state holds the remainder, and becomes a fragment
of a terminal in which each digit leads to another fragment. States that reach no
multiple are left out.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from guided_plugin.grammar.llguidance.lark.ranges import Bound, Number
from guided_plugin.spec.arithmetic import exact, places, plain, power_of_ten

INTEGER = "(?:0|[1-9][0-9]*)"
FRACTION = r"(?:\.[0-9]+)?"
ZEROS = r"(?:\.0+)?"
ANY = rf"-?{INTEGER}{FRACTION}(?:[eE][+-]?[0-9]+)?"
WRITTEN_OUT = rf"-?{INTEGER}{FRACTION}"
FRACTIONAL = rf"-?{INTEGER}\.[0-9]*[1-9][0-9]*"
ONE_SPELLING = (
    rf"{INTEGER}|-[1-9][0-9]*|(?:0|-?[1-9][0-9]*)\.0|-?{INTEGER}\.[0-9]*[1-9]"
)
"""Every number in one way, written out without zeros at the end, and integers also as
1.0."""

# Exponents of three digits that a double holds next to one digit before the point.
_LONG_EXPONENT = (
    r"[eE](?:\+?(?:[12][0-9][0-9]|30[0-7])|-(?:[12][0-9][0-9]|3[01][0-9]|32[0-3]))"
)

# A double holds all numbers of so many digits before the point: without an exponent,
# and with one of two.
_MOST_BEFORE = 308
_MOST_BEFORE_EXPONENTS = 209

# A state takes 30 microseconds here and as long in llguidance, as a text of 100
# characters.
_MAX_STATES = 3_000

# Where there is no bound, numbers have as many digits as these states allow, within
# these limits.
_USUAL_STATES = 1_000
_MOST_CASES = 160
_LEAST_DIGITS = 10
_MOST_DIGITS = 15

# More digits behind the point are not looked at.
_MAX_DECIMALS = 15

Fragment = Callable[[str], str]

_MOST = 10**40
"""Bounds beyond it have more digits than multiples are counted over."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """Which spellings of a number are taken besides the shortest one."""

    fraction_zero: bool = False
    """Integers may be written with a fraction of zero, as 1.0."""
    equal_zero: bool = False
    """Where 1.0 is no integer, as in draft 4, what is equal to 1 may be written so."""
    only: str = ""
    """If not empty, an expression that every number must match too."""
    digits: int = 0
    """If not 0, the most digits before the point, after it and in an exponent, which is
    one of a double."""


def number_body(number: Number, spelling: Spelling, fragment: Fragment) -> str | None:
    """A terminal's body for a number; None where a `multipleOf` has too many
    remainders.

    `fragment` gives a name to a part of terminals.
    """
    if spelling.equal_zero and not number.whole:
        spelling = replace(spelling, fraction_zero=True)
    body = _body(number, spelling, fragment)
    bound = _of_digits(number, spelling) if body is not None and spelling.digits else ""
    if bound and not spelling.only and number in (Number(), Number(whole=True)):
        return f"/{bound}/"
    return body and body + "".join(
        f" & /{each}/" for each in (spelling.only, bound) if each
    )


def _of_digits(number: Number, spelling: Spelling) -> str:
    """Numbers of so many digits, or as many as one between the bounds needs; empty
    where all are bounded."""
    bounds = [
        exact(bound.value) for bound in (number.low, number.high) if bound is not None
    ]
    finite = number.whole and len(bounds) == 2 and not spelling.fraction_zero
    apart = [exact(one) for one in number.no_multiples]
    if finite or number.values is not None or None in map(power_of_ten, apart):
        return ""
    step, others, (first, last) = number.step, len(number.excluded), number.ends()
    nearest = max(0, first or 0, -(last or 0)) + (step or 1) * others
    before = max(
        spelling.digits, *(len(str(abs(int(each)))) for each in (nearest, *bounds))
    )
    before = min(before, _MOST_BEFORE)
    behind = max(
        spelling.digits,
        places(step or Fraction(1)),
        *(places(one) + 1 for one in apart),
    )
    if step is None and len(bounds) == 2:
        most, (low, high) = max(map(places, bounds)) + others + 1, bounds
        while (
            behind < most
            and math.floor(high * 10**behind) - math.ceil(low * 10**behind) < others + 3
        ):
            behind += 1
    whole = rf"-?(?:0|[1-9][0-9]{{0,{before - 1}}})"
    if number.whole:
        return whole + (rf"(?:\.0{{1,{behind}}})?" if spelling.fraction_zero else "")
    fraction = rf"(?:\.[0-9]{{1,{behind}}})?"
    if number != Number() or before > _MOST_BEFORE_EXPONENTS:
        return whole + fraction
    exponent = f"[eE][+-]?[0-9]{{1,{min(before, 2)}}}"
    body = f"{whole}{fraction}(?:{exponent})?"
    return body if before < 3 else f"{body}|-?[1-9]{fraction}{_LONG_EXPONENT}"


def _body(number: Number, spelling: Spelling, fragment: Fragment) -> str | None:
    counted = {one for one in number.multiples if power_of_ten(exact(one)) is None}
    refused = {one for one in number.no_multiples if power_of_ten(exact(one)) is None}
    if not counted and not refused:
        return " & ".join(_terms(number, spelling))
    steps = [number.step] if counted and number.step is not None else []
    others = [exact(one) for one in sorted(refused)]
    digits = _whole_digits(number, [*steps, *others])
    if digits is None:
        return None
    zeros = ZEROS if spelling.fraction_zero or not number.whole else ""
    taken = [_counted(one, digits, zeros, fragment) for one in steps]
    left = [_counted(one, digits, ZEROS, fragment) for one in others]
    if None in taken or None in left:
        return None
    parts = [f"(/-?/ {one})" for one in taken] or [
        rf"/-?(?:0|[1-9][0-9]{{0,{digits - 1}}}){FRACTION}/"
    ]
    parts += [f"~(/-?/ {one})" for one in left]
    kept = frozenset() if counted else number.multiples
    low = Bound(0, exclusive=False) if steps and number.ends()[0] == 0 else number.low
    rest = replace(
        number, low=low, multiples=kept, no_multiples=number.no_multiples - refused
    )
    return " & ".join([*parts, *_terms(rest, spelling)])


def _whole_digits(number: Number, steps: list[Fraction]) -> int | None:
    """How many digits before the point are looked at; None where too many states are
    needed."""
    low, high = (
        None if bound is None else exact(bound.value)
        for bound in (number.low, number.high)
    )
    if (low or 0) >= _MOST or (high or 0) <= -_MOST:
        return None
    lengths = [
        len(str(abs(int(end))))
        for end in (low, high)
        if end is not None and abs(end) < _MOST
    ]
    if len(lengths) == 2:
        return max(lengths)
    usual = list(map(_usual_digits, steps))
    return (
        None
        if None in usual
        else max([min(filter(None, usual)), *(length + 2 for length in lengths)])
    )


def _terms(number: Number, spelling: Spelling) -> list[str]:
    """The parts of a terminal for a number whose multiples are those of powers of
    ten."""
    terms, excluded = number_terms(number, spelling)
    return [*(f"/{term}/" for term in terms), *(f"~/{term}/" for term in excluded)]


@lru_cache(maxsize=1024)
def number_terms(
    number: Number, spelling: Spelling
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Expressions of which all must match and of which none may. Multiples are those of
    powers of ten."""
    if number.values is not None:
        return (
            "|".join(_equal(plain(value), spelling) for value in number.values),
        ), ()
    low = number.low
    high = number.high
    if low is not None and number.step is not None and number.ends()[0] == 0:
        low = Bound(0, exclusive=False)
    terms = [
        rf"-?{INTEGER}{ZEROS if spelling.fraction_zero else ''}"
        if number.whole
        else None,
        FRACTIONAL if number.whole is False else None,
        *(_multiples(exact(one)) for one in sorted(number.multiples)),
        _at_least(low) if low is not None else None,
        _at_most(high) if high is not None else None,
    ]
    excluded = [
        _equal(plain(value), Spelling(fraction_zero=True))
        for value in sorted(number.excluded)
    ]
    excluded += [_multiples(exact(one)) for one in sorted(number.no_multiples)]
    required = [*filter(None, terms)] or [WRITTEN_OUT if excluded else ANY]
    return tuple(required), tuple(excluded)


def _multiples(divisor: Fraction) -> str:
    """Multiples of a power of ten: a matter of where the digits end."""
    power = power_of_ten(divisor) or 0
    if power > 0:
        return rf"-?(?:0|[1-9][0-9]*0{{{power}}}){ZEROS}"
    return rf"-?{INTEGER}" + (rf"(?:\.[0-9]{{1,{-power}}}0*)?" if power else ZEROS)


def _equal(text: str, spelling: Spelling) -> str:
    """The spellings of a number that is given written out."""
    _, point, fraction = text.partition(".")
    most = max(spelling.digits - len(fraction), 0) if spelling.digits else ""
    tail = (
        f"0{{0,{most}}}"
        if point
        else rf"(?:\.0{{1,{most}}})?"
        if spelling.fraction_zero
        else ""
    )
    return ("-?" if text == "0" else "") + re.escape(text) + tail


def _at_least(bound: Bound) -> str:
    text = plain(bound.value)
    if text.startswith("-"):
        # Everything without a sign, and what is nearer to zero.
        return f"{WRITTEN_OUT[2:]}|-(?:{_below(text[1:], bound.exclusive)})"
    # Not -0: some who read numbers without a sign refuse it.
    return _above(text, bound.exclusive)


def _at_most(bound: Bound) -> str:
    text = plain(bound.value)
    if text.startswith("-"):
        return f"-(?:{_above(text[1:], bound.exclusive)})"
    if text == "0":
        # -0 is zero.
        below = rf"-(?:{_above('0', True)})"
        return below if bound.exclusive else rf"{below}|-?0{ZEROS}"
    return f"-{WRITTEN_OUT[2:]}|{_below(text, bound.exclusive)}"


def _above(text: str, exclusive: bool) -> str:
    """Numbers without a sign that are at least, or above, one without a sign: those
    with more digits before the point, and those with as many."""
    whole, _, fraction = text.partition(".")
    digits = len(whole)
    options = [rf"[1-9][0-9]{{{digits},}}{FRACTION}"]
    # Zeros at the end leave what follows free.
    compared = whole if fraction or exclusive else whole.rstrip("0") or whole
    for i, digit in enumerate(compared):
        if digit < "9":
            rest = digits - i - 1
            options.append(rf"{whole[:i]}[{int(digit) + 1}-9]{_digits(rest)}{FRACTION}")
    for i, digit in enumerate(fraction):
        if digit < "9":
            options.append(rf"{whole}\.{fraction[:i]}[{int(digit) + 1}-9][0-9]*")
    if compared != "0" and not fraction and not exclusive:
        options.append(rf"{compared}{_digits(digits - len(compared))}{FRACTION}")
    else:
        options.append(rf"{whole}\.{fraction}[0-9]*[1-9][0-9]*")
        if not exclusive:
            options.append(rf"{whole}\.{fraction}0*" if fraction else whole + ZEROS)
    return "|".join(options)


def _below(text: str, exclusive: bool) -> str:
    """Numbers without a sign that are at most, or below, one above zero: those with
    fewer digits before the point, and those with as many."""
    whole, _, fraction = text.partition(".")
    digits = len(whole)
    options = []
    if digits > 1:
        options.append(rf"(?:0|[1-9][0-9]{{0,{digits - 2}}}){FRACTION}")
    for i, digit in enumerate(whole):
        lowest = int(i == 0 and digits > 1)
        if int(digit) > lowest:
            rest = digits - i - 1
            options.append(
                rf"{whole[:i]}[{lowest}-{int(digit) - 1}]{_digits(rest)}{FRACTION}"
            )
    for i, digit in enumerate(fraction):
        options.append(rf"{whole}\.{fraction[:i]}" if i else whole)
        if digit > "0":
            options.append(rf"{whole}\.{fraction[:i]}[0-{int(digit) - 1}][0-9]*")
    if not exclusive:
        options.append(rf"{whole}\.{fraction}0*" if fraction else whole + ZEROS)
    return "|".join(options)


def _digits(count: int) -> str:
    return f"[0-9]{{{count}}}" if count > 1 else "[0-9]" * count


def _usual_digits(step: Fraction) -> int | None:
    """How many digits multiples of a step have before the point where no bound says it;
    None if too many states are needed."""
    decimals = places(step)
    if decimals > _MAX_DECIMALS:
        return None
    cases = _Divisor(int(step * 10**decimals)).cases(_MOST_CASES + 1)
    # Zeros at the end of all multiples hardly need states.
    zeros = len(plain(step)) - len(plain(step).rstrip("0"))
    digits = (
        min(_MOST_DIGITS, max(_LEAST_DIGITS, _USUAL_STATES // cases) + zeros) - decimals
    )
    return max(digits, 1) if cases <= _MOST_CASES else None


def _counted(step: Fraction, digits: int, zeros: str, fragment: Fragment) -> str | None:
    """A part of a terminal for multiples of a step without a sign, with so many digits
    before the point.

    None where there are too many states. `zeros`: what may follow a whole multiple.
    """
    if places(step) > _MAX_DECIMALS:
        return None
    try:
        return _Digits(step, digits, fragment, zeros).body()
    except _TooManyStatesError:
        return None


class _TooManyStatesError(Exception):
    pass


class _Divisor:
    """Remainders of one divisor. Those that no digits can tell apart are one."""

    def __init__(self, divisor: int) -> None:
        self.divisor = divisor
        shared = [1]
        while math.gcd(divisor, 10 ** len(shared)) > shared[-1]:
            shared.append(math.gcd(divisor, 10 ** len(shared)))
        # Few digits make a multiple of few remainders. Many make one of all, and tell
        # fewer of these apart.
        few = [
            0,
            *itertools.accumulate(10**i // common for i, common in enumerate(shared)),
        ]
        counts = [few[i] + divisor // common for i, common in enumerate(shared)]
        end = counts.index(min(counts))
        self._few = [
            (10**i // common, divisor // common)
            for i, common in enumerate(shared[:end])
        ]
        self._many = divisor // shared[end]
        self._same = {self._key(0): 0}

    def after(self, remainder: int, digit: int) -> int:
        """The remainder after one more digit."""
        number = (remainder * 10 + digit) % self.divisor
        return self._same.setdefault(self._key(number), number)

    def cases(self, most: int) -> int:
        """How many remainders there are to tell apart, up to so many."""
        seen = {0}
        pending = [0]
        while pending and len(seen) < most:
            known = pending.pop()
            new = {self.after(known, digit) for digit in range(10)} - seen
            seen |= new
            pending += new
        return len(seen)

    def _key(self, number: int) -> tuple[int, int]:
        """With how many digits, and which, it becomes a multiple first, if few will
        do."""
        for digits, (most, rest) in enumerate(self._few):
            needed = -number * most % rest
            if needed < most:
                return digits, needed
        return len(self._few), number % self._many


class _Digits:
    """Multiples without a sign as texts.

    What follows a state is a fragment, an expression, nothing, or None where no
    multiple can be reached.
    """

    def __init__(
        self, step: Fraction, longest: int, fragment: Fragment, zeros: str
    ) -> None:
        self._decimals = places(step)
        self._divisor = _Divisor(int(step * 10**self._decimals))
        self._longest = longest
        self._fragment = fragment
        self._zeros = zeros
        self._following: dict[tuple[int, int], str | None] = {}

    def body(self) -> str:
        """All of them, as a part of a terminal: zero is one."""
        options = [
            *self._digits(1, 0, range(1, 10)),
            f"/0/ {self._follow(self._longest, 0) or ''}",
        ]
        return f"({' | '.join(options)})"

    def _digits(self, read: int, remainder: int, digits: range) -> list[str]:
        """A digit and what follows it, for each of some digits. `read`: how many there
        are then."""
        options: dict[str, str] = {}
        for digit in digits:
            rest = self._follow(read, self._divisor.after(remainder, digit))
            if rest is not None:
                options[rest] = options.get(rest, "") + str(digit)
        return [f"/[{some}]/ {rest}" for rest, some in options.items()]

    def _follow(self, read: int, remainder: int) -> str | None:
        """What follows so many digits; from `longest` on, those behind the point count
        too."""
        key = read, remainder
        if key not in self._following:
            if len(self._following) > _MAX_STATES:
                raise _TooManyStatesError
            self._following[key] = self._joined(read, remainder)
        return self._following[key]

    def _joined(self, read: int, remainder: int) -> str | None:
        behind = read - self._longest
        left = self._decimals - max(behind, 0)
        whole = behind <= 0
        end = None
        if remainder * 10**left % self._divisor.divisor == 0:
            zeros = (
                self._zeros
                if whole and not self._decimals
                else "0*"
                if not left
                else ""
            )
            end = zeros and f"/{zeros}/"
        options = (
            self._digits(read + 1, remainder, range(10))
            if behind < 0 or (behind and left)
            else []
        )
        if whole and self._decimals:
            rest = self._digits(self._longest + 1, remainder, range(10))
            options += [rf"/\./ {self._fragment(' | '.join(rest))}"] if rest else []
        if not options:
            return end
        body = " | ".join([*options, *filter(None, [end])])
        return self._fragment(f"({body})?" if end == "" else body)
