"""The rings on the device: which buffers a pipeline gets. Imports torch."""

from __future__ import annotations

from collections.abc import Callable

import torch

from guided_plugin.worker.device.buffers import (
    FollowedBuffers,
    HostMasks,
    HostRows,
    HostTokens,
    WorkerBuffers,
)
from guided_plugin.worker.layout import Region


def make_buffers(
    region: Region, device: torch.device, free: Callable[[int], None], wait: Callable[[int], None] | None
) -> WorkerBuffers:
    """For the process that plans. `free` returns when no other rank uses the masks of a step any more, `wait`
    when they are filled; None where they are filled before they are uploaded."""
    used = free if region.shape.followers else None  # a step without other ranks doesn't ask for them
    if device.type != "cuda":
        return WorkerBuffers(HostMasks(region, wait, used), HostTokens(region), lambda: None)
    from guided_plugin.worker.device.cuda import cuda_buffers

    return cuda_buffers(region, device, used, waits=wait is not None)


def followed_buffers(region: Region, device: torch.device, wait: Callable[[int], None]) -> FollowedBuffers:
    """For a rank whose masks are those of rank 0."""
    if device.type != "cuda":
        return FollowedBuffers(HostMasks(region, wait), HostRows(), lambda: None)
    from guided_plugin.worker.device.cuda import followed_cuda_buffers

    return followed_cuda_buffers(region, device)
