"""The `IndexedKernels` on CUDA, where their arguments are explained. Nothing here
depends on which requests are in a batch: one kernel each."""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from guided_plugin.kernels.rows_triton import Launcher, announce, signed
from guided_plugin.kernels.rows_triton import mask_rows as mask_rows
from guided_plugin.step import BROKEN, NEVER, NO_TOKEN, TokenSink

_GATHER = 128


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["count", "stride", "tokens", "word", "step"],
    do_not_specialize_on_alignment=["order", "lengths", "total", "history"],
)
def _take_kernel(  # type: ignore[no-untyped-def]
    tokens,
    word,
    step,
    order,
    lengths,
    total,
    history,
    count,
    stride,
    DRAFTS: tl.constexpr,
    NOT_LOOKED_AT: tl.constexpr,
    NONE: tl.constexpr,
    WRONG: tl.constexpr,
    BLOCK: tl.constexpr,
):
    blocks = tokens.to(tl.pointer_type(tl.int64))
    for first in range(0, count, BLOCK):
        at = first + tl.arange(0, BLOCK)
        inside = at < count
        index = tl.load(order + at, mask=inside, other=0)
        now = tl.load(total + index, mask=inside, other=0)
        before = tl.load(lengths + index, mask=inside, other=NOT_LOOKED_AT)
        grown = tl.where(before == NOT_LOOKED_AT, 0, now - before)
        for place in tl.static_range(DRAFTS + 1):
            there = inside & (grown > place)
            new = tl.load(
                history + index * stride + before + place, mask=there, other=NONE
            ).to(tl.int64)
            if place == 0:
                new = tl.where((grown < 0) | (grown > DRAFTS + 1), WRONG, new)
            tl.store(blocks + place * count + at, new, mask=inside)
        for place in tl.static_range(DRAFTS):
            nothing = tl.full((BLOCK,), NONE, tl.int64)
            tl.store(blocks + (DRAFTS + 1 + place) * count + at, nothing, mask=inside)
        tl.store(lengths + index, now, mask=inside & (before != NOT_LOOKED_AT))
    if DRAFTS == 0:
        announce(word, step)


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["rows", "count"],
    do_not_specialize_on_alignment=[
        "table",
        "indices",
        "positions",
        "proposed",
        "tokens",
    ],
)
def _scatter_drafts_kernel(  # type: ignore[no-untyped-def]
    table,
    indices,
    positions,
    proposed,
    tokens,
    rows,
    count,
    DRAFTS: tl.constexpr,
    WHOLE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < rows
    if WHOLE:  # all drafts of a request stand in one row
        index = tl.load(indices + at // DRAFTS, mask=inside, other=-1)
        position = at % DRAFTS + 1
    else:
        index = tl.load(indices + at, mask=inside, other=-1)
        position = tl.load(positions + at, mask=inside, other=0)
    chosen = tl.load(table + index, mask=index >= 0, other=-1)
    draft = tl.load(proposed + at, mask=inside, other=-1).to(tl.int64)
    there = (
        inside & (chosen >= 0) & (position > 0) & (position <= DRAFTS) & (draft >= 0)
    )
    tl.store(tokens + (DRAFTS + position) * count + chosen, draft, mask=there)


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["offers", "rows", "count"],
    do_not_specialize_on_alignment=["table", "indices", "drafts", "confidences", "cut"],
)
def _take_offers_kernel(  # type: ignore[no-untyped-def]
    offers,
    table,
    indices,
    drafts,
    confidences,
    cut,
    rows,
    count,
    stride,
    DRAFTS: tl.constexpr,
    OWN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < rows * DRAFTS
    row = at // DRAFTS
    place = at % DRAFTS
    index = tl.load(indices + row, mask=inside, other=0)
    column = tl.load(table + index, mask=inside, other=-1)
    guided = inside & (column >= 0)
    there = offers.to(tl.pointer_type(tl.int64))
    # Written by the host while this stream waited: past what the caches of the device
    # may hold.
    value = tl.load(
        there + place * count + column, mask=guided, other=0xFFFFFFFF, volatile=True
    )
    chosen = value.to(tl.int32).to(tl.int64)
    offered = guided & (chosen >= 0)
    tl.store(
        cut + index * (DRAFTS + 1) + place + 1,
        (guided & (chosen < 0)).to(tl.int8),
        mask=inside,
    )
    if OWN:
        sure = (value >> 32).to(tl.int32).to(tl.float32, bitcast=True)
        # The bits beside NO_TOKEN may be no number.
        tl.store(
            confidences + index * DRAFTS + place,
            tl.where(guided & (sure > 0), sure, 0.0),
            mask=inside,
        )
        tl.store(
            drafts + row * stride + place, tl.where(offered, chosen, 0), mask=inside
        )
    else:
        tl.store(drafts + row * stride + place, chosen, mask=offered)


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["count", "most", "bonus", "length"],
    do_not_specialize_on_alignment=[
        "confidences",
        "indices",
        "counts",
        "logit_ends",
        "token_ends",
    ],
)
def _place_drafts_kernel(  # type: ignore[no-untyped-def]
    confidences,
    indices,
    counts,
    logit_ends,
    token_ends,
    count,
    most,
    bonus,
    length,
    DRAFTS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.arange(0, BLOCK)
    place = tl.arange(0, WIDTH)
    inside = row < count
    index = tl.load(indices + row, mask=inside, other=0)
    asked = tl.load(counts + row, mask=inside, other=0)
    others = tl.load(counts + count + row, mask=inside, other=0).to(tl.int32)
    there = place[None, :] < asked[:, None]
    sure = tl.load(
        confidences + index[:, None] * DRAFTS + place[None, :], mask=there, other=0.0
    )
    # The bits of numbers that are not negative are in their order. From 1 on: 0 is no
    # draft.
    chance = tl.where(there, tl.cumprod(sure, axis=1).to(tl.int32, bitcast=True) + 1, 0)
    least = 0
    for bit in range(30):  # the highest chance that `most` drafts have
        tried = least | (1 << (29 - bit))
        least = tl.where(tl.sum((chance >= tried).to(tl.int32)) >= most, tried, least)
    placed = tl.sum((chance > least).to(tl.int32), axis=1)
    equal = tl.sum((there & (chance == least)).to(tl.int32), axis=1)
    before = tl.cumsum(equal, axis=0) - equal
    left = most - tl.sum(placed, axis=0)
    placed += tl.minimum(tl.maximum(left - before, 0), equal)
    tl.store(logit_ends, 0)
    tl.store(
        logit_ends + 1 + row,
        tl.cumsum(tl.where(inside, placed + bonus, 0), axis=0),
        mask=inside,
    )
    tl.store(token_ends, 0)
    tl.store(
        token_ends + 1 + row, tl.cumsum(placed + others, axis=0), mask=row + 1 < length
    )


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["rows"],
    do_not_specialize_on_alignment=["cut", "indices", "positions", "found"],
)
def _cut_drafts_kernel(  # type: ignore[no-untyped-def]
    cut, indices, positions, found, rows, width, BLOCK: tl.constexpr
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    index = tl.load(indices + at, mask=at < rows, other=-1)
    position = tl.load(positions + at, mask=at < rows, other=0)
    inside = (at < rows) & (index >= 0) & (position < width)
    hit = tl.load(cut + index * width + position, mask=inside, other=0) != 0
    tl.store(found + at, hit.to(tl.int8), mask=at < rows)


def take_tokens(
    order: Tensor,
    lengths: Tensor,
    total: Tensor,
    history: Tensor,
    sink: TokenSink,
    drafts: int = 0,
) -> None:
    """The newest token of each request, written into the ring of a region; with drafts
    all that came since, and room for these."""
    device = order.get_device()
    count = order.shape[0]
    key = device, total.dtype, history.dtype
    place = sink.tokens, sink.word, signed(sink.step)
    fed = *place, order, lengths, total, history, count, history.stride(0)
    _take_launcher(drafts)(key, device, (1, 1), fed)


def gather_drafts(
    order: Tensor,
    lengths: Tensor,
    total: Tensor,
    history: Tensor,
    table: Tensor,
    indices: Tensor | None,
    positions: Tensor | None,
    proposed: Tensor | None,
    drafts: int,
) -> Tensor:
    """New tokens and drafts of each request."""
    count = order.shape[0]
    device = order.get_device()
    tokens = torch.empty(
        (2 * drafts + 1) * count, dtype=torch.int64, device=order.device
    )
    sink = TokenSink(tokens.data_ptr(), 0, 0)
    take_tokens(order, lengths, total, history, sink, drafts)
    if indices is None or proposed is None:
        return tokens
    launch = _scatter_launcher(drafts, int(positions is None))
    rows = proposed.numel()
    if positions is None:
        positions = indices
        proposed = proposed.contiguous()
    key = device, indices.dtype, positions.dtype, proposed.dtype
    fed = table, indices, positions, proposed, tokens, rows, count
    launch(key, device, ((rows + _GATHER - 1) // _GATHER, 1), fed)
    return tokens


def take_offers(
    offers: int,
    table: Tensor,
    index: Tensor,
    drafts: Tensor,
    sure: Tensor | None,
    cut: Tensor,
    count: int,
) -> None:
    """Gather what the worker offers, and what it took away."""
    rows, most = drafts.shape
    launch = _offers_launcher(most, int(sure is not None))
    scores = drafts if sure is None else sure
    device = drafts.get_device()
    stride = drafts.stride(0)
    key = device, index.dtype, scores.dtype, stride
    fed = offers, table, index, drafts, scores, cut, rows, count
    launch(key, device, ((rows * most + _GATHER - 1) // _GATHER, 1), fed, (stride,))


def cut_drafts(cut: Tensor, indices: Tensor, positions: Tensor) -> Tensor:
    """Find the drafts that must not be taken."""
    rows = indices.shape[0]
    device = indices.get_device()
    width = cut.shape[1]
    found = torch.empty(rows, dtype=torch.int8, device=indices.device)
    key = (device, indices.dtype, positions.dtype, width)
    fed = (cut, indices, positions, found, rows)
    _launch_cut(key, device, ((rows + _GATHER - 1) // _GATHER, 1), fed, (width,))
    return found.view(torch.bool)


def place_drafts(
    sure: Tensor,
    indices: Tensor,
    counts: Tensor,
    most: int,
    bonus: int,
    logits: Tensor,
    tokens: Tensor,
) -> None:
    """Find where the logits and the tokens of each request end, with the likeliest
    drafts."""
    device = indices.get_device()
    length = tokens.shape[0]
    launch = _place_launcher(*sure.shape)
    fed = sure, indices, counts, logits, tokens, indices.shape[0], most, bonus, length
    launch((device, indices.dtype), device, (1, 1), fed)


@cache
def _place_launcher(requests: int, drafts: int) -> Launcher:
    sizes = {
        "WIDTH": triton.next_power_of_2(drafts),
        "BLOCK": triton.next_power_of_2(requests),
    }
    return Launcher(_place_drafts_kernel, num_warps=8, DRAFTS=drafts, **sizes)


@cache
def _take_launcher(drafts: int) -> Launcher:
    none: dict[str, int] = {"NOT_LOOKED_AT": NEVER, "NONE": NO_TOKEN, "WRONG": BROKEN}
    return Launcher(_take_kernel, num_warps=4, DRAFTS=drafts, **none, BLOCK=_GATHER)


@cache
def _scatter_launcher(drafts: int, whole: int) -> Launcher:
    sizes = {"DRAFTS": drafts, "WHOLE": whole, "BLOCK": _GATHER}
    return Launcher(_scatter_drafts_kernel, num_warps=1, **sizes)


@cache
def _offers_launcher(drafts: int, own: int) -> Launcher:
    sizes = {"DRAFTS": drafts, "OWN": own, "BLOCK": _GATHER}
    return Launcher(_take_offers_kernel, num_warps=1, **sizes)


_launch_cut = Launcher(_cut_drafts_kernel, num_warps=1, BLOCK=_GATHER)
