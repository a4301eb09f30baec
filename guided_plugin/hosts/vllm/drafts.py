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

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from guided_plugin.hosts.vllm.engine import timed
from guided_plugin.hosts.vllm.jump import RUNNER
from guided_plugin.hosts.vllm.v2 import Members, Plan, V2Runner
from guided_plugin.pipeline.pipeline import DraftStep


@dataclass
class SentBatch:
    """Requests whose tokens and drafts are with the grammars."""

    members: Members
    """By index, whether it is planned, and not another request's now."""
    plan: Plan
    step: DraftStep
    masks: Tensor | None = None
    """The masks of the step, once they are fetched."""


class V2DraftRunner(V2Runner):
    """The processor behind `GuidedLogitsProcessor` in a V2 runner with a speculative
    config."""

    def __init__(self, vllm_config: Any, states: Any) -> None:
        super().__init__(vllm_config, states)
        # [max requests, drafts + 1] int8, device: 1 where the draft of a position was
        # cut
        self._cut = torch.zeros(
            states.max_num_reqs, self._positions, dtype=torch.int8, device=states.device
        )
        self._sent: list[SentBatch] = []
        """For the next forward pass: what was proposed for, and what entered since."""
        self._proposes = self._offered = False
        """True if a speculator was seen to propose, the worker to choose."""
        self._sees = self._jumps = False
        """True if proposals are looked at, and if the worker may offer others."""
        if self.wrapped:
            inline = self._pipeline.mode == "inline"
            parallel = vllm_config.parallel_config
            # Tokens accepted in this thread would have it wait for the device, and
            # batches of several pipeline stages take turns.
            self._sees = parallel.pipeline_parallel_size == 1 and not (
                inline and states.device.type == "cuda"
            )
            # Workers learn when they have time, so those of two machines offer others.
            alone = getattr(parallel, "nnodes", 1) == 1
            self._jumps = alone and self.engine.options.jump_forward and not inline
        setattr(states.all_token_ids, RUNNER, self)

    # Before the forward pass

    @timed
    def propose(
        self,
        batch: Any,
        drafts: Tensor,
        confidences: Tensor | None,
        *,
        greedy: bool,
        verified: bool = True,
    ) -> None:
        """Take a speculator's proposals for the requests of a batch that was sampled:
        [requests, drafts], in the order of the batch. Where the worker chooses what is
        verified, that is written over it.

        `confidences`: of drafts that are no one's guesses, by index: what is offered
        gets one, all else none. `greedy`: a guess is a token, and not drawn from a
        distribution that the sampler knows. `verified`: whether the next step has
        drafts at all."""
        if not self._sees:
            return
        members = self.requests.members(batch.idx_mapping_np)
        guided = bool(members.any())
        self._sent.clear()
        self._proposes = True
        self.engine.ahead = int(guided)
        offers = guided and self._jumps and greedy and verified
        if guided:
            # Nobody guessed where the speculator is ours.
            none = not verified or (offers and confidences is not None)
            guesses = (None, None) if none else (batch.idx_mapping, drafts)
            sent = self._send(members, guesses[0], None, guesses[1], offers=offers)
            self._sent.append(sent)
            if sent.step.offers is not None:
                given = batch.idx_mapping, drafts, confidences, self._cut
                self._kernels.take_offers(
                    sent.step.offers, sent.plan.table, *given, len(sent.plan.slots)
                )
        if not offers:
            if self._offered:
                self._cut.zero_()
            if confidences is not None:
                confidences.zero_()
        self._offered = offers

    @timed
    def apply_staged_writes(self) -> None:
        """Before a forward pass: send requests that entered since, which have no drafts
        yet."""
        if not (self.requests or self.requests.entered):
            return
        left, new = self.requests.update()
        if left:
            for sent in self._sent:
                sent.members[left] = False
                sent.plan.table.index_fill_(0, self.requests.upload(left), -1)
        if new and self._proposes:
            self._sent[1:] = [self._send(self.requests.members(np.array(new)))]

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

    def _mask(self, logits: Tensor, context: Any) -> None:
        """Mask a batch, or a part of it: vLLM may judge large ones part by part."""
        indices = context.expanded_idx_mapping
        positions = context.expanded_local_pos
        missing = self.requests.members(context.idx_mapping_np)
        # Those that were sent first: the rings reuse their places when these are
        # fetched.
        for sent in self._sent:
            if sent.masks is None:
                sent.masks = self._pipeline.draft_masks(sent.step, logits)
            missing &= ~sent.members
        batches = [*self._sent]
        if missing.any():
            late = self._send(missing, indices, positions, context.input_ids)
            late.masks = self._pipeline.draft_masks(late.step, logits)
            batches.append(late)
        for sent in batches:
            size = self._pipeline.vocabulary_size
            table = sent.plan.table
            own = positions, len(sent.plan.slots)
            self._kernels.mask_rows(logits, sent.masks, indices, table, size, *own)

    def _send(
        self,
        members: Members,
        indices: Tensor | None = None,
        positions: Tensor | None = None,
        proposed: Tensor | None = None,
        *,
        offers: bool | None = None,
    ) -> SentBatch:
        """Send the new tokens of requests, and their drafts as `gather_drafts` takes
        them."""
        plan = self.requests.plan(members.tobytes(), lambda: members)
        rows = plan.table, indices, positions, proposed, self._pipeline.drafts
        tokens = self._kernels.gather_drafts(
            plan.order, *self.requests.histories, *rows
        )
        step = self._pipeline.send_drafts(plan.slots, tokens, offers=offers)
        return SentBatch(members, plan, step)
