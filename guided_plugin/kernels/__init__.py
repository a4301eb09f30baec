"""Masks on the device of the logits, and tokens that a host keeps there. Imports torch.

`mask_rows` writes -inf over every forbidden logit of the guided rows, in place, and
over every column beyond the vocabulary; it reads no logit and touches no other row.

`indexed_kernels` are for hosts that keep tables of requests on the device: a logits row
leads to a request's index, and a table of ours from there to its mask; a request's
newest token is in the host's own history.

On CUDA both are Triton kernels (`rows_triton`, `indexed_triton`). The functions here
say what those do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from guided_plugin.step import BROKEN, NEVER, NO_TOKEN

_LOWEST_BFLOAT16 = -128
"""The bits of -inf, as int16."""


def mask_rows(logits: Tensor, mask: Tensor, rows: Tensor, vocabulary_size: int) -> None:
    """Mask logits[rows[i]] with mask[i].

    logits: [n, width] floating point, any strides. mask: [m, words] int32. rows: [m]
    int32, no row twice. All on one device. Columns from `vocabulary_size` on are
    forbidden too.
    """
    if rows.shape[0] == 0:
        return
    if logits.is_cuda:
        # Triton is there where CUDA is.
        from guided_plugin.kernels import rows_triton

        rows_triton.mask_rows(logits, mask, rows, None, vocabulary_size)
    else:
        _mask_rows_cpu(logits, mask, rows, vocabulary_size)


def _mask_rows_cpu(
    logits: Tensor, mask: Tensor, rows: Tensor, vocabulary_size: int
) -> None:
    """Mask on the CPU, row by row by numpy, which needs no other thread: PyTorch's
    ways took twice as long alone, and five times beside other processes (64 rows of
    151,936 columns on two processors)."""
    width = min(logits.shape[1], vocabulary_size)
    allowed = np.unpackbits(
        mask.numpy().view(np.uint8), axis=1, bitorder="little", count=width
    )
    table = logits.detach()
    lowest: float = -np.inf
    if table.dtype is torch.bfloat16:  # numpy knows its bits only
        table = table.view(torch.int16)
        lowest = _LOWEST_BFLOAT16
    values = table.numpy()
    for row, one in zip(rows.tolist(), allowed, strict=True):
        np.putmask(values[row, :width], one == 0, lowest)
        values[row, width:] = lowest


class IndexedKernels(NamedTuple):
    """These functions for one kind of device."""

    mask_rows: Callable[..., None]
    take_tokens: Callable[..., Tensor | None]
    """(order, lengths, total, history, sink): what `_take_tokens` returns; on CUDA it
    is written into the `TokenSink`."""
    gather_drafts: Callable[..., Tensor]
    take_offers: Callable[..., None]
    cut_drafts: Callable[..., Tensor]
    place_drafts: Callable[..., None]


def indexed_kernels(device: torch.device) -> IndexedKernels:
    """The kernels for tensors on a device."""
    if device.type != "cuda":
        drafted = _gather_drafts, _take_offers, _cut_drafts, _place_drafts
        return IndexedKernels(_mask_indexed, _take_tokens, *drafted)
    # Triton is installed where CUDA is.
    from guided_plugin.kernels import indexed_triton as on_cuda

    return IndexedKernels(*(getattr(on_cuda, name) for name in IndexedKernels._fields))


def _mask_indexed(
    logits: Tensor,
    mask: Tensor,
    indices: Tensor,
    table: Tensor,
    vocabulary_size: int,
    positions: Tensor | None = None,
    count: int = 0,
) -> None:
    """Mask logits[i] with mask[table[indices[i]]], where that is not negative. With
    drafts the masks are blocks of `count`, of which row i takes its own from block
    positions[i].

    logits: [rows, width] floating point. mask: [m, words] int32. indices, positions:
    [rows] integers. table: [n] int32. Columns from `vocabulary_size` on are forbidden
    too.
    """
    chosen = _looked_up(table, indices)
    if positions is not None:
        chosen = torch.where(chosen >= 0, chosen + count * positions, -1)
    rows = (chosen >= 0).nonzero().view(-1)
    if rows.numel():
        _mask_rows_cpu(
            logits, mask[chosen[rows].long()], rows.to(torch.int32), vocabulary_size
        )


def _looked_up(table: Tensor, indices: Tensor) -> Tensor:
    """-1 where an index is negative."""
    return torch.where(indices >= 0, table[indices.clamp(min=0).long()], -1)


def _take_tokens(
    order: Tensor, lengths: Tensor, total: Tensor, history: Tensor, sink: object
) -> Tensor:
    """The newest token of each request in `order`; NO_TOKEN where its history has not
    grown since `lengths`, which is brought up to date, and BROKEN where it has not
    grown by one.

    order: [m] int64, indices of requests. lengths, total: [n] int32. history: [n,
    longest] int32. Returns [m] int64; nothing is written into the sink.
    """
    return _new_tokens(order, lengths, total, history, 0).view(-1)


def _new_tokens(
    order: Tensor, lengths: Tensor, total: Tensor, history: Tensor, drafts: int
) -> Tensor:
    """[2 * drafts + 1, m]: the tokens that came since, drafts + 1 at most; no
    drafts."""
    found = torch.full((2 * drafts + 1, order.numel()), NO_TOKEN, dtype=torch.int64)
    now = total[order]
    before = lengths[order]
    grown = torch.where(before == NEVER, 0, now - before)
    for place in range(drafts + 1):
        newest = history[
            order, (before + place).clamp(max=history.shape[1] - 1).long()
        ].long()
        found[place] = torch.where(grown > place, newest, NO_TOKEN)
    found[0] = torch.where((grown < 0) | (grown > drafts + 1), BROKEN, found[0])
    lengths[order] = torch.where(before == NEVER, before, now)
    return found


def _gather_drafts(
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
    """Gather what `StepPipeline.send_drafts` takes: `drafts + 1` blocks of new tokens,
    in the order of `order`, then `drafts` blocks of proposed ones. NO_TOKEN where there
    is none.

    As for `_take_tokens`; and for each logits row the request's index, which of the
    request's rows it is, and what was fed there: a draft in all but the first. table:
    [n] int32, from an index to its place in `order`, or -1. indices, positions,
    proposed: [rows] integers. Returns [(2 * drafts + 1) * m] int64.

    Without positions there is one row a request, and proposed is [rows, drafts].
    Without indices there are no drafts.
    """
    found = _new_tokens(order, lengths, total, history, drafts)
    if indices is None or proposed is None:
        return found.view(-1)
    if positions is None:
        positions = torch.arange(1, drafts + 1).repeat(len(indices))
        indices = indices.repeat_interleave(drafts)
        proposed = proposed.reshape(-1)
    chosen = _looked_up(table, indices)
    rows = (
        ((chosen >= 0) & (positions > 0) & (positions <= drafts) & (proposed >= 0))
        .nonzero()
        .view(-1)
    )
    found[drafts + positions[rows].long(), chosen[rows].long()] = proposed[rows].long()
    return found.view(-1)


def _take_offers(
    offers: Tensor,
    table: Tensor,
    index: Tensor,
    drafts: Tensor,
    sure: Tensor | None,
    cut: Tensor,
    count: int,
) -> None:
    """Write what the worker offers over the drafts of a batch, and mark in `cut` what
    it took away.

    offers: [most, count, 2] int32: the token, negative after the last one, and the bits
    of its confidence. table: [n] int32, from an index to its column there, or -1.
    index: [rows] integers. drafts: [rows, most] int64. sure: [n, most] float32, the
    confidences; None leaves those of the host. cut: [n, most + 1] int8. Where no one
    guessed (`sure`), a draft that is not offered becomes 0.
    """
    columns = table[index]
    halves = offers[:, columns.clamp(min=0).long()].permute(2, 1, 0).contiguous()
    chosen = halves[0]
    given = halves[1].view(torch.float32)
    guided = (columns >= 0).unsqueeze(1)
    offered = guided & (chosen >= 0)
    cut[index.long(), 1:] = (guided & ~offered).to(torch.int8)
    if sure is not None:
        # The bits beside NO_TOKEN may be no number.
        sure[index.long()] = given.where(guided & (given > 0), 0.0)
        drafts.zero_()
    drafts.copy_(torch.where(offered, chosen, drafts))


def _cut_drafts(cut: Tensor, indices: Tensor, positions: Tensor) -> Tensor:
    """Return which drafts were cut, [rows] bools: that of logits row i is at
    positions[i] of the request at indices[i]. Both [rows] integers."""
    hit = cut[indices.clamp(min=0).long(), positions.long()] != 0
    return hit & (indices >= 0)


def _place_drafts(
    sure: Tensor,
    indices: Tensor,
    counts: Tensor,
    most: int,
    bonus: int,
    logits: Tensor,
    tokens: Tensor,
) -> None:
    """Take the `most` drafts of a batch that are likeliest to be accepted, with all
    before them.

    sure: [n, drafts] float32, of each draft that it is taken if those before it are;
    indices: [rows] int64, of its rows. counts: [2 * rows] int64: drafts of a request,
    which are `most` at least together, then its other tokens. `bonus`: rows of logits
    that a request has beside those of its drafts. Written: where each ends, from 0 on;
    `logits`, [rows + 1] int32, and `tokens`, [at least rows + 1] int32; in what is left
    the end of all.
    """
    asked, others = counts.chunk(2)
    places = torch.arange(sure.shape[1])
    chance = torch.where(places < asked.unsqueeze(1), sure[indices].cumprod(1), -1.0)
    best = chance.view(-1).sort(descending=True, stable=True).indices[:most]
    placed = (
        torch.zeros(chance.numel(), dtype=torch.int64)
        .index_fill_(0, best, 1)
        .view_as(chance)
        .sum(1)
    )
    logits[0] = tokens[0] = 0
    logits[1:] = (placed + bonus).cumsum(0)
    tokens[1:] = others.sum() + most
    tokens[1 : len(indices) + 1] = (placed + others).cumsum(0)
