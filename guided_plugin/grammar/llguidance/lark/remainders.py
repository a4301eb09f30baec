"""Multiples as an automaton over the digits of a number. Depends on constraints and spelling.

Numbers are scaled to integers. After each digit a state holds the remainders, how the digits compare with
those of the bounds, and nothing else. A state becomes a fragment of a terminal, in which each digit leads to
another fragment. States from which no number can be reached are left out, so there are no dead ends.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction

from guided_plugin.grammar.llguidance.lark.ranges import Number
from guided_plugin.grammar.llguidance.lark.spelling import ZEROS, Spelling
from guided_plugin.spec.arithmetic import exact, places, plain

# A state takes 30 microseconds here and as long in llguidance, as a text of 100 characters.
_MAX_STATES = 3_000

# Where there is no bound, numbers have as many digits as these states allow, within these limits.
_USUAL_STATES = 1_000
_MOST_CASES = 160
_LEAST_DIGITS = 10
_MOST_DIGITS = 15

# More digits behind the point, or in a bound, are not looked at.
_MAX_DECIMALS = 15
_MAX_WHOLE = 40

_State = tuple[int, tuple[int, ...], int, int]
"""How many digits were read, remainders, and how the digits compare with those of the bounds."""


class _TooManyStatesError(Exception):
    pass


@dataclass(frozen=True, slots=True)
class _End:
    """A bound, as it is written."""

    value: Fraction
    exclusive: bool = False


@dataclass(frozen=True, slots=True)
class _Span:
    """Numbers without a sign between two bounds."""

    low: _End
    high: _End | None


def counted(number: Number, spelling: Spelling, fragment: Callable[[str], str]) -> str | None:
    """A part of a terminal for a number, but for what it excludes; None where there are too many states."""
    step, avoided = number.step, number.avoided
    low, high = _ends(number)
    # Beyond a bound that is so large there are no more digits either.
    low = None if low is not None and low.value < -(10**_MAX_WHOLE) else low
    high = None if high is not None and high.value > 10**_MAX_WHOLE else high
    bounds = [bound for bound in (low, high) if bound is not None]
    decimals = max(map(places, [step or Fraction(1, 10), *avoided, *(bound.value for bound in bounds)]))
    if decimals > _MAX_DECIMALS or any(abs(bound.value) > 10**_MAX_WHOLE for bound in bounds):
        return None
    units = [step or Fraction(1, 10**decimals), *avoided]
    remainders = _Remainders([int(unit * 10**decimals) for unit in units])
    cases = remainders.count(_MOST_CASES + 1)
    if len(bounds) < 2 and cases > _MOST_CASES:
        return None
    fraction_zero = spelling.fraction_zero or not number.whole
    # Zeros at the end of all multiples hardly need states.
    zeros = len(plain(units[0])) - len(plain(units[0]).rstrip("0"))
    longest = min(_MOST_DIGITS, max(_LEAST_DIGITS, _USUAL_STATES // cases) + zeros) - decimals
    form = _Form(decimals, max(longest, 1), step is None, fraction_zero)
    bodies: dict[_Span | None, str | None] = {None: None}
    parts = []
    for sign, span in (("", _span(low, high)), ("/-/ ", _span(_negated(high), _negated(low)))):
        if sign and low is not None and low.value >= 0:
            continue
        if span is not None and span not in bodies:
            try:
                bodies[span] = _Digits(remainders, span, form, fragment).body()
            except _TooManyStatesError:
                return None
        parts += [f"{sign}{bodies[span]}"] if bodies[span] else []
    return f"({' | '.join(parts)})" if parts else None


def _ends(number: Number) -> tuple[_End | None, _End | None]:
    """The bounds of a number; where it has a step, the multiples of it that are next to them."""
    if number.step is not None:
        first, last = number.ends()
        return None if first is None else _End(first), None if last is None else _End(last)
    low, high = (
        None if bound is None else _End(exact(bound.value), bound.exclusive)
        for bound in (number.low, number.high)
    )
    return low, high


def _negated(bound: _End | None) -> _End | None:
    return bound and _End(-bound.value, bound.exclusive)


def _span(low: _End | None, high: _End | None) -> _Span | None:
    """What is at least zero between two bounds, if there is anything."""
    if low is None or low.value < 0:
        low = _End(Fraction(0))
    point = high is not None and low.value == high.value and not (low.exclusive or high.exclusive)
    return _Span(low, high) if high is None or low.value < high.value or point else None


class _Divisor:
    """Remainders of one divisor. Those that no digits can tell apart are one."""

    def __init__(self, divisor: int) -> None:
        self.divisor = divisor
        shared = [1]
        while math.gcd(divisor, 10 ** len(shared)) > shared[-1]:
            shared.append(math.gcd(divisor, 10 ** len(shared)))
        # Few digits make a multiple of few remainders. Many make one of all, and tell fewer of these apart.
        few = [0, *itertools.accumulate(10**i // common for i, common in enumerate(shared))]
        counts = [few[i] + divisor // common for i, common in enumerate(shared)]
        end = counts.index(min(counts))
        self._few = [(10**i // common, divisor // common) for i, common in enumerate(shared[:end])]
        self._many = divisor // shared[end]
        self._same = {self._key(0): 0}

    def after(self, remainder: int, digit: int) -> int:
        """The remainder after one more digit."""
        number = (remainder * 10 + digit) % self.divisor
        return self._same.setdefault(self._key(number), number)

    def _key(self, number: int) -> tuple[int, int]:
        """With how many digits, and which, it becomes a multiple first, if few will do."""
        for digits, (most, rest) in enumerate(self._few):
            needed = -number * most % rest
            if needed < most:
                return digits, needed
        return len(self._few), number % self._many


class _Remainders:
    """Remainders of several divisors: of one to be a multiple of, and of others not to be."""

    def __init__(self, divisors: list[int]) -> None:
        self._divisors = [_Divisor(divisor) for divisor in divisors]
        self.zero = (0,) * len(divisors)
        self._steps: dict[tuple[tuple[int, ...], int], tuple[int, ...]] = {}

    def after(self, remainders: tuple[int, ...], digit: int) -> tuple[int, ...]:
        """The remainders after one more digit."""
        key = (remainders, digit)
        found = self._steps.get(key)
        if found is None:
            pairs = zip(self._divisors, remainders, strict=True)
            found = self._steps[key] = tuple(known.after(remainder, digit) for known, remainder in pairs)
        return found

    def wanted(self, remainders: tuple[int, ...], factor: int) -> bool:
        """Whether a number with these remainders, times a factor, is a multiple of the first alone."""
        pairs = zip(self._divisors, remainders, strict=True)
        first, *others = (remainder * factor % known.divisor == 0 for known, remainder in pairs)
        return first and not any(others)

    def count(self, most: int) -> int:
        """How many cases there are, up to so many."""
        seen, pending = {self.zero}, [self.zero]
        while pending and len(seen) < most:
            known = pending.pop()
            new = {self.after(known, digit) for digit in range(10)} - seen
            seen |= new
            pending += new
        return len(seen)


@dataclass(frozen=True, slots=True)
class _Form:
    """How numbers are written."""

    decimals: int
    """After so many digits behind the point everything is decided."""
    longest: int
    """So many digits stand before the point where there is no bound."""
    dense: bool
    """There may be more digits behind the point."""
    fraction_zero: bool


class _Digits:
    """Numbers without a sign as texts.

    What follows a state is a fragment, an expression, nothing, or None where no such number can be reached.
    """

    def __init__(
        self, remainders: _Remainders, span: _Span, form: _Form, fragment: Callable[[str], str]
    ) -> None:
        self.remainders = remainders
        self.span = span
        self.form = form
        self.fragment = fragment
        self.low = self._text(span.low.value)
        if span.high is None:
            nines = max(form.longest, len(self.low[0]) + 2)
            self.high = ("9" * nines, "9" * form.decimals)
        else:
            self.high = self._text(span.high.value)
        # From these digits on it makes no difference any more what the bounds are.
        self.low_end = len("".join(self.low) if span.low.exclusive else "".join(self.low).rstrip("0"))
        self.high_end = 0 if span.high is None else len("".join(self.high)) + 1
        self._following: dict[tuple[bool, _State], str | None] = {}

    def body(self) -> str | None:
        """All of them, as a part of a terminal; None if there are none."""
        start = (0, self.remainders.zero, 0, 0)
        options = self._digits(start, range(1, 10), self._whole_digit, self._whole)
        zero = self._joined(*self._end_of_whole(self._whole_digit(start, 0)))
        if zero is not None:
            options.append(f"/0/ {zero}")
        return f"({' | '.join(options)})" if options else None

    def _text(self, value: Fraction) -> tuple[str, str]:
        text = str(int(value * 10**self.form.decimals)).rjust(self.form.decimals + 1, "0")
        return text[: len(text) - self.form.decimals], text[len(text) - self.form.decimals :]

    def _digits(
        self,
        state: _State,
        digits: Iterable[int],
        step: Callable[[_State, int], _State],
        following: Callable[[_State], str | None],
    ) -> list[str]:
        """A digit and what follows it, for each of some digits."""
        options: dict[str, str] = {}
        for digit in digits:
            rest = following(step(state, digit))
            if rest is not None:
                options[rest] = options.get(rest, "") + str(digit)
        return [f"/[{some}]/ {rest}" for rest, some in options.items()]

    def _joined(self, options: list[str], end: str | None) -> str | None:
        """Options, of which one is to end there, in a fragment."""
        if not options:
            return end
        body = " | ".join([*options, *filter(None, [end])])
        return self.fragment(f"({body})?" if end == "" else body)

    def _remembered(
        self, fraction: bool, state: _State, options: Callable[[_State], tuple[list[str], str | None]]
    ) -> str | None:
        key = (fraction, state)
        if key not in self._following:
            if len(self._following) > _MAX_STATES:
                raise _TooManyStatesError
            self._following[key] = self._joined(*options(state))
        return self._following[key]

    def _whole(self, state: _State) -> str | None:
        """What follows digits before the point."""
        return self._remembered(False, state, self._whole_options)

    def _whole_options(self, state: _State) -> tuple[list[str], str | None]:
        options = []
        if state[0] < len(self.high[0]):
            options = self._digits(state, range(10), self._whole_digit, self._whole)
        point, end = self._end_of_whole(state)
        return options + point, end

    def _whole_digit(self, state: _State, digit: int) -> _State:
        read, remainders, to_low, to_high = state
        # More digits make a greater number.
        if read >= len(self.low[0]) or (to_low == 0 and read >= self.low_end):
            to_low = 1
        elif to_low == 0:
            to_low = _sign(digit - int(self.low[0][read]))
        if to_high == 0:
            to_high = _sign(digit - int(self.high[0][read])) if read < self.high_end else -1
        return read + 1, self.remainders.after(remainders, digit), to_low, to_high

    def _end_of_whole(self, state: _State) -> tuple[list[str], str | None]:
        """A point and what follows it, and how to end, where no more digits come before the point."""
        read, remainders, to_low, to_high = state
        to_low = to_low if read == len(self.low[0]) else _sign(read - len(self.low[0]))
        to_high = to_high if read == len(self.high[0]) else -1
        if to_low < 0 or to_high > 0:
            return [], None
        after = (0, remainders, to_low, to_high)
        end = self._tail("") if self._may_end(after) else None
        if self.form.decimals == 0:
            return [], end
        rest = self._joined(self._digits(after, range(10), self._fraction_digit, self._fraction), None)
        return [] if rest is None else [rf"/\./ {rest}"], end

    def _fraction(self, state: _State) -> str | None:
        """What follows digits after the point."""
        read, _, to_low, to_high = state
        if to_low < 0 or to_high > 0:
            return None
        if read < self.form.decimals:
            return self._remembered(True, state, self._fraction_options)
        end, more = self._may_end(state), self.form.dense and to_high < 0
        if more:
            return "/[0-9]*/" if end else "/[0-9]*[1-9][0-9]*/"
        return self._tail("0*") if end else None

    def _fraction_options(self, state: _State) -> tuple[list[str], str | None]:
        options = self._digits(state, range(10), self._fraction_digit, self._fraction)
        return options, self._tail("") if self._may_end(state) else None

    def _fraction_digit(self, state: _State, digit: int) -> _State:
        read, remainders, to_low, to_high = state
        to_low = to_low or digit - int(self.low[1][read])
        to_high = to_high or digit - int(self.high[1][read])
        return read + 1, self.remainders.after(remainders, digit), _sign(to_low), _sign(to_high)

    def _tail(self, zeros: str) -> str:
        """What may follow a whole number: nothing more, but for how it is written."""
        if self.form.decimals == 0 and self.form.fraction_zero:
            zeros = ZEROS
        return zeros and f"/{zeros}/"

    def _may_end(self, state: _State) -> bool:
        """Whether this many digits of the fraction will do: zeros stand for the others."""
        read, remainders, to_low, to_high = state
        if not self.remainders.wanted(remainders, 10 ** (self.form.decimals - read)):
            return False
        exclusive = self.span.high is not None and self.span.high.exclusive
        if to_high == 0 and exclusive and not self.high[1][read:].strip("0"):
            return False
        low_left = self.low[1][read:].strip("0")
        return to_low > 0 or (not low_left and not self.span.low.exclusive)


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)
