"""Ranks that are threads of one process: what they share, they share as processes
do."""

import contextlib
import functools
import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from vocabularies import BYTES
from worker_runs import one_step

import guided_plugin as gp

WIDTH = BYTES.size + 3


class ThreadRanks:
    """A `RankGroup` of threads, which can send each other tensors."""

    def __init__(self, rank, where, values, barrier, sent):
        self.rank = rank
        self.leaders = [where.index(machine) for machine in where]
        self._values = values
        self._barrier = barrier
        self._sent = sent

    def gather(self, value):
        self._values[self.rank] = value
        self._barrier.wait(60)
        found = list(self._values)
        self._barrier.wait(60)
        return found

    def send(self, tensor, rank, tag):
        """Waits for the other side, as gloo does."""
        taken = threading.Event()
        self._queue(self.rank, rank, tag).put((tensor, taken))
        assert taken.wait(60)

    def receive(self, tensor, rank, tag):
        came, taken = self._queue(rank, self.rank, tag).get(timeout=60)
        assert (came.shape, came.dtype) == (tensor.shape, tensor.dtype)
        tensor.copy_(came)
        taken.set()

    def _queue(self, *key):
        """One for both sides, whichever asks first: a defaultdict may make two."""
        return self._sent.setdefault(key, queue.SimpleQueue())


def on_ranks(where, work):
    """What `work(group)` returns or raises in a thread for each letter, which names its
    machine."""
    shared = [None] * len(where), threading.Barrier(len(where)), {}
    groups = [ThreadRanks(rank, where, *shared) for rank in range(len(where))]
    with ThreadPoolExecutor(len(where)) as threads:
        futures = [threads.submit(work, group) for group in groups]
    return [future.exception() or future.result() for future in futures]


def step(pipe, slots, seed):
    """One decode step of random logits; what is left of them, and the tokens."""
    logits = torch.randn(
        len(slots), WIDTH, generator=torch.Generator().manual_seed(seed)
    )
    tokens = one_step(pipe, slots, logits)
    return logits, tokens.tolist()


@functools.cache
def compiler():
    return gp.GrammarCompiler(
        BYTES, config=gp.GuidedConfig(threads=1, worker_step_ms=20_000)
    )


def pipeline(**options):
    return gp.StepPipeline(compiler(), max_slots=4, **options)


@contextlib.contextmanager
def sharing():
    """Makes pipelines of one model: one for each letter, which names its machine; rank
    0 first."""
    compiler()  # before threads ask for it
    with contextlib.ExitStack() as close:

        def share(where, mode="inline", change=lambda group: group, **options):
            found = on_ranks(
                where,
                lambda group: pipeline(mode=mode, ranks=change(group), **options),
            )
            for pipe in reversed(found):  # rank 0 closes first
                if isinstance(pipe, gp.StepPipeline):
                    close.callback(pipe.close)
            return found

        yield share
