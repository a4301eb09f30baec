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

from guided_plugin.grammar.batches import RunningRequest
from guided_plugin.grammar.layout import SPACES, OutputLayout
from guided_plugin.grammar.request_state import Phase
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.spec.memo import ENTRY_BYTES, Latest

DRAFTS = 7
"""Forced tokens that a forward pass verifies beside the newest one, unless a host has
another number."""

_LONGEST = 128
"""Bytes of forced text that are looked at: more than the drafts of a step."""

_LOOK_SECONDS = 0.005
"""Of processor time: a look that takes longer finds nothing. Two in a row of four times
as much are the last of their grammar, as all rows wait and an ambiguous one may take
seconds; a single one may be a garbage collection (0.27 s beside PyTorch). The longest
of 8,887 real ones took 2.5 ms."""

_MEMO_BYTES = 16 << 20
_END_BYTES = 128
"""What an open end of a run takes, about, without its bytes."""

_WORDS = frozenset(
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
) | frozenset(range(128, 256))
_MARKS = frozenset(range(32, 127)) - _WORDS
_VALUES = tuple(
    before + space for before in (b":", b",", b"[") for space in (b"", b" ")
)
_OPENING = tuple(before + b'"' for before in (*_VALUES, b"{", b"{ "))

_LAST_SPACE = re.compile(rb"(?<=[ \n]) (?=[^ \t\r\n])(?!^)")

_NEVER = 1 << 60
_ACTIVE = Phase.ACTIVE


@dataclass(slots=True)
class _Run:
    """The tokens of a forced text."""

    tokens: tuple[int, ...]
    open_ends: list[tuple[int, list[int]]]
    """So many of them are sure, where one of these bytes may follow, as tokens: the
    fewest first. The byte that fitted last time comes first in its list, as it mostly
    fits again."""


