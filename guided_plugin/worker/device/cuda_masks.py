"""Masks from the shared memory to a CUDA device, on a side stream. No host waits for a
step that runs.

With several ranks, a place in the rings may be used again when all have read it: see
`worker/layout`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from guided_plugin.metrics import Times
from guided_plugin.worker.buffers import HostMasks
from guided_plugin.worker.device.streamops import load_copy_up, load_wait
from guided_plugin.worker.layout import PLAN_DEPTH, Region
from guided_plugin.worker.words import Counter

_SAMPLE_EVERY = 17
"""Steps between looks at waits: timed events cost more than plain ones. Odd: a forward
pass may have two."""


@dataclass(frozen=True, slots=True)
class DeviceRegion:
    """A region as a device sees it."""

    region: Region
    device: torch.device
    base: int
    """Its address on the device."""
    current: Callable[[], Any]
    """The stream that the host's calls go to now."""
    waits: bool
    """True if streams wait for masks to be filled, which may be after they were asked
    for."""


class MaskCopies(HostMasks):
    """Copies of masks to the device, and the streams that wait for them. When a place
    in the rings may be used again, those know which derive from it."""

    def __init__(self, mapped: DeviceRegion) -> None:
        region = mapped.region
        device = mapped.device
        self.waits = Times()
        self.side_stream = torch.cuda.Stream(device)
        stream = self.side_stream.cuda_stream
        copy_up = load_copy_up(stream)
        self._current = mapped.current
        shape = region.shape
        masks = shape.max_slots * shape.positions
        # [PLAN_DEPTH, masks, words] int32, device
        self._mask_dev = torch.zeros(
            PLAN_DEPTH, masks, shape.words, dtype=torch.int32, device=device
        )
        self._uploaded = [torch.cuda.Event() for _ in range(PLAN_DEPTH)]
        self._views: dict[tuple[int, int], Tensor] = {}
        self._launched = [torch.cuda.Event() for _ in range(PLAN_DEPTH)]
        """Events of the main stream; what was launched before has used what is copied
        over after."""
        self._drafts = shape.drafts > 0
        """Masks of the two steps before may be used yet then, when a step is
        planned."""
        self._timed: Any = None
        self._margin: tuple[Any, Any] | None = None
        # Bound to their addresses once: every attribute that a step looks up counts.
        self._wait_filled: Callable[[int], None] | None = None
        if mapped.waits:
            filled = mapped.base + region.counter_offset(Counter.FILLED)
            self._wait_filled = partial(load_wait(), stream, filled)
        self._row_bytes = 4 * shape.words
        self._copies = [
            partial(
                copy_up,
                self._mask_dev.data_ptr() + entry * masks * self._row_bytes,
                region.address + shape.places.masks + entry * masks * self._row_bytes,
            )
            for entry in range(PLAN_DEPTH)
        ]

    def fetch(self, step: int, count: int) -> Tensor:
        """The masks; the main stream waits for them."""
        entry = step % PLAN_DEPTH
        main = self._current()
        if self._timed is not None:
            logits_there = torch.cuda.Event(enable_timing=True)
            logits_there.record(main)
            self._margin = (logits_there, self._timed)
            self._timed = None
        main.wait_event(self._uploaded[entry])
        view = self._views.get((entry, count))
        if view is None:
            view = self._views[entry, count] = self._mask_dev[entry, :count]
        return view

    def upload(self, step: int, count: int) -> None:
        """Let the side stream wait for the masks and copy them."""
        if self._wait_filled is not None:
            self._wait_filled(step)
        entry = step % PLAN_DEPTH
        if self._drafts:
            self._wait_for_main(entry)
        self._copies[entry](count * self._row_bytes)
        if step % _SAMPLE_EVERY == 0:
            self._read_margin()
            self._timed = torch.cuda.Event(enable_timing=True)
            self._timed.record(self.side_stream)
        self._uploaded[entry].record(self.side_stream)

    def _wait_for_main(self, entry: int) -> None:
        """Make what the side stream does next come after what was launched on the main
        stream."""
        self._launched[entry].record(self._current())
        self.side_stream.wait_event(self._launched[entry])

    def read(self, step: int) -> bool:
        """True if a copy is done. It began when the masks were filled."""
        return bool(self._uploaded[step % PLAN_DEPTH].query())

    def _read_margin(self) -> None:
        """Record the wait of the step that was looked at last; the device is long past
        it."""
        if self._margin is None:
            return
        logits_there, masks_there = self._margin
        if logits_there.query() and masks_there.query():
            late = logits_there.elapsed_time(masks_there) / 1e3
            self.waits.add(max(0.0, late))
        self._margin = None


