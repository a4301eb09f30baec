"""The mask on CUDA: one program a row and block of columns, stores only.

A forbidden logit is overwritten without being read, so the kernel moves the mask's bits and the -inf it
writes, nothing else. Row numbers are read on the device: the launch doesn't change with the batch.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from guided_plugin.kernels.launch import Launcher

__all__ = ["mask_rows_triton"]

_BLOCK = 4096


# Places in the rings are aligned now in one way, now in another: a kernel for each would be loaded in the
# middle of a run, and loading waits for the device.
@triton.jit(do_not_specialize_on_alignment=["mask", "rows"])  # type: ignore[untyped-decorator]
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


_launch = Launcher(_mask_kernel, num_warps=8, BLOCK=_BLOCK)


def mask_rows_triton(logits: Tensor, mask: Tensor, rows: Tensor, vocabulary_size: int) -> None:
    """See `kernels.mask_rows`."""
    width = logits.shape[1]
    row_stride, column_stride = logits.stride()
    sizes = width, vocabulary_size, row_stride, column_stride, mask.stride(0)
    device = logits.get_device()
    key = None if logits.data_ptr() & 15 else (device, logits.dtype, sizes)
    grid = rows.shape[0], (width + _BLOCK - 1) // _BLOCK
    _launch(key, device, grid, logits, mask, rows, *sizes)
