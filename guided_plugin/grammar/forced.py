"""`ForcedTokens`: what must follow in an output, as the tokens that a model most likely uses for it.

A grammar forces bytes, and a mask allows every spelling of them. The tokens here are those that the tokenizer
makes of such a text, found without the tokenizer: pairs of pieces are merged, those with the lowest token id
first. They are drafts: who verifies them decides. Depends on the grammar protocols.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Any

from guided_plugin.grammar.batches import RunningRequest
from guided_plugin.grammar.request_state import Phase
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.spec.memo import ENTRY_BYTES, Latest

DRAFTS = 7
"""Forced tokens that a forward pass verifies beside the newest one, unless a host has another number."""

_LONGEST = 128
"""Bytes of forced text that are looked at: more than the drafts of a step."""

_MEMO_BYTES = 16 << 20
_END_BYTES = 64
"""What an open end of a run takes, about."""

_WORDS = frozenset(b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") | frozenset(
    range(128, 256)
)
_MARKS = frozenset(range(32, 127)) - _WORDS
_OPENING = tuple(before + space + b'"' for before in (b":", b",", b"[", b"{") for space in (b"", b" "))

_NEVER = 1 << 60


@dataclass(frozen=True, slots=True)
class _Run:
    """The tokens of a forced text."""

    tokens: tuple[int, ...]
    open_ends: tuple[tuple[int, int], ...]
    """So many of them are sure, where such a byte may follow, as a token: the fewest first."""


_NOTHING = _Run((), ())


class ForcedTokens:
    """Of the requests of one vocabulary. Used by one thread at a time."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._ids = _ids_of(vocabulary)
        self._sorted = sorted(self._ids)
        self._known: dict[bytes, frozenset[int]] = {}
        """What follows tokens."""
        self._runs: Latest[bytes, _Run] = Latest(_MEMO_BYTES)

    def after(self, request: RunningRequest, most: int) -> tuple[int, ...]:
        """Up to `most` tokens that must follow those of a request; none where its matcher can't tell.

        The last ones are left out where what may come next could make other tokens of them. Stop tokens and
        control tokens are never among them.
        """
        return self.behind(request.matcher, most) if request.state.phase is Phase.ACTIVE else ()

    def behind(self, matcher: Any, most: int) -> tuple[int, ...]:
        """The same of a matcher."""
        if not hasattr(matcher, "forced"):
            return ()
        text = matcher.forced()[:_LONGEST]
        run = self._runs.get(text) if text else _NOTHING
        if run is None:
            run = self._run(text)
            self._runs.put(text, run, ENTRY_BYTES + 16 * len(text) + _END_BYTES * len(run.open_ends))
        if len(run.tokens) > most:
            return run.tokens[:most]
        for sure, byte in run.open_ends:
            if matcher.fits([*run.tokens, byte]):
                return run.tokens[:sure]
        return run.tokens

    def _run(self, text: bytes) -> _Run:
        pieces = self._pieces(text)
        tokens = tuple(takewhile(lambda token: token >= 0, (self._ids.get(piece, -1) for piece in pieces)))
        if len(tokens) < len(pieces):  # no token spells this byte alone
            return _Run(tokens[:-1], ())
        words_only = text[-1] in _WORDS or text.endswith(_OPENING)
        ends: list[tuple[int, int]] = []
        at = 0
        for sure, piece in enumerate(pieces):
            following = self._following(text[at:])
            next_bytes = map(self._ids.get, (bytes([b]) for b in following if b in _WORDS or not words_only))
            ends += [(sure, token) for token in next_bytes if token is not None]
            at += len(piece)
        return _Run(tokens, tuple(ends))

    def _pieces(self, text: bytes) -> list[bytes]:
        """A text as byte pair encoding cuts it."""
        ids = self._ids
        starts = [*(range(len(text)) if text.isascii() else self._characters(text)), len(text)]
        ranks = [ids.get(text[a:b], _NEVER) for a, b in zip(starts, starts[2:], strict=False)]
        while ranks:
            best = min(ranks)
            if best == _NEVER:
                break
            at = ranks.index(best)
            del starts[at + 1], ranks[at]
            if at < len(ranks):
                ranks[at] = ids.get(text[starts[at] : starts[at + 2]], _NEVER)
            if at:
                ranks[at - 1] = ids.get(text[starts[at - 1] : starts[at + 1]], _NEVER)
        return [text[a:b] for a, b in pairwise(starts)]

    def _characters(self, text: bytes) -> Iterator[int]:
        """Where pieces begin before any is merged: at the characters that are tokens, else at each byte."""
        at = 0
        while at < len(text):
            yield at
            width = 1 if text[at] < 0xC0 else 2 if text[at] < 0xE0 else 3 if text[at] < 0xF0 else 4
            at += width if text[at : at + width] in self._ids else 1

    def _following(self, head: bytes) -> frozenset[int]:
        """The bytes that make other tokens of these when they follow."""
        known = self._known.get(head)
        if known is not None:
            return known
        first = bisect_left(self._sorted, head + b"\0")
        last = bisect_left(self._sorted, head + b"\xff\xff", first)
        found = {token[len(head)] for token in self._sorted[first:last]}
        if head in self._ids:
            if head[-1] not in _WORDS:
                found.update(byte for byte in _MARKS if self._splits(head, bytes([byte])))
            self._known[head] = frozenset(found)
        return frozenset(found)

    def _splits(self, token: bytes, byte: bytes) -> bool:
        """Whether the end of a token is merged with a byte before the token itself is."""
        ends = (token[at:] + byte in self._ids for at in range(1, len(token)))
        return any(ends) and self._pieces(token + byte)[0] != token


def _ids_of(vocabulary: Vocabulary) -> dict[bytes, int]:
    """The token of each text. Of a single byte it is the last: SentencePiece has those of bytes that are no
    character first."""
    ids: dict[bytes, int] = {}
    for token, text in enumerate(vocabulary.text_tokens):
        if text and (len(text) == 1 or text not in ids):
            ids[text] = token
    return ids
