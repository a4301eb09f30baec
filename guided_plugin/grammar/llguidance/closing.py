"""Masks that leave room for a valid end: `close_before_length`.

An output may have `room` tokens, its stop token among them. While the shortest ending
of where it is, and what one token may add to that, fit into the room that is left,
masks are those of the grammar. Then a mask keeps the tokens after which an ending still
fits: each is tried, but for those of free text, which leave the ending as it is. In the
end that is the ending itself. What is kept follows from the tokens of the output, not
from the time that it takes. Depends on endings.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from guided_plugin.grammar.base import MaskArray, allows, token_bit
from guided_plugin.grammar.llguidance.endings import TOLD_BEHIND, Endings, Moves
from guided_plugin.grammar.llguidance.lark.expected import Place
from guided_plugin.grammar.llguidance.matcher import LLGuidanceMatcher
from guided_plugin.grammar.llguidance.tokenizer import SIZES, Spelled

_TRIED = 16
"""Tokens that are tried at one place, besides those that spell the ending."""
_PROBES = 3
"""Tokens of free text that are tried: where these leave an ending as it is, the others
do."""
_DISTINCT = 2
"""Tokens that make a text a new one, where items must be distinct."""


def steps(spare: int, growth: int) -> int:
    """How many tokens may come before an output is looked at again whose ending leaves
    so many to spare, where each may add as many to it; 0: its mask is to be
    restricted."""
    return max(0, (spare + 1) // (growth + 1))


@dataclass(slots=True)
class Closing:
    """What is known of one output's end."""

    endings: Endings
    """Those of its grammar."""
    room: int
    """Tokens that it may have in all."""
    stops: tuple[int, ...]
    """Its stop tokens."""
    due: int = 0
    """After so many tokens it is looked at again."""
    ending: Spelled | None = None
    """The newest one that was found."""
    stays: bool = False
    """Whether tokens of free text leave that as it is."""
    led: int = 0
    """Tokens that had no other choice than to end."""
    missed: int = 0
    """How often no ending was found."""
    seen: int = 0
    """Constrained tokens that were there then."""
    place: Place | None = None
    unread: bytes = b""
    """Their text behind that place."""

    def copy(self) -> Closing:
        """The same, for a place to which its output may go back."""
        return replace(self)

    def restrict(
        self,
        matcher: LLGuidanceMatcher,
        count: int,
        tokens: Sequence[int],
        row: MaskArray,
    ) -> None:
        """Take the tokens out of a mask after which no ending would fit. So many tokens
        are there, of which these are constrained. Where no ending is known, none is
        taken out."""
        left = self.room - count
        # One token is sampled now, and a stop token comes at the end.
        if matcher.distinct is None:  # rules do not tell how long items are that differ
            spare = left - self.endings.longest - 2
            if spare >= 0:  # any ending fits
                self.due = count + int(spare) + 1
                return
        moves = Moves()
        self.ending = self._found(matcher, tokens[self.seen :], left - 1, moves)
        self.seen = len(tokens)
        if self.ending is None:
            self.missed += 1
            self.due = count + (1 << self.missed)
            return
        spare = left - len(self.ending) - 2
        # the same mask may be filled again, where a step was planned and not sampled
        self.due = count + steps(spare, self.endings.growth)
        if self.due == count:
            self._keep(matcher, self.ending, left - 2, row, moves)
            self.led += spare < 0

    def _found(
        self, matcher: LLGuidanceMatcher, new: Sequence[int], most: int, moves: Moves
    ) -> Spelled | None:
        """An ending behind new tokens, of at most so many if one is known."""
        endings = self.endings
        text = b"".join(map(endings.spelling.text, new))
        self.unread += text
        before = self.ending
        if before is not None:
            plain = endings.plain[SIZES[0]]
            stays = self.stays and all(allows(plain, token) for token in new)
            if stays and moves.proves(matcher, before):
                return before
            rest = before.behind(text)
            if rest is not None and len(rest) <= most:
                return rest
        self._read()
        found = endings.behind(matcher, self.place, moves, most)
        if found is None and before is not None and moves.proves(matcher, before):
            return before
        return found

    def _read(self) -> None:
        """Follow the output up to where it is."""
        if self.unread or self.place is None:
            self.place = self.endings.after(self.place, self.unread)
            self.unread = b""

    def _ends_behind(
        self,
        matcher: LLGuidanceMatcher,
        token: int,
        before: Spelled,
        most: int,
        moves: Moves,
    ) -> bool:
        """Whether an ending is known behind a token that may come next."""
        self._read()
        told = self.endings.told(self.place, TOLD_BEHIND, token)
        return any(
            len(ending) <= most and moves.proves(matcher, ending, (token,))
            for ending in itertools.chain((before,), told)
        )

    def _keep(
        self,
        matcher: LLGuidanceMatcher,
        ending: Spelled,
        most: int,
        row: MaskArray,
        moves: Moves,
    ) -> None:
        """Keep the tokens of a mask after which an ending of at most so many tokens is
        known."""
        spelling = self.endings.spelling
        plain = self.endings.plain
        kept = {*self.stops, *ending.begins(most)}
        tried = row
        spared = 0
        if spelling.is_free(row):
            tried = row & ~plain[1]
            spared = self._spared(matcher, ending, most, moves)
        others = spelling.controls_in(tried) + spelling.ascii_in(tried)
        for token in [token for token in others if token not in kept][:_TRIED]:
            if self._ends_behind(matcher, token, ending, most, moves):
                kept.add(token)
        kept = {token for token in kept if allows(row, token)}
        first = ending.tokens[:1]
        # where it begins with such a token, one less of them is needed
        self.stays = bool(spared) and not any(allows(plain[spared], t) for t in first)
        row &= plain[spared]
        for token in kept or first:
            row[token // 32] |= token_bit(token)

    def _spared(
        self, matcher: LLGuidanceMatcher, ending: Spelled, most: int, moves: Moves
    ) -> int:
        """Characters of the longest tokens of free text that may come before the
        ending; 0: none may."""
        probes = self.endings.spelling.probes[:_PROBES]
        # Of a name that may be any, other letters are another name. A text may become
        # one that was there.
        distinct = matcher.distinct is not None
        needed = len(ending) + _DISTINCT * distinct
        if not probes or needed > most:
            return 0
        if not all(moves.proves(matcher, ending, (one,)) for one in probes):
            return 0
        return next(
            size
            for size in SIZES[distinct:]
            if size == 1 or moves.proves(matcher, ending, probes[:1] * size)
        )
