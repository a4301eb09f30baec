"""Ranks that are threads of one process: what they share, they share as processes do."""

import threading
from concurrent.futures import ThreadPoolExecutor


class ThreadRanks:
    """A `RankGroup` of threads."""

    def __init__(self, rank, values, barrier):
        self.rank, self.size = rank, len(values)
        self._values, self._barrier = values, barrier

    def broadcast(self, value):
        return self.gather(value)[0]

    def gather(self, value):
        self._values[self.rank] = value
        self._barrier.wait(60)
        found = list(self._values)
        self._barrier.wait(60)
        return found


def on_ranks(size, work):
    """What `work(group)` returns or raises in each of `size` threads."""
    values, barrier = [None] * size, threading.Barrier(size)
    groups = [ThreadRanks(rank, values, barrier) for rank in range(size)]
    with ThreadPoolExecutor(size) as threads:
        futures = [threads.submit(work, group) for group in groups]
    return [future.exception() or future.result() for future in futures]
