"""The shortest ways to end an output: searched with forks of its matcher, spelled with
the fewest tokens.

Most of an ending is forced. Where it is not, a mask of single bytes says what may come:
brackets and quotes that close are taken first, then the names that objects need, then
the shortest values. What is found is right, as a matcher took it; another choice at
each place is tried to make it shorter. Depends on the matcher, the vocabulary and what
rules tell of ends.
"""

from __future__ import annotations

import itertools
import math
import time
from bisect import bisect_left
from collections import Counter, deque
from dataclasses import dataclass
from typing import TypeAlias

from guided_plugin.grammar.base import MaskArray
from guided_plugin.grammar.llguidance.lark.patterns import one_of_each
from guided_plugin.grammar.llguidance.lark.rules import Ends
from guided_plugin.grammar.llguidance.matcher import LLGuidanceMatcher
from guided_plugin.grammar.llguidance.tokenizer import Spelling
from guided_plugin.spec.memo import ENTRY_BYTES, Latest

Piece: TypeAlias = bytes | int
"""A part of an ending: a text, or a control token."""

_SPACE = ord(" ")
_QUOTE = ord('"')
_CLOSERS = b"}])>"
_ENDS = frozenset((*_CLOSERS, _QUOTE))
_FREE = 64
"""So many bytes are allowed next in a text that is free, as a JSON string is."""
_ORDER = b'}])>,:"0123456789-ntf[{'
"""What is taken first where a text is not free: what closes, then what is short."""
_LAST = b"(\\"
_ALL = 40
"""So many bytes are all tried in a text."""
_FEW = 12
"""More bytes than that, and no quote among them, are the middle of a text."""
_TURNS = 8
"""So often the same choice is made in the same place."""
_MOST_BYTES = 1 << 16
MEMO_BYTES = 1 << 17
"""What is remembered for a grammar of one kind: spellings."""
_WIDTH = 8
"""Places with as many bytes that are kept while the end of a text is looked for."""
_TRIES = 100
"""Other ways that are tried to make an ending shorter."""
_ALTERNATIVES = 6
"""Other choices that are tried at one place."""
_LONGEST_REST = 40
_MOST_RESTS = 512
_LAST_PIECES = 16
"""So many of an ending's last pieces hold the beginning of a name that is being
written."""
_MOST_NAMES = 64
"""So many names are tried for one that is being written."""
_SLACK = 4
"""Tokens by which an ending may grow where two of its texts meet: a character may be
begun at any place."""


@dataclass(slots=True)
class _Choice:
    """A place on the way to an end where another piece could have been taken."""

    pieces: list[Piece]
    """Those before it."""
    place: LLGuidanceMatcher
    others: list[Piece]


