"""Numbers about a running pipeline: plain values, and Prometheus metrics where its client is installed.

Depends on nothing of the package: a pipeline makes these values, others read them.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

RECENT = 256
"""Steps that medians are taken over: the newest ones."""


@dataclass(frozen=True, slots=True)
class StepStatistics:
    """Host-side cost of one pipeline step, in seconds, and what it covered. With drafts, all of it is in
    `plan`."""

    step: int
    rows: int
    """Guided rows."""
    plan: float
    fill_mask: float
    apply_mask: float
    schedule_update: float
    finish_update: float

    @property
    def main_thread(self) -> float:
        """Time the host's thread spent in the plugin."""
        return self.plan + self.fill_mask + self.apply_mask + self.schedule_update + self.finish_update


class Recent:
    """The newest of some values, and their median. Added by one thread, read by any."""

    def __init__(self, most: int = RECENT) -> None:
        self._values: deque[float] = deque(maxlen=most)

    def add(self, value: float) -> None:
        """One more."""
        self._values.append(value)

    def median(self) -> float:
        """Of those that are kept; 0 where there is none."""
        copied = list(self._values)  # another thread may add
        return statistics.median(copied) if copied else 0.0


class StepFigures:
    """What the steps of one pipeline took of the host's thread."""

    def __init__(self) -> None:
        self.steps = 0
        """With a guided row."""
        self.rows = 0
        """Guided rows in all of them."""
        self._number = 0
        self._last: tuple[int, int, list[float]] | None = None
        self._seconds = Recent()

    def finish(self, rows: int, clock: list[float]) -> None:
        """A step is over; `clock` has the seconds of the five verbs."""
        if rows:
            self.steps += 1
            self.rows += rows
            self._last = self._number, rows, clock[:]
            self._seconds.add(sum(clock))
        self._number += 1

    @property
    def last(self) -> StepStatistics | None:
        """The last step with a guided row."""
        if self._last is None:
            return None
        number, rows, clock = self._last
        return StepStatistics(number, rows, *clock)

    def main_thread(self) -> float:
        """Median seconds of a step, over the newest `RECENT`."""
        return self._seconds.median()


@dataclass(frozen=True, slots=True)
class WorkerMetrics:
    """A grammar worker. Times in seconds, over the newest `RECENT` steps."""

    steps: int = 0
    """Steps that these medians are taken over."""
    plan_to_mask: float = 0.0
    """Median time from a plan, or from the tokens it had to wait for if they came later, to its masks."""
    plan_to_mask_p99: float = 0.0
    accept: float = 0.0
    """Median time that accepting a step's tokens took."""
    fill: float = 0.0
    """Median time that filling a step's masks took."""
    exposed_wait: float = 0.0
    """Median time that the logits waited for their masks, in the steps that were looked at."""
    answer: float = 0.0
    """Median time from a step's tokens to the drafts that are offered after them. The device waits for it."""
    answer_p95: float = 0.0
    offered: int = 0
    """Drafts that were offered."""
    taken: int = 0
    """Drafts that were accepted, of steps in which the worker may offer some."""
    offered_earlier: int = 0
    """Of `offered`, those that need not follow, and followed in earlier outputs of the schema."""
    taken_earlier: int = 0
    """Those of them that were accepted."""
    forwards: int = 0
    """How often a guided row got tokens in such a step: with `taken`, as many tokens."""
    without_drafts: int = 0
    """Sizes of batches, to a power of two, that go without drafts now, as they were not faster with them."""
    led_outputs: int = 0
    """Outputs that came so near their token limit that they were led to an end (`close_before_length`)."""
    led_tokens: int = 0
    """Tokens of theirs that had no other choice."""
    margin: float = 0.0
    """Median time that the masks were there before the logits in them; negative when they were late."""
    restarts: int = 0
    """Workers that had to be replaced."""
    memory_bytes: int = 0
    """Resident memory of its process."""
    shared_bytes: int = 0
    """Memory that it shares with the host's process."""
    learnt_bytes: int = 0
    """What lexers have learnt of their grammars, at most; without a worker, in the host's process."""


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
    """Median seconds that the host's thread spent in a step's calls, over the newest `RECENT`."""
    worker: WorkerMetrics = WorkerMetrics()
    choices: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """The same by backend and the reason why it was chosen; rare reasons count as `other`."""
    unenforced: Mapping[str, int] = field(default_factory=dict)
    """Requests added, by each keyword of theirs that nothing enforces (`unenforced_keywords`)."""


