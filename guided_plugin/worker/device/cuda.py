"""The way between the shared memory and the logits on CUDA.

    side stream   wait until FILLED reaches n, copy masks n up, event
    main stream   wait for the event, mask | sample | one kernel: tokens n into the ring, n into SAMPLED

A host with a kernel that knows the tokens does the last from there: see `TokenSink`. The host enqueues all of
it and waits for none. Where the device cannot wait for memory, the host waits for the masks in `fetch`, and a
thread raises SAMPLED when the tokens are written.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import torch

from guided_plugin.worker.device.buffers import FollowedBuffers, WorkerBuffers
from guided_plugin.worker.device.cuda_masks import (
    CudaMasks,
    CurrentStream,
    DeviceRegion,
    FollowedMasks,
    LeadingMasks,
)
from guided_plugin.worker.device.cuda_tokens import CudaRows, CudaTokens
from guided_plugin.worker.device.streamops import register_host, supported, unregister_host
from guided_plugin.worker.layout import Counter, Region

_log = logging.getLogger(__name__)


def cuda_buffers(
    region: Region,
    device: torch.device,
    wait: Callable[[int], None],
    free: Callable[[int], None] | None = None,
) -> WorkerBuffers:
    """For logits on a CUDA device. `free` returns when no other rank uses the masks of a step any more, where
    there are other ranks."""
    mapped = _map(region, device, wait)
    with torch.cuda.device(device):
        raiser = None if mapped.wait is None else _Raiser(region, torch.cuda.current_device())
        masks = CudaMasks(mapped) if free is None else LeadingMasks(mapped, free)
        tokens = CudaTokens(mapped, None if raiser is None else raiser.raise_after)
    # Buffers were zeroed on the main stream; the side stream may overwrite them from here on.
    torch.cuda.current_stream(device).synchronize()

    def close() -> None:
        torch.cuda.synchronize(device)
        if raiser is not None:
            raiser.close()
        with torch.cuda.device(device):
            unregister_host(region.address)

    return WorkerBuffers(masks, tokens, close)


def followed_cuda_buffers(
    region: Region, device: torch.device, wait: Callable[[int], None]
) -> FollowedBuffers:
    """For a rank whose logits are on a CUDA device, and whose masks are those of rank 0. It can write neither
    the region nor, through its device, what it maps of it."""
    mapped = _map(region, device, wait, read_only=True)
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


def _map(
    region: Region, device: torch.device, wait: Callable[[int], None], *, read_only: bool = False
) -> DeviceRegion:
    torch.cuda.init()
    index = device.index if device.index is not None else torch.cuda.current_device()
    torch.cuda.synchronize(index)  # now it has a context: calls of the driver itself make none
    with torch.cuda.device(index):
        base = register_host(region.address, region.shape.size, read_only=read_only)
        host_waits = None if supported(index) else wait
    return DeviceRegion(region, device, base, CurrentStream(device, index), host_waits)


_SETTLE_SECONDS = 5.0
"""How long a rank that closes waits for masks that were announced: rank 0 fills them or closes too."""


class _Raiser:
    """Raises SAMPLED where a device has no stream memory operations: a thread that waits for events. The
    stores of a kernel that has ended have reached the host; those of a running one may not have."""

    def __init__(self, region: Region, index: int) -> None:
        self._region = region
        self._index = index
        self._queue: SimpleQueue[tuple[Any, int] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="guided-raiser", daemon=True)
        self._thread.start()

    def raise_after(self, stream: Any, step: int) -> None:
        """Raise the flag once all that is in the stream now is done."""
        event = torch.cuda.Event()
        event.record(stream)
        self._queue.put((event, step))

    def close(self) -> None:
        """Raise what is left, and end."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        torch.cuda.set_device(self._index)
        while (item := self._queue.get()) is not None:
            event, step = item
            try:
                event.synchronize()
            except Exception:  # of the device: neither the worker nor later steps may wait for ever
                _log.exception("waiting for the tokens of step %d failed", step)
            self._region.store(Counter.SAMPLED, step)
