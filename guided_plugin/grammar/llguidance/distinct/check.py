"""One request's check that items are distinct, next to its matcher.

Masks lose the tokens that would repeat an item, and those after which nothing but a
repeated item could come. Depends on track and spellings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from guided_plugin.grammar.base import MaskArray
from guided_plugin.grammar.llguidance.distinct.spellings import (
    Ids,
    Mode,
    Spelled,
    Spellings,
    forbid,
)
from guided_plugin.grammar.llguidance.distinct.track import ENDS, State, Track, checked
from guided_plugin.grammar.llguidance.lark.objects import FEW_NAMES

_SEVERAL = 2
"""With so many ways to go on, one is left when an item ends."""


@dataclass(frozen=True, slots=True)
class DistinctRules:
    """What the checks of one grammar share."""

    start: Callable[[], Any]
    """A matcher over bytes at the beginning of the grammar with marks."""
    spellings: Spellings
    controls: frozenset[int]
    """The control tokens that it may name."""
    is_json: bool
    """Whether quotes always stand around JSON strings: what clients write may have
    other texts in them."""


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
        return self._track.accept(
            self._tokens[token] if token < len(self._tokens) else b""
        )

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

    def stays_distinct(self, tokens: Iterable[int]) -> bool:
        """Whether no item is there twice after these tokens, which its grammar allows
        and which end its output: where else an item could lead does not matter."""
        ahead = DistinctCheck(self._rules, self._track.copy(explores=False))
        return all(map(ahead.accept, tokens))

    def fork(self) -> DistinctCheck:
        """An independent check in the same position."""
        return DistinctCheck(self._rules, self._track.copy())

    def limit(self) -> str:
        """What went wrong with its matcher; empty if nothing did."""
        return self._track.limit()

    def restrict(self, row: MaskArray) -> None:
        """Take the tokens out of a mask that would repeat an item, or lead to nothing
        else."""
        state = self._track.state
        table = self._rules.spellings.table(state.mode)
        opening = _allowed(row, self._rules.spellings.opening)
        if self._rules.is_json and state.mode >= Mode.STRING:
            opening = [token for token in opening if b'"' in self._tokens[token]]
        doubtful = self._opening(opening)
        if state.frame is not None:
            banned = list(_banned(state, table))
            if banned:
                forbid(row, np.concatenate(banned))
            doubtful += [*_allowed(row, table.zeros), *_allowed(row, table.spaced)]
            ways = self._track.insides()
            if ways is not None:
                for token in _allowed(row, self._rules.spellings.spaces):
                    if not self._track.reaches(self._tokens[token], ways):
                        forbid(row, np.array([token]))
            if state.mode is Mode.SCALAR and state.text.endswith(b".0"):
                for end in ENDS:
                    doubtful += _allowed(row, table.beginning(bytes([end])))
            crossing = _allowed(row, table.between)
            if crossing and self._has_room(state):
                crossing = [token for token in crossing if token not in table.opens]
                crossing = [
                    token
                    for token in crossing
                    if not _is_fresh(state, table.halves.get(token))
                ]
            doubtful += crossing
        # Tokens that differ in whitespace have the same answer.
        fits: dict[bytes, bool] = {}
        for token in doubtful:
            text = table.texts.get(token, self._tokens[token])
            if text not in fits:
                fits[text] = self._track.fits(self._tokens[token])
            if not fits[text]:
                forbid(row, np.array([token]))

    def _opening(self, tokens: list[int]) -> list[int]:
        """Those of some tokens that open a container whose items must be distinct."""
        heads: dict[bytes, bool] = {}
        found = []
        for token in tokens:
            text = self._tokens[token]
            for head in (
                text[: at + 1] for at, byte in enumerate(text) if byte in b"[{"
            ):
                if head not in heads:
                    heads[head] = self._track.begins_checked(head)
                if heads[head]:
                    found.append(token)
                    break
        return found

    def _has_room(self, state: State) -> bool:
        """Whether all items in progress may go on in several ways: when one ends, the
        next may begin as it did. False where that is not known."""
        items: list[tuple[bytes, set[bytes]]] = []
        for frame, seen in checked(state.frame):
            text = state.written[frame.start :]
            if frame.names:
                if frame.count + 1 >= FEW_NAMES:
                    return False
            elif frame.start >= 0:
                if seen.openings or not seen.steady or not text.strip(b"[{"):
                    return False
                items.append((text, seen.dead))
        if not items:
            return True
        ways = 0
        for byte in self._track.allowed():
            if state.mode < Mode.STRING and byte in ENDS:
                continue
            way = bytes([byte])
            # What follows a number's point may be no other number.
            same = state.mode is Mode.SCALAR and (state.text + way).endswith(
                (b".", b".0")
            )
            ways += not same and all(text + way not in dead for text, dead in items)
            if ways == _SEVERAL:
                return True
        return False


def _banned(state: State, table: Spelled) -> Iterator[Ids]:
    """Tokens that lead to a dead text."""
    for frame, seen in checked(state.frame):
        if frame.start >= 0:
            text = state.written[frame.start :]
            for rest in seen.beyond(text):
                yield table.beginning(rest)


def _is_fresh(state: State, halves: tuple[bytes, bytes] | None) -> bool:
    """Whether a token that ends an item and begins another surely leaves something to
    that one."""
    if halves is None or state.frame is None:
        return False
    end, begun = halves
    seen = state.frame.seen
    if seen is None:
        return True
    if state.frame.names or any(
        begun[:size] in seen.dead for size in range(1, len(begun) + 1)
    ):
        return False
    return not (state.written[state.frame.start :] + end).startswith(begun.rstrip())


def _allowed(row: MaskArray, tokens: Ids) -> list[int]:
    """Those of some tokens that a mask allows."""
    found: list[int] = tokens[
        np.flatnonzero(row[tokens >> 5] >> (tokens & 31) & 1)
    ].tolist()
    return found
