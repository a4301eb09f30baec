"""`RequestState`: the phase of a request, and which of its tokens count. Depends on nothing.

Both follow from the tokens that were sampled. The table in the process that runs the grammars and the journal
in the engine each keep a `RequestState`, and agree without messages.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from enum import Enum, auto

__all__ = ["Phase", "RequestState", "StateMark"]


class Phase(Enum):
    """Where a request is."""

    WAITING = auto()
    """Before the end of `start_after`: nothing is constrained yet."""
    ACTIVE = auto()
    DONE = auto()
    """A stop token was accepted; what a host samples later is padding."""
    FAILED = auto()
    """Fails closed: only stop tokens are allowed."""


_ACTIVE = Phase.ACTIVE  # a member of an enumeration costs as much to look up as the rest of `take`

StateMark = tuple[Phase, int, int]
"""Phase, start and number of tokens: what a `RequestState` goes back to."""


class RequestState:
    """A request between its first token and its stop token.

    - WAITING becomes ACTIVE with the token that completes the trigger, also where that is a stop token.
      Any other stop token makes it DONE.
    - ACTIVE becomes DONE with a stop token.
    - FAILED comes from outside: only a grammar knows which tokens it refuses.

    Tokens count up to the one that made it DONE, or up to its failure.
    """

    __slots__ = ("_limit", "_stops", "_trigger", "_turns", "phase", "start", "tokens")

    def __init__(self, trigger: Iterable[int], stop_token_ids: Iterable[int]) -> None:
        self._trigger = array("q", trigger)
        self._stops = frozenset(stop_token_ids)
        self._turns = self._stops.union(self._trigger[-1:])
        """Without one of these tokens the phase stays as it is."""
        self._limit = 0
        """How many tokens count, once it has failed."""
        self.tokens = array("q")
        """Every token that counts."""
        self.start = 0
        """Where in the tokens the constrained part begins."""
        self.phase = Phase.WAITING
        if not self._trigger:
            self._activate()

    def take(self, token: int) -> bool:
        """A token was sampled, and accepted by the grammar if there is one yet. Whether the phase changed."""
        if self.phase is _ACTIVE:
            self.tokens.append(token)
            if token not in self._stops:
                return False
            self.phase = Phase.DONE
        elif self.phase is Phase.WAITING:
            completes = self._completes(token)
            self.tokens.append(token)
            if completes:
                self._activate()
            elif token in self._stops:
                self.phase = Phase.DONE
            else:
                return False
        else:
            if self.phase is Phase.FAILED and len(self.tokens) < self._limit:
                self.tokens.append(token)
            return False
        return True

    def ends_with(self, token: int) -> bool:
        """Whether no token after this one would count."""
        if self.phase is Phase.WAITING:
            return token in self._stops and not self._completes(token)
        return self.phase is not Phase.ACTIVE or token in self._stops

    def extend(self, tokens: array[int]) -> None:
        """`take` for many tokens, of which few change the phase."""
        running = self.phase is _ACTIVE or self.phase is Phase.WAITING
        if running and self._turns.isdisjoint(tokens):
            self.tokens.extend(tokens)
            return
        for token in tokens:
            self.take(token)

    def fail(self, count: int | None = None) -> None:
        """It failed after `count` tokens, of which some may still arrive, or after those that are here."""
        self._limit = len(self.tokens) if count is None else count
        del self.tokens[self._limit :]
        self.phase = Phase.FAILED

    def mark(self) -> StateMark:
        """What `go_back` needs."""
        return self.phase, self.start, len(self.tokens)

    def go_back(self, mark: StateMark) -> None:
        """Be as it was at a mark: the tokens since do not count."""
        self.phase, self.start, count = mark
        del self.tokens[count:]
        if self.phase is Phase.WAITING:
            self._turns = self._stops.union(self._trigger[-1:])

    def _completes(self, token: int) -> bool:
        begun = len(self.tokens) + 1 - len(self._trigger)
        return token == self._trigger[-1] and self.tokens[begun:] == self._trigger[:-1]

    def _activate(self) -> None:
        self.phase = Phase.ACTIVE
        self.start = len(self.tokens)
        self._turns = self._stops
