"""The mask on CUDA: one program a row and block of columns, stores only.

A forbidden logit is overwritten without being read, so the kernel moves the mask's bits and the -inf it
writes, nothing else. Row numbers are read on the device: the launch doesn't change with the batch.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

__all__ = ["mask_rows_triton"]

_BLOCK = 4096


@triton.jit  # type: ignore[untyped-decorator]
def _mask_kernel(  # type: ignore[no-untyped-def]
    logits, mask, rows, width, vocabulary_size, row_stride, column_stride, mask_stride, BLOCK: tl.constexpr
):
    index = tl.program_id(0)
    row = tl.load(rows + index).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < vocabulary_size
    words = tl.load(mask + index.to(tl.int64) * mask_stride + columns // 32, mask=inside, other=0)
    forbidden = ((words >> (columns % 32)) & 1) == 0
    targets = logits + row * row_stride + columns.to(tl.int64) * column_stride
    tl.store(targets, float("-inf"), mask=forbidden & (columns < width))


def mask_rows_triton(logits: Tensor, mask: Tensor, rows: Tensor, vocabulary_size: int) -> None:
    """See `kernels.mask_rows`."""
    width = logits.shape[1]
    grid = (rows.shape[0], triton.cdiv(width, _BLOCK))
    _mask_kernel[grid](
        logits,
        mask,
        rows,
        width,
        vocabulary_size,
        logits.stride(0),
        logits.stride(1),
        mask.stride(0),
        BLOCK=_BLOCK,
        num_warps=8,
    )
