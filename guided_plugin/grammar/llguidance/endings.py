"""Ends of the outputs of one grammar. Depends on the matcher, the vocabulary and what
rules tell of ends.

Rules tell the ending of a place; a matcher proves it. Where they tell none, as of a
grammar that a client wrote in Lark, or of items that must differ, a copy of the matcher
is led by its masks: what closes comes first, then what leaves least open. All of this is
counted and bounded. So the same text has the same ending everywhere.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from guided_plugin.grammar.base import MaskArray
from guided_plugin.grammar.llguidance.lark.ends import Shortest
from guided_plugin.grammar.llguidance.lark.expected import Follower, Place
from guided_plugin.grammar.llguidance.lark.patterns import one_of_each
from guided_plugin.grammar.llguidance.lark.rules import RuleSet
from guided_plugin.grammar.llguidance.matcher import LLGuidanceMatcher
from guided_plugin.grammar.llguidance.tokenizer import NEVER, Spelled, Spelling

_FREE = 64
"""So many bytes are allowed next in a text that is free, as a JSON string is."""
_SOON = b'}])>,:"0-ntf[{'
"""The bytes taken first where rules tell nothing: what closes, then what is short."""
_LATE = b"(\\"
_ORDER = _SOON + bytes(sorted({*range(256)}.difference(_SOON, _LATE))) + _LATE
_FEW = 12
"""So many bytes are all tried."""
_MOVES = 3_000
"""The most moves of a matcher's copies in one look: a count and no clock, so that the
same text has the same end on every machine. Ten distinct strings took 1,746."""
_PER_MASK = 10
"""So many moves counts a mask of a grammar that a client wrote: of an ambiguous one
each takes 12 ms."""
_PER_MOVE = 100
"""Tokens of an ending that count as one move: each takes 1 us, a move 0.1 ms."""
TOLD = 64
"""Endings that rules tell and that are tried at one place. On real schemas the first is
right at nine places of ten."""
TOLD_BEHIND = 8
"""Such endings behind a token that may come next, and where items must be distinct."""
_PROVEN = 8
"""Endings of one place of which the shortest is taken, where none is short enough."""
_CLIENT_REACH = 64
"""Bytes that one token may add to an ending, where rules are not known. Chosen, not
measured."""
_SLACK = 4
"""Tokens by which an ending may grow where two of its texts meet: a character may be
begun at any place."""


@dataclass(slots=True)
class Moves:
    """Moves that are left in one look."""

    left: int = _MOVES

    def proves(
        self, matcher: LLGuidanceMatcher, ending: Spelled, before: Sequence[int] = ()
    ) -> bool:
        """True if a matcher takes an ending, behind such tokens."""
        self.left -= 1 + len(ending) // _PER_MOVE
        return self.left >= 0 and matcher.ends_with((*before, *ending.tokens))


class Endings:
    """Finds endings of the outputs of one grammar."""

    def __init__(self, spelling: Spelling, rules: Shortest | bytes | None) -> None:
        """`rules`: of the grammar, with their shortest texts or packed; None for one
        that a client wrote in Lark."""
        self.spelling = spelling
        self._rules = rules

    @cached_property
    def shortest(self) -> Shortest | None:
        """The shortest texts by the rules, where these are known."""
        if isinstance(self._rules, bytes):
            return Shortest(RuleSet.unpacked(self._rules))
        return self._rules

    @cached_property
    def follower(self) -> Follower | None:
        """Follows outputs. Made when the first output comes near its end."""
        return None if self.shortest is None else Follower(self.shortest)

    def growth_in(self, tokens: Callable[[bytes], int]) -> int:
        """Return the most tokens that one token may add to the shortest ending.
        `tokens`: those of a text; `len` is a bound that needs no spelling."""
        if self.shortest is None:
            return _SLACK + _CLIENT_REACH
        most = self.shortest.reach
        for text in self.shortest.choices:
            # A token of several brackets makes as many choices.
            times = self.spelling.brackets if text.startswith(b"[") else 1
            if times * len(text) > most:
                most = max(most, times * tokens(text))
        return _SLACK + most

    @cached_property
    def growth(self) -> int:
        """The growth (`growth_in`) in tokens of the vocabulary."""
        return self.growth_in(self.spelling.most_tokens)

    @cached_property
    def plain(self) -> dict[int, MaskArray]:
        """Tokens of free text that end none, by how many characters they have at
        most."""
        marks = "" if self.shortest is None else self.shortest.marks()
        return self.spelling.plain(marks)

    @cached_property
    def longest(self) -> float:
        """The most tokens that the shortest ending of any place may have."""
        rules = self.shortest
        if rules is None or rules.longest is None:
            return math.inf
        return _SLACK + rules.reach + self.spelling.most_tokens(rules.longest)

    def first(
        self, matcher: LLGuidanceMatcher, text: bytes = b""
    ) -> tuple[int, ...] | None:
        """The tokens of an ending behind a text, where the matcher is."""
        rules = self.shortest
        if rules is not None and rules.whole is not None and not text:
            whole = self.spelling.spelled(rules.whole)
            if Moves().proves(matcher, whole):
                return whole.tokens
        found = self.behind(matcher, self.after(None, text), Moves())
        return None if found is None else found.tokens

    def after(self, place: Place | None, text: bytes) -> Place | None:
        """The place behind a text, from a place on or from the beginning; None where
        rules tell no places."""
        if self.follower is None:
            return None
        return self.follower.after(place or self.follower.start(), text)

    def behind(
        self,
        matcher: LLGuidanceMatcher,
        place: Place | None,
        moves: Moves,
        most: float = math.inf,
    ) -> Spelled | None:
        """Return what may come before a stop token: so many tokens at most if rules
        tell such an ending, or masks lead to one; None where none is known. The matcher
        stays where it is."""
        found: list[Spelled] = []
        told = filter(partial(moves.proves, matcher), self.told(place, TOLD))
        for ending in itertools.islice(told, _PROVEN):
            if len(ending) <= most:
                return ending
            found.append(ending)
        if found:
            return min(found, key=len)
        return self._led(matcher, place, moves, most)

    def _led(
        self, at: LLGuidanceMatcher, place: Place | None, moves: Moves, most: float
    ) -> Spelled | None:
        """An ending to which masks lead, up to where rules tell it, or where so many
        tokens are not enough."""
        # Most of those that rules tell repeat an item.
        tried = TOLD if at.distinct is None else TOLD_BEHIND
        text = b""
        # A text has as many tokens as bytes at most.
        while len(text) <= most or len(self.spelling.spelled(text)) <= most:
            ahead: tuple[LLGuidanceMatcher, Place | None, bytes] | None = None
            moves.left -= _PER_MASK * (self.shortest is None)
            for token in self._pieces(at, place):
                moves.left -= 1
                if moves.left < 0:
                    return None
                moved = at.fork()
                if not moved.accept(token):
                    continue
                piece = self.spelling.text(token)
                after = self.after(place, piece)
                for ending in self.told(after, tried):
                    if moves.proves(moved, ending):
                        return self.spelling.spelled(text + piece, ending)
                ahead = ahead or (moved, after, piece)
            if not ahead:
                return None
            at, place, piece = ahead
            text += piece
        return None

    def _pieces(self, at: LLGuidanceMatcher, place: Place | None) -> list[int]:
        """The tokens that may come next, of single bytes, the most likely first."""
        row = at.row()
        allowed = {self.spelling.text(one): one for one in self.spelling.bytes_in(row)}
        told = next(itertools.islice(self.told(place, 1), 1, None), None)
        order = b'"' * (len(allowed) >= _FREE) + _ORDER
        if told is not None:
            order = told.text[:1] + order
        found = [bytes([one]) for one in one_of_each([*b"".join(allowed)], _FEW)]
        found.sort(key=order.index)
        return self.spelling.controls_in(row) + [allowed[one] for one in found]

    def told(
        self, place: Place | None, most: int, token: int | None = None
    ) -> Iterator[Spelled]:
        """The empty ending, and so many that rules tell of a place; of one that is a
        token further."""
        spelling = self.spelling
        yield spelling.remembered(b"")
        if self.follower is None or place is None:
            return
        if token is not None:
            place = self.follower.after(place, spelling.text(token))
        for text, start in self.follower.endings(place)[:most]:
            ending = spelling.remembered(text).at(start)
            if len(ending) < NEVER:
                yield ending
