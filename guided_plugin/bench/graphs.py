"""A causal LM whose decode step is one CUDA graph, as engines run theirs. Imports torch and transformers.

Prompts run eagerly into a static cache; each step after that copies three small inputs and replays.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

_WARM_UP = 3


class GraphedModel:
    """Takes a model's place in a `DecodeLoop`, for batches of one size and length."""

    def __init__(self, model: Any, rows: int, length: int) -> None:
        from transformers import StaticCache

        self._model = model
        self.config = model.config
        self.device = model.device
        self._cache: Any = StaticCache(config=model.config, max_cache_len=length)
        self._length = 0
        device = model.device
        self._ids = torch.zeros(rows, 1, dtype=torch.int64, device=device)
        self._positions = torch.zeros(rows, 1, dtype=torch.int64, device=device)
        # [rows, 1, 1, length]: which positions of the cache a row attends to
        self._visible = torch.zeros(rows, 1, 1, length, dtype=torch.bool, device=device)
        self._graph = torch.cuda.CUDAGraph()
        self._logits = self._captured(rows)

    def __call__(
        self,
        *,
        input_ids: Tensor,
        attention_mask: Tensor,
        position_ids: Tensor,
        past_key_values: Any = None,
        **options: Any,
    ) -> Any:
        """The model's own call; the cache is this object, and only passed through."""
        if past_key_values is None:
            return self._prompt(input_ids, attention_mask, position_ids)
        self._ids.copy_(input_ids)
        self._positions.copy_(position_ids)
        self._visible[..., self._length].fill_(True)
        self._length += 1
        self._graph.replay()
        return SimpleNamespace(logits=self._logits, past_key_values=self)

    def get_output_embeddings(self) -> Any:
        """The model's own, whose width a vocabulary is checked against."""
        return self._model.get_output_embeddings()

    def _prompt(self, ids: Tensor, attention: Tensor, positions: Tensor) -> Any:
        self._rewind()
        self._length = ids.shape[1]
        self._visible.zero_()
        self._visible[:, 0, 0, : self._length] = attention.bool()
        out = self._model(
            input_ids=ids,
            attention_mask=attention,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return SimpleNamespace(logits=out.logits, past_key_values=self)

    def _step(self) -> Tensor:
        out = self._model(
            input_ids=self._ids,
            attention_mask=self._visible,
            position_ids=self._positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return out.logits  # type: ignore[no-any-return]

    @torch.no_grad()
    def _captured(self, rows: int) -> Tensor:
        """Capture the step, after a warm-up that writes to the cache; it is rewound before each run."""
        first = torch.zeros(rows, 2, dtype=torch.int64, device=self.device)
        self._prompt(first, torch.ones_like(first), first)
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                self._step()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        with torch.cuda.graph(self._graph):
            return self._step()

    def _rewind(self) -> None:
        for layer in self._cache.layers:
            if layer.is_initialized:
                # In place: the graph was captured with this memory.
                layer.cumulative_length.zero_()
