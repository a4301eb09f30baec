"""The mask on CUDA: one program a row and block of columns.

Where all 32 columns of a mask's word are forbidden, they are overwritten without being read; where some are,
they are read and written whole, since single floats written here and there cost more than that; where none
is, nothing is touched. Row numbers are read on the device: the launch doesn't change with the batch.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from guided_plugin.kernels.launch import Launcher

BLOCK = 4096
"""Columns of a program."""


@triton.jit  # type: ignore[untyped-decorator]
def forbid(logits, mask, width, vocabulary_size, column_stride, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Mask this program's block of columns of one row; `logits` and `mask` point to the row."""
    word = tl.program_id(1) * (BLOCK // 32) + tl.arange(0, BLOCK // 32)
    words = tl.load(mask + word, mask=word * 32 < vocabulary_size, other=0)
    bit = tl.arange(0, 32)
    columns = word[:, None] * 32 + bit[None, :]
    allowed = (((words[:, None] >> bit[None, :]) & 1) != 0) & (columns < vocabulary_size)
    untouched = (words == -1) & (word * 32 + 32 <= vocabulary_size)
    mixed = (words != 0) & ~untouched
    targets = logits + columns.to(tl.int64) * column_stride
    there = columns < width
    old = tl.load(targets, mask=mixed[:, None] & there, other=float("-inf"))
    tl.store(targets, tl.where(allowed, old, float("-inf")), mask=~untouched[:, None] & there)


# Places in the rings are aligned now in one way, now in another: a kernel for each would be loaded in the
# middle of a run, and loading waits for the device.
@triton.jit(do_not_specialize_on_alignment=["mask", "rows"])  # type: ignore[untyped-decorator]
def _mask_kernel(  # type: ignore[no-untyped-def]
    logits, mask, rows, width, vocabulary_size, row_stride, column_stride, mask_stride, BLOCK: tl.constexpr
):
    index = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + index).to(tl.int64)
    forbid(
        logits + row * row_stride, mask + index * mask_stride, width, vocabulary_size, column_stride, BLOCK
    )


_launch = Launcher(_mask_kernel, num_warps=8, BLOCK=BLOCK)


def mask_rows_triton(logits: Tensor, mask: Tensor, rows: Tensor, vocabulary_size: int) -> None:
    """`kernels.mask_rows` on CUDA: one launch for all rows."""
    width, device, address = logits.shape[1], logits.get_device(), logits.data_ptr()
    sizes = width, vocabulary_size, *logits.stride(), mask.stride(0)
    key = None if address & 15 else (device, logits.dtype, sizes)
    launch = _launch.known.get(key)
    if launch is not None:
        launch(rows.shape[0], address, mask.data_ptr(), rows.data_ptr())
        return
    _launch(key, device, (rows.shape[0], blocks(width)), (logits, mask, rows), sizes)


def blocks(width: int) -> int:
    """How many programs a row of logits takes."""
    return (width + BLOCK - 1) // BLOCK