class Endings:
    """Finds endings of the outputs of one grammar."""

    def __init__(self, spelling: Spelling, ends: Ends) -> None:
        self.spelling = spelling
        self._ends = ends
        self._spelled: Latest[bytes, tuple[int, ...]] = Latest(MEMO_BYTES)
        self._names = ends.names
        """Names that objects need: where one is chosen, one of these is taken first."""
        rests = (
            text[at:]
            for text in ends.texts
            for at in range(min(len(text), _LONGEST_REST))
        )
        self._rests = sorted(
            itertools.islice(dict.fromkeys(rests), _MOST_RESTS), key=len
        )
        """What may be left of a text that must end in some way."""

    @property
    def growth(self) -> int:
        """How many tokens one token may add to the shortest ending, at most."""
        sizes = [self._ends.reach]
        for text in self._ends.choices:
            # A token of several brackets makes as many choices.
            times = self.spelling.brackets if text.startswith(b"[") else 1
            sizes.append(times * self.spelling.most_tokens(text))
        return _SLACK + max(sizes)

    @property
    def longest(self) -> float:
        """The most tokens that the shortest ending of any place may have."""
        text = self._ends.longest
        if text is None:
            return math.inf
        return _SLACK + self._ends.reach + self.spelling.most_tokens(text)

    def first(self, start: LLGuidanceMatcher, seconds: float) -> tuple[int, ...] | None:
        """The shortest output: as the rules tell it if that is one, else the shortest
        that is found in so much processor time. A search found a shorter one, of 1 to 3
        tokens less, in 7 of 282 real schemas, and took half of a compile."""
        text = self._ends.shortest
        told = None if text is None else self.spelling.spelled(text)
        if told is not None and start.ends_with(told):
            return told
        return self.shortest(start, seconds)

    def shortest(
        self,
        matcher: LLGuidanceMatcher,
        seconds: float,
        *,
        enough: int = 0,
        needed: int = 0,
        until: float = 0.0,
    ) -> tuple[int, ...] | None:
        """Tokens after which a stop token may come, the fewest that were found; None
        where none were within the processor time. No more of it is used once they are
        `enough`, or as few as `needed` and it is past `until` (of `time.thread_time`).
        The matcher stays where it is."""
        deadline = time.thread_time() + seconds
        choices: list[_Choice] = []
        best = self._way(matcher.fork(), [], choices, deadline)
        tokens = None if best is None else self.spelled(best)
        if best is None or tokens is None:
            return None
        waiting = deque(
            (choice, other)
            for choice in choices
            for other in choice.others[:_ALTERNATIVES]
        )
        for _ in range(_TRIES):
            if not waiting or len(tokens) <= enough:
                break
            if time.thread_time() > (until if len(tokens) <= needed else deadline):
                break
            choice, other = waiting.popleft()
            place = choice.place.fork()
            more = list[_Choice]()
            if not self._move(place, other):
                continue
            begun = [*choice.pieces, other]
            longest = len(tokens) * 8 + 16
            way = self._way(place, begun, more, deadline, longest)
            shorter = None if way is None else self.spelled(way)
            if shorter is not None and len(shorter) < len(tokens):
                tokens = shorter
                waiting.extendleft(
                    (one, each) for one in more for each in one.others[:_ALTERNATIVES]
                )
        return tokens

    def spelled(self, pieces: list[Piece]) -> tuple[int, ...] | None:
        """Pieces as tokens, the fewest."""
        tokens: list[int] = []
        text = b""
        for piece in [*pieces, -1]:
            if isinstance(piece, bytes):
                text += piece
                continue
            spelled = self._spelled.get(text)
            if spelled is None:
                spelled = self.spelling.spelled(text)
                if spelled is None:
                    return None
                self._spelled.put(
                    text, spelled, 2 * ENTRY_BYTES + len(text) + 16 * len(spelled)
                )
            tokens += spelled
            text = b""
            if piece >= 0:
                tokens.append(piece)
        return tuple(tokens)

    def _move(self, place: LLGuidanceMatcher, piece: Piece) -> bool:
        return (
            place.accept(piece) if isinstance(piece, int) else place.accept_text(piece)
        )

    def _way(
        self,
        place: LLGuidanceMatcher,
        pieces: list[Piece],
        choices: list[_Choice],
        deadline: float,
        most: int = _MOST_BYTES,
    ) -> list[Piece] | None:
        """The pieces of an ending, after some; `place` moves. Each choice on the way is
        added to `choices`."""
        size = 0
        closed = False
        visits = Counter[bytes]()
        used = set[tuple[bytes, bytes]]()
        while size <= most and time.thread_time() < deadline:
            forced = place.forced()
            if forced and place.accept_text(forced):
                pieces.append(forced)
                size += len(forced)
            if place.complete:
                return pieces
            row = place.row()
            allowed = self.spelling.bytes_in(row)
            if len(allowed) < _FREE:
                allowed = [byte for byte in allowed if byte > _SPACE] or allowed
            options: list[Piece] = [
                *self.spelling.controls_in(row),
                *self._name(place, pieces, visits),
            ]
            is_text = len(allowed) >= _FREE or (
                len(allowed) > _FEW and not _ENDS.intersection(allowed)
            )
            # inside a character
            if allowed and min(allowed) >= 128 and max(allowed) < 192:
                options.append(bytes(allowed[:1]))
            elif not is_text:
                ordered = _ordered(allowed)
                # What leads back here again and again is left for others, each four
                # times as often.
                seen = self.spelling.signature(row)
                late = visits[seen] - _TURNS * (
                    _TURNS if ordered and ordered[0] in _CLOSERS else 1
                )
                late = late if late < len(ordered) else late.bit_length() // 2 - 1
                turn = max(0, late) % max(1, len(ordered))
                visits[seen] += not (
                    ordered and ordered[0] in _CLOSERS and len(ordered) < _FEW
                )
                options += [bytes([byte]) for byte in ordered[turn:] + ordered[:turn]]
                closed = False
            elif _QUOTE in allowed and not closed:
                options.append(b'"')
                closed = True
                choices.append(_Choice(pieces[:], place.fork(), []))
            else:
                end = self._end_of_text(place, row, deadline, used)
                if end is not None:
                    options.append(end)
                    if closed:  # without the quote, which did not end it
                        choices[-1].others.append(end)
                    used.add((self.spelling.signature(row), end))
                closed = False
            before = place.fork() if len(options) > 1 else place
            while options and not self._move(place, options[0]):
                # a mask of bytes shows more than what fits where items must differ
                del options[0]
            if not options:
                return None
            if len(options) > 1:
                choices.append(_Choice(pieces[:], before, options[1:]))
            pieces.append(options[0])
            size += 1 if isinstance(options[0], int) else len(options[0])
        return None

    def _name(
        self, place: LLGuidanceMatcher, pieces: list[Piece], visits: Counter[bytes]
    ) -> list[Piece]:
        """The rest of a name that is needed, where one is being chosen: of one that was
        chosen seldom."""
        last = b"".join(one for one in pieces[-_LAST_PIECES:] if isinstance(one, bytes))
        start = last.rfind(b'"')
        if start < 0 or not last[:start].rstrip().endswith((b"{", b",")):
            return []
        begun = last[start:]
        single = self.spelling.single
        first = bisect_left(self._names, begun)
        names = [
            one
            for one in self._names[first : first + _MOST_NAMES]
            if one.startswith(begun)
        ]
        for name in sorted(names, key=visits.__getitem__):
            rest = name[len(begun) :]
            if (
                rest
                and single.keys() >= {*rest}
                and place.fits([single[byte] for byte in rest])
            ):
                visits[name] += 1
                return [rest]
        return []

    def _end_of_text(
        self,
        place: LLGuidanceMatcher,
        row: MaskArray,
        deadline: float,
        used: set[tuple[bytes, bytes]],
    ) -> bytes | None:
        """A text with which a free text ends, or after which a quote ends it; none that
        led back here."""
        allowed = self.spelling.bytes_in(row)
        quoted = _QUOTE in allowed
        key = self.spelling.signature(row)
        singles = [bytes([byte]) for byte in one_of_each(allowed, _ALL)]
        begun = (
            single + rest
            for single, rest in itertools.product(singles[:2], self._rests)
        )
        for text in itertools.chain(singles, self._rests, begun):
            if time.thread_time() > deadline:
                return None
            if (key, text) not in used and self._ends_text(place, text, quoted):
                return text
        return self._searched_end(place, quoted, deadline)

    def _ends_text(self, place: LLGuidanceMatcher, text: bytes, quoted: bool) -> bool:
        moved = place.fork()
        return moved.accept_text(text) and self._has_ended(moved, moved.row(), quoted)

    def _has_ended(
        self, place: LLGuidanceMatcher, row: MaskArray, quoted: bool
    ) -> bool:
        """Whether a text has ended that was free; `quoted`: a quote did not end it."""
        allowed = self.spelling.bytes_in(row)
        if not quoted and len(allowed) < _FREE and _ENDS.intersection(allowed):
            return True
        return (
            place.complete
            or len(allowed) < (_FREE if quoted else 2)
            or (_QUOTE in allowed and not quoted)
        )

    def _searched_end(
        self, place: LLGuidanceMatcher, quoted: bool, deadline: float
    ) -> bytes | None:
        level: dict[tuple[int, bytes], tuple[LLGuidanceMatcher, bytes]] = {
            (0, b""): (place, b"")
        }
        for _ in range(_MOST_BYTES):
            ahead: dict[tuple[int, bytes], tuple[LLGuidanceMatcher, bytes]] = {}
            for (history, mask), (at, text) in list(level.items())[-_WIDTH:]:
                if time.thread_time() > deadline:
                    return None
                for byte in one_of_each(self.spelling.bytes_in(at.row()), _ALL):
                    moved = at.fork()
                    if not moved.accept_text(bytes([byte])):
                        continue
                    row = moved.row()
                    after = text + bytes([byte])
                    if self._has_ended(moved, row, quoted):
                        return after
                    seen = self.spelling.signature(row)
                    key = (history if seen == mask else hash((history, seen)), seen)
                    ahead.setdefault(key, (moved, after))
            level = ahead
        return None


def _ordered(allowed: list[int]) -> list[int]:
    """Bytes, those first that lead to an end soonest; of the digits, the first."""
    known = [byte for byte in _ORDER if byte in allowed]
    digits = [byte for byte in known if 48 <= byte <= 57]
    others = [
        byte
        for byte in allowed
        if byte not in _ORDER and byte > 32 and byte not in _LAST
    ]
    last = [byte for byte in _LAST if byte in allowed]
    return [
        *(byte for byte in known if byte not in digits[1:]),
        *others,
        *digits[1:],
        *last,
    ] or allowed
