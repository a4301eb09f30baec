"""The way between the shared memory and the logits on CUDA.

    side stream   wait until FILLED reaches n, copy masks n up, event
    main stream   wait for the event, mask | sample | one kernel: tokens n into the ring, n into SAMPLED

A host with a kernel that knows the tokens does the last from there: see `TokenSink`.
The host enqueues all of it and waits for none. The first is left out where this thread
itself fills the masks before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from guided_plugin.errors import PipelineError
from guided_plugin.kernels.rows_triton import write_tokens
from guided_plugin.step import OfferedDrafts, TokenSink
from guided_plugin.worker.buffers import Buffers, HostTokens
from guided_plugin.worker.device.cuda_masks import (
    CudaMasks,
    CurrentStream,
    DeviceRegion,
    FollowedMasks,
)
from guided_plugin.worker.device.streamops import (
    load_wait,
    register_host,
    supported,
    unregister_host,
)
from guided_plugin.worker.layout import PLAN_DEPTH, TOKEN_DEPTH, Region
from guided_plugin.worker.words import Counter

_log = logging.getLogger(__name__)


class CudaTokens(HostTokens):
    """On CUDA. Row numbers change rarely; each change takes a fresh entry."""

    def __init__(self, mapped: DeviceRegion) -> None:
        region = mapped.region
        device = mapped.device
        max_rows = region.shape.max_slots * region.shape.values
        # [max_rows] int32: 0, 1, 2, ...
        self._leading = torch.arange(max_rows, dtype=torch.int32, device=device)
        # [PLAN_DEPTH, max_rows] int32
        self._rows_host = torch.zeros(
            PLAN_DEPTH, max_rows, dtype=torch.int32, pin_memory=True
        )
        self._rows_dev = torch.zeros(
            PLAN_DEPTH, max_rows, dtype=torch.int32, device=device
        )
        self._copied = [torch.cuda.Event() for _ in range(PLAN_DEPTH)]
        self._entry = 0
        self.rows = self._rows_dev[0, :0]
        self._ring = mapped.base + region.shape.places.tokens
        self._stride = 8 * max_rows
        self._word = mapped.base + region.counter_offset(Counter.SAMPLED)
        self._offered_word = mapped.base + region.counter_offset(Counter.OFFERED)
        self._positions = region.shape.positions
        self._current = mapped.current
        self._wait_on = load_wait()
        _warm_up(device)

    def set_rows(self, rows: Sequence[int]) -> None:
        """Send row numbers up, on the main stream."""
        count = len(rows)
        if rows[-1] == count - 1:
            self.rows = self._leading[:count]
            return
        entry = self._entry = (self._entry + 1) % PLAN_DEPTH
        self._copied[entry].synchronize()  # of PLAN_DEPTH changes ago
        self._rows_host.numpy()[entry, :count] = rows
        # On the main stream: kernels that still use an older entry are before it, later
        # ones after.
        self._rows_dev[entry, :count].copy_(
            self._rows_host[entry, :count], non_blocking=True
        )
        self._copied[entry].record()
        self.rows = self._rows_dev[entry, :count]

    def write(self, step: int, tokens: Tensor) -> None:
        """Write the guided rows' tokens, then raise the flag; on the current stream,
        which has sampled."""
        write_tokens(
            tokens,
            self.rows,
            self._ring + step % TOKEN_DEPTH * self._stride,
            self._word,
            step,
        )

    def sink(self, step: int) -> TokenSink | None:
        """Return the place where a kernel on the main stream may write the tokens."""
        return TokenSink(
            self._ring + step % TOKEN_DEPTH * self._stride, self._word, step
        )

    def offered(self, step: int, count: int) -> OfferedDrafts:
        """Return the drafts' address; the main stream waits until they are final."""
        self._wait_on(self._current().cuda_stream, self._offered_word, step)
        return (
            self._ring + step % TOKEN_DEPTH * self._stride + 8 * count * self._positions
        )


def _warm_up(device: torch.device) -> None:
    """Load the kernel now: the first time takes a tenth of a second and waits for the
    device."""
    ring = torch.zeros(1, dtype=torch.int64, device=device)
    word, row = torch.zeros(2, 1, dtype=torch.int32, device=device)
    for dtype in (torch.int64, torch.int32):
        write_tokens(row.to(dtype), row, ring.data_ptr(), word.data_ptr(), 0)


def cuda_buffers(
    region: Region,
    device: torch.device,
    free: Callable[[int], None] | None,
    *,
    waits: bool,
    follows: bool,
) -> Buffers:
    """For logits on a CUDA device. `free`, with other ranks: returns when none uses the
    masks of a step; `waits`: whether a stream waits for masks to be filled. A rank that
    `follows` can't write the region, nor can its device."""
    mapped = _map(region, device, waits=waits, read_only=follows)
    with torch.cuda.device(device):
        masks: CudaMasks | FollowedMasks = (
            FollowedMasks(mapped) if follows else CudaMasks(mapped, free)
        )
        tokens = CudaTokens(mapped)
    # Buffers were zeroed on the main stream; the side stream may overwrite them from
    # here on.
    torch.cuda.current_stream(device).synchronize()

    def close() -> None:
        if not masks.settle(_SETTLE_SECONDS):
            _log.warning(
                "the device still waits for masks of another rank; its memory stays until the process ends"
            )
            return
        with torch.cuda.device(device):
            unregister_host(region.address)

    return Buffers(masks, tokens, close)


def _map(
    region: Region, device: torch.device, *, waits: bool, read_only: bool
) -> DeviceRegion:
    torch.cuda.init()
    index = device.index if device.index is not None else torch.cuda.current_device()
    # now it has a context: calls of the driver itself make none
    torch.cuda.synchronize(index)
    with torch.cuda.device(index):
        if waits and not supported(index):
            raise PipelineError(
                "its streams cannot wait for memory",
                where="CUDA",
                hint="use mode='inline'",
            )
        base = register_host(region.address, region.shape.size, read_only=read_only)
    return DeviceRegion(region, device, base, CurrentStream(device, index), waits)


_SETTLE_SECONDS = 5.0
"""Seconds that a rank that closes waits for masks that were announced: its leader fills
them or closes too."""
