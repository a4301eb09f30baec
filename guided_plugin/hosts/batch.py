"""The tensors of a running batch of `DecodeLoop`, how its tokens are drawn, and prompts
as tensors. Depends on nothing but torch."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


def left_padded(
    prompts: Sequence[Sequence[int]], pad: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The tokens of prompts, of which the last column is every row's newest, and where
    they are: [rows, width] each."""
    rows = [torch.tensor(list(prompt)) for prompt in prompts]
    padded = partial(pad_sequence, batch_first=True, padding_side="left")
    seen = padded([torch.ones_like(row) for row in rows])
    return padded(rows, padding_value=pad).to(device), seen.to(device)


class Batch:
    """The tensors of a running batch: prompts, cache, generated tokens, stopped
    rows."""

    def __init__(
        self,
        model: Any,
        prompts: list[Sequence[int]],
        slots: list[int],
        stops: list[tuple[int, ...]],
        temperature: float,
        seed: int,
    ) -> None:
        self.slots = slots
        self._model = model
        self._temperature = temperature
        self._stop_ids = stops
        device = model.device
        self._generator = torch.Generator(device).manual_seed(seed)
        self._input, self._attention = left_padded(prompts, 0, device)
        self._positions = (self._attention.cumsum(1) - 1).clamp_(min=0)
        most = max(map(len, stops))
        # [rows, most stop tokens of a row]
        self._stops = torch.tensor(
            [[*ids, *ids[:1] * (most - len(ids))] for ids in stops], device=device
        )
        self._cache: Any = None
        # transformers before 5.24, and models with code of their own
        self._cache_name = "past_key_values"
        if "cache" in inspect.signature(model.forward).parameters:
            self._cache_name = "cache"
        self._generated: list[Tensor] = []
        self._stopped = torch.zeros(len(prompts), dtype=torch.bool, device=device)

    def forward(self) -> Tensor:
        """Run the model over the newest tokens; the logits that follow them, [rows,
        width]."""
        out = self._model(
            input_ids=self._input,
            attention_mask=self._attention,
            position_ids=self._positions,
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_name: self._cache},
        )
        self._cache = out[self._cache_name]
        return out.logits[:, -1].float()  # type: ignore[no-any-return]

    def sample(self, logits: Tensor) -> Tensor:
        """Draw one token a row, [rows]."""
        if self._temperature == 0.0:
            return logits.argmax(-1)
        logits = logits / self._temperature
        # The exponential race: like multinomial, with a draw for every logit, so that
        # what one row may sample never changes the random numbers of another.
        noise = torch.empty_like(logits).exponential_(generator=self._generator)
        return (logits.softmax(-1) / noise).argmax(-1)

    def append(self, tokens: Tensor) -> None:
        """Make the tokens the next input; rows that stopped get padding."""
        self._generated.append(tokens)
        tokens = tokens.masked_fill(self._stopped, 0)
        self._input = tokens[:, None]
        self._attention = torch.cat(
            [self._attention, self._attention.new_ones(len(tokens), 1)], 1
        )
        self._positions = self._positions[:, -1:] + 1

    def check_stop(self) -> None:
        """Mark the rows whose newest token is a stop token of theirs."""
        self._stopped |= (self._generated[-1][:, None] == self._stops).any(1)

    def all_stopped(self) -> bool:
        """True if every row has stopped. Waits for the device."""
        return bool(self._stopped.all())

    def outputs(self) -> list[tuple[tuple[int, ...], bool]]:
        """Return what each row generated, up to its stop token, and whether there was
        one."""
        rows = (
            torch.stack(self._generated, 1).tolist()
            if self._generated
            else [[] for _ in self.slots]
        )
        found = []
        for tokens, stops in zip(rows, self._stop_ids, strict=True):
            end = next((i for i, token in enumerate(tokens) if token in stops), None)
            found.append((tuple(tokens[:end]), end is not None))
        return found
