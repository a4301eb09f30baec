"""The rest that the rules of a grammar still expect behind the text of an output, and
short texts that are all of it. Depends on ends, patterns and rules.

An output is followed from the outside in: what is open is a list, innermost first, of
symbols that must still come. Where alternatives are possible there are several lists,
which share their ends. The shortest text of each symbol is known, so an ending is what
is left of the terminal in which the output is, and the texts of the list behind it.

What is followed is rather too much: of a string's pattern nothing is asked, of what
an alternative leaves out little. So an ending must be tried by a matcher.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from guided_plugin.grammar.llguidance.lark.ends import Shortest
from guided_plugin.grammar.llguidance.lark.expressions import (
    OR,
    Expression,
    Group,
    Opposite,
    Texts,
)
from guided_plugin.grammar.llguidance.lark.patterns import ends_in
from guided_plugin.grammar.llguidance.lark.rules import (
    Alternative,
    Reference,
    Repeated,
    Symbol,
    Terminal,
)

_SPACE = re.compile(rb"[ \t\r\n]*")
_FORMS = {
    "string": re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL),
    "number": re.compile(rb"[-+.0-9eE]+"),
}
_FIRST = {"string": b'"', "number": b"-0123456789"}
_MOST_EXPECTED = 20_000
"""Lists that are looked at at one place, and that are remembered: where there are more,
ends may be missed. Chosen, not measured."""
_LONGEST_REST = 40
"""Bytes that the rest of a pattern's text may have more than is left of its shortest
one. Chosen, not measured."""

_CHARACTER = re.compile(rb"\\u[\dA-Fa-f]{4}|\\.|[^\x80-\xbf]", re.DOTALL)

_LONGEST_TAIL = 8_000
"""Bytes of an ending that is told: as many are spelled in 10 ms, and for each of 64."""


@dataclass(slots=True, eq=False)
class Expected:
    """A symbol that must come, and what must come behind it. Equal ones are one."""

    symbol: Symbol
    parameter: int
    """The parameter of the symbol's rule."""
    behind: Expected | None
    text: bytes | None = None
    """The shortest text of the symbol, once that was asked for."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of an output."""

    text: bytes
    """Its end, as far as it is not past."""
    open: tuple[tuple[Expected | None, int], ...]
    """The lists of symbols that may come next, each with the place in the text where it
    begins. None: the output may be complete."""


