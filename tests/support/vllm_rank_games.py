"""The V1 game of `vllm_games` as the last stage of a pipeline plays it."""

import random
from itertools import chain

import pytest
import torch

pytest.importorskip("vllm")
from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality
from vllm_games import Request
from vllm_support import WIDTH

__all__ = ["V1TurnsGame"]


class V1TurnsGame:
    """The batches of several pipeline stages, as the V1 runner of the last one sees them: it takes out what
    is not in a batch, and puts it back for its next step."""

    def __init__(self, guide, seed, *, most, stages=2):
        self.guide, self.rng, self.most = guide, random.Random(seed), most
        self.generator = torch.Generator().manual_seed(seed)
        self.groups, self.preempted, self.done = [[] for _ in range(stages)], [], []
        self.rows, self.turn, self.count = [], 0, 0
        self.begun, self.cut, self.cut_back = set(), set(), 0
        """Guided requests that were in a batch; those whose output was cut; how many of them came back."""
        self.table = guide.runner.engine.table = {}

    def step(self):
        rng, group = self.rng, self.groups[self.turn % len(self.groups)]
        self.turn += 1
        for one in (*self.groups, self.preempted):
            for request in list(one):
                if request.over or rng.random() < 0.02:  # finished, or aborted wherever it is
                    one.remove(request)
                    del self.table[request.name]
                    self.done.append(request)
                elif one is group and rng.random() < (0.03 if self.most == 8 else 0.12):
                    one.remove(request)
                    self.preempted.append(request)
        running = sum(map(len, self.groups))
        if self.preempted and running < 8 and rng.random() < 0.3:
            request = self.preempted.pop(0)
            if request.tokens and rng.random() < 0.3:  # a part of its cache could not be loaded
                del request.tokens[-1]
                del request.listed[-1]
                self.cut.add(request)
            group.append(request)
        elif running < 8 and len(self.table) < self.most and rng.random() < 0.7:
            self.count += 1
            request = Request(self.count, rng)
            self.table[request.name] = request
            group.append(request)
        self.decode([request for request in group if rng.random() < 0.95])

    def decode(self, batch):
        stay = [request if request in batch else None for request in self.rows]
        free = [at for at, request in enumerate(stay) if request is None]
        added = []
        for request in batch:
            if request not in stay:
                at = free.pop(0) if free else len(stay)
                stay[at : at + 1] = [request]
                added.append((at, request.params, request.prompt, request.listed))
                if request.spec is not None:
                    self.begun.add(request)
                    self.cut_back += request in self.cut
                self.cut.discard(request)
        moved = []
        removed = sorted(free, reverse=True)
        while None in stay:  # condense: the last row moves into the gap
            last = stay.pop()
            if last is not None:
                at = stay.index(None)
                stay[at] = last
                moved.append((len(stay), at, MoveDirectionality.UNIDIRECTIONAL))
        self.rows = stay
        changed = removed or added or moved
        self.guide.update_state(BatchUpdate(len(stay), removed, added, moved) if changed else None)
        if not stay:
            return
        masked = self.guide.apply(torch.randn(len(stay), WIDTH, generator=self.generator))
        sampled = masked.argmax(-1).to(torch.int32)
        self.guide.runner.sampled(sampled.view(-1, 1))
        for request, token in zip(stay, sampled.tolist(), strict=True):
            request.tokens.append(token)
            request.listed.append(token)

    def finish(self):
        for request in [*chain(*self.groups), *self.preempted, *self.done]:
            request.check()
