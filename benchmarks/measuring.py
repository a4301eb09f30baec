"""What benchmarks of steps share: prompts, clocks, quantiles and turns."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guided_plugin.bench import median
from guided_plugin.hookspecs import hookimpl
from guided_plugin.metrics import StepStatistics

WARM_UP = 8
"""Steps at the start of a run that don't count."""
PROMPT = 3
"""Tokens of a prompt."""


def question_in(path: str | Path) -> dict[str, Any]:
    """Read what `run_child` asks of this process. When who asks is gone, this process
    and all that it started end too: an engine holds the memory of its GPU."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    question: dict[str, Any] = json.loads(Path(path).read_text())
    return question


def prompts(rows: int) -> list[list[int]]:
    """Short prompts that differ from row to row."""
    return [[1 + row % 7, *range(2, PROMPT + 1)] for row in range(rows)]


def step_ms(ends: Sequence[float]) -> float:
    """Mean milliseconds of a step after the warm-up, from the seconds at which steps
    ended."""
    ends = ends[WARM_UP - 1 :]
    return (ends[-1] - ends[0]) * 1e3 / max(1, len(ends) - 1)


def quantile(values: Sequence[float] | NDArray[Any], share: float) -> float:
    """The smallest value that is not below this share of the values: one that was
    measured."""
    rank = max(0, math.ceil(share * len(values)) - 1)
    return float(np.partition(values, rank)[rank])


class StepCosts:
    """A plugin that collects what each step took of the host's thread."""

    def __init__(self) -> None:
        self.costs: list[StepStatistics] = []

    @hookimpl
    def step_finished(self, statistics: StepStatistics) -> None:
        self.costs.append(statistics)

    def median_us(self, call: str = "main_thread") -> float:
        """Microseconds of one call, or of all; 0 if there are none."""
        found = [getattr(cost, call) * 1e6 for cost in self.costs]
        return median(found, 1) if found else 0.0


@contextlib.contextmanager
def turn(path: str) -> Iterator[None]:
    """The engines that share this file work one at a time."""
    with Path(path).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)  # the engine's process has the file too
    time.sleep(0.05)  # who waits is next
