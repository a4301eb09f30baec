"""The mask in plain torch: slow, obvious, what the kernels are compared with."""

from __future__ import annotations

import torch
from torch import Tensor


def mask_rows_reference(logits: Tensor, mask: Tensor, rows: Tensor, vocabulary_size: int) -> None:
    """`kernels.mask_rows`, bit by bit: what the kernels are compared with."""
    for index, row in enumerate(rows.tolist()):
        for column in range(logits.shape[1]):
            allowed = column < vocabulary_size and (int(mask[index, column // 32]) >> (column % 32)) & 1
            if not allowed:
                logits[row, column] = -torch.inf
