"""The way between the shared memory and the logits on CUDA.

    side stream   wait until FILLED reaches n, copy masks n up, event
    main stream   wait for the event, mask | sample | one kernel: tokens n into the ring, n into SAMPLED

A host with a kernel that knows the tokens does the last from there: see `TokenSink`. The host enqueues all of
it and waits for none. The first is left out where this thread itself fills the masks before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from guided_plugin.errors import PipelineError
from guided_plugin.worker.device.buffers import FollowedBuffers, WorkerBuffers
from guided_plugin.worker.device.cuda_masks import CudaMasks, CurrentStream, DeviceRegion, FollowedMasks
from guided_plugin.worker.device.cuda_tokens import CudaRows, CudaTokens
from guided_plugin.worker.device.streamops import register_host, supported, unregister_host
from guided_plugin.worker.layout import Region

_log = logging.getLogger(__name__)


def cuda_buffers(
    region: Region, device: torch.device, free: Callable[[int], None], *, waits: bool
) -> WorkerBuffers:
    """For logits on a CUDA device. `free` returns when no other rank uses the masks of a step any more;
    `waits`: whether a stream waits for masks to be filled."""
    mapped = _map(region, device, waits=waits)
    with torch.cuda.device(device):
        masks, tokens = CudaMasks(mapped, free), CudaTokens(mapped)
    # Buffers were zeroed on the main stream; the side stream may overwrite them from here on.
    torch.cuda.current_stream(device).synchronize()

    def close() -> None:
        torch.cuda.synchronize(device)
        with torch.cuda.device(device):
            unregister_host(region.address)

    return WorkerBuffers(masks, tokens, close)


def followed_cuda_buffers(region: Region, device: torch.device) -> FollowedBuffers:
    """For a rank whose logits are on a CUDA device, and whose masks are those of rank 0. It can write neither
    the region nor, through its device, what it maps of it."""
    mapped = _map(region, device, waits=True, read_only=True)
    with torch.cuda.device(device):
        masks, rows = FollowedMasks(mapped), CudaRows(region, device)
    torch.cuda.current_stream(device).synchronize()

    def close() -> None:
        if not masks.settle(_SETTLE_SECONDS):
            _log.warning("the device still waits for masks of rank 0; it is left to the end of this process")
            return
        with torch.cuda.device(device):
            unregister_host(region.address)

    return FollowedBuffers(masks, rows, close)


def _map(region: Region, device: torch.device, *, waits: bool, read_only: bool = False) -> DeviceRegion:
    torch.cuda.init()
    index = device.index if device.index is not None else torch.cuda.current_device()
    torch.cuda.synchronize(index)  # now it has a context: calls of the driver itself make none
    with torch.cuda.device(index):
        if waits and not supported(index):
            raise PipelineError("its streams cannot wait for memory", where="CUDA", hint="use mode='inline'")
        base = register_host(region.address, region.shape.size, read_only=read_only)
    return DeviceRegion(region, device, base, CurrentStream(device, index), waits)


_SETTLE_SECONDS = 5.0
"""How long a rank that closes waits for masks that were announced: rank 0 fills them or closes too."""
