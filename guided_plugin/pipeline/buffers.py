"""Where masks and tokens lie, and how they cross between host and device. Imports torch.

Two implementations with the same calls. `CudaBuffers`: pinned host rings, a side stream, events; the
main stream waits for masks on the device, the host waits only for its own copy of the tokens.
`HostBuffers`: the CPU twin, where host and device are the same memory and nothing waits.

Rings are RING_DEPTH steps deep. One step is in flight at a time inline (its masks on the way up, its
tokens on the way down) and the host may be one ahead, so two would do; the rest is room for hosts that
check for the end of a request some steps late.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from guided_plugin.grammar.base import MaskArray
from guided_plugin.worker.layout import PLAN_DEPTH

RING_DEPTH = PLAN_DEPTH


class Buffers(Protocol):
    """The way between host and device for one pipeline. `entry` is a step's place in the rings."""

    def set_rows(self, rows: Sequence[int]) -> None:
        """The logits rows that are guided from this step on."""

    def mask_np(self, entry: int) -> MaskArray:
        """[max_rows, words] host memory to fill the masks of a step into."""

    def upload(self, entry: int, count: int) -> None:
        """Start copying the first `count` mask rows to the device."""

    def mask_dev(self, entry: int, count: int) -> tuple[Tensor, Tensor]:
        """The masks and row numbers on the device; what is launched next sees them complete."""

    def download(self, entry: int, tokens: Tensor) -> None:
        """Start copying the guided rows' sampled tokens to the host, after what is launched so far."""

    def landed(self, entry: int) -> bool:
        """Whether those tokens are on the host."""

    def tokens(self, entry: int) -> list[int]:
        """Those tokens, as plain ints; waits for them."""


def make_buffers(device: torch.device, max_rows: int, words: int, max_tokens: int = 0) -> Buffers:
    """The buffers for a device type. `max_tokens` of a step, where they are not one for each mask."""
    if device.type == "cuda":
        return CudaBuffers(device, max_rows, words, max_tokens or max_rows)
    return HostBuffers(torch.zeros(RING_DEPTH, max_rows, words, dtype=torch.int32))


class HostBuffers:
    """`Buffers` of the CPU: everything is in place already."""

    def __init__(self, masks: Tensor) -> None:
        """`masks`: [RING_DEPTH, max_rows, words] int32, host."""
        self._mask_host = masks
        self._mask_np: MaskArray = masks.numpy()
        self._rows = torch.zeros(0, dtype=torch.int32)
        self._tokens: list[list[int]] = [[] for _ in range(RING_DEPTH)]

    def set_rows(self, rows: Sequence[int]) -> None:
        """The logits rows that are guided from this step on."""
        self._rows = torch.tensor(rows, dtype=torch.int32)

    def mask_np(self, entry: int) -> MaskArray:
        """Host memory to fill the masks of a step into."""
        mask: MaskArray = self._mask_np[entry]
        return mask

    def upload(self, entry: int, count: int) -> None:
        """Nothing to copy."""

    def mask_dev(self, entry: int, count: int) -> tuple[Tensor, Tensor]:
        """The masks and row numbers."""
        return self._mask_host[entry, :count], self._rows

    def download(self, entry: int, tokens: Tensor) -> None:
        """Take the guided rows' tokens."""
        self._tokens[entry] = tokens.index_select(0, self._rows.long()).tolist()

    def landed(self, entry: int) -> bool:
        """They always are."""
        return True

    def tokens(self, entry: int) -> list[int]:
        """The tokens of a step."""
        return self._tokens[entry]


