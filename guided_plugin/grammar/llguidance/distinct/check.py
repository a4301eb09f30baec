"""One request's check that items are distinct, next to its matcher.

Masks lose the tokens that would repeat an item, and those after which nothing but a repeated item could come.
Depends on track and spellings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from guided_plugin.grammar.base import MaskArray
from guided_plugin.grammar.llguidance.distinct.seen import fingerprint
from guided_plugin.grammar.llguidance.distinct.spellings import (
    Ids,
    Mode,
    Spelled,
    Spellings,
    both,
    forbid,
    only_opens,
    other_cases,
)
from guided_plugin.grammar.llguidance.distinct.track import ENDS, Frame, State, Track, checked
from guided_plugin.grammar.llguidance.lark.objects import FEW_NAMES

_ENOUGH = 3
"""With so many ways to go on, one is left when an item ends, or two."""


@dataclass(frozen=True, slots=True)
class DistinctRules:
    """What the checks of one grammar share."""

    start: Callable[[], Any]
    """A matcher over bytes at the beginning of the grammar with marks."""
    spellings: Spellings
    controls: frozenset[int]
    """The control tokens that it may name."""


class DistinctCheck:
    """Follows one output, and takes tokens out of its masks."""

    __slots__ = ("_rules", "_tokens", "_track")

    def __init__(self, rules: DistinctRules, track: Track | None = None) -> None:
        self._rules = rules
        self._tokens = rules.spellings.tokens
        self._track = track or Track(rules.start)

    def accept(self, token: int) -> bool:
        """Move past a token; False where it repeats an item."""
        if token in self._rules.controls:
            return self._track.control(token)
        if not self._track.move(self._tokens[token] if token < len(self._tokens) else b""):
            return False
        if self._track.lives():
            return True
        self._track.back(1)
        return False

    def accept_all(self, tokens: list[int]) -> bool:
        """Move past tokens; False, and no move, where one of them repeats an item."""
        for moved, token in enumerate(tokens):
            if not self.accept(token):
                self.rollback(moved)
                return False
        return True

    def rollback(self, tokens: int) -> None:
        """Take the last tokens back."""
        self._track.back(tokens)

    def fork(self) -> DistinctCheck:
        """An independent check in the same position."""
        return DistinctCheck(self._rules, self._track.copy())

    def limit(self) -> str:
        """What went wrong with its matcher; empty if nothing did."""
        return self._track.limit()

    def restrict(self, row: MaskArray) -> None:
        """Take the tokens out of a mask that would repeat an item, or lead to nothing else."""
        state = self._track.state
        table = self._rules.spellings.table(state.mode)
        doubtful = self._opening(_among(row, self._rules.spellings.opening))
        if state.frame is not None:
            banned = list(_banned(state, table))
            if banned:
                forbid(row, np.concatenate(banned))
            doubtful += _among(row, table.zeros)
            if state.mode is Mode.SCALAR and state.text.endswith(b".0"):
                for end in ENDS:
                    doubtful += _among(row, table.beginning(bytes([end])).tolist())
            between = both(row, table.between)
            doubtful += _repeating(state, table, [token for token in between if token in table.closes])
            doubtful += self._crossing(state, table, [token for token in between if token in table.texts])
        wrong = list(self._wrong(dict.fromkeys(doubtful), table)) if doubtful else []
        if wrong:
            forbid(row, np.array(wrong, np.int64))

    def _opening(self, tokens: list[int]) -> list[int]:
        """Those of some tokens that open a container whose items must be distinct."""
        heads: dict[bytes, bool] = {}
        found = []
        for token in tokens:
            text = self._tokens[token]
            for head in (text[: at + 1] for at, byte in enumerate(text) if byte in b"[{"):
                if head not in heads:
                    heads[head] = self._track.begins_checked(head)
                if heads[head]:
                    found.append(token)
                    break
        return found

    def _crossing(self, state: State, table: Spelled, tokens: list[int]) -> Iterator[int]:
        """Tokens that may end an item and begin another one from which nothing can come."""
        rooms: list[int] = []
        """For tokens that end so many containers: the least room in those in which they may end an item."""
        frame = state.frame
        for token in tokens:
            closes = len(table.closes.get(token, ()))
            while len(rooms) <= closes:
                room = _ENOUGH if frame is None else self._room(state, frame)
                rooms.append(min([room, *rooms[-1:]]))
                frame = frame and frame.parent
            crosses = rooms[closes] < _ENOUGH or token in table.crossing
            if crosses and not _fresh(state, table.parts.get(token), rooms[closes]):
                yield token

    def _room(self, state: State, frame: Frame) -> int:
        """In how many ways the item in progress may go on, up to some: when it ends in one of them, the next
        item may begin as it did. 0 where that is not known."""
        seen = frame.seen
        if seen is None or (frame.names and frame.count + 1 < FEW_NAMES):
            return _ENOUGH
        text = state.text[frame.start :]
        if frame.names or seen.openings or not seen.steady or not text.strip(b"[{"):
            return 0
        at_end = frame is state.frame and state.mode < Mode.STRING
        ways: set[bytes] = set()
        inner = next(checked(state.frame))[0] is not frame
        for byte in self._track.allowed():
            way = b"," if at_end and byte in ENDS else bytes([byte])
            # What follows a number's point may be no other number.
            same = state.mode is Mode.SCALAR and (text + way).endswith((b".", b".0"))
            fits = not same and way not in ways and text + way not in seen.dead
            if fits and (not inner or self._track.fits(bytes([byte]))):
                ways.add(way)
                if len(ways) >= _ENOUGH:
                    return _ENOUGH
        if at_end and b"," in ways and self._track.fits(b",", narrow=True):
            return _ENOUGH
        return len(ways)

    def _wrong(self, tokens: Iterable[int], table: Spelled) -> Iterator[int]:
        """Those of some tokens that repeat an item, or lead to nothing else."""
        answers: dict[bytes, bool] = {}
        wide: dict[bytes, bool] = {b"": False}
        for token in tokens:
            data = self._tokens[token]
            # Tokens that differ in whitespace have the same answer, and often those that begin alike.
            text, head = table.texts.get(token, (data, b""))
            if head not in wide:
                wide[head] = self._track.fits(head, narrow=True)
            if not wide[head]:
                if text not in answers:
                    answers[text] = self._track.fits(data)
                if not answers[text]:
                    yield token


def _banned(state: State, table: Spelled) -> Iterator[Ids]:
    """Tokens that lead to a dead text."""
    for frame, seen in checked(state.frame):
        if frame.start >= 0:
            text = state.text[frame.start :]
            for rest in seen.beyond(text):
                for way in other_cases(text, rest):
                    yield table.beginning(way)


def _repeating(state: State, table: Spelled, tokens: list[int]) -> Iterator[int]:
    """Tokens that might end an object which is there already in another order."""
    frame, depth = state.frame, 0
    while frame is not None:
        if frame.seen is not None and frame.start >= 0 and depth:
            length, total = fingerprint(state.text[frame.start :])
            for token in tokens:
                heads = table.closes[token]
                if len(heads) >= depth:
                    size, more = fingerprint(heads[depth - 1])
                    if (length + size, total + more) in frame.seen.prints:
                        yield token
        frame, depth = frame.parent, depth + 1


def _fresh(state: State, parts: list[bytes] | None, room: int) -> bool:
    """Whether a token of these parts surely adds new scalars to an array."""
    frame = state.frame
    if parts is None or frame is None:
        return False
    seen, tail = frame.seen, parts[-1]
    if seen is None:
        return True
    if frame.names or room < len(parts) or any(tail[:end] in seen.dead for end in range(len(tail) + 1)):
        return False
    values = [state.text[frame.start :] + parts[0], *parts[1:-1]]
    return seen.all_new(values) and (only_opens(tail) or not any(each.startswith(tail) for each in values))


def _among(row: MaskArray, tokens: list[int]) -> list[int]:
    """Those of a few tokens that a mask allows."""
    return [token for token in tokens if row[token >> 5] >> (token & 31) & 1]
