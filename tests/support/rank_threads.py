"""Ranks that are threads of one process: what they share, they share as processes do."""

import queue
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import torch
from vocabularies import BYTES

WIDTH = BYTES.size + 3


class ThreadRanks:
    """A `RankGroup` of threads, which can send each other tensors."""

    def __init__(self, rank, values, barrier, sent):
        self.rank, self.size = rank, len(values)
        self._values, self._barrier, self._sent = values, barrier, sent

    def broadcast(self, value):
        return self.gather(value)[0]

    def gather(self, value):
        self._values[self.rank] = value
        self._barrier.wait(60)
        found = list(self._values)
        self._barrier.wait(60)
        return found

    def send(self, tensor, rank, tag):
        """Waits for the other side, as gloo does."""
        taken = threading.Event()
        self._sent[self.rank, rank, tag].put((tensor, taken))
        assert taken.wait(60)

    def receive(self, tensor, rank, tag):
        came, taken = self._sent[rank, self.rank, tag].get(timeout=60)
        assert (came.shape, came.dtype) == (tensor.shape, tensor.dtype)
        tensor.copy_(came)
        taken.set()


def on_ranks(size, work):
    """What `work(group)` returns or raises in each of `size` threads."""
    values, barrier = [None] * size, threading.Barrier(size)
    sent = defaultdict(queue.Queue)
    groups = [ThreadRanks(rank, values, barrier, sent) for rank in range(size)]
    with ThreadPoolExecutor(size) as threads:
        futures = [threads.submit(work, group) for group in groups]
    return [future.exception() or future.result() for future in futures]


def step(pipe, slots, seed):
    """One decode step of random logits; what is left of them, and the tokens."""
    logits = torch.randn(len(slots), WIDTH, generator=torch.Generator().manual_seed(seed))
    pipe.plan(slots)
    pipe.fill_mask()
    masked = pipe.apply_mask(logits)
    tokens = masked.argmax(-1)
    pipe.schedule_update(tokens)
    pipe.finish_update()
    return masked, tokens.tolist()
