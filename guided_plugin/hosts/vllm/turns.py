"""Requests whose masks take too long for a step take turns: vLLM's scheduler leaves
them out of steps, as it does under pipeline parallelism, until a fifth of the time has
paid for the masks of those that had theirs.

A step waits for all of its masks, so that few such requests would slow all others down.
Their tokens come later, and are the same. Where a step has no others, none is left out.
"""

from __future__ import annotations

import time
from typing import Any

SLOW = "guided_slow"
"""The attribute of a ModelRunnerOutput with the requests whose masks take too long for
a step: seconds of processor time of the last one, by id."""

_PAID = 5.0
"""A mask of one of them is paid for when so many times as long has passed."""


class Turns:
    """The slow requests of a scheduler."""

    def __init__(self) -> None:
        self._slow: dict[str, float] = {}
        """Whose turn it is comes first."""
        self._paid = self._looked = 0.0
        """When all masks are paid for, and when the last step began."""

    def tell(self, slow: dict[str, float]) -> None:
        """An output has come."""
        self._slow = {name: slow[name] for name in [*self._slow, *slow] if name in slow}

    def leave_out(self, scheduler: Any) -> None:
        """Before a step: see whose turn it is."""
        now = time.monotonic()
        # what was not used does not add up
        self._paid, self._looked = max(self._paid, self._looked), now
        if not self._slow:
            return
        running = {request.request_id: request for request in scheduler.running}
        if running.keys() <= self._slow.keys():
            return
        for name in [name for name in self._slow if name in running]:
            request = running[name]
            # V1 takes the tokens of one that is back from the scheduler: none may be on
            # its way
            if self._paid > now or request.num_output_placeholders:
                request.next_decode_eligible_step = max(
                    request.next_decode_eligible_step, scheduler.current_step + 2
                )
            else:
                self._paid += _PAID * self._slow[name]
                self._slow[name] = self._slow.pop(name)
