"""The words of the shared memory, by name: counters, and the fields of a plan and of a
rank's line. `layout` says where they are."""

from __future__ import annotations

from enum import IntEnum


class Counter(IntEnum):
    """Words of page 1. Each is written after what it announces."""

    PLANNED = 0
    """Engine: the newest plan."""
    SAMPLED = 1
    """Device: the newest step whose tokens are in the ring."""
    FILLED = 2
    """Worker: the newest step whose masks are in the ring. The device waits for this
    one."""
    ACCEPTED = 3
    """Worker: the newest step whose tokens the grammars have seen."""
    HEARTBEAT = 4
    """Worker: changes as long as it makes any progress, idle or not."""
    DOING = 5
    """Worker: 1 + the slot that it works on by itself, to which its end is attributed;
    else 0."""
    CLOSED = 6
    """Worker: how many entries of `closures` were written. Raised before FILLED of the
    first closed step."""
    ENDED = 7
    """Engine: 1 when no more steps come. Raised after FILLED of the last one."""
    OFFERED = 8
    """Worker: the newest step whose drafts are final: what it offers stands in place of
    what was proposed. The device waits for this one before it verifies them."""


class RankWord(IntEnum):
    """Words of a follower's line."""

    TAKEN = 0
    """Up to this step it has used the masks."""
    TROUBLE = 1
    """1 if its steps are not those of its leader, which must not go on then."""


class PlanField(IntEnum):
    """The head of a plan; the slots follow at SLOTS, in row order."""

    STEP = 0
    FOLLOWS = 1
    """The last step that was sampled before this one: its tokens come first."""
    MESSAGES = 2
    """The number of messages of this session that precede the plan."""
    PLAN_ID = 3
    """Changes whenever the slots do."""
    COUNT = 4
    OFFERS = 5
    """0: masks are due at once; else while the model runs, with drafts as proposed (1),
    or the worker's."""
    MICROSECONDS = 6
    """When it was planned, by `time.perf_counter`."""
    SLOTS = 16
