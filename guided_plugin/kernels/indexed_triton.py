"""`kernels.indexed` on CUDA. Nothing here depends on which requests are in a batch: one kernel each."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from guided_plugin.kernels.indexed import NEVER
from guided_plugin.kernels.launch import Launcher
from guided_plugin.kernels.triton import BLOCK, forbid
from guided_plugin.step import NO_TOKEN

__all__ = ["gather_tokens_triton", "mask_indexed_rows_triton"]

_GATHER = 128


@triton.jit(do_not_specialize_on_alignment=["mask", "indices", "table"])  # type: ignore[untyped-decorator]
def _mask_kernel(  # type: ignore[no-untyped-def]
    logits, mask, indices, table, width, vocabulary_size, row_stride, mask_stride, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    index = tl.load(indices + row)
    chosen = tl.load(table + index, mask=index >= 0, other=-1).to(tl.int64)
    if chosen < 0:
        return
    forbid(logits + row * row_stride, mask + chosen * mask_stride, width, vocabulary_size, 1, BLOCK)


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["count", "stride"],
    do_not_specialize_on_alignment=["order", "lengths", "total", "history", "tokens"],
)
def _gather_kernel(  # type: ignore[no-untyped-def]
    order,
    lengths,
    total,
    history,
    tokens,
    count,
    stride,
    NOT_LOOKED_AT: tl.constexpr,
    NONE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    index = tl.load(order + at, mask=inside, other=0)
    now = tl.load(total + index, mask=inside, other=0)
    before = tl.load(lengths + index, mask=inside, other=NOT_LOOKED_AT)
    grown = inside & (now == before + 1)
    newest = tl.load(history + index * stride + now - 1, mask=grown, other=NONE)
    tl.store(tokens + at, newest.to(tl.int64), mask=inside)
    tl.store(lengths + index, now, mask=inside & (before != NOT_LOOKED_AT))


_launch_mask = Launcher(_mask_kernel, num_warps=8, BLOCK=BLOCK)
_launch_gather = Launcher(_gather_kernel, num_warps=1, NOT_LOOKED_AT=NEVER, NONE=NO_TOKEN, BLOCK=_GATHER)


def mask_indexed_rows_triton(
    logits: Tensor, mask: Tensor, indices: Tensor, table: Tensor, vocabulary_size: int
) -> None:
    """See `kernels.indexed`."""
    rows, width = logits.shape
    if logits.stride(1) != 1:
        raise ValueError("logits must be contiguous in a row")
    device, sizes = logits.get_device(), (width, vocabulary_size, logits.stride(0), mask.stride(0))
    key = None if logits.data_ptr() & 15 else (device, logits.dtype, indices.dtype, sizes)
    grid = rows, (width + BLOCK - 1) // BLOCK
    _launch_mask(key, device, grid, logits, mask, indices, table, *sizes)


def gather_tokens_triton(order: Tensor, lengths: Tensor, total: Tensor, history: Tensor) -> Tensor:
    """See `kernels.indexed`."""
    count = order.shape[0]
    tokens = torch.empty(count, dtype=torch.int64, device=order.device)
    device = order.get_device()
    grid = (count + _GATHER - 1) // _GATHER, 1
    key = device, total.dtype, history.dtype
    _launch_gather(key, device, grid, order, lengths, total, history, tokens, count, history.stride(0))
    return tokens
