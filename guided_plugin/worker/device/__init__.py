"""The rings on the device: which buffers a pipeline gets. Imports torch."""

from __future__ import annotations

from collections.abc import Callable

import torch

from guided_plugin.worker.buffers import Buffers, HostMasks, HostTokens
from guided_plugin.worker.layout import Region


def make_buffers(
    region: Region,
    device: torch.device,
    free: Callable[[int], None] | None,
    wait: Callable[[int], None] | None,
    *,
    follows: bool = False,
) -> Buffers:
    """`free` returns when no other rank uses the masks of a step any more, `wait` when
    they are filled; None where they are filled before they are uploaded. `follows`: the
    region is another rank's."""
    # a step without other ranks doesn't ask for them
    used = free if region.shape.followers else None
    if device.type != "cuda":
        return Buffers(HostMasks(region, wait, used), HostTokens(region), lambda: None)
    from guided_plugin.worker.device.cuda import cuda_buffers

    return cuda_buffers(region, device, used, waits=wait is not None, follows=follows)
