"""vLLM's V2 model runner under speculative decoding: a request has a logits row for each of its drafts.

    apply_staged_writes   before each forward pass: requests that came begin
    apply                 in the sampler: plan; new tokens and drafts to the grammars; masks for every row

What a request drafts is shown in `apply` alone, so nothing can be sent for before. The grammars walk along
the drafts, fill a mask for each of their positions, and go back; a draft that a mask forbids is rejected by
vLLM's own sampler, since nothing is left of its probability.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from guided_plugin.hosts.vllm.rows import close_indexed, spare_indexed
from guided_plugin.hosts.vllm.v2 import V2Runner
from guided_plugin.kernels.indexed import gather_drafts, mask_indexed_rows
from guided_plugin.step import NEVER

__all__ = ["V2DraftRunner"]


class V2DraftRunner(V2Runner):
    """The processor behind `GuidedLogitsProcessor` in a V2 runner with a speculative config."""

    def apply_staged_writes(self) -> None:
        """Before a forward pass."""
        if not self._entered:
            return
        start = time.perf_counter()
        entered, self._entered = self._entered, {}
        # Their histories are other requests' now.
        self._lengths[self._upload(list(entered))] = NEVER
        self._enter(entered)
        self._planned, self._stale = [], True
        self._spent = time.perf_counter() - start

    def _mask(self, logits: Tensor, context: Any) -> None:
        """For the batch, or a part of it: vLLM may judge large ones part by part."""
        pipeline = self.engine.pipeline
        indices, positions = context.expanded_idx_mapping, context.expanded_local_pos
        tokens = gather_drafts(
            self._order,
            *self._histories,
            self._table,
            indices,
            positions,
            context.input_ids,
            pipeline.drafts,
        )
        masks = pipeline.judge_drafts(self._slots, tokens, logits)
        mask_indexed_rows(logits, masks, indices, self._table, self._size, positions, len(self._planned))

    def _force_stop(self, logits: Tensor, context: Any) -> None:
        indices, positions = context.expanded_idx_mapping, context.expanded_local_pos
        if self._closed:
            close_indexed(logits, indices, self._closed)
        mask = self.engine.pipeline.mask if self._fragile else None
        if mask is not None:
            drafts = self.engine.pipeline.drafts
            flags = spare_indexed(logits, indices, positions, self._fragile, mask, drafts)
            self.engine.spared(self._limited, flags)

    def _follow(self, batch: Any) -> None:
        """What follows from which requests are in the batch."""
        planned = self._present(batch)
        # Batches are sorted anew all the time; the masks have an order of their own.
        if set(planned) != set(self._planned):
            self._plan(planned)
            self._stale = False
        self._find_fragile(batch)

    def _place(self, row: int, index: int) -> int:
        """A request has several rows: they are found by its index."""
        return index

    def _warm_up(self) -> None:
        """Load the kernels now, as the runner without drafts does."""
        super()._warm_up()
        drafts = self.engine.pipeline.drafts
        words = self.engine.pipeline.compiler.vocabulary.words
        logits = torch.zeros(1, self._states.vocab_size, device=self._device)
        mask = torch.zeros(1, words, dtype=torch.int32, device=self._device)
        # Of the types that vLLM's own have.
        nobody = torch.zeros(1, dtype=torch.int64, device=self._device)
        first = torch.zeros(1, dtype=torch.int32, device=self._device)
        mask_indexed_rows(logits, mask, nobody, self._table, self._size, first, 1)
        gather_drafts(nobody, *self._histories, self._table, nobody, first, first, drafts)
