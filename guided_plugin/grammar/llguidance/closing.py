"""Masks that leave room for a valid end: `close_before_length`.

An output may have `room` tokens, its stop token among them. While the shortest ending
of where it is, and what one token may add to that, fit into the room that is left,
masks are those of the grammar. Then a mask keeps the tokens after which an ending still
fits: each is tried, but for those of free text, which leave the ending as it is. In the
end that is the ending itself. Depends on endings.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from guided_plugin.grammar.base import MaskArray
from guided_plugin.grammar.llguidance.endings import MEMO_BYTES, Endings, Piece
from guided_plugin.grammar.llguidance.matcher import LLGuidanceMatcher
from guided_plugin.grammar.llguidance.tokenizer import SIZES
from guided_plugin.spec.memo import ENTRY_BYTES, Latest

_SECONDS = 0.2
"""Of processor time for a search without which an output would be cut."""
_LOST_SECONDS = 1.0
"""For searches of all outputs of a grammar that find nothing: other requests wait for
them."""
_TRIAL_SECONDS = 0.002
"""For one that only keeps more tokens. Half of them take 0.2 ms."""
_TRIED = 16
"""Tokens that are tried at one place, besides those that spell the ending."""
_PROBES = 3
"""Tokens of free text that are tried: where these leave an ending as it is, the others
do."""
_DISTINCT = 2
"""Tokens that make a text a new one, where items must be distinct."""
_RESPELLED = 2
"""Tokens behind a cut that are spelled again with it. Chosen; all of them took 1.6 ms a
step of 256 rows."""
_NEAR = 8
"""Steps until it is looked at again: an output that may go on for more is never led.
Chosen: searches of 13 ms, the longest that were seen often, take 2 ms of a step
then."""
_TAIL = 40
"""Tokens of an ending that was known, of which each last part is tried. Chosen: real
shortest outputs have 15 to 35."""
Ending = tuple[int, ...]
"""Tokens after which a stop token may come."""


@dataclass(slots=True)
class _Place:
    """Where outputs have the same ending and the same bytes may come next."""

    own: list[tuple[int, int]]
    """Tokens that begin the ending, and how long its rest is."""
    others: list[tuple[int, Ending]] = field(default_factory=list)
    """Tokens with an ending behind each that fitted: whether it does is looked at
    again."""
    untried: list[int] = field(default_factory=list)


class ClosingRules:
    """What the outputs of one grammar share."""

    def __init__(
        self, endings: Endings, growth: int, first: Ending, marks: str
    ) -> None:
        """`first`: the ending of an output that has not begun. `marks`: what may end a
        free text."""
        self.endings = endings
        self.plain = endings.spelling.plain(marks)
        self.growth = growth
        """Tokens that one token may add to the shortest ending, at most."""
        self.longest = endings.longest
        self._first = first
        self._lost = 0.0
        """Seconds of searches that found nothing."""
        self._known: Latest[tuple[int, Ending], Ending] = Latest(MEMO_BYTES)
        """The ending that was found after a token, by that and the ending before it."""
        self._places: Latest[tuple[bytes, Ending], _Place] = Latest(MEMO_BYTES)

    def after(
        self,
        matcher: LLGuidanceMatcher,
        token: int,
        before: Ending | None,
        sizes: tuple[int, int],
        until: float,
    ) -> Ending | None:
        """An ending, where a matcher has moved past a token; `before` is one from
        before that. The shortest that is found `until` then, or one that is short
        enough; a long search has one that is needed: these are the `sizes`."""
        enough, needed = sizes
        if token < 0:
            before = self._first
        if before is not None:
            for ending in self._likely(token, before):
                if len(ending) <= needed and matcher.ends_with(ending):
                    return ending
        tail = self._tail(matcher, before or self._first)
        if tail is not None and len(tail) <= enough:
            return tail
        if self._lost > _LOST_SECONDS:
            return None
        start = time.thread_time()
        found = self.endings.shortest(
            matcher, _SECONDS, enough=enough, needed=needed, until=until
        )
        if found is not None:
            self._remember(token, before, found)
        else:
            self._lost += time.thread_time() - start
        return found

    def _tail(self, matcher: LLGuidanceMatcher, ending: Ending) -> Ending | None:
        """The shortest part at the end of an ending's text that ends the output."""
        spelling = self.endings.spelling
        texts = [spelling.tokens[token] for token in ending[-_TAIL:]]
        text = b"".join(texts)
        if not all(texts) or not spelling.single.keys() >= {*text}:
            return None
        singles = [spelling.single[byte] for byte in text]
        for start in range(len(text), -1, -1):
            if matcher.ends_with(singles[start:]):
                return self.endings.spelled([text[start:]])
        return None

    def kept(
        self,
        matcher: LLGuidanceMatcher,
        ending: Ending,
        most: int,
        row: MaskArray,
        until: float,
    ) -> tuple[list[int], bool]:
        """Tokens of a mask after which an ending of at most so many tokens is known.
        `until` that moment of `time.thread_time` others are looked at than those that
        begin the ending; whether there was no time for any of them."""
        key = self.endings.spelling.signature(row), ending
        place = self._places.get(key)
        if place is None:
            place = self._place(ending, row)
            self._places.put(
                key, place, ENTRY_BYTES + 16 * (len(ending) + 8 * len(place.untried))
            )
        own = [token for token, size in place.own if size <= most]
        others = list[int]()
        for token, after in place.others:
            if time.thread_time() > until:
                return own + others, not others
            if len(after) <= most and matcher.ends_with((token, *after)):
                others.append(token)
        # Where no token is spare, another way would have to be as short: no search is
        # worth its time then.
        while place.untried and len(ending) <= most and time.thread_time() < until:
            token = place.untried.pop()
            found = self._tried(matcher, token, ending, most)
            if found is None:
                continue
            place.others.append((token, found))
            if len(found) <= most:
                others.append(token)
        return own + others, bool(place.untried) and len(ending) <= most and not others

    def _tried(
        self, matcher: LLGuidanceMatcher, token: int, before: Ending, most: int
    ) -> Ending | None:
        """An ending behind a token that may come next."""
        for ending in self._likely(token, before):
            if matcher.ends_with((token, *ending)):
                return ending
        ahead = matcher.fork()
        if not ahead.accept(token):
            return None
        found = self.endings.shortest(
            ahead, _TRIAL_SECONDS, enough=len(before), needed=most
        )
        if found is not None:
            self._remember(token, before, found)
        return found

    def _place(self, ending: Ending, row: MaskArray) -> _Place:
        """What is known of a place at first: the tokens that spell the ending, in any
        way."""
        spelling = self.endings.spelling
        begun = b"".join(spelling.tokens[token] for token in ending[:4])
        own: dict[int, int] = {token: len(ending) - 1 for token in ending[:1]}
        for end in range(1, min(len(begun), 16) + 1):
            token = spelling.ids.get(begun[:end])
            if token is not None and token not in own and _allows(row, token):
                rest = self._rest(token, ending)
                if rest is not None:
                    own[token] = len(rest)
        others = dict.fromkeys(
            [*spelling.controls_in(row), *spelling.singles_in(row, self.plain[1])]
        )
        untried = [token for token in others if token not in own][:_TRIED]
        return _Place(list(own.items()), untried=untried[::-1])

    def _remember(self, token: int, before: Ending | None, found: Ending) -> None:
        if before is not None:
            self._known.put(
                (token, before), found, ENTRY_BYTES + 16 * (len(before) + len(found))
            )

    def _likely(self, token: int, before: Ending) -> Iterator[Ending]:
        """Endings that may fit behind a token."""
        known = self._known.get((token, before))
        if known is not None:
            yield known
        rest = self._rest(token, before) if token >= 0 else before
        if rest is not None:
            yield rest
        yield before[1:]  # another value in place of a short one
        yield before

    def _rest(self, token: int, ending: Ending) -> Ending | None:
        """What is left of an ending after a token that begins it."""
        if ending[:1] == (token,):
            return ending[1:]
        tokens = self.endings.spelling.tokens
        text = tokens[token]
        begun = b""
        for taken, one in enumerate(ending, 1):
            if not tokens[one]:
                return None
            begun += tokens[one]
            if len(begun) >= len(text):
                if not begun.startswith(text):
                    return None
                # Spelled again where it was cut: what comes later is spelled well
                # already.
                end = taken + _RESPELLED
                cut: list[Piece] = [
                    begun[len(text) :],
                    *(tokens[each] or each for each in ending[taken:end]),
                ]
                rest = self.endings.spelled(cut)
                return None if rest is None else rest + ending[end:]
            if not text.startswith(begun):
                return None
        return None


