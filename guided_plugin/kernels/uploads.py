"""The way of a host's small lists to its device. Imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Uploads:
    """Small lists of integers for the device, through pinned memory that is used in
    turn: to pin a new tensor for each takes as long as a few launches."""

    def __init__(self, longest: int, device: torch.device) -> None:
        self._device = device
        # [uploads, longest] int64. A host is two steps ahead of its device; a step has
        # eight of them at most.
        host = torch.zeros(
            32, longest, dtype=torch.int64, pin_memory=device.type == "cuda"
        )
        self._turns = cycle(zip(host, host.numpy(), strict=True))

    def __call__(self, values: Sequence[int] | NDArray[np.int64]) -> Tensor:
        """On the device; nothing waits for the copy."""
        host, row = next(self._turns)
        row[: len(values)] = values
        sent: Tensor = host[: len(values)]
        return sent.to(self._device, non_blocking=True, copy=True)