class CudaBuffers:
    """`Buffers` on CUDA. Nothing here but `tokens` waits, and that only for its own copy."""

    def __init__(self, device: torch.device, max_rows: int, words: int, max_tokens: int) -> None:
        self._device = device
        self.side_stream = torch.cuda.Stream(device)
        # [RING_DEPTH, max_rows, words] int32
        self._mask_host = torch.zeros(RING_DEPTH, max_rows, words, dtype=torch.int32, pin_memory=True)
        self._mask_dev = torch.zeros(RING_DEPTH, max_rows, words, dtype=torch.int32, device=device)
        # [2, max_tokens] int32: row numbers change rarely; the entry not in use is written.
        self._rows_host = torch.zeros(2, max_tokens, dtype=torch.int32, pin_memory=True)
        self._rows_dev = torch.zeros(2, max_tokens, dtype=torch.int32, device=device)
        self._rows_entry = 0
        self._rows_copied = [torch.cuda.Event() for _ in range(2)]
        self._rows = self._rows_dev[0, :0]
        # [RING_DEPTH, max_tokens] int64: gathered on the device, then copied.
        self._tokens_dev = torch.zeros(RING_DEPTH, max_tokens, dtype=torch.int64, device=device)
        self._tokens_host = torch.zeros(RING_DEPTH, max_tokens, dtype=torch.int64, pin_memory=True)
        self._counts = [0] * RING_DEPTH
        self._uploaded = [torch.cuda.Event() for _ in range(RING_DEPTH)]
        self._sampled = torch.cuda.Event()
        self._copied = [torch.cuda.Event() for _ in range(RING_DEPTH)]

    def set_rows(self, rows: Sequence[int]) -> None:
        """The logits rows that are guided from this step on."""
        entry = self._rows_entry = 1 - self._rows_entry
        self._rows_copied[entry].synchronize()  # of two changes ago
        count = len(rows)
        self._rows_host[entry, :count] = torch.tensor(rows, dtype=torch.int32)
        # On the main stream: kernels that still use the other entry are before it, later ones after.
        self._rows_dev[entry].copy_(self._rows_host[entry], non_blocking=True)
        self._rows_copied[entry].record()
        self._rows = self._rows_dev[entry, :count]

    def mask_np(self, entry: int) -> MaskArray:
        """Host memory to fill the masks of a step into."""
        self._uploaded[entry].synchronize()  # of RING_DEPTH steps ago
        mask: MaskArray = self._mask_host[entry].numpy()
        return mask

    def upload(self, entry: int, count: int) -> None:
        """Start copying mask rows on the side stream."""
        # The side stream has waited for the last sampling, so the kernel that read this entry is done.
        with torch.cuda.stream(self.side_stream):
            self._mask_dev[entry, :count].copy_(self._mask_host[entry, :count], non_blocking=True)
            self._uploaded[entry].record()

    def mask_dev(self, entry: int, count: int) -> tuple[Tensor, Tensor]:
        """Masks and row numbers; the main stream waits for them, the host doesn't."""
        torch.cuda.current_stream(self._device).wait_event(self._uploaded[entry])
        return self._mask_dev[entry, :count], self._rows[:count]

    def download(self, entry: int, tokens: Tensor) -> None:
        """Gather and copy the guided rows' tokens on the side stream."""
        main = torch.cuda.current_stream(self._device)
        self._sampled.record(main)
        self.side_stream.wait_event(self._sampled)
        count = self._counts[entry] = self._rows.shape[0]
        with torch.cuda.stream(self.side_stream):
            gathered = tokens.index_select(0, self._rows)
            self._tokens_dev[entry, :count].copy_(gathered)  # casts any integer dtype
            self._tokens_host[entry, :count].copy_(self._tokens_dev[entry, :count], non_blocking=True)
            self._copied[entry].record()
        # The host may free its tensor before the side stream has read it.
        tokens.record_stream(self.side_stream)

    def landed(self, entry: int) -> bool:
        """Whether the tokens are on the host."""
        return bool(self._copied[entry].query())

    def tokens(self, entry: int) -> list[int]:
        """The tokens of a step; waits for their copy, and for nothing else."""
        self._copied[entry].synchronize()
        tokens: list[int] = self._tokens_host[entry, : self._counts[entry]].tolist()
        return tokens
