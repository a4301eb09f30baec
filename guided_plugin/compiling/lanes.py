"""Which spec gets a helper process next. Depends on nothing; not thread-safe: the guard holds its lock.

There are two lanes. Heavy specs, those that are likely to take seconds, never use the last helper; so a
quick one waits for other quick ones only. A spec of the quick lane that turns out to be slow is preempted as
soon as another one waits for it, and starts again in the heavy lane.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

_QUICK_SECONDS = 1.0
"""How long a spec of the quick lane may take while others wait."""


@dataclass(slots=True, eq=False)
class Turn:
    """One spec that wants a helper, or has one."""

    heavy: bool
    since: float = float("inf")
    """When its compile began, of `time.monotonic`."""
    preempted: bool = field(default=False)


class Lanes:
    """The specs that wait, first come first served in each lane, and those that have a helper."""

    def __init__(self, helpers: int, processors: int) -> None:
        self._helpers = helpers
        self._most_heavy = max(1, min(helpers - 1, processors // 2))
        self._waiting: tuple[deque[Turn], deque[Turn]] = deque(), deque()
        self._running: set[Turn] = set()

    @contextmanager
    def queued(self, turn: Turn) -> Iterator[None]:
        """A spec waits."""
        lane = self._waiting[turn.heavy]
        lane.append(turn)
        try:
            yield
        finally:
            lane.remove(turn)

    def may_run(self, turn: Turn) -> bool:
        """Whether it is the turn of a spec that waits, if there is a helper."""
        if self._waiting[turn.heavy][0] is not turn:
            return False
        return not turn.heavy or sum(one.heavy for one in self._running) < self._most_heavy

    def begin(self, turn: Turn) -> None:
        """A spec has a helper."""
        self._running.add(turn)

    def end(self, turn: Turn) -> None:
        """It has none any more."""
        self._running.discard(turn)

    def overdue(self) -> Turn | None:
        """The spec of the quick lane that has run longest, if that is too long and others wait for it."""
        if self._helpers == 1 or not self._waiting[False]:
            return None
        late = time.monotonic() - _QUICK_SECONDS
        found = [turn for turn in self._running if not turn.heavy and turn.since < late]
        return min(found, key=lambda turn: turn.since, default=None)
