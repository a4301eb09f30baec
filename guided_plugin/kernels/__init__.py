"""Masking logits on the device: one call, one kernel a device type. Imports torch.

`mask_rows` writes -inf over every forbidden logit of the guided rows, in place, and over every column
beyond the vocabulary; it reads no logit and touches no other row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from torch import Tensor

from guided_plugin.kernels.mask_cpu import mask_rows_cpu

__all__ = ["mask_rows"]


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


@cache
def _on_cuda() -> Callable[[Tensor, Tensor, Tensor, int], None]:
    # Triton is there where CUDA is.
    from guided_plugin.kernels.mask_triton import mask_rows_triton

    return mask_rows_triton
