"""Masks that leave room for a valid end: `close_before_length`.

An output may have `room` tokens, its stop token among them. While the shortest ending
of where it is, and what one token may add to that, fit into the room that is left,
masks are those of the grammar. Then a mask keeps the tokens after which an ending still
fits: each is tried, but for those of free text, which leave the ending as it is. While
they do, what was tried holds. In the end that is the ending itself. What is kept
follows from the tokens of the output, not from the time that it takes. Depends on
endings.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from guided_plugin.grammar.base import MaskArray, allows, token_bit
from guided_plugin.grammar.llguidance.endings import TOLD_BEHIND, Endings, Moves
from guided_plugin.grammar.llguidance.lark.expected import Place
from guided_plugin.grammar.llguidance.matcher import LLGuidanceMatcher
from guided_plugin.grammar.llguidance.tokenizer import NEVER, Spelled

_TRIED = 16
"""Tokens that are tried at one place, besides those that spell the ending."""
_PROBES = 3
"""Tokens of free text that are tried: where these leave an ending as it is, the others
do."""
_DISTINCT = 2
"""Tokens that make a text a new one, where items must be distinct."""


def steps(spare: int, growth: int) -> int:
    """Return the number of tokens that may come before an output is looked at again:
    its ending leaves `spare`, and each may add `growth` to it; 0: its mask is to be
    restricted."""
    return max(0, (spare + 1) // (growth + 1))


@dataclass(frozen=True, slots=True)
class Kept:
    """The restricted form of a mask, for equal masks as long as its ending stays."""

    of: MaskArray
    mask: MaskArray
    least: int
    """So many tokens must be allowed to follow."""


@dataclass(slots=True)
class Closing:
    """The knowledge about one output's end."""

    endings: Endings
    """The endings of its grammar."""
    room: int
    """Tokens that it may have in all."""
    stops: tuple[int, ...]
    """Its stop tokens."""
    due: int = 0
    """After so many tokens it is looked at again."""
    ending: Spelled | None = None
    """The newest one that was found."""
    kept: Kept | None = None
    """The last one that was kept."""
    led: int = 0
    """Tokens that had no other choice than to end."""
    missed: int = 0
    """The number of times no ending was found."""
    seen: int = 0
    """Constrained tokens that were there then."""
    place: Place | None = None
    unread: bytes = b""
    """Their text behind that place."""

    def copy(self) -> Closing:
        """Return a copy, for a place to which its output may go back."""
        return replace(self)

    def restrict(
        self,
        matcher: LLGuidanceMatcher,
        count: int,
        tokens: Sequence[int],
        row: MaskArray,
    ) -> None:
        """Take the tokens out of a mask after which no ending would fit. So many tokens
        are there, of which these are constrained. Where no ending is known that fits,
        none is taken out."""
        left = self.room - count
        # One token is sampled now, and a stop token comes at the end.
        if matcher.distinct is None:  # rules do not tell how long items are that differ
            spare = left - self.endings.longest - 2
            if spare >= 0:  # any ending fits
                self.due = count + int(spare) + 1
                return
        moves = Moves()
        free = self.endings.spelling.is_free(row)
        ending = self._found(matcher, tokens[self.seen :], left - 1, free, moves)
        if ending is not self.ending:
            self.kept = None
        self.ending = ending
        self.seen = len(tokens)
        if ending is None or len(ending) >= left:
            self.missed += 1
            self.due = count + (1 << self.missed)
            return
        most = left - 2
        spare = most - len(ending)
        # the same mask may be filled again, where a step was planned and not sampled
        self.due = count + steps(spare, self.endings.growth)
        if self.due == count:
            kept = self.kept
            if not (kept and most >= kept.least and np.array_equal(row, kept.of)):
                kept = self._look_behind(matcher, ending, most, row, free, moves)
            self.kept = kept
            row &= kept.mask
            self.led += spare < 0

    def _found(
        self,
        matcher: LLGuidanceMatcher,
        new: Sequence[int],
        most: int,
        free: bool,
        moves: Moves,
    ) -> Spelled | None:
        """An ending behind new tokens, of at most so many if one is known."""
        endings = self.endings
        text = endings.spelling.text(*new)
        self.unread += text
        before = self.ending
        if before is not None:
            if free and len(before) <= most:
                plain = endings.plain[max(endings.plain)]
                # One that begins with a character of the text needs fewer with each.
                stays = all(allows(plain, one) for one in new)
                stays = stays and not any(allows(plain, one) for one in before.begins)
                if stays and moves.proves(matcher, before):
                    return before
            rest = before.behind(text)
            if rest is not None and len(rest) <= most:
                return rest
        self._read()
        return endings.behind(matcher, self.place, moves, most)

    def _read(self) -> None:
        """Follow the output up to where it is."""
        if self.unread or self.place is None:
            self.place = self.endings.after(self.place, self.unread)
            self.unread = b""

    def _look_behind(
        self,
        matcher: LLGuidanceMatcher,
        ending: Spelled,
        most: int,
        row: MaskArray,
        free: bool,
        moves: Moves,
    ) -> Kept:
        """Keep the tokens of a mask after which an ending of at most so many tokens is
        known."""
        spelling = self.endings.spelling
        plain = self.endings.plain
        needed = {token: many for token, many in ending.begins.items() if many <= most}
        tried = row
        spared = 0
        if free:
            tried = row & ~plain[max(plain)]
            spared = self._spared(matcher, ending, most, moves)
        others: list[int] = []
        # What stands in place of several characters is no character.
        if len(ending) <= most or ending.sizes[ending.start : ending.start + 1] == [1]:
            others = [one for one in spelling.short_in(tried) if one not in needed]
        for token in others[:_TRIED]:
            many = self._needed_behind(matcher, token, ending, most, moves)
            if many is not None:
                needed[token] = many
        kept = plain[spared].copy()
        for token in (*needed, *self.stops):
            kept[token // 32] |= token_bit(token)
        least = max([len(ending) if spared else 0, *needed.values()])
        # What makes an item differ from others changes with each of its characters.
        least = least if matcher.distinct is None else NEVER
        return Kept(row.copy(), kept, least)

    def _needed_behind(
        self,
        matcher: LLGuidanceMatcher,
        token: int,
        before: Spelled,
        most: int,
        moves: Moves,
    ) -> int | None:
        """Return the length of a known ending behind a token that may come next."""
        endings = self.endings
        if len(before) <= most:
            self._read()
            told = endings.told(self.place, TOLD_BEHIND, token)
            known: Iterable[Spelled] = itertools.chain((before,), told)
        else:  # it may stand in place of the first one
            known = (before.behind_first,)
        for ending in known:
            if len(ending) <= most and moves.proves(matcher, ending, (token,)):
                return len(ending)
        return None

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
            for size in self.endings.plain
            if size <= 1 or moves.proves(matcher, ending, probes[:1] * size)
        )