class ForcedTokens:
    """Of the requests of one vocabulary. Used by one thread at a time."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._ids = ids_of(vocabulary)
        self._sorted = sorted(self._ids)
        self._spaces = {self._ids.get(bytes([byte])) for byte in SPACES}
        self._splits_spaces = vocabulary.kind != "byte_fallback" and b' "' in self._ids
        """Whether its tokenizer has the last of several spaces begin what follows, as
        GPT's does."""
        self._known: dict[bytes, tuple[list[int], list[int]]] = {}
        """What follows tokens."""
        self._runs: Latest[bytes, _Run] = Latest(_MEMO_BYTES)

    def after(self, request: RunningRequest, most: int) -> tuple[int, ...]:
        """Up to `most` tokens that must follow those of a request; none where its
        matcher can't tell.

        The last ones are left out where what may well come next could make other tokens
        of them. Stop tokens and control tokens are never among them.
        """
        return (
            self.behind(request.matcher, most) if request.state.phase is _ACTIVE else ()
        )

    def behind(
        self,
        matcher: Any,
        most: int,
        text: bytes = b"",
        ahead: Any = None,
        layout: OutputLayout | None = None,
    ) -> tuple[int, ...]:
        """The same of a matcher; or the tokens of a text, and of what must follow it,
        as `ahead` tells. `layout`: what tells the whitespace between them, where the
        grammar leaves that open."""
        begun = time.thread_time()
        if forces := getattr(matcher, "forces", False):
            if layout is None:
                text += (ahead or matcher).forced()
            else:
                text = _laid_out(text, matcher, ahead, layout, self._ids, begun)
        quick = time.thread_time() - begun < _LOOK_SECONDS
        guessed = layout is not None
        tokens = (
            self.spelled(text[:_LONGEST], matcher, most, guessed=guessed)
            if text and quick
            else ()
        )
        if forces:
            matcher.looked(long=time.thread_time() - begun > 4 * _LOOK_SECONDS)
        return tokens

    def spelled(
        self, text: bytes, matcher: Any, most: int, *, guessed: bool = False
    ) -> tuple[int, ...]:
        """The first of a text's tokens, as far as they are the same whatever the
        matcher lets follow it. `guessed`: its whitespace is all that is there."""
        run = self._runs.get(text)
        if run is None:
            run = self._run(text)
            ends = sum(
                _END_BYTES + 8 * len(following) for _, following in run.open_ends
            )
            self._runs.put(text, run, ENTRY_BYTES + 16 * len(text) + ends)
        tokens = run.tokens
        if len(tokens) > most:
            return tokens[:most]
        for sure, following in run.open_ends:
            for at, byte in enumerate(following):
                if guessed and byte in self._spaces:
                    continue
                if matcher.fits([*tokens, byte]):
                    if at:
                        following.insert(0, following.pop(at))
                    return tokens[:sure]
        return tokens

    def _run(self, text: bytes) -> _Run:
        pieces = self._pieces(text)
        tokens = [self._ids.get(piece, -1) for piece in pieces]
        if -1 in tokens:  # no token spells this byte alone
            return _Run(tuple(tokens[: max(tokens.index(-1) - 1, 0)]), [])
        # mostly a space between a key and its value
        whole = b":" + text if text.startswith(b" ") else text
        words_only = text[-1] in _WORDS or whole.endswith(_OPENING)
        ends = list[tuple[int, list[int]]]()
        at = len(text)
        for sure in range(len(pieces) - 1, -1, -1):
            at -= len(pieces[sure])
            words, marks = self._following(text[at:])
            if not words and not marks and sure < len(pieces) - 1:
                # longer tokens are made of tokens that begin at the pieces behind, all
                # but a few
                break
            following = words[:] if words_only else words + marks
            if whole.endswith(_VALUES):  # few numbers are negative
                following = [byte for byte in following if byte != self._ids.get(b"-")]
            if following:
                ends.insert(0, (sure, following))
        return _Run(tuple(tokens), ends)

    def _pieces(self, text: bytes) -> list[bytes]:
        """A text as byte pair encoding cuts it."""
        ids = self._ids
        if self._splits_spaces and (found := _LAST_SPACE.search(text)):
            return self._pieces(text[: found.start()]) + self._pieces(
                text[found.start() :]
            )
        starts = [
            *(range(len(text)) if text.isascii() else self._characters(text)),
            len(text),
        ]
        ranks = [
            ids.get(text[a:b], _NEVER) for a, b in zip(starts, starts[2:], strict=False)
        ]
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
        """Where pieces begin before any is merged: at the characters that are tokens,
        else at each byte."""
        at = 0
        while at < len(text):
            yield at
            width = (
                1
                if text[at] < 0xC0
                else 2
                if text[at] < 0xE0
                else 3
                if text[at] < 0xF0
                else 4
            )
            at += width if text[at : at + width] in self._ids else 1

    def _following(self, head: bytes) -> tuple[list[int], list[int]]:
        """The bytes that make other tokens of these when they follow, as tokens: of
        words, and other ones."""
        known = self._known.get(head)
        if known is not None:
            return known
        first = last = bisect_left(self._sorted, head + b"\0")
        if first < len(self._sorted) and self._sorted[first].startswith(head):
            last = bisect_left(self._sorted, head + b"\xff\xff", first)
        found = {token[len(head)] for token in self._sorted[first:last]}
        if head in self._ids and head[-1] not in _WORDS:
            found.update(byte for byte in _MARKS if self._splits(head, bytes([byte])))
        single = [
            (byte in _WORDS, self._ids.get(bytes([byte]), -1)) for byte in sorted(found)
        ]
        words = [token for word, token in single if word and token >= 0]
        marks = [token for word, token in single if not word and token >= 0]
        if head in self._ids:
            self._known[head] = words, marks
        return words, marks

    def _splits(self, token: bytes, byte: bytes) -> bool:
        """Whether the end of a token is merged with a byte before the token itself
        is."""
        ends = (token[at:] + byte in self._ids for at in range(1, len(token)))
        return any(ends) and self._pieces(token + byte)[0] != token


def _laid_out(
    text: bytes,
    matcher: Any,
    ahead: Any,
    layout: OutputLayout,
    ids: dict[bytes, int],
    begun: float,
) -> bytes:
    """A text, and what must follow if the whitespace between is that of a layout.
    `ahead` is behind the text, or there is none, and the matcher is."""
    here = ahead or matcher

    def fits(byte: int) -> bool:
        token = ids.get(bytes([byte]))
        return token is not None and bool(here.fits([token]))

    layout = layout.copy()
    layout.feed(text, learn=False)
    while len(text) < _LONGEST and time.thread_time() - begun < _LOOK_SECONDS:
        more = here.forced() or layout.next(fits)
        if more and here is matcher:
            here = matcher.ahead()
        if not more or not here.accept_text(more):
            break
        layout.feed(more, learn=False)
        text += more
    return text


def ids_of(vocabulary: Vocabulary) -> dict[bytes, int]:
    """The token of each text. Of a single byte it is the last: SentencePiece has those
    of bytes that are no character first."""
    ids: dict[bytes, int] = {}
    for token, text in enumerate(vocabulary.text_tokens):
        if text and (len(text) == 1 or text not in ids):
            ids[text] = token
    return ids
