"""Masks that leave room for a valid end: `close_before_length`.

An output may have `room` tokens, its stop token among them. While the shortest ending of where it is, and
what one token may add to that, fit into the room that is left, masks are those of the grammar. Then a mask
keeps the tokens after which an ending still fits: each is tried, but for those of free text, which leave the
ending as it is. In the end that is the ending itself. Depends on endings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from guided_plugin.grammar.base import MaskArray
from guided_plugin.grammar.llguidance.endings import Endings, Piece
from guided_plugin.grammar.llguidance.matcher import LLGuidanceMatcher
from guided_plugin.spec.memo import ENTRY_BYTES, Latest

_SECONDS = 0.2
"""Of processor time for a search without which an output would be cut."""
_TRIAL_SECONDS = 0.002
"""For a token that may be kept, or not."""
_TRIED = 24
"""Tokens that are tried at one place where text is not free."""
_MEMO_BYTES = 1 << 20

Ending = tuple[int, ...]
"""Tokens after which a stop token may come."""


class ClosingRules:
    """What the outputs of one grammar share."""

    def __init__(self, endings: Endings, growth: int) -> None:
        self.endings = endings
        self.growth = growth
        """Tokens that one token may add to the shortest ending, at most."""
        self._known: Latest[tuple[int, Ending], Ending] = Latest(_MEMO_BYTES)
        """The ending after a token, by that and the ending before it."""

    def after(
        self, matcher: LLGuidanceMatcher, token: int, before: Ending | None, seconds: float, most: int
    ) -> Ending | None:
        """An ending, of `most` tokens if there is one, where a matcher has moved past a token; `before` is
        one from before that."""
        for ending in () if before is None else self._likely(token, before):
            if len(ending) <= most and matcher.ends_with(ending):
                return ending
        found = self.endings.shortest(matcher, seconds, most)
        if found is not None and before is not None:
            self._known.put((token, before), found, ENTRY_BYTES + 16 * (len(before) + len(found)))
        return found

    def _likely(self, token: int, before: Ending) -> Iterator[Ending]:
        known = self._known.get((token, before))
        if known is not None:
            yield known
        rest = self._rest(token, before)
        if rest is not None:
            yield rest
        if rest is None or len(rest) >= len(before):
            yield before

    def _rest(self, token: int, ending: Ending) -> Ending | None:
        """What is left of an ending after a token that begins it."""
        if ending[:1] == (token,):
            return ending[1:]
        tokens = self.endings.spelling.tokens
        text = tokens[token]
        pieces: list[Piece] = [tokens[one] or one for one in ending]
        begun = b""
        for taken, piece in enumerate(pieces, 1):
            if isinstance(piece, int):
                return None
            begun += piece
            if len(begun) > len(text):
                return (
                    self.endings.respelled([begun[len(text) :], *pieces[taken:]])
                    if begun.startswith(text)
                    else None
                )
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

    @property
    def mark(self) -> tuple[int, Ending | None, int]:
        """What `go_back` needs."""
        return self.due, self.ending, self.led

    def go_back(self, mark: tuple[int, Ending | None, int]) -> None:
        """Be as it was at a mark."""
        self.due, self.ending, self.led = mark

    def restrict(self, matcher: LLGuidanceMatcher, tokens: int, last: int, row: MaskArray) -> bool:
        """Take the tokens out of a mask after which no ending would fit. `tokens` are there, the `last` one
        of them given. False where no ending is known."""
        if tokens < self.due:
            return True
        left = self.room - tokens
        self.ending = ending = self.rules.after(matcher, last, self.ending, _SECONDS, left - 1)
        if ending is None:
            self.due = tokens + 1
            return False
        # One token is sampled now, and a stop token comes at the end.
        spare = left - len(ending) - 2
        if spare >= self.rules.growth:
            self.due = tokens + (spare - self.rules.growth) // (self.rules.growth + 1) + 1
            return True
        self.due = tokens  # the same mask may be filled again, where a step was planned and not sampled
        self.led += spare < 0
        self._keep(matcher, ending, left - 2, row)
        return True

    def _keep(self, matcher: LLGuidanceMatcher, ending: Ending, most: int, row: MaskArray) -> None:
        """Keep the tokens of a mask after which an ending of at most so many tokens is known."""
        spelling = self.rules.endings.spelling
        free = spelling.is_free(row)
        kept = [token for token in self.stops if _allows(row, token)]
        kept += [
            token for token in self._tried(ending, row, free) if self._fits(matcher, token, ending, most)
        ]
        if free and len(ending) <= most:
            row &= spelling.plain
        else:
            row[:] = 0
        for token in kept or ending[:1]:
            row.view("uint32")[token >> 5] |= 1 << (token & 31)

    def _tried(self, ending: Ending, row: MaskArray, free: bool) -> list[int]:
        """Tokens that may be kept: the ending's own, and those that begin another way."""
        spelling = self.rules.endings.spelling
        tried = dict.fromkeys([*ending[:1], *spelling.controls_in(row)])
        begun = b"".join(spelling.tokens[token] for token in ending[:4])
        for end in range(1, min(len(begun), 16) + 1):
            token = spelling.token(begun[:end])
            if token is not None and _allows(row, token):
                tried[token] = None
        singles = [spelling.single[byte] for byte in spelling.bytes_in(row)]
        if free:
            singles = [token for token in singles if not _allows(spelling.plain, token)]
        tried.update(dict.fromkeys(singles))
        return list(tried)[:_TRIED]

    def _fits(self, matcher: LLGuidanceMatcher, token: int, ending: Ending, most: int) -> bool:
        ahead = matcher.fork()
        if not ahead.accept(token):
            return False
        found = self.rules.after(ahead, token, ending, _TRIAL_SECONDS, most)
        return found is not None and len(found) <= most


def _allows(row: MaskArray, token: int) -> bool:
    return bool(row[token >> 5] >> (token & 31) & 1)
