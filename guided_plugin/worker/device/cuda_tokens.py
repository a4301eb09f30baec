"""Sampled tokens from a CUDA device into the shared memory, by one kernel on the stream that samples."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from guided_plugin.kernels.rows_triton import write_tokens
from guided_plugin.step import TokenSink
from guided_plugin.worker.device.cuda_masks import DeviceRegion
from guided_plugin.worker.layout import PLAN_DEPTH, TOKEN_DEPTH, Counter, Region


class CudaRows:
    """Numbers of the guided rows on the device. They change rarely; each change takes a fresh entry."""

    def __init__(self, region: Region, device: torch.device) -> None:
        max_rows = region.shape.max_slots * region.shape.values
        # [max_rows] int32: 0, 1, 2, ...
        self._leading = torch.arange(max_rows, dtype=torch.int32, device=device)
        # [PLAN_DEPTH, max_rows] int32
        self._rows_host = torch.zeros(PLAN_DEPTH, max_rows, dtype=torch.int32, pin_memory=True)
        self._rows_dev = torch.zeros(PLAN_DEPTH, max_rows, dtype=torch.int32, device=device)
        self._copied = [torch.cuda.Event() for _ in range(PLAN_DEPTH)]
        self._entry = 0
        self.rows = self._rows_dev[0, :0]

    def set_rows(self, rows: Sequence[int]) -> None:
        """Send row numbers up, on the main stream."""
        count = len(rows)
        if rows[-1] == count - 1:
            self.rows = self._leading[:count]
            return
        entry = self._entry = (self._entry + 1) % PLAN_DEPTH
        self._copied[entry].synchronize()  # of PLAN_DEPTH changes ago
        self._rows_host.numpy()[entry, :count] = rows
        # On the main stream: kernels that still use an older entry are before it, later ones after.
        self._rows_dev[entry, :count].copy_(self._rows_host[entry, :count], non_blocking=True)
        self._copied[entry].record()
        self.rows = self._rows_dev[entry, :count]


class CudaTokens(CudaRows):
    """`TokenWrites` on CUDA."""

    def __init__(self, mapped: DeviceRegion) -> None:
        region, device = mapped.region, mapped.device
        super().__init__(region, device)
        self._ring = mapped.base + region.shape.tokens
        self._stride = 8 * region.shape.max_slots * region.shape.values
        self._word = mapped.base + region.counter_offset(Counter.SAMPLED)
        _warm_up(device)

    def write(self, step: int, tokens: Tensor) -> None:
        """Write the guided rows' tokens, then raise the flag; on the current stream, which has sampled."""
        write_tokens(tokens, self.rows, self._ring + step % TOKEN_DEPTH * self._stride, self._word, step)

    def sink(self, step: int) -> TokenSink | None:
        """Where a kernel on the main stream may write the tokens itself."""
        return TokenSink(self._ring + step % TOKEN_DEPTH * self._stride, self._word, step)


def _warm_up(device: torch.device) -> None:
    """Load the kernel now: the first time takes a tenth of a second and waits for the device."""
    ring = torch.zeros(1, dtype=torch.int64, device=device)
    word, row = torch.zeros(2, 1, dtype=torch.int32, device=device)
    for dtype in (torch.int64, torch.int32):
        write_tokens(row.to(dtype), row, ring.data_ptr(), word.data_ptr(), 0)
