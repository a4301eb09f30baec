"""`RequestState`: the phase of a request, which of its tokens count, and how it was kept
from its token limit. Depends on triggers.

Phase and tokens follow from the tokens that were sampled. The table in the process that
runs the grammars and the journal in the engine each keep a `RequestState`, and agree on
these without messages.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import cast

from guided_plugin.spec.triggers import Trigger


class Phase(Enum):
    """The phase of a request."""

    WAITING = auto()
    """Before the end of `start_after`: nothing is constrained yet."""
    ACTIVE = auto()
    DONE = auto()
    """A stop token was accepted; what a host samples later is padding."""
    FAILED = auto()
    """Fails closed: only stop tokens are allowed."""


# a member of an enumeration costs as much to look up as the rest of `take`
_ACTIVE = Phase.ACTIVE

StateMark = tuple[Phase, bool, int, int]
"""Phase, whether it has begun, start and number of tokens: what a `RequestState` goes
back to."""


class RequestState:
    """A request between its first token and its stop token.

    - WAITING becomes ACTIVE with the token that completes a trigger, also where that is
      a stop token.
      Any other stop token makes it FAILED: nothing of its output was constrained.
    - ACTIVE becomes DONE with a stop token.
    - Else FAILED comes from outside: only a grammar knows which tokens it refuses.

    Tokens count up to the one that made it DONE, or up to its failure.
    """

    __slots__ = (
        "_limit",
        "_stops",
        "_triggers",
        "_turns",
        "begun",
        "led",
        "phase",
        "start",
        "tokens",
        "unprotected",
    )

    def __init__(
        self, triggers: Iterable[Trigger], stop_token_ids: Iterable[int]
    ) -> None:
        """`triggers`: as token ids."""
        self._triggers = [(as_array(one), one.kept) for one in triggers]
        self._stops = frozenset(stop_token_ids)
        self._turns = self._waiting_turns()
        """Without one of these tokens the phase stays as it is."""
        self._limit = 0
        """The number of tokens that count, once it has failed."""
        self.tokens = array("q")
        """Every token that counts."""
        self.begun = False
        """True if there is a constrained part."""
        self.start = 0
        """The place in the tokens where that begins."""
        self.led = 0
        """The parts of it that were led to an end before its token limit, as in
        `Closure`."""
        self.unprotected = ""
        """Why it may be cut there, as `RequestInfo.closed` says; empty if it may not."""
        self.phase = Phase.WAITING
        if not self._triggers:
            self._activate(0)

    def take(self, token: int) -> bool:
        """A token was sampled, and accepted by the grammar if there is one yet. Whether
        the phase changed."""
        if self.phase is _ACTIVE:
            self.tokens.append(token)
            if token not in self._stops:
                return False
            self.phase = Phase.DONE
        elif self.phase is Phase.WAITING:
            before = self._begins(token)
            self.tokens.append(token)
            if before is not None:
                self._activate(before)
            elif token in self._stops:
                self.fail()
            else:
                return False
        else:
            if self.phase is Phase.FAILED and len(self.tokens) < self._limit:
                self.tokens.append(token)
            return False
        return True

    def ends_with(self, token: int) -> bool:
        """True if no token after this one would count."""
        if self.phase is Phase.WAITING:
            return token in self._stops and self._begins(token) is None
        return self.phase is not Phase.ACTIVE or token in self._stops

    def turns(self, tokens: Iterable[int]) -> bool:
        """True if one of these may change the phase."""
        return not self._turns.isdisjoint(tokens)

    def extend(self, tokens: array[int]) -> None:
        """`take` for many tokens, of which few change the phase."""
        running = self.phase is _ACTIVE or self.phase is Phase.WAITING
        if running and self._turns.isdisjoint(tokens):
            self.tokens.extend(tokens)
            return
        for token in tokens:
            self.take(token)

    def fail(self, count: int | None = None) -> None:
        """It failed after `count` tokens, of which some may still arrive, or after
        those that are here."""
        self._limit = len(self.tokens) if count is None else count
        del self.tokens[self._limit :]
        self.phase = Phase.FAILED

    def mark(self) -> StateMark:
        """Return the state that `go_back` needs."""
        return self.phase, self.begun, self.start, len(self.tokens)

    def go_back(self, mark: StateMark) -> None:
        """Be as it was at a mark: the tokens since do not count."""
        self.phase, self.begun, self.start, count = mark
        del self.tokens[count:]
        if self.phase is Phase.WAITING:
            self._turns = self._waiting_turns()

    def constrained(self) -> array[int]:
        """The tokens that the grammar accepted."""
        return self.tokens[self.start :] if self.begun else array("q")

    def follows(self, tokens: Sequence[int]) -> bool:
        """True if these are the newest ones."""
        return not tokens or self.tokens[-len(tokens) :].tolist() == list(tokens)

    def _begins(self, token: int) -> int | None:
        """Return the number of tokens up to this one that are constrained; None if it
        completes no trigger."""
        for trigger, kept in self._triggers:
            if token == trigger[-1] and self.follows(trigger[:-1]):
                return len(trigger) if kept else 0
        return None

    def _activate(self, constrained: int) -> None:
        self.phase = Phase.ACTIVE
        self.begun = True
        self.start = len(self.tokens) - constrained
        self._turns = self._stops

    def _waiting_turns(self) -> frozenset[int]:
        return self._stops.union(trigger[-1] for trigger, _ in self._triggers)


def as_array(trigger: Trigger) -> array[int]:
    """A trigger's token ids. Raises TypeError for a text."""
    return array("q", cast("Sequence[int]", trigger.tokens))
