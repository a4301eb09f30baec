"""The part of an output before the constrained one: anything, until the tokens that are
left are just enough for a trigger and an answer. Depends on the grammar protocols.

vLLM's own budget for reasoning (`thinking_token_budget`) knows one end, needs the
beginning of the reasoning in the prompt or the output, and is there in no other host.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass

from guided_plugin.grammar.base import Grammar, MaskArray, least_tokens, token_bit
from guided_plugin.grammar.request_state import RequestState, as_array
from guided_plugin.spec import check_room
from guided_plugin.spec.triggers import Trigger, nearest

LED_OUTPUT = 1
LED_REASONING = 2
"""The parts led to an end: the constrained part of an output, and what comes before."""

COUNTED = {LED_OUTPUT: "led_outputs", LED_REASONING: "led_reasoning"}
"""Figures of `WorkerMetrics` that count these."""

LED = ("", "led", "led: reasoning", "led: reasoning and output")
"""The values of `RequestInfo.closed` for both together, by their sum."""


@dataclass(frozen=True, slots=True)
class Lead:
    """The way a request that waits is led to its constrained part."""

    trigger: array[int]
    start: int
    """With so many tokens, only the trigger may come."""

    def token(self, state: RequestState) -> int | None:
        """The token that has to come next; None: any may."""
        begun = len(state.tokens) - self.start
        if begun < 0:
            return None
        begun = min(begun, len(self.trigger) - 1)
        # other tokens were sampled if a host brought them, and no mask of this table
        while not state.follows(self.trigger[:begun]):
            begun -= 1
        return self.trigger[begun]


def lead_of(
    grammar: Grammar, triggers: Iterable[Trigger], room: int, answer_room: float
) -> Lead | None:
    """Return the lead that leaves the constrained part of an output its part of the
    room. Raises RequestError where that is too little for the shortest."""
    trigger = nearest(triggers)
    if trigger is None:
        return None
    least = least_tokens(grammar.shortest)
    size = len(trigger.tokens)
    check_room(size + least, room)
    answer = max(least, math.ceil(answer_room * room))
    return Lead(as_array(trigger), max(0, room - answer - size))


def fill_waiting(
    row: MaskArray, state: RequestState, forbidden: Iterable[array[int]]
) -> None:
    """Write the mask of a request that waits. `forbidden`: triggers that would begin a
    constrained part which its grammar refuses."""
    row[:] = -1
    for *before, last in forbidden:
        if state.follows(before):
            row[last // 32] &= ~token_bit(last)
