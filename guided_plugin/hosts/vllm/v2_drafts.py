"""vLLM's V2 model runner under speculative decoding: a request has a logits row for each of its drafts.

    apply_staged_writes   before each forward pass: requests that came begin
    mask_early            in the sampler: plan; new tokens and drafts to the grammars; masks for every row

What a request drafts is shown in the sampler alone, so nothing can be sent for before. The grammars walk
along the drafts, fill a mask for each of their positions, and go back; a draft that a mask forbids is
rejected by vLLM's own sampler, since nothing is left of its probability.
"""

from __future__ import annotations

import time
from typing import Any

from torch import Tensor

from guided_plugin.hosts.vllm.names import Part
from guided_plugin.hosts.vllm.v2 import V2Runner
from guided_plugin.step import NEVER


class V2DraftRunner(V2Runner):
    """The processor behind `GuidedLogitsProcessor` in a V2 runner with a speculative config."""

    needs = (Part.V2, Part.DRAFTS)

    def apply_staged_writes(self) -> None:
        """Before a forward pass."""
        self._begin_step()
        self._turn()
        if not self._entered:
            return
        start = time.perf_counter()
        entered, self._entered = self._entered, {}
        # Their histories are other requests' now.
        self._lengths[self._upload(list(entered))] = NEVER
        self._enter(entered)
        for batch in self._turns:
            batch.planned = []
            batch.look_again()
        self._spent += time.perf_counter() - start

    def _take_masks(self, logits: Tensor | None, context: Any) -> Tensor:
        """For the batch, or a part of it: vLLM may judge large ones part by part."""
        batch, whole = self._batch, self._whole
        ids = context.input_ids if whole is None else whole.input_ids[whole.logits_indices]
        rows = context if whole is None else whole
        indices, positions = rows.expanded_idx_mapping, rows.expanded_local_pos
        places = batch.table, indices, positions, ids, self._pipeline.drafts
        tokens = self._kernels.gather_drafts(batch.order, *self._histories, *places)
        return self._pipeline.judge_drafts(batch.slots, tokens, logits)

    def _mask_rows(self, logits: Tensor, masks: Tensor, context: Any) -> None:
        indices, positions = context.expanded_idx_mapping, context.expanded_local_pos
        size, batch = self._pipeline.vocabulary_size, self._batch
        self._kernels.mask_rows(logits, masks, indices, batch.table, size, positions, len(batch.planned))

    def _follow(self, indices: Any) -> None:
        """Adapt to the requests of a batch."""
        planned = [index for index in indices.tolist() if self._has_slot(index)]
        # Batches change their order all the time; the masks have an order of their own.
        if set(planned) != set(self._batch.planned):
            self._plan(planned)

    def _warm_up_tokens(self, none: Tensor, first: Tensor) -> None:
        places = self._batch.table, none, first, first, self._pipeline.drafts
        self._kernels.gather_drafts(none, *self._histories, *places)