COUNTERS = {"steps", "rows", "added", "failed", "restarts"}
COUNTERS |= {"offered", "taken", "forwards", "offered_earlier", "taken_earlier", "led_outputs", "led_tokens"}
"""Figures that only grow."""


class Growth:
    """What the counters of a pipeline have grown by. Each growth is told once; callers share the sum."""

    def __init__(self) -> None:
        self._most: dict[str, int] = {}

    def take(self, now: PipelineMetrics) -> dict[str, int]:
        """Since the last call. A worker's counters may be 0 for a while, where it had no step lately."""
        values = {name: getattr(now if hasattr(now, name) else now.worker, name) for name in COUNTERS}
        before, self._most = self._most, {n: max(v, self._most.get(n, 0)) for n, v in values.items()}
        return {name: most - before.get(name, 0) for name, most in self._most.items()}


def prometheus_collector(read: Callable[[], PipelineMetrics], *, prefix: str = "guided_plugin") -> Any:
    """A collector for `prometheus_client.REGISTRY.register`; reads the values when it is scraped.

    Raises ImportError where prometheus_client is not installed.
    """
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    def family(name: str, value: float) -> Any:
        kind = CounterMetricFamily if name in COUNTERS else GaugeMetricFamily
        return kind(f"{prefix}_{name}", _HELP.get(name, name.replace("_", " ")), value=value)

    class Collector:
        """Reads one pipeline."""

        def collect(self) -> Iterator[Any]:
            """All metrics, as of now."""
            now = read()
            for name in ("steps", "rows", "running", "added", "failed", "main_thread"):
                yield family(name, getattr(now, name))
            for one in fields(now.worker):
                name = one.name if one.name in COUNTERS - {"steps"} else f"worker_{one.name}"
                yield family(name, getattr(now.worker, one.name))
            for what, labels, counts in (
                ("requests", ["backend", "reason"], now.choices),
                ("unenforced", ["keyword"], {(keyword,): count for keyword, count in now.unenforced.items()}),
            ):
                found = CounterMetricFamily(f"{prefix}_{what}", _HELP[what], labels=labels)
                for values, count in counts.items():
                    found.add_metric(list(values), count)
                yield found

    return Collector()


_HELP = {
    "steps": "decode steps with a guided row",
    "rows": "guided rows over all steps",
    "running": "guided requests that have a slot",
    "added": "guided requests since the start",
    "failed": "guided requests that failed while they ran",
    "restarts": "grammar workers that had to be replaced",
    "offered": "drafts of text that must follow that were offered",
    "taken": "drafts that were accepted in steps that may offer some",
    "offered_earlier": "those of them that only followed in earlier outputs",
    "taken_earlier": "those of these that were accepted",
    "forwards": "how often a guided row got tokens in such a step",
    "led_outputs": "outputs that were led to an end before their token limit",
    "led_tokens": "tokens of theirs that had no other choice",
    "worker_without_drafts": "sizes of batches that go without drafts now, as these were not faster",
    "worker_memory_bytes": "resident memory of the grammar worker",
    "worker_shared_bytes": "memory that the grammar worker shares with the host",
    "worker_learnt_bytes": "bytes that lexers have learnt of their grammars, at most",
    "requests": "guided requests by backend and why",
    "unenforced": "guided requests by keyword that nothing enforces",
    "main_thread": "median seconds of the host's thread in a step, over the newest ones",
}
