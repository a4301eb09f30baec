"""Numbers about a running pipeline, as plain values.

Depends on nothing: a pipeline makes these values, others read them.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import sub

RECENT = 256
"""Steps that medians are taken over: the newest ones."""

BUCKETS = (
    1e-5,
    2e-5,
    5e-5,
    1e-4,
    2e-4,
    5e-4,
    1e-3,
    2e-3,
    5e-3,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.5,
)
"""Seconds up to which times are counted together. The same in all processes: counts of
each add up."""

Counts = tuple[float, ...]
"""Times by bucket, the longest last, and behind them their sum. Each number only
grows."""


class Times:
    """Times of one kind: all of them by bucket, and the newest. Added by one thread,
    read by any, also of a process that shares the memory."""

    LENGTH = RECENT + len(BUCKETS) + 3

    def __init__(self, memory: memoryview[float] | None = None) -> None:
        """`memory`: [LENGTH] doubles, of zeros or with earlier times: the newest, the
        counts and the sum, how many there are."""
        own = memoryview(bytearray(8 * self.LENGTH)).cast("d")
        self._memory = own if memory is None else memory

    def add(self, value: float) -> None:
        """One more. Called in each step."""
        memory = self._memory
        memory[int(memory[-1]) % RECENT] = value
        memory[RECENT + bisect_left(BUCKETS, value)] += 1
        memory[-2] += value
        memory[-1] += 1

    def counts(self) -> Counts:
        """All so far."""
        return tuple(self._memory[RECENT:-1])

    def median(self) -> float:
        """Return the median of the newest; 0 where there is none."""
        newest = self._memory[: len(self)]
        return statistics.median(newest) if newest else 0.0

    def __len__(self) -> int:
        return min(RECENT, int(self._memory[-1]))


@dataclass(frozen=True, slots=True)
class WorkerMetrics:
    """A grammar worker. Times in seconds, over the newest `RECENT` steps."""

    steps: int = 0
    """Steps that these medians are taken over."""
    plan_to_mask: float = 0.0
    """Median time from a plan, or from the tokens it had to wait for if they came
    later, to its masks."""
    accept: float = 0.0
    """Median time that accepting a step's tokens took."""
    fill: float = 0.0
    """Median time that filling a step's masks took."""
    exposed_wait: float = 0.0
    """Median time that the logits waited for their masks, in the steps that were looked
    at. Without a worker, that the host's thread filled them."""
    answer: float = 0.0
    """Median time from a step's tokens to the drafts that are offered after them. The
    device waits for it."""
    offered: int = 0
    """Drafts that were offered."""
    taken: int = 0
    """Drafts that were accepted, of steps in which the worker may offer some."""
    forwards: int = 0
    """The number of times a guided row got tokens in such a step: with `taken`, as many
    tokens."""
    led_outputs: int = 0
    led_reasoning: int = 0
    """Outputs that came so near their token limit that they were led to an end
    (`close_before_length`), and those of which what comes before was."""
    led_tokens: int = 0
    """Tokens in both that had no other choice."""
    unprotected_outputs: int = 0
    """Outputs that might be cut at their token limit all the same: no end was known."""
    restarts: int = 0
    """Workers that had to be replaced."""
    memory_bytes: int = 0
    """Resident memory of its process."""
    shared_bytes: int = 0
    """Memory that it shares with the host's process."""
    learnt_bytes: int = 0
    """Bytes that lexers have learnt of their grammars, at most; without a worker, in
    the host's process."""
    times: Mapping[str, Counts] = field(default_factory=dict)
    """All times since the start by name: of `TIMES` those that a worker takes."""


@dataclass(frozen=True, slots=True)
class PipelineMetrics:
    """A pipeline since its start."""

    mode: str
    """`inline` or `process`."""
    steps: int
    """Steps with a guided row."""
    rows: int
    """Guided rows in all of them."""
    running: int
    """Guided requests that have a slot now."""
    added: int
    failed: int
    """Requests that failed while they ran."""
    backends: dict[str, int]
    """Requests added, by backend."""
    main_thread: float
    """Median seconds that the host's thread spent in a step's calls, over the newest
    `RECENT`."""
    worker: WorkerMetrics = WorkerMetrics()
    unenforced: Mapping[str, int] = field(default_factory=dict)
    """Requests added, by each keyword of theirs that nothing enforces
    (`unenforced_keywords`)."""
    times: Mapping[str, Counts] = field(default_factory=dict)
    """All times since the start by name: those of the host's thread."""


WORKER_COUNTERS = (
    "offered",
    "taken",
    "forwards",
    "led_outputs",
    "led_reasoning",
    "led_tokens",
    "unprotected_outputs",
)
"""Figures of `WorkerMetrics` that only grow, where its grammars work."""

COUNTERS = {"steps", "rows", "added", "failed", "restarts", *WORKER_COUNTERS}
"""Figures that only grow."""

WORKER_TIMES = ("plan_to_mask", "accept", "fill", "answer")
"""Times of `WorkerMetrics` that are taken there."""

TIMES = {"main_thread", "host_thread", "exposed_wait", *WORKER_TIMES}
"""Times that are counted by bucket. A median of each is a figure of the same name."""
_NO_COUNTS: Counts = (0,) * (len(BUCKETS) + 2)


class Growth:
    """Return what counters and times of a pipeline have grown by. Each growth is told
    once; callers share the sum."""

    def __init__(self) -> None:
        self._most: dict[str, Counts] = {}

    def take(self, now: PipelineMetrics, **times: Counts) -> dict[str, Counts]:
        """Since the last call: of a counter one number. `times`: more than those of the
        pipeline."""
        values: dict[str, Counts] = {
            name: (getattr(now if hasattr(now, name) else now.worker, name),)
            for name in COUNTERS
        }
        values |= {**now.times, **now.worker.times, **times}
        grown = {}
        for name, value in values.items():
            before = self._most.get(name, _NO_COUNTS)
            self._most[name] = most = tuple(map(max, value, before))
            grown[name] = tuple(map(sub, most, before))
        return grown


HELP = {
    "steps": "decode steps with a guided row",
    "rows": "guided rows in all steps",
    "running": "guided requests that have a slot",
    "added": "guided requests that were added",
    "failed": "guided requests that failed while they ran",
    "main_thread": "seconds per step in the pipeline's calls",
    "host_thread": "seconds of vLLM's thread per step",
    "exposed_wait": "seconds that logits waited for their masks, in sampled steps; inline, that they took",
    "plan_to_mask": "seconds from a plan, or the tokens before it if they came later, to its masks",
    "answer": "seconds from a step's tokens to the drafts offered after them",
    "offered": "drafts of forced or expected text that were offered",
    "taken": "drafts accepted in steps that may offer some",
    "forwards": "guided rows that got tokens in steps that may offer drafts",
    "led_outputs": "outputs led to an end before their token limit",
    "led_reasoning": "outputs whose reasoning was led to its end, for the answer to have room",
    "led_tokens": "tokens in both that were the only choice",
    "unprotected_outputs": "outputs with `close_before_length` for which no end was known",
    "restarts": "grammar workers that had to be replaced",
    "memory_bytes": "resident memory of the grammar worker",
    "shared_bytes": "memory that the grammar worker shares with the host",
    "learnt_bytes": "memory of cached lexer states, at most",
    "learnt_limit_bytes": "the option `learnt_bytes`",
}
"""The meaning of each figure, for those who read metrics."""
