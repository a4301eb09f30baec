"""The kernels on CUDA that take row numbers, and the launcher of all. Imports Triton.

Masks: one program a row and block of columns. Where all 32 columns of a mask's word are
forbidden, they are overwritten without being read; where some are, they are read and
written whole, since single floats written here and there cost more than that; where
none is, nothing is touched. Row numbers are read on the device: the launch doesn't
change with the batch.

Tokens: into the memory that a worker reads, and the word that says that they are there:
one launch on the stream that samples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_DIRECT = triton.__version__.startswith("3.6.")

BLOCK = 4096
"""Columns of a program that masks."""

_TOKENS = 128
"""Tokens that are written at a time."""


class Launcher:
    """Launches one kernel, with the constants that end its arguments; one that was
    compiled before without looking it up again.

    Launching through the just-in-time compiler costs 12 us a call, most of it to find
    the kernel that was compiled for these types and sizes. Its own launcher costs 3,
    but is no public interface: only versions that were tested go that way.
    """

    def __init__(self, kernel: Any, *, num_warps: int, **constants: int) -> None:
        self._kernel = kernel
        self._num_warps = num_warps
        self._constants = constants
        self._known: dict[tuple[object, ...] | None, Callable[..., None]] = {}
        """By key, what was launched before: launch(rows, *first), with addresses in
        place of tensors. The launcher would ask the driver where a tensor lives."""

    def __call__(
        self,
        key: tuple[object, ...] | None,
        device: int,
        grid: tuple[int, int],
        first: tuple[Tensor | int, ...],
        last: tuple[int, ...] = (),
    ) -> None:
        """Launch on the current stream, with `first` and `last` as arguments. `key`
        says all that the compiler specializes for, the grid's second number and `last`;
        None if that is not known."""
        launch = self._known.get(key)
        if launch is not None:
            launch(
                grid[0],
                *[each if isinstance(each, int) else each.data_ptr() for each in first],
            )
            return
        kernel = self._kernel[grid](
            *first, *last, **self._constants, num_warps=self._num_warps
        )
        if key is not None and _DIRECT:
            self._known[key] = self._direct(kernel, device, grid[1], last)

    def _direct(
        self, kernel: Any, device: int, columns: int, last: tuple[int, ...]
    ) -> Callable[..., None]:
        run = kernel.run
        function = kernel.function
        metadata = kernel.packed_metadata
        stream = torch._C._cuda_getCurrentRawStream
        fixed = (*last, *self._constants.values())

        def launch(rows: int, *first: int) -> None:
            # Three times None: metadata for hooks, and the hooks.
            run(
                rows,
                columns,
                1,
                stream(device),
                function,
                metadata,
                None,
                None,
                None,
                *first,
                *fixed,
            )

        return launch


# Places in the rings are aligned now in one way, now in another: a kernel for each
# would be loaded in the middle of a run, and loading waits for the device.
@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["count"],
    do_not_specialize_on_alignment=["mask", "rows", "table", "positions"],
)
def _mask_kernel(  # type: ignore[no-untyped-def]
    logits,
    mask,
    rows,
    table,
    positions,
    count,
    width,
    vocabulary_size,
    row_stride,
    column_stride,
    mask_stride,
    INDEXED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    index = tl.load(rows + row)
    chosen = row
    if INDEXED:
        chosen = tl.load(table + index, mask=index >= 0, other=-1).to(tl.int64)
        if chosen < 0:
            return
        if count > 0:
            chosen += tl.load(positions + row).to(tl.int64) * count
    else:
        row = index.to(tl.int64)
    word = tl.program_id(1) * (BLOCK // 32) + tl.arange(0, BLOCK // 32)
    words = tl.load(
        mask + chosen * mask_stride + word, mask=word * 32 < vocabulary_size, other=0
    )
    bit = tl.arange(0, 32)
    columns = word[:, None] * 32 + bit[None, :]
    allowed = (((words[:, None] >> bit[None, :]) & 1) != 0) & (
        columns < vocabulary_size
    )
    untouched = (words == -1) & (word * 32 + 32 <= vocabulary_size)
    mixed = (words != 0) & ~untouched
    targets = logits + row * row_stride + columns.to(tl.int64) * column_stride
    there = columns < width
    old = tl.load(targets, mask=mixed[:, None] & there, other=float("-inf"))
    tl.store(
        targets, tl.where(allowed, old, float("-inf")), mask=~untouched[:, None] & there
    )


_launch_rows, _launch_indexed = (
    Launcher(_mask_kernel, num_warps=8, INDEXED=indexed, BLOCK=BLOCK)
    for indexed in (0, 1)
)


def mask_rows(
    logits: Tensor,
    mask: Tensor,
    rows: Tensor,
    table: Tensor | None,
    vocabulary_size: int,
    positions: Tensor | None = None,
    count: int = 0,
) -> None:
    """`kernels.mask_rows` on CUDA, one launch for all rows; with a table that of
    `IndexedKernels`."""
    launch = _launch_indexed
    programs, width = logits.shape
    if table is None:
        launch = _launch_rows
        programs = rows.shape[0]
        table = rows
    if positions is None:
        positions = table
        count = 0
    device = logits.get_device()
    sizes = width, vocabulary_size, *logits.stride(), mask.stride(0)
    key = (
        None
        if logits.data_ptr() & 15
        else (device, logits.dtype, rows.dtype, positions.dtype, sizes)
    )
    grid = programs, (width + BLOCK - 1) // BLOCK
    launch(key, device, grid, (logits, mask, rows, table, positions, count), sizes)


@triton.jit
def announce(word, step):  # type: ignore[no-untyped-def]
    """After all that this program has stored: raise a word for every reader, the host
    included. Kernels that do this have one program; with two, a reader could see the
    word raised before the other's stores."""
    tl.debug_barrier()
    # Everybody's stores are before the barrier, and the release is for the whole
    # system.
    tl.inline_asm_elementwise(
        "st.release.sys.global.u32 [$1], $2; mov.u32 $0, $2;",
        "=r,l,r",
        [word, step],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["ring", "word", "step", "count", "stride"],
    do_not_specialize_on_alignment=["tokens", "rows"],
)
def _tokens_kernel(ring, word, step, tokens, rows, count, stride, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    there = ring.to(tl.pointer_type(tl.int64))
    for first in range(0, count, BLOCK):
        at = first + tl.arange(0, BLOCK)
        row = tl.load(rows + at, mask=at < count, other=0).to(tl.int64)
        token = tl.load(tokens + row * stride, mask=at < count, other=0)
        tl.store(there + at, token.to(tl.int64), mask=at < count)
    announce(word, step)


_launch_tokens = Launcher(_tokens_kernel, num_warps=4, BLOCK=_TOKENS)


def write_tokens(tokens: Tensor, rows: Tensor, ring: int, word: int, step: int) -> None:
    """Write tokens[rows] to the address `ring` as 64 bits each, then `step` to the
    address `word`.

    tokens: [n] integers, any stride. rows: [m] int32 on the same device. The addresses
    are the device's."""
    device = tokens.get_device()
    key = device, tokens.dtype
    number = signed(step)
    count = rows.shape[0]
    stride = tokens.stride(0)
    _launch_tokens(
        key, device, (1, 1), (ring, word, number, tokens, rows, count, stride)
    )


def signed(step: int) -> int:
    """A step as 32 bits have it: it wraps."""
    return (step + 0x80000000 & 0xFFFFFFFF) - 0x80000000
