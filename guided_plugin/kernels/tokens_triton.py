"""Sampled tokens into the memory that a worker reads, and the word that says that they are there: one launch
on the stream that samples. Imports Triton."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from guided_plugin.kernels.launch import Launcher

_BLOCK = 128


@triton.jit
def announce(word, step):  # type: ignore[no-untyped-def]
    """After all that this program has stored: raise a word for every reader, the host included. Kernels that
    do this have one program; with two, a reader could see the word raised before the other's stores."""
    tl.debug_barrier()
    # Everybody's stores are before the barrier, and the release is for the whole system.
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
def _land_kernel(ring, word, step, tokens, rows, count, stride, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    there = ring.to(tl.pointer_type(tl.int64))
    for first in range(0, count, BLOCK):
        at = first + tl.arange(0, BLOCK)
        row = tl.load(rows + at, mask=at < count, other=0).to(tl.int64)
        token = tl.load(tokens + row * stride, mask=at < count, other=0)
        tl.store(there + at, token.to(tl.int64), mask=at < count)
    announce(word, step)


_launch = Launcher(_land_kernel, num_warps=4, BLOCK=_BLOCK)


def write_tokens(tokens: Tensor, rows: Tensor, ring: int, word: int, step: int) -> None:
    """Write tokens[rows] to the address `ring` as 64 bits each, then `step` to the address `word`.

    tokens: [n] integers, any stride. rows: [m] int32 on the same device. The addresses are the device's."""
    device = tokens.get_device()
    key = device, tokens.dtype
    number, count, stride = signed(step), rows.shape[0], tokens.stride(0)
    launch = _launch.known.get(key)
    if launch is not None:
        launch(1, ring, word, number, tokens.data_ptr(), rows.data_ptr(), count, stride)
        return
    _launch(key, device, (1, 1), (ring, word, number, tokens, rows, count, stride))


def signed(step: int) -> int:
    """A step as 32 bits have it: it wraps."""
    return (step + 0x80000000 & 0xFFFFFFFF) - 0x80000000
