"""One request's check that items are distinct, next to its matcher.

Masks lose the tokens that would repeat an item, and those after which nothing but a
repeated item could come. Depends on track and spellings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from guided_plugin.grammar.base import MaskArray
from guided_plugin.grammar.llguidance.distinct.seen import Seen
from guided_plugin.grammar.llguidance.distinct.spellings import (
    Ids,
    Spelled,
    Spellings,
    forbid,
)
from guided_plugin.grammar.llguidance.distinct.track import Track


@dataclass(frozen=True, slots=True)
class DistinctRules:
    """The data that the checks of one grammar share."""

    start: Callable[[], Any]
    """A matcher over bytes at the beginning of the grammar with marks."""
    spellings: Spellings
    controls: frozenset[int]
    """The control tokens that it may name."""


class DistinctCheck(Track):
    """Follows the tokens of one output, and takes tokens out of its masks."""

    def __init__(self, rules: DistinctRules) -> None:
        super().__init__(rules.start)
        self._rules = rules
        self._tokens = rules.spellings.tokens

    def accept(self, token: int) -> bool:
        """Move past a token; False where it repeats an item."""
        if token in self._rules.controls:
            return self.control(token)
        return self.accept_bytes(
            self._tokens[token] if token < len(self._tokens) else b""
        )

    def accept_all(self, tokens: list[int]) -> bool:
        """Move past tokens; False, and no move, where one of them repeats an item."""
        for moved, token in enumerate(tokens):
            if not self.accept(token):
                self.back(moved)
                return False
        return True

    def stays_distinct(self, tokens: Iterable[int]) -> bool:
        """True if no item is there twice after these tokens, which its grammar allows
        and which end its output: where else an item could lead does not matter."""
        return all(map(self.fork(explores=False).accept, tokens))

    def restrict(self, row: MaskArray) -> None:
        """Take the tokens out of a mask that would repeat an item, or lead to nothing
        else."""
        state = self.state
        table = self._rules.spellings.table(state.mode)
        if state.seen is None:
            doubtful = _allowed(row, self._rules.spellings.opening)
        else:
            if not state.behind:
                rests = state.seen.beyond(state.text)
                forbid(row, *map(table.beginning, rests))
            crossing = _allowed(row, table.between)
            doubtful = self._crossing(crossing, table, state.seen)
        # Tokens that differ in whitespace have the same answer.
        fits: dict[bytes, bool] = {}
        for token in doubtful:
            text = table.texts.get(token, self._tokens[token])
            if text not in fits:
                fits[text] = self.fits(self._tokens[token])
            if not fits[text]:
                forbid(row, np.array([token]))

    def _crossing(self, tokens: list[int], table: Spelled, seen: Seen) -> list[int]:
        """Return the tokens, from a few, that end an item and begin another which do
        not surely leave something to that one."""
        if not tokens or self.state.behind or not seen.steady:
            return tokens
        text = self.state.text
        room = self.has_room()
        found = []
        for token in tokens:
            if token in table.halves:
                end, begun = table.halves[token]
                sizes = range(1, len(begun) + 1)
                dead = any(begun[:size] in seen.dead for size in sizes)
                alike = (text + end).startswith(begun.rstrip())
                if not dead and (not alike or (room and text.startswith(begun))):
                    continue
            found.append(token)
        return found


def _allowed(row: MaskArray, tokens: Ids) -> list[int]:
    """Return the tokens that a mask allows, from a few."""
    found: list[int] = tokens[
        np.flatnonzero(row[tokens >> 5] >> (tokens & 31) & 1)
    ].tolist()
    return found
