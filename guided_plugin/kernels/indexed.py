"""For hosts that keep tables of requests on the device: masks and tokens found through them. Imports torch.

A host's logits row leads to a request's index, and a table of ours from there to its mask; a request's newest
token lies in the host's own history. Triton on CUDA, plain torch elsewhere.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from guided_plugin.kernels.cpu import mask_rows_cpu
from guided_plugin.step import NO_TOKEN

__all__ = ["NEVER", "gather_tokens", "mask_indexed_rows"]

NEVER = 1 << 30
"""The length of a history that is not looked at."""


def mask_indexed_rows(
    logits: Tensor, mask: Tensor, indices: Tensor, table: Tensor, vocabulary_size: int
) -> None:
    """Mask logits[i] with mask[table[indices[i]]], where that is not negative.

    logits: [rows, width] floating point. mask: [m, words] int32. indices: [rows] integers. table: [n] int32.
    Columns from `vocabulary_size` on are forbidden too.
    """
    if logits.is_cuda:
        _on_cuda().mask_indexed_rows_triton(logits, mask, indices, table, vocabulary_size)
        return
    chosen = torch.where(indices >= 0, table[indices.clamp(min=0).long()], -1)
    rows = (chosen >= 0).nonzero().view(-1)
    if rows.numel():
        mask_rows_cpu(logits, mask[chosen[rows].long()], rows.to(torch.int32), vocabulary_size)


def gather_tokens(order: Tensor, lengths: Tensor, total: Tensor, history: Tensor) -> Tensor:
    """The newest token of each request in `order`; NO_TOKEN where its history has not grown by one since
    `lengths`, which is brought up to date.

    order: [m] int64, indices of requests. lengths, total: [n] int32. history: [n, longest] int32.
    Returns [m] int64.
    """
    if order.is_cuda:
        tokens: Tensor = _on_cuda().gather_tokens_triton(order, lengths, total, history)
        return tokens
    now, before = total[order], lengths[order]
    newest = history[order, (now - 1).clamp(min=0).long()].long()
    lengths[order] = torch.where(before == NEVER, before, now)
    return torch.where(now == before + 1, newest, NO_TOKEN)


@cache
def _on_cuda() -> Any:
    from guided_plugin.kernels import indexed_triton

    return indexed_triton