class Follower:
    """Follows the outputs of one grammar."""

    def __init__(self, shortest: Shortest) -> None:
        self.shortest = shortest
        self._rules = shortest.rules
        self._alternatives: dict[str, list[Alternative]] = {}
        self._lists: dict[tuple[Symbol, int, Expected | None], Expected] = {}

    def start(self) -> Place:
        """The place where an output begins."""
        return self._place(b"", {0: [self._expected(self._rules.start, 0, None)]})

    def after(self, place: Place, text: bytes) -> Place:
        """The place behind a text."""
        starts: dict[int, list[Expected | None]] = {}
        for expected, start in place.open:
            starts.setdefault(start, []).append(expected)
        return self._place(place.text + text, starts)

    def endings(self, place: Place) -> list[tuple[bytes, int]]:
        """Texts with which the output may end, the shortest first: each is a text from
        a place on, with what is left of what is open, and what must come behind
        that."""
        found: dict[bytes, tuple[bytes, int]] = {}
        for expected, begin in place.open:
            tail = None if expected is None else self._tail(expected.behind)
            if expected is not None and tail is not None:
                for text, start in self._rests(expected.symbol, place.text[begin:]):
                    found.setdefault(text[start:] + tail, (text + tail, start))
        return [found[ending] for ending in sorted(found, key=len)]

    def _place(self, text: bytes, starts: dict[int, list[Expected | None]]) -> Place:
        """Follow a text from the places in it where lists begin."""
        found: dict[tuple[Expected | None, int], None] = {}
        while starts:
            at = min(starts)
            for expected in self._next(starts.pop(at)):
                if expected is None:
                    if at == len(text):
                        found[None, at] = None
                    continue
                ends, goes_on = self._ends(expected.symbol, text, at)
                if goes_on:
                    found[expected, at] = None
                for end in ends:
                    starts.setdefault(end, []).append(expected.behind)
        first = min((at for _, at in found), default=0)
        return Place(text[first:], tuple((each, at - first) for each, at in found))

    def _next(self, lists: list[Expected | None]) -> list[Expected | None]:
        """Lists that begin with a text, a terminal or a token, as rules are written."""
        found: list[Expected | None] = []
        pending = lists[::-1]
        seen: set[Expected | None] = set()
        while pending and len(seen) < _MOST_EXPECTED:
            expected = pending.pop()
            if expected in seen:
                continue
            seen.add(expected)
            match expected and expected.symbol:
                case Reference(name) if expected is not None:
                    for alternative in reversed(self._ways(name)):
                        bit = alternative.bit
                        if bit is None or not expected.parameter >> bit & 1:
                            pending.append(
                                self._joined(
                                    alternative.symbols,
                                    expected.parameter,
                                    expected.behind,
                                )
                            )
                case Repeated(symbols, low, high) if expected is not None:
                    if not low:
                        pending.append(expected.behind)
                    if high != 0:
                        more = Repeated(
                            symbols, max(low - 1, 0), None if high is None else high - 1
                        )
                        behind = self._expected(more, 0, expected.behind)
                        pending.append(self._joined(symbols, 0, behind))
                case _:
                    found.append(expected)
        return found

    def _ways(self, rule: str) -> list[Alternative]:
        """The alternatives of a rule that come to an end."""
        ways = self._alternatives.get(rule)
        if ways is None:
            ways = self._alternatives[rule] = [
                alternative
                for alternative in self._rules.rules[rule].alternatives
                if self.shortest.of_symbols(alternative.symbols) is not None
            ]
        return ways

    def _joined(
        self, symbols: tuple[Symbol, ...], parameter: int, behind: Expected | None
    ) -> Expected | None:
        """Symbols of an alternative with such a parameter, and what is behind them."""
        for symbol in reversed(symbols):
            own = 0
            if isinstance(symbol, Reference):
                own = _applied(symbol.argument, parameter)
            behind = self._expected(symbol, own, behind)
        return behind

    def _expected(
        self, symbol: Symbol, parameter: int, behind: Expected | None
    ) -> Expected:
        key = (symbol, parameter, behind)
        known = self._lists.get(key)
        if known is None:
            if len(self._lists) > _MOST_EXPECTED:
                self._lists.clear()
            known = self._lists[key] = Expected(symbol, parameter, behind)
        return known

    def _ends(self, symbol: Symbol, text: bytes, at: int) -> tuple[list[int], bool]:
        """Return the places where a symbol's text may end that begins at a place, and
        whether it may go on behind the whole text."""
        if at == len(text):
            return [], True
        begin = _behind_space(text, at)
        if not isinstance(symbol, Terminal) or isinstance(symbol.expression, Texts):
            return self._ends_of_texts(symbol, text, sorted({at, begin}))
        form = symbol.known.form
        if not form:
            return ends_in(symbol.expression, text, at)
        if begin == len(text):
            return [], True
        if text[begin] not in _FIRST[form]:
            return [], False
        found = _FORMS[form].match(text, begin)
        if found is None:
            return [], True
        if not _takes(symbol.expression, found[0].decode(errors="replace")):
            return [], False
        return [found.end()], form == "number" and found.end() == len(text)

    def _ends_of_texts(
        self, symbol: Symbol, text: bytes, begins: list[int]
    ) -> tuple[list[int], bool]:
        ends: list[int] = []
        goes_on = False
        for each in self.shortest.texts_of(symbol):
            for begin in begins:
                if text.startswith(each, begin):
                    ends.append(begin + len(each))
                elif each.startswith(text[begin:]):
                    goes_on = True
        return ends, goes_on

    def _rests(self, symbol: Symbol, begun: bytes) -> Iterator[tuple[bytes, int]]:
        """Yield the possible rests of a symbol's text, as a text and where they begin:
        of a terminal that is no list of texts, each of its short ones or an end of it.
        No end has fewer characters than is left of the shortest one behind as many as
        were written."""
        spaced = begun[_behind_space(begun, 0) :]
        for each in self.shortest.texts_of(symbol):
            for own in (begun, spaced):
                if each.startswith(own):
                    yield each, len(own)
            if isinstance(symbol, Terminal) and not isinstance(
                symbol.expression, Texts
            ):
                yield each, int(symbol.known.form == "string")
                last = min(len(_CHARACTER.findall(spaced)), len(each) - 1)
                for start in range(max(0, last - _LONGEST_REST), last + 1):
                    yield each, start

    def _tail(self, expected: Expected | None) -> bytes | None:
        """The shortest text of a whole list, unless that is too long."""
        whole = b""
        while expected is not None:
            if expected.text is None:
                expected.text = self.shortest.of_symbol(
                    expected.symbol, expected.parameter
                )
            if expected.text is None or len(whole) > _LONGEST_TAIL:
                return None
            whole += expected.text
            expected = expected.behind
        return whole


def _applied(argument: str, parameter: int) -> int:
    """Return a rule's next parameter: which members were there, not how many."""
    if argument.startswith("set_bit"):
        return parameter | 1 << int(argument[len("set_bit(") : -1])
    return 0 if argument == "0x0" else parameter


def _behind_space(text: bytes, at: int) -> int:
    """Return the end of whitespace that may begin at a place."""
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


def _takes(expression: Expression, text: str) -> bool:
    """True if an expression may take a JSON text, as far as texts are listed in it."""
    match expression:
        case Texts(texts):
            return text in texts
        case Opposite(Texts(texts)):
            return text not in texts
        case Group(operator, parts):
            asked = any if operator == OR else all
            return asked(_takes(part, text) for part in parts)
    return True
