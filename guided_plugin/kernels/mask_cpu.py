"""The mask on the host: bits unpacked by numpy, one indexed write."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def mask_rows_cpu(logits: Tensor, mask: Tensor, rows: Tensor, vocabulary_size: int) -> None:
    """`kernels.mask_rows` on the CPU."""
    width = min(logits.shape[1], vocabulary_size)
    bits = np.unpackbits(mask.numpy().view(np.uint8), axis=1, bitorder="little", count=width)
    forbidden = torch.from_numpy(bits).logical_not()
    index = rows.long()
    guided = logits.index_select(0, index)
    guided[:, :width].masked_fill_(forbidden, -torch.inf)
    guided[:, width:] = -torch.inf
    logits.index_copy_(0, index, guided)
