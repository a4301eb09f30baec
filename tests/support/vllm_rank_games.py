"""The games of `vllm_games` as ranks play them: pipeline stages, and ranks that sample a part of a batch."""

import dataclasses
import random
from itertools import chain
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("vllm")
from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality
from vllm_games import Request, V2DraftGame, V2Game
from vllm_support import WIDTH

__all__ = ["V1TurnsGame", "V2ShardedDraftGame", "V2ShardedGame"]


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


class Sharded:
    """Every rank samples the requests whose index is its own; some ranks have none in a batch."""

    def __init__(self, guides_of, vllm_config, seed):
        self.guides_of = guides_of
        super().__init__(vllm_config, seed)
        self.empty = 0

    def make(self, vllm_config, states):
        return self.guides_of(vllm_config, states)

    def apply(self, logits, context):
        indices = context.expanded_idx_mapping
        whole = SimpleNamespace(
            idx_mapping_np=context.idx_mapping_np,
            expanded_idx_mapping=indices,
            expanded_local_pos=context.expanded_local_pos,
            input_ids=context.input_ids,
            logits_indices=torch.arange(len(indices)),
        )
        for guide in self.guides:
            guide.runner.show(whole)
        for rank, guide in enumerate(self.guides):
            own = context.idx_mapping_np[context.idx_mapping_np % len(self.guides) == rank]
            self.empty += not len(own)
            for part in (own[:1], own[1:]) if self.rng.random() < 0.2 and self.drafts else (own,):
                rows = torch.tensor([index in part for index in indices.tolist()]).nonzero().view(-1)
                if len(part):
                    logits[rows] = self.masked(guide, logits[rows], self.part(context, rows, part))
            guide.runner.shown()
        return logits

    def part(self, context, rows, own):
        return dataclasses.replace(
            context,
            idx_mapping=torch.tensor(own),
            idx_mapping_np=own,
            expanded_idx_mapping=context.expanded_idx_mapping[rows],
            expanded_local_pos=context.expanded_local_pos[rows] if self.drafts else None,
            input_ids=context.input_ids[rows] if self.drafts else None,
        )


class V2ShardedGame(Sharded, V2Game):
    drafts = False


class V2ShardedDraftGame(Sharded, V2DraftGame):
    drafts = True

    def parts(self, batch):
        return [batch]