class CudaMasks(MaskCopies):
    """On CUDA, where the device writes tokens too."""

    def __init__(
        self, mapped: DeviceRegion, free: Callable[[int], None] | None = None
    ) -> None:
        """`free` returns when no other rank uses the masks of a step any more."""
        super().__init__(mapped)
        self._free = free
        self._sampled_word = mapped.region.word(Counter.SAMPLED)
        self._sampled = -1
        """As far as SAMPLED was seen to have come. Masks are used before their step's
        tokens are written or, with drafts, before the next step's."""
        self._round = PLAN_DEPTH - (2 if mapped.region.shape.drafts else 0)
        """So many steps after tokens that were written, the masks that were in a step's
        place have been copied."""

    def claim(self, step: int) -> None:
        """Make sure that the last copy out of a step's place in the ring is done, at
        all ranks."""
        if self._free is not None:
            self._free(step - PLAN_DEPTH)
        used = step - self._round
        if self._sampled < used:
            # 32 bits, by signed difference
            ahead = (self._sampled_word[0] - used) & 0xFFFFFFFF
            self._sampled = used + ahead - (ahead >> 31 << 32)
            if self._sampled < used:
                event = self._uploaded[step % PLAN_DEPTH]
                if not event.query():
                    # only a host that plans without sampling gets that far ahead
                    event.synchronize()

    def upload(self, step: int, count: int) -> None:
        if self._sampled < step - self._round and not self._drafts:
            # The kernel that read this place on the device may still run: no tokens
            # came after it.
            self._wait_for_main(step % PLAN_DEPTH)
        super().upload(step, count)

    def settle(self, seconds: float) -> bool:
        """Wait for all that was launched; every flag that a stream waits for has been
        raised."""
        torch.cuda.synchronize(self._mask_dev.device)
        return True


class FollowedMasks(MaskCopies):
    """Another rank. The tokens of its device are written nowhere, so its own events
    tell what it has used."""

    def __init__(self, mapped: DeviceRegion) -> None:
        super().__init__(mapped)
        self._read = -1
        """The newest step whose copy was seen to be done."""

    def claim(self, step: int) -> None:
        """Make sure that the last copy out of a step's place in the ring is done, and
        that no copy to the device comes before the kernels that use what is there."""
        entry = step % PLAN_DEPTH
        if entry == 0 and not self._drafts:
            # All that used what the next PLAN_DEPTH copies replace was launched before
            # this step.
            self._wait_for_main(entry)
        if self._read < step - PLAN_DEPTH and not self._uploaded[entry].query():
            self._uploaded[entry].synchronize()

    def read(self, step: int) -> bool:
        """True if a copy is done; its place needs no other look."""
        done = super().read(step)
        if done:
            self._read = step
        return done

    def settle(self, seconds: float) -> bool:
        """Wait until the device has read all that was asked for; whether it has."""
        end = time.monotonic() + seconds
        while not all(event.query() for event in self._uploaded):
            if time.monotonic() > end:
                return False
            time.sleep(0.01)
        return True


class CurrentStream:
    """The stream that the host's calls go to now. `torch.cuda.current_stream` makes an
    object each time, which costs more than all driver calls of a step."""

    def __init__(self, device: torch.device, index: int) -> None:
        self._device = device
        self._index = index
        self._handle: Callable[[int], int] | None = getattr(
            torch._C, "_cuda_getCurrentRawStream", None
        )
        self._streams: dict[int, Any] = {}

    def __call__(self) -> Any:
        """A stream object."""
        if self._handle is None:
            return torch.cuda.current_stream(self._device)
        handle = self._handle(self._index)
        stream = self._streams.get(handle)
        if stream is None:
            stream = self._streams[handle] = torch.cuda.current_stream(self._device)
        return stream
