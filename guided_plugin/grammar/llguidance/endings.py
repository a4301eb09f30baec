"""Ends of the outputs of one grammar. Depends on the matcher, the vocabulary and what
rules tell of ends.

Rules tell the ending of a place; a matcher proves it. Where they tell none, as of a
grammar that a client wrote in Lark, or of items that must differ, a copy of the matcher
is led by its masks, for a number of steps that is bounded: what closes comes first,
then what leaves least open. So the same text has the same ending everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property

from guided_plugin.grammar.base import MaskArray
from guided_plugin.grammar.llguidance.lark.ends import (
    CONTROL_BYTE,
    Shortest,
    control_text,
)
from guided_plugin.grammar.llguidance.lark.expected import Follower, Place
from guided_plugin.grammar.llguidance.lark.patterns import one_of_each
from guided_plugin.grammar.llguidance.lark.rules import RuleSet
from guided_plugin.grammar.llguidance.matcher import LLGuidanceMatcher
from guided_plugin.grammar.llguidance.tokenizer import Spelled, Spelling
from guided_plugin.spec.memo import ENTRY_BYTES, Latest

_FREE = 64
"""So many bytes are allowed next in a text that is free, as a JSON string is."""
_ORDER = b'}])>,:"0-ntf[{'
"""What is taken first where rules tell nothing: what closes, then what is short."""
_LAST = b"(\\"
_FEW = 12
"""So many bytes are all tried."""
_STEPS = 256
"""By which a matcher is led, at most. Chosen, not measured."""
_TOLD = 64
"""Endings that rules tell and that are tried at one place. On real schemas the first is
right at nine places of ten."""
_TOLD_BEHIND = 8
"""The same behind a token that may come next."""
MEMO_BYTES = 1 << 17
"""What is remembered for a grammar of one kind: spellings, endings."""
_CLIENT_REACH = 64
"""Bytes that one token may add to an ending, where rules are not known. Chosen, not
measured."""
_SLACK = 4
"""Tokens by which an ending may grow where two of its texts meet: a character may be
begun at any place."""


class Endings:
    """Finds endings of the outputs of one grammar."""

    def __init__(self, spelling: Spelling, rules: Shortest | bytes | None) -> None:
        """`rules`: of the grammar, with their shortest texts or packed; None for one
        that a client wrote in Lark."""
        self.spelling = spelling
        self._rules = rules
        self._spelled: Latest[bytes, Spelled] = Latest(MEMO_BYTES)
        self._told: Latest[tuple[Place, int | None], tuple[tuple[int, ...], ...]]
        self._told = Latest(MEMO_BYTES)

    @cached_property
    def shortest(self) -> Shortest | None:
        """What rules tell, where they are known."""
        if isinstance(self._rules, bytes):
            return Shortest(RuleSet.unpacked(self._rules))
        return self._rules

    @cached_property
    def follower(self) -> Follower | None:
        """Follows outputs. Made when the first output comes near its end."""
        return None if self.shortest is None else Follower(self.shortest)

    @property
    def most_growth(self) -> int:
        """A bound of `growth` that needs no spelling: no text has more tokens than
        bytes."""
        if self.shortest is None:
            return _SLACK + _CLIENT_REACH
        longest = len(max(self.shortest.choices, key=len, default=b""))
        most = self.spelling.brackets * longest
        return _SLACK + max(most, self.shortest.reach)

    @cached_property
    def growth(self) -> int:
        """How many tokens one token may add to the shortest ending, at most."""
        if self.shortest is None:
            return self.most_growth
        most = self.shortest.reach
        for text in self.shortest.choices:
            # A token of several brackets makes as many choices.
            times = self.spelling.brackets if text.startswith(b"[") else 1
            if times * len(text) > most:
                most = max(most, times * self.spelling.most_tokens(text))
        return _SLACK + most

    @cached_property
    def plain(self) -> dict[int, MaskArray]:
        """Tokens of free text that end none, by how many characters they have at
        most."""
        marks = "" if self.shortest is None else self.shortest.marks()
        return self.spelling.plain(marks)

    @cached_property
    def longest(self) -> float:
        """The most tokens that the shortest ending of any place may have."""
        text = None if self.shortest is None else self.shortest.longest
        if text is None or self.shortest is None:
            return math.inf
        return _SLACK + self.shortest.reach + self.spelling.most_tokens(text)

    def first(self, start: LLGuidanceMatcher) -> tuple[int, ...] | None:
        """The shortest output: as the rules tell it if that is one, else one that is
        found."""
        text = None if self.shortest is None else self.shortest.shortest()
        told = None if text is None else self.spelled(text).tokens()
        if told is not None and start.ends_with(told):
            return told
        return self.behind(start, self.start())

    def start(self) -> Place | None:
        """The place where an output begins, where rules tell it."""
        return None if self.follower is None else self.follower.start()

    def after(self, place: Place | None, text: bytes) -> Place | None:
        """The place behind a text."""
        if self.follower is None or place is None:
            return None
        return self.follower.after(place, text)

    def behind(
        self, matcher: LLGuidanceMatcher, place: Place | None
    ) -> tuple[int, ...] | None:
        """Tokens after which a stop token may come; None where none are known. The
        matcher stays where it is."""
        proven = self._proven(matcher, place)
        return self._led(matcher, place) if proven is None else proven

    def _proven(
        self, matcher: LLGuidanceMatcher, place: Place | None
    ) -> tuple[int, ...] | None:
        """An ending that rules tell and a matcher takes."""
        if matcher.complete:
            return ()
        return next(filter(matcher.ends_with, self.told(place)), None)

    def _led(
        self, at: LLGuidanceMatcher, place: Place | None
    ) -> tuple[int, ...] | None:
        """An ending to which masks lead, up to where rules tell it."""
        text = b""
        for _ in range(_STEPS):
            ahead: tuple[LLGuidanceMatcher, Place | None, bytes] | None = None
            for piece in self._pieces(at, place):
                moved = at.fork()
                if not _move(moved, piece):
                    continue
                after = self.after(place, piece)
                proven = self._proven(moved, after)
                if proven is not None:
                    rest = b"".join(map(self.spelling.text, proven))
                    return self.spelled(text + piece + rest).tokens()
                ahead = ahead or (moved, after, piece)
            if ahead is None:
                return None
            at, place, piece = ahead
            text += piece
        return None

    def _pieces(self, at: LLGuidanceMatcher, place: Place | None) -> list[bytes]:
        """What may come next, the most likely first."""
        row = at.row()
        allowed = self.spelling.bytes_in(row)
        found = [bytes([byte]) for byte in one_of_each(allowed, _FEW)]
        found.sort(key=lambda one: (_LAST.find(one), _ORDER.find(one) % 256))
        if b'"' in found and len(allowed) >= _FREE:
            found.insert(0, b'"')
        for tokens in self.told(place)[:1]:
            first = self.spelling.text(tokens[0])[:1]
            if first in found:
                found.insert(0, first)
        return [*map(control_text, self.spelling.controls_in(row)), *found]

    def told(
        self, place: Place | None, token: int | None = None
    ) -> tuple[tuple[int, ...], ...]:
        """Endings that rules tell of a place; of one that is a token further."""
        if self.follower is None or place is None:
            return ()
        key = place, token
        known = self._told.get(key)
        if known is None:
            if token is not None:
                place = self.follower.after(place, self.spelling.text(token))
            most = _TOLD if token is None else _TOLD_BEHIND
            known = tuple(self._tokens(self.follower.endings(place)[:most]))[::-1]
            size = ENTRY_BYTES + sum(64 + 8 * len(tokens) for tokens in known)
            self._told.put(key, known, size)
        return known

    def _tokens(self, texts: list[bytes]) -> Iterator[tuple[int, ...]]:
        """Texts in tokens, the last first: most are an end of a longer one."""
        whole = self.spelled(b"")
        for text in reversed(texts):
            if not whole.text.endswith(text):
                whole = self.spelled(text)
            tokens = whole.tokens(len(whole.text) - len(text))
            if tokens is not None:
                yield tokens

    def spelled(self, text: bytes) -> Spelled:
        """A text, and each end of it, in the fewest tokens."""
        spelled = self._spelled.get(text)
        if spelled is None:
            spelled = self.spelling.spelled(text)
            self._spelled.put(text, spelled, 2 * ENTRY_BYTES + 32 * len(text))
        return spelled


def _move(at: LLGuidanceMatcher, piece: bytes) -> bool:
    if piece[0] == CONTROL_BYTE:
        return at.accept(int(piece[1:-1]))
    return at.accept_text(piece)
