"""Ends of the outputs of one grammar. Depends on the matcher, the vocabulary and what
rules tell of ends.

Rules tell the ending of a place; a matcher proves it. Where they tell none, as of a
grammar that a client wrote in Lark, or of items that must differ, a copy of the matcher
is led by its masks, for a number of steps that is bounded: what closes comes first,
then what leaves least open. So the same text has the same ending everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
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
from guided_plugin.grammar.llguidance.tokenizer import Spelling
from guided_plugin.spec.memo import ENTRY_BYTES, Latest

_FREE = 64
"""So many bytes are allowed next in a text that is free, as a JSON string is."""
_ORDER = b'}])>,:"0-ntf[{'
"""What is taken first where rules tell nothing: what closes, then what is short."""
_LAST = b"(\\"
_FEW = 12
"""So many bytes are all tried."""
_MOVES = 3_000
"""Of copies of a matcher, at most, while one is led to an end: a count and no clock, so
that the same text has the same end on every machine. Ten distinct strings took 1,746."""
TOLD = 64
"""Endings that rules tell and that are tried at one place. On real schemas the first is
right at nine places of ten."""
TOLD_BEHIND = 8
"""The same behind a token that may come next, and where items must be distinct."""
_SPELLED = 1_000
"""Tokens of endings behind a move that count as one more: each byte takes 1 us, a move
0.1 ms."""
MEMO_BYTES = 1 << 17
"""Of the endings that are remembered for a grammar."""
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
        self._told: Latest[tuple[Place, int | None, int], tuple[tuple[int, ...], ...]]
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

    def growth_in(self, tokens: Callable[[bytes], int]) -> int:
        """How many tokens one token may add to the shortest ending, at most. `tokens`:
        how many a text takes; `len` is a bound that needs no spelling."""
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
        """The same in tokens of the vocabulary."""
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

    def first(self, start: LLGuidanceMatcher) -> tuple[int, ...] | None:
        """The shortest output: as the rules tell it if that is one, else one that is
        found."""
        text = None if self.shortest is None else self.shortest.shortest()
        told = None if text is None else self.spelling.spelled(text).tokens()
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
        return self.led(matcher, place) if proven is None else proven

    def _proven(
        self, matcher: LLGuidanceMatcher, place: Place | None, most: int = TOLD
    ) -> tuple[int, ...] | None:
        """An ending that rules tell and a matcher takes, of so many at most."""
        if matcher.complete:
            return ()
        return next(filter(matcher.ends_with, self.told(place, most)), None)

    def led(self, at: LLGuidanceMatcher, place: Place | None) -> tuple[int, ...] | None:
        """An ending to which masks lead, up to where rules tell it."""
        # Most of those that rules tell repeat an item.
        most = TOLD if at.distinct is None else TOLD_BEHIND
        text = b""
        moves = 0
        while True:
            ahead: tuple[LLGuidanceMatcher, Place | None, bytes] | None = None
            rest = next(iter(self.told(place, 1)), ())
            for piece in self._pieces(at, rest):
                moves += 1 + most * len(rest) // _SPELLED
                if moves > _MOVES:
                    return None
                moved = at.fork()
                if not (
                    moved.accept(int(piece[1:-1]))
                    if piece[0] == CONTROL_BYTE
                    else moved.accept_text(piece)
                ):
                    continue
                after = self.after(place, piece)
                proven = self._proven(moved, after, most)
                if proven is not None:
                    end = b"".join(map(self.spelling.text, proven))
                    return self.spelling.spelled(text + piece + end).tokens()
                ahead = ahead or (moved, after, piece)
            if not ahead:
                return None
            at, place, piece = ahead
            text += piece

    def _pieces(self, at: LLGuidanceMatcher, rest: Sequence[int]) -> list[bytes]:
        """What may come next, the most likely first. `rest`: an ending that rules
        tell."""
        row = at.row()
        allowed = self.spelling.bytes_in(row)
        found = [bytes([byte]) for byte in one_of_each(allowed, _FEW)]
        found.sort(key=lambda one: (_LAST.find(one), _ORDER.find(one) % 256))
        if b'"' in found and len(allowed) >= _FREE:
            found.insert(0, b'"')
        first = self.spelling.text(rest[0])[:1] if rest else b""
        if first in found:
            found.insert(0, first)
        return [*map(control_text, self.spelling.controls_in(row)), *found]

    def told(
        self, place: Place | None, most: int, token: int | None = None
    ) -> tuple[tuple[int, ...], ...]:
        """So many endings, at most, that rules tell of a place; of one that is a token
        further."""
        if self.follower is None or place is None:
            return ()
        key = place, token, most
        known = self._told.get(key)
        if known is None:
            if token is not None:
                place = self.follower.after(place, self.spelling.text(token))
            known = tuple(self._tokens(self.follower.endings(place)[:most]))[::-1]
            size = ENTRY_BYTES + sum(64 + 8 * len(tokens) for tokens in known)
            self._told.put(key, known, size)
        return known

    def _tokens(self, texts: list[bytes]) -> Iterator[tuple[int, ...]]:
        """Texts in tokens, the last first: most are an end of a longer one."""
        whole = self.spelling.spelled(b"")
        for text in reversed(texts):
            if not whole.text.endswith(text):
                whole = self.spelling.spelled(text)
            tokens = whole.tokens(len(whole.text) - len(text))
            if tokens is not None:
                yield tokens
