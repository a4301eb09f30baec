"""Masking logits on the device: one call, one kernel a device type. Imports torch.

`mask_rows` writes -inf over every forbidden logit of the guided rows, in place, and over every column
beyond the vocabulary; it reads no logit and touches no other row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from torch import Tensor

__all__ = ["mask_rows", "mask_rows_cpu"]


def mask_rows(logits: Tensor, mask: Tensor, rows: Tensor, vocabulary_size: int) -> None:
    """Mask logits[rows[i]] with mask[i].

    logits: [n, width] floating point, any strides. mask: [m, words] int32. rows: [m] int32, no row twice.
    All on one device. Columns from `vocabulary_size` on are forbidden too.
    """
    if rows.shape[0] == 0:
        return
    if logits.is_cuda:
        _on_cuda()(logits, mask, rows, vocabulary_size)
    else:
        mask_rows_cpu(logits, mask, rows, vocabulary_size)


def mask_rows_cpu(logits: Tensor, mask: Tensor, rows: Tensor, vocabulary_size: int) -> None:
    """The same on the CPU: bits unpacked by numpy, one indexed write."""
    width = min(logits.shape[1], vocabulary_size)
    bits = np.unpackbits(mask.numpy().view(np.uint8), axis=1, bitorder="little", count=width)
    forbidden = torch.from_numpy(bits).logical_not()
    index = rows.long()
    guided = logits.index_select(0, index)
    guided[:, :width].masked_fill_(forbidden, -torch.inf)
    guided[:, width:] = -torch.inf
    logits.index_copy_(0, index, guided)


@cache
def _on_cuda() -> Callable[[Tensor, Tensor, Tensor, int], None]:
    # Triton is there where CUDA is.
    from guided_plugin.kernels.rows_triton import mask_rows_triton

    return mask_rows_triton
