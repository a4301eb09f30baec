"""Multiples as an automaton over the digits of a number. Depends on arithmetic.

Steps are scaled to integers. After each digit a state holds the remainder, and becomes a fragment of a
terminal in which each digit leads to another fragment. States that reach no multiple are left out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

from guided_plugin.spec.arithmetic import places, plain

# A state takes 30 microseconds here and as long in llguidance, as a text of 100 characters.
_MAX_STATES = 3_000

# Where there is no bound, numbers have as many digits as these states allow, within these limits.
_USUAL_STATES = 1_000
_MOST_CASES = 160
_LEAST_DIGITS = 10
_MOST_DIGITS = 15

# More digits behind the point are not looked at.
_MAX_DECIMALS = 15

Fragment = Callable[[str], str]


def usual_digits(step: Fraction) -> int | None:
    """How many digits multiples of a step have before the point where no bound says it; None if too many
    states are needed."""
    decimals = places(step)
    if decimals > _MAX_DECIMALS:
        return None
    cases = _Divisor(int(step * 10**decimals)).cases(_MOST_CASES + 1)
    # Zeros at the end of all multiples hardly need states.
    zeros = len(plain(step)) - len(plain(step).rstrip("0"))
    digits = min(_MOST_DIGITS, max(_LEAST_DIGITS, _USUAL_STATES // cases) + zeros) - decimals
    return max(digits, 1) if cases <= _MOST_CASES else None


def multiples(step: Fraction, digits: int, zeros: str, fragment: Fragment) -> str | None:
    """A part of a terminal for multiples of a step without a sign, with so many digits before the point.

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

    def cases(self, most: int) -> int:
        """How many remainders there are to tell apart, up to so many."""
        seen, pending = {0}, [0]
        while pending and len(seen) < most:
            known = pending.pop()
            new = {self.after(known, digit) for digit in range(10)} - seen
            seen |= new
            pending += new
        return len(seen)

    def _key(self, number: int) -> tuple[int, int]:
        """With how many digits, and which, it becomes a multiple first, if few will do."""
        for digits, (most, rest) in enumerate(self._few):
            needed = -number * most % rest
            if needed < most:
                return digits, needed
        return len(self._few), number % self._many


class _Digits:
    """Multiples without a sign as texts.

    What follows a state is a fragment, an expression, nothing, or None where no multiple can be reached.
    """

    def __init__(self, step: Fraction, longest: int, fragment: Fragment, zeros: str) -> None:
        self._decimals = places(step)
        self._divisor = _Divisor(int(step * 10**self._decimals))
        self._longest = longest
        self._fragment = fragment
        self._zeros = zeros
        self._following: dict[tuple[int, int], str | None] = {}

    def body(self) -> str:
        """All of them, as a part of a terminal: zero is one."""
        options = [*self._digits(1, 0, range(1, 10)), f"/0/ {self._follow(self._longest, 0) or ''}"]
        return f"({' | '.join(options)})"

    def _digits(self, read: int, remainder: int, digits: range) -> list[str]:
        """A digit and what follows it, for each of some digits. `read`: how many there are then."""
        options: dict[str, str] = {}
        for digit in digits:
            rest = self._follow(read, self._divisor.after(remainder, digit))
            if rest is not None:
                options[rest] = options.get(rest, "") + str(digit)
        return [f"/[{some}]/ {rest}" for rest, some in options.items()]

    def _follow(self, read: int, remainder: int) -> str | None:
        """What follows so many digits; from `longest` on, those behind the point count too."""
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
            zeros = self._zeros if whole and not self._decimals else "0*" if not left else ""
            end = zeros and f"/{zeros}/"
        options = self._digits(read + 1, remainder, range(10)) if behind < 0 or (behind and left) else []
        if whole and self._decimals:
            rest = self._digits(self._longest + 1, remainder, range(10))
            options += [rf"/\./ {self._fragment(' | '.join(rest))}"] if rest else []
        if not options:
            return end
        body = " | ".join([*options, *filter(None, [end])])
        return self._fragment(f"({body})?" if end == "" else body)
