"""vLLM's V2 model runner under speculative decoding: drafts that masks are filled
along, and forced text as drafts. Imports torch, and vLLM lazily.

When vLLM's speculator returns its drafts, they and the new tokens go to the grammars.
With `jump_forward` the worker answers at once with what is verified: text that must
follow, in place of guesses. Then it fills masks along them, while the model runs.

Where no speculator of this process is seen to propose (pipeline stages, or grammars in
the host's thread on CUDA), all requests are sent in the sampler, with the drafts that
it shows. A draft that a mask forbids is rejected by vLLM's own sampler, since nothing
is left of its probability. A draft that the worker has cut is rejected whatever its row
says: there are no masks behind it.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from guided_plugin.hosts.vllm.common import drafts_of
from guided_plugin.hosts.vllm.jump import RUNNERS
from guided_plugin.hosts.vllm.names import Part
from guided_plugin.hosts.vllm.v2 import NONE, Indices, PlannedBatch, V2Runner
from guided_plugin.pipeline.pipeline import DraftStep


class SentBatch(PlannedBatch):
    """Requests whose tokens and drafts are with the grammars."""

    def __init__(self, max_requests: int, device: torch.device) -> None:
        super().__init__(max_requests, device)
        self.step: DraftStep | None = None
        """None: nothing is sent for the next forward pass."""
        self.members = np.zeros(max_requests, np.bool_)
        """By index, whether it is planned, and not another request's now."""

    def leave(self, entered: list[int], there: Tensor) -> None:
        """Other requests have these indices now; `there`: the same on the device."""
        if self.members[entered].any():
            self.table.index_fill_(0, there, -1)
            self.members[entered] = False