@dataclass(slots=True)
class Closing:
    """What is known of one output's end."""

    rules: ClosingRules
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
    text: int = 0
    """Characters of the longest tokens of plain text in the last mask: they leave the
    ending as it is."""
    looked: int = 0
    """With so many tokens it was looked at last."""
    owed: float = 0.0
    """Seconds of searches for endings beyond its part of the steps so far. Where the
    steps that are left can't pay them it is led, for which no search is necessary."""

    @property
    def mark(self) -> tuple[int, Ending | None, int, int, int]:
        """What `go_back` needs. Time that was spent stays spent."""
        return self.due, self.ending, self.led, self.missed, self.looked

    def go_back(self, mark: tuple[int, Ending | None, int, int, int]) -> None:
        """Be as it was at a mark."""
        self.due, self.ending, self.led, self.missed, self.looked = mark
        self.text = 0

    def restrict(
        self,
        matcher: LLGuidanceMatcher,
        tokens: int,
        last: int,
        row: MaskArray,
        until: float,
        part: float,
    ) -> None:
        """Take the tokens out of a mask after which no ending would fit. `tokens` are
        there, the `last` one of them given. Where no ending is known, none is taken
        out. `until`: of `time.thread_time`, for searches that only leave more choice;
        `part`: seconds of each step for those without which it would be cut."""
        left = self.room - tokens
        # One token is sampled now, and a stop token comes at the end.
        spare = left - self.rules.longest - 2
        if spare >= 0:  # any ending fits
            self.due = tokens + int(spare) + 1
            return
        growth = self.rules.growth
        self.owed = max(0.0, self.owed - part * (tokens - self.looked))
        self.due = tokens + 1
        self.looked = tokens
        ending = self.ending
        probes = self.rules.endings.spelling.probes
        goes_on = self.text and last >= 0
        self.text = 0
        # one is tried, in turn, in place of all
        if goes_on and _allows(self.rules.plain[max(SIZES)], last):
            self.text = self._spared(
                matcher, left - 2, row, probes[left % min(_PROBES, len(probes)) :][:1]
            )
        if not self.text:
            sizes = (left - 2 - growth, left - 1)
            begun = time.thread_time()
            self.ending = ending = self.rules.after(matcher, last, ending, sizes, until)
            self.owed += time.thread_time() - begun
        if ending is None:
            self.missed += 1
            self.due = tokens + (1 << self.missed)
            return
        spare = left - len(ending) - 2
        owes = self.owed > part * left
        steps = (spare - growth) // (growth + 1)
        if spare >= growth and (not owes or steps > _NEAR):
            self.due += steps
            return
        # the same mask may be filled again, where a step was planned and not sampled
        self.due = tokens
        chose = self._keep(matcher, ending, left - 2, row, 0.0 if owes else until)
        self.led += not chose or spare < 0

    def _spared(
        self, matcher: LLGuidanceMatcher, most: int, row: MaskArray, probes: list[int]
    ) -> int:
        """Characters of the longest tokens of free text that may come before the
        ending; 0: none may."""
        # Of a name that may be any, other letters are another name. A text may become
        # one that was there.
        ending = self.ending or ()
        sizes = SIZES if matcher.distinct is None else SIZES[1:]
        needed = len(ending) + (0 if matcher.distinct is None else _DISTINCT)
        if not probes or needed > most or not self.rules.endings.spelling.is_free(row):
            return 0
        if not all(matcher.ends_with((one, *ending)) for one in probes):
            return 0
        return next(
            size
            for size in sizes
            if size == 1 or matcher.ends_with(probes[:1] * size + [*ending])
        )

    def _keep(
        self,
        matcher: LLGuidanceMatcher,
        ending: Ending,
        most: int,
        row: MaskArray,
        until: float,
    ) -> bool:
        """Keep the tokens of a mask after which an ending of at most so many tokens is
        known. Whether there was time for others than those that begin the ending."""
        kept = [token for token in self.stops if _allows(row, token)]
        more, late = self.rules.kept(matcher, ending, most, row, until)
        kept += more
        self.text = self.text or self._spared(
            matcher, most, row, self.rules.endings.spelling.probes[:_PROBES]
        )
        row &= self.rules.plain[self.text]
        words = row.view("uint32")
        for token in kept or ending[:1]:
            words[token >> 5] |= 1 << (token & 31)
        return bool(self.text) or not late


def _allows(row: MaskArray, token: int) -> bool:
    return bool(row[token >> 5] >> (token & 31) & 1)
