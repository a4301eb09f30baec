"""`ForcedTokens`: what must follow in an output, as the tokens that a model most likely
uses for it.

A grammar forces bytes, and a mask allows every spelling of them. The tokens here are
those that the tokenizer makes of such a text, found without the tokenizer: pairs of
pieces are merged, those with the lowest token id first. They are drafts: who verifies
them decides. Depends on the grammar protocols.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from guided_plugin.grammar.layout import SPACES
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.spec.memo import ENTRY_BYTES, Latest

DRAFTS = 7
"""Forced tokens that a forward pass verifies beside the newest one, unless a host has
another number."""

MOST_BYTES = 128
"""Bytes of forced text that are looked at: more than the drafts of a step."""

LOOK_SECONDS = 0.005
"""Processor time of a look for forced text: one that takes longer finds nothing. Two in
a row of four times as much are the last of their grammar, as all rows wait and an
ambiguous one may take seconds; a single one may be a garbage collection (0.27 s beside
PyTorch). The longest of 8,887 real ones took 2.5 ms."""

_MEMO_BYTES = 16 << 20
_END_BYTES = 128
"""The approximate size of an open end of a text, without its bytes."""

_WORDS = frozenset(
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
) | frozenset(range(128, 256))
_VALUES = (b":", b": ", b",", b", ", b"[", b"[ ")
"""The bytes that may stand before a value."""
_OPENINGS = tuple(before + b'"' for before in (*_VALUES, b"{", b"{ "))
"""The bytes that begin a text."""

_LAST_SPACE = re.compile(rb"(?<=[ \n]) (?=[^ \t\r\n])(?!^)")

_NEVER = 1 << 60


@dataclass(frozen=True, slots=True)
class _OpenEnd:
    """The end of a text whose tokens may become others, by what follows the text."""

    sure: int
    """The number of tokens before it: these stay."""
    following: list[int]
    """The bytes that make others of those behind it, as tokens."""


@dataclass(frozen=True, slots=True)
class _Spelling:
    """The tokens of a text."""

    tokens: tuple[int, ...]
    open_ends: list[_OpenEnd]
    """The one with the fewest tokens before it comes first."""


class ForcedTokens:
    """The tokens of forced text in one vocabulary. Used by one thread at a time."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._ids = ids_of(vocabulary)
        self._sorted = sorted(self._ids)
        self._spaces = {self._ids.get(bytes([byte])) for byte in SPACES}
        self._splits_spaces = vocabulary.kind != "byte_fallback" and b' "' in self._ids
        """True if its tokenizer has the last of several spaces begin what follows, as
        GPT's does."""
        self._known: dict[bytes, list[int]] = {}
        """The bytes that follow tokens."""
        self._spellings: Latest[bytes, _Spelling] = Latest(_MEMO_BYTES)

    def after(self, matcher: Any, most: int) -> tuple[int, ...]:
        """Up to `most` tokens that must follow; none where a matcher can't tell.

        The last ones are left out where what may well come next could make other tokens
        of them. Stop tokens and control tokens are never among them.
        """
        if not getattr(matcher, "forces", False):
            return ()
        begun = time.thread_time()
        return self.within(begun, matcher, matcher.forced(), most)

    def within(
        self,
        begun: float,
        matcher: Any,
        text: bytes,
        most: int,
        *,
        guessed: bool = False,
    ) -> tuple[int, ...]:
        """The tokens of a text that was looked for since `begun`, of
        `time.thread_time`; none if that took too long. `guessed`: its whitespace is all
        that is there."""
        tokens: tuple[int, ...] = ()
        if text and time.thread_time() - begun < LOOK_SECONDS:
            tokens = self.spelled(text[:MOST_BYTES], matcher, most, guessed=guessed)
        matcher.looked(long=time.thread_time() - begun > 4 * LOOK_SECONDS)
        return tokens

    def fits(self, matcher: Any, byte: int) -> bool:
        """True if a byte may follow."""
        token = self._ids.get(bytes([byte]))
        return token is not None and bool(matcher.fits([token]))

    def spelled(
        self, text: bytes, matcher: Any, most: int, *, guessed: bool = False
    ) -> tuple[int, ...]:
        """The first of a text's tokens, as far as they are the same whatever the
        matcher lets follow it. `guessed`: its whitespace is all that is there."""
        spelling = self._spellings.get(text)
        if spelling is None:
            spelling = self._spelling(text)
            size = ENTRY_BYTES + 16 * len(text)
            for end in spelling.open_ends:
                size += _END_BYTES + 8 * len(end.following)
            self._spellings.put(text, spelling, size)
        tokens = spelling.tokens
        if len(tokens) > most:
            return tokens[:most]
        for end in spelling.open_ends:
            for byte in end.following:
                if guessed and byte in self._spaces:
                    continue
                if matcher.fits([*tokens, byte]):
                    return tokens[: end.sure]
        return tokens

    def _spelling(self, text: bytes) -> _Spelling:
        pieces = self._pieces(text)
        tokens = [self._ids.get(piece, -1) for piece in pieces]
        if -1 in tokens:  # no token spells this byte alone
            return _Spelling(tuple(tokens[: max(tokens.index(-1) - 1, 0)]), [])
        # mostly a space between a key and its value
        whole = b":" + text if text.startswith(b" ") else text
        words_only = text[-1] in _WORDS or whole.endswith(_OPENINGS)
        before_value = whole.endswith(_VALUES)
        open_ends = list[_OpenEnd]()
        at = len(text)
        for sure in reversed(range(len(pieces))):
            at -= len(pieces[sure])
            longer = self._following(text[at:])
            if not longer and sure < len(pieces) - 1:
                # longer tokens are made of tokens that begin at the pieces behind, all
                # but a few
                break
            following = [
                self._ids[bytes([byte])]
                for byte in longer
                if (byte in _WORDS or not words_only)
                # few numbers are negative
                and not (before_value and byte == ord("-"))
            ]
            if following:
                open_ends.insert(0, _OpenEnd(sure, following))
        return _Spelling(tuple(tokens), open_ends)

    def _pieces(self, text: bytes) -> list[bytes]:
        """A text as byte pair encoding cuts it."""
        ids = self._ids
        if self._splits_spaces and (found := _LAST_SPACE.search(text)):
            return self._pieces(text[: found.start()]) + self._pieces(
                text[found.start() :]
            )
        starts = [*self._characters(text), len(text)]
        ranks = [
            ids.get(text[a:b], _NEVER) for a, b in zip(starts, starts[2:], strict=False)
        ]
        while ranks:
            best = min(ranks)
            if best == _NEVER:
                break
            at = ranks.index(best)
            del starts[at + 1]
            del ranks[at]
            if at < len(ranks):
                ranks[at] = ids.get(text[starts[at] : starts[at + 2]], _NEVER)
            if at:
                ranks[at - 1] = ids.get(text[starts[at - 1] : starts[at + 1]], _NEVER)
        return [text[a:b] for a, b in pairwise(starts)]

    def _characters(self, text: bytes) -> Iterator[int]:
        """Yield the places where pieces begin before any is merged: at the characters
        that are tokens, else at each byte."""
        at = 0
        while at < len(text):
            yield at
            first = text[at]
            width = 1 + (first >= 0xC0) + (first >= 0xE0) + (first >= 0xF0)
            at += width if text[at : at + width] in self._ids else 1

    def _following(self, head: bytes) -> list[int]:
        """The bytes that make a longer token of these when they follow, of those that
        are tokens."""
        known = self._known.get(head)
        if known is not None:
            return known
        first = bisect_left(self._sorted, head + b"\0")
        last = bisect_left(self._sorted, head + b"\xff\xff", first)
        found = {token[len(head)] for token in self._sorted[first:last]}
        following = [byte for byte in sorted(found) if bytes([byte]) in self._ids]
        if head in self._ids:
            self._known[head] = following
        return following


def ids_of(vocabulary: Vocabulary) -> dict[bytes, int]:
    """The token of each text. A single byte has the last of its tokens: SentencePiece
    lists the tokens of bytes that are no character first."""
    ids: dict[bytes, int] = {}
    for token, text in enumerate(vocabulary.text_tokens):
        if text and (len(text) == 1 or text not in ids):
            ids[text] = token
    return ids