class V2DraftRunner(V2Runner):
    """The processor behind `GuidedLogitsProcessor` in a V2 runner with a speculative
    config."""

    needs: tuple[Part, ...] = (Part.V2, Part.DRAFTS)

    def __init__(self, vllm_config: Any, states: Any) -> None:
        most = states.max_num_reqs
        device = states.device
        # [max requests, drafts + 1] int8, device: 1 where the draft of a position was
        # cut
        self._cut = torch.zeros(
            most, drafts_of(vllm_config) + 1, dtype=torch.int8, device=device
        )
        self._proposed, self._entered, self._late = self._all = [
            SentBatch(most, device) for _ in range(3)
        ]
        super().__init__(vllm_config, states)
        self._version = 0  # counts changes of what is sent, and for whom
        self._seen: tuple[bytes, int] | None = None
        """The indices and the version that `_sources` hold for."""
        self._missing = NONE  # the indices of its requests that are sent in the sampler
        self._proposes = self._offered = False
        """Whether a speculator was seen to propose, the worker to choose."""
        self._sees = self._jumps = False
        """Whether proposals are looked at, and whether the worker may offer others."""
        if self.wrapped:
            inline = self._pipeline.mode == "inline"
            # Tokens accepted in this thread would have it wait for the device, and
            # batches of several pipeline stages take turns.
            self._sees = len(self._turns) == 1 and not (
                inline and device.type == "cuda"
            )
            # Workers learn when they have time, so those of two machines offer others.
            alone = getattr(vllm_config.parallel_config, "nnodes", 1) == 1
            self._jumps = alone and self.engine.options.jump_forward and not inline
        RUNNERS.add(self)

    # Before the forward pass

    def propose(
        self,
        batch: Any,
        drafts: Tensor,
        confidences: Tensor | None,
        *,
        greedy: bool,
        verified: bool = True,
    ) -> None:
        """What a speculator proposes for the requests of a batch that was sampled:
        [requests, drafts], in the order of the batch. Where the worker chooses what is
        verified, that is written over it.

        `confidences`: of drafts that are no one's guesses, by index: what is offered
        gets one, all else none. `greedy`: a guess is a token, and not drawn from a
        distribution that the sampler knows. `verified`: whether the next step has
        drafts at all."""
        if not self._sees:
            return
        start = time.perf_counter()
        planned = self.requests.masked(batch.idx_mapping_np)
        guided = len(planned) > 0
        if self._entered.step is not None or not guided:
            self._version += 1
        self._entered.step = self._proposed.step = None
        self._proposes = True
        self.engine.ahead = int(guided)
        offers = guided and self._jumps and greedy and verified
        if guided:
            # Nobody guessed where the speculator is ours.
            none = not verified or (offers and confidences is not None)
            guesses = (None, None) if none else (batch.idx_mapping, drafts)
            step = self._send(
                self._proposed, planned, guesses[0], None, guesses[1], offers=offers
            )
            if step.offers is not None:
                given = batch.idx_mapping, drafts, confidences, self._cut
                self._kernels.take_offers(
                    step.offers, self._proposed.table, *given, len(planned)
                )
        if not offers:
            if self._offered:
                self._cut.zero_()
            if confidences is not None:
                confidences.zero_()
        self._offered = offers
        self._spent += time.perf_counter() - start

    def apply_staged_writes(self) -> None:
        """Before a forward pass: send requests that entered since, which have no drafts
        yet."""
        start = self._begin_step()
        if not self.requests.entered:
            return
        entered = list(self.requests.entered)
        there = self.requests.enter()
        for sent in self._all:
            sent.leave(entered, there)
        self._version += 1
        new = self.requests.begin()
        if len(new) and self._proposes:
            self._send(self._entered, new)
        self._spent += time.perf_counter() - start

    # In the sampler

    def invalid_drafts(self, batch: Any, known: Tensor | None) -> Tensor | None:
        """Which drafts of a batch must not be taken: known ones, and those that the
        worker cut."""
        if not self._offered:
            return known
        cut = self._kernels.cut_drafts(
            self._cut, batch.expanded_idx_mapping, batch.expanded_local_pos
        )
        return cut if known is None else cut | known

    def _take(self, logits: Tensor, context: Any) -> None:
        """The masks of a batch, or of a part of it: vLLM may judge large ones part by
        part."""
        seen = context.idx_mapping_np.tobytes(), self._version
        if seen != self._seen:
            self._look(context.idx_mapping_np)
            self._seen = seen
        # Those that were sent first: the rings reuse their places when these are
        # fetched.
        for sent in (self._proposed, self._entered):
            if sent.step is not None and sent.masks is None:
                sent.masks = self._pipeline.draft_masks(sent.step, logits)
        self._late.masks = None
        if len(self._missing):
            rows = (
                context.expanded_idx_mapping,
                context.expanded_local_pos,
                context.input_ids,
            )
            step = self._send(self._late, self._missing, *rows)
            self._late.masks = self._pipeline.draft_masks(step, logits)

    def _look(self, indices: Indices) -> None:
        """Find where the masks of these requests come from, and which of them need more
        than that."""
        self._sources = [
            one for one in (self._proposed, self._entered) if one.step is not None
        ]
        rest = indices
        for one in self._sources:
            there = one.members[rest]
            one.forced = self.requests.forced(rest[there], one.planned)
            rest = rest[~there]
        self._missing = self.requests.masked(rest)
        if len(self._missing):
            self._replan(self._late, self._missing)
        self._late.forced = self.requests.forced(rest, self._late.planned)
        self._sources.append(self._late)

    def _send(
        self,
        sent: SentBatch,
        planned: Indices,
        indices: Tensor | None = None,
        positions: Tensor | None = None,
        proposed: Tensor | None = None,
        *,
        offers: bool | None = None,
    ) -> DraftStep:
        """Send the new tokens of requests, and their drafts as `gather_drafts` takes
        them."""
        if len(sent.planned) != len(planned) or not sent.members[planned].all():
            self._replan(sent, planned)
        rows = sent.table, indices, positions, proposed, self._pipeline.drafts
        tokens = self._kernels.gather_drafts(
            sent.order, *self.requests.histories, *rows
        )
        sent.step = self._pipeline.send_drafts(sent.slots, tokens, offers=offers)
        sent.masks, sent.count = None, len(sent.planned)
        return sent.step

    def _replan(self, sent: SentBatch, planned: Indices) -> None:
        sent.plan(planned, self.requests)
        sent.members = self.requests.those(planned)
        self._version += 1
