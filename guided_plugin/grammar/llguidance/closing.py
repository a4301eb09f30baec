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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from guided_plugin.grammar.base import MaskArray
from guided_plugin.grammar.llguidance.endings import TOLD, TOLD_BEHIND, Endings
from guided_plugin.grammar.llguidance.lark.expected import Place
from guided_plugin.grammar.llguidance.matcher import LLGuidanceMatcher
from guided_plugin.grammar.llguidance.tokenizer import SIZES

_TRIED = 16
"""Tokens that are tried at one place, besides those that spell the ending."""
_ENDINGS = 8
"""Endings that are tried behind one of them."""
_PROBES = 3
"""Tokens of free text that are tried: where these leave an ending as it is, the others
do."""
_DISTINCT = 2
"""Tokens that make a text a new one, where items must be distinct."""
_OWN = 16
"""Bytes of the longest token that begins an ending."""
Ending = tuple[int, ...]
"""Tokens after which a stop token may come."""


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
    ending: Ending | None = None
    """The newest one that was found."""
    led: int = 0
    """Tokens that had no other choice than to end."""
    missed: int = 0
    """How often no ending was found."""
    place: Place | None = None
    followed: int = 0
    """Constrained tokens up to that place."""

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
        endings = self.endings
        # One token is sampled now, and a stop token comes at the end.
        if matcher.distinct is None:  # rules do not tell how long items are that differ
            spare = left - endings.longest - 2
            if spare >= 0:  # any ending fits
                self.due = count + int(spare) + 1
                return
        if not self.followed:
            self.place = endings.start()
        new = map(endings.spelling.text, tokens[self.followed :])
        self.place = endings.after(self.place, b"".join(new))
        self.followed = len(tokens)
        last = tokens[-1] if tokens else 0  # where it has not begun, any will do
        self.ending = self._found(matcher, last, left - 1)
        if self.ending is None:
            self.missed += 1
            self.due = count + (1 << self.missed)
            return
        spare = left - len(self.ending) - 2
        # the same mask may be filled again, where a step was planned and not sampled
        self.due = count + steps(spare, endings.growth)
        if self.due == count:
            self._keep(matcher, self.ending, left - 2, row)
            self.led += spare < 0

    def _found(self, matcher: LLGuidanceMatcher, last: int, most: int) -> Ending | None:
        """An ending, of at most so many tokens if one is known. `last`: the token behind
        the ending that was found before."""
        if matcher.complete:
            return ()
        before = self.ending
        likely = () if before is None else self._likely(last, before)
        told = self.endings.told(self.place, TOLD)
        proven = filter(matcher.ends_with, itertools.chain(told, likely))
        found: list[Ending] = []
        for ending in itertools.islice(proven, _ENDINGS):
            if len(ending) <= most:
                return ending
            found.append(ending)
        if found:
            return min(found, key=len)
        return self.endings.led(matcher, self.place)

    def _kept(
        self, matcher: LLGuidanceMatcher, ending: Ending, most: int, row: MaskArray
    ) -> list[int]:
        """Tokens of a mask after which an ending of at most so many tokens is known."""
        own = [token for token in self._own(ending, most) if _allows(row, token)]
        spelling = self.endings.spelling
        tried = spelling.controls_in(row)
        tried += spelling.singles_in(row, self.endings.plain[1])
        others = [token for token in tried if token not in own][:_TRIED]
        return own + [
            token for token in others if self._ends_behind(matcher, token, ending, most)
        ]

    def _ends_behind(
        self, matcher: LLGuidanceMatcher, token: int, before: Ending, most: int
    ) -> bool:
        """Whether an ending is known behind a token that may come next."""
        told: Iterable[Ending] = self.endings.told(self.place, TOLD_BEHIND, token)
        if self.place is None or matcher.distinct is not None:
            told = itertools.chain(told, self._likely(token, before))
        return any(
            len(ending) <= most and matcher.ends_with((token, *ending))
            for ending in told
        )

    def _own(self, ending: Ending, most: int) -> Iterator[int]:
        """The tokens that begin the text of an ending, where its rest is no longer."""
        text = b"".join(map(self.endings.spelling.text, ending))
        spelled = self.endings.spelling.spelled(text)
        yield from ending[:1]
        for end in range(1, min(len(text), _OWN) + 1):
            token = self.endings.spelling.ids.get(text[:end])
            if token is not None and spelled.counts[end] <= most:
                yield token

    def _likely(self, token: int, before: Ending) -> Iterator[Ending]:
        """Endings that may fit behind a token, as one fitted before it."""
        text = b"".join(map(self.endings.spelling.text, before))
        begun = self.endings.spelling.text(token)
        if text.startswith(begun):
            rest = self.endings.spelling.spelled(text[len(begun) :]).tokens()
            if rest is not None:
                yield rest
        yield before

    def _keep(
        self, matcher: LLGuidanceMatcher, ending: Ending, most: int, row: MaskArray
    ) -> None:
        """Keep the tokens of a mask after which an ending of at most so many tokens is
        known."""
        kept = [token for token in self.stops if _allows(row, token)]
        kept += self._kept(matcher, ending, most, row)
        row &= self.endings.plain[self._spared(matcher, ending, most, row)]
        words = row.view("uint32")
        for token in kept or ending[:1]:
            words[token >> 5] |= 1 << (token & 31)

    def _spared(
        self, matcher: LLGuidanceMatcher, ending: Ending, most: int, row: MaskArray
    ) -> int:
        """Characters of the longest tokens of free text that may come before the
        ending; 0: none may."""
        spelling = self.endings.spelling
        probes = spelling.probes[:_PROBES]
        # Of a name that may be any, other letters are another name. A text may become
        # one that was there.
        sizes = SIZES if matcher.distinct is None else SIZES[1:]
        needed = len(ending) + (0 if matcher.distinct is None else _DISTINCT)
        if not probes or needed > most or not spelling.is_free(row):
            return 0
        if not all(matcher.ends_with((one, *ending)) for one in probes):
            return 0
        return next(
            size
            for size in sizes
            if size == 1 or matcher.ends_with(probes[:1] * size + [*ending])
        )


def _allows(row: MaskArray, token: int) -> bool:
    return bool(row[token >> 5] >> (token & 31) & 1)
