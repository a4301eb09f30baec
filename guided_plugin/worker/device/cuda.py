"""The way between the shared memory and the logits on CUDA. Imports torch.

    side stream   wait until FILLED reaches n, copy masks n up, event
    main stream   wait for the event, mask | sample | one kernel: tokens n into the ring, n into SAMPLED

A host with a kernel that knows the tokens does the last from there: see `token_sink`. The host enqueues all
of it and waits for none. Where the device cannot wait for memory, the host waits for the masks in `mask_dev`,
and a thread raises SAMPLED when the tokens have landed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor

from guided_plugin.kernels.tokens_triton import write_tokens
from guided_plugin.step import TokenSink
from guided_plugin.worker.device.buffers import Waits
from guided_plugin.worker.device.streamops import (
    StreamOps,
    load_stream_ops,
    register_host,
    supported,
    unregister_host,
)
from guided_plugin.worker.layout import PLAN_DEPTH, TOKEN_DEPTH, Counter, Region, unwrap

__all__ = ["CudaWorkerBuffers"]

_SAMPLE_EVERY = 16
"""Steps between two looks at what the device waited for: timed events cost more than plain ones."""


class CudaWorkerBuffers:
    """See `WorkerBuffers`."""

    def __init__(
        self,
        region: Region,
        device: torch.device,
        wait: Callable[[int], None],
        *,
        stream_ops: bool | None = None,
    ) -> None:
        self.waits = Waits()
        self._region = region
        self._device = device
        self._wait = wait
        shape = region.shape
        max_masks, words = shape.max_slots * shape.positions, shape.words
        max_values = shape.max_slots * shape.values
        torch.cuda.init()
        index = device.index if device.index is not None else torch.cuda.current_device()
        self.side_stream = torch.cuda.Stream(index)
        self._side = self.side_stream.cuda_stream
        self._current = _CurrentStream(device, index)
        # [PLAN_DEPTH, masks, words] int32, device
        self._mask_dev = torch.zeros(PLAN_DEPTH, max_masks, words, dtype=torch.int32, device=device)
        self._rows = _RowNumbers(device, max_values)
        self._uploaded = [torch.cuda.Event() for _ in range(PLAN_DEPTH)]
        self._freed = torch.cuda.Event()
        self._landed = -1
        """As far as SAMPLED was seen to have come. Masks are used before their step's tokens land or, with
        drafts, before the next step's."""
        self._round = PLAN_DEPTH - (1 if shape.drafts else 0)
        """So many steps after tokens that landed, the masks that were in a step's place have been used."""
        self._views: dict[tuple[int, int], Tensor] = {}
        self._sampled_waits: tuple[Any, Any] | None = None
        self._timed: Any = None
        with torch.cuda.device(index):
            base = register_host(region.address, region.shape.size)
            able = supported(index) if stream_ops is None else stream_ops
            self._ops: StreamOps = load_stream_ops(self._side)
            self._unread_word = self._warm_up()
        self._raiser = None if able else _Raiser(region, index)
        # Addresses and sizes of a step's copies, looked up here once: every attribute counts.
        self._row_bytes = 4 * words
        entries = range(PLAN_DEPTH)
        self._mask_host = [region.address + shape.masks + i * max_masks * 4 * words for i in entries]
        self._mask_target = [self._mask_dev.data_ptr() + i * max_masks * 4 * words for i in entries]
        self._tokens_there, self._tokens_stride = base + shape.tokens, 8 * max_values
        self._filled_word = base + region.counter_offset(Counter.FILLED)
        self._sampled_word = base + region.counter_offset(Counter.SAMPLED)
        # The buffers above were zeroed on the main stream; the side stream may overwrite them now.
        torch.cuda.current_stream(device).synchronize()

    def set_rows(self, rows: Sequence[int]) -> None:
        """The logits rows that are guided from this step on."""
        self._rows.set(rows)

    def claim(self, step: int) -> None:
        """Make sure that the last copy out of a step's place in the ring is done."""
        used = step - self._round
        if self._landed < used:
            self._landed = unwrap(self._region.load(Counter.SAMPLED), step)
            if self._landed < used:
                event = self._uploaded[step % PLAN_DEPTH]
                if not event.query():
                    event.synchronize()  # only a host that plans without sampling gets that far ahead

    def upload(self, step: int, count: int) -> None:
        """Let the side stream wait for the masks and copy them."""
        if self._landed < step - self._round:
            # The kernel that read this place on the device may still run: no tokens came after it.
            self._freed.record(self._current())
            self.side_stream.wait_event(self._freed)
        if self._raiser is None:
            self._enqueue_upload(step, count)

    def mask_dev(self, step: int, count: int) -> tuple[Tensor, Tensor]:
        """Masks and row numbers; the main stream waits for them."""
        if self._raiser is not None:
            start = time.perf_counter()
            self._wait(step)
            self.waits.add(start - time.perf_counter())
            self._enqueue_upload(step, count)
        entry = step % PLAN_DEPTH
        main = self._current()
        if self._timed is not None:
            logits_there = torch.cuda.Event(enable_timing=True)
            logits_there.record(main)
            self._sampled_waits, self._timed = (logits_there, self._timed), None
        main.wait_event(self._uploaded[entry])
        view = self._views.get((entry, count))
        if view is None:
            view = self._views[entry, count] = self._mask_dev[entry, :count]
        return view, self._rows.newest

    def download(self, step: int, tokens: Tensor) -> None:
        """Write the guided rows' tokens, then raise the flag; on the current stream, which has sampled."""
        ring = self._tokens_there + step % TOKEN_DEPTH * self._tokens_stride
        if self._raiser is None:
            write_tokens(tokens, self._rows.newest, ring, self._sampled_word, step)
            return
        write_tokens(tokens, self._rows.newest, ring, self._unread_word.data_ptr(), step)
        self._raiser.raise_after(self._current(), step)

    def token_sink(self, step: int) -> TokenSink | None:
        """Where a kernel on the main stream may write the tokens itself."""
        if self._raiser is not None:
            return None
        return TokenSink(
            self._tokens_there + step % TOKEN_DEPTH * self._tokens_stride, self._sampled_word, step
        )

    def close(self) -> None:
        """Let go of the shared memory."""
        torch.cuda.synchronize(self._device)
        if self._raiser is not None:
            self._raiser.close()
        with torch.cuda.device(self._device):
            unregister_host(self._region.address)

    def _warm_up(self) -> Tensor:
        """Load the kernel now: the first time takes a tenth of a second and waits for the device. Returns a
        word for it to raise that nobody looks at."""
        ring = torch.zeros(1, dtype=torch.int64, device=self._device)
        word = torch.zeros(1, dtype=torch.int32, device=self._device)
        row = torch.zeros(1, dtype=torch.int32, device=self._device)
        for dtype in (torch.int64, torch.int32):
            write_tokens(row.to(dtype), row, ring.data_ptr(), word.data_ptr(), 0)
        return word

    def _enqueue_upload(self, step: int, count: int) -> None:
        entry = step % PLAN_DEPTH
        if self._raiser is None:
            self._ops.wait(self._filled_word, step)
        self._ops.copy_up(self._mask_target[entry], self._mask_host[entry], count * self._row_bytes)
        if step % _SAMPLE_EVERY == 0:
            self._read_waits()
            self._timed = torch.cuda.Event(enable_timing=True)
            self._timed.record(self.side_stream)
        self._uploaded[entry].record(self.side_stream)

    def _read_waits(self) -> None:
        """What the step that was looked at last waited for; the device is long past it."""
        if self._raiser is not None or self._sampled_waits is None:
            return
        logits_there, masks_there = self._sampled_waits
        if logits_there.query() and masks_there.query():
            self.waits.add(masks_there.elapsed_time(logits_there) / 1e3)
        self._sampled_waits = None


class _CurrentStream:
    """The stream that the host's calls go to now. `torch.cuda.current_stream` makes an object each time,
    which costs more than all driver calls of a step."""

    def __init__(self, device: torch.device, index: int) -> None:
        self._device, self._index = device, index
        self._handle: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        self._known: dict[int, Any] = {}

    def __call__(self) -> Any:
        """A stream object."""
        if self._handle is None:
            return torch.cuda.current_stream(self._device)
        handle = self._handle(self._index)
        stream = self._known.get(handle)
        if stream is None:
            stream = self._known[handle] = torch.cuda.current_stream(self._device)
        return stream


class _RowNumbers:
    """Which logits rows are guided, on the device. Changes rarely; each change takes a fresh entry."""

    def __init__(self, device: torch.device, max_slots: int) -> None:
        # [max_slots] int32: 0, 1, 2, ...
        self._leading = torch.arange(max_slots, dtype=torch.int32, device=device)
        # [PLAN_DEPTH, max_slots] int32
        self._host = torch.zeros(PLAN_DEPTH, max_slots, dtype=torch.int32, pin_memory=True)
        self._dev = torch.zeros(PLAN_DEPTH, max_slots, dtype=torch.int32, device=device)
        self._copied = [torch.cuda.Event() for _ in range(PLAN_DEPTH)]
        self._entry = 0
        self.newest = self._dev[0, :0]

    def set(self, rows: Sequence[int]) -> None:
        """Send row numbers up, on the main stream."""
        count = len(rows)
        if rows[-1] == count - 1:
            self.newest = self._leading[:count]
            return
        entry = self._entry = (self._entry + 1) % PLAN_DEPTH
        self._copied[entry].synchronize()  # of PLAN_DEPTH changes ago
        self._host.numpy()[entry, :count] = rows
        # On the main stream: kernels that still use an older entry are before it, later ones after.
        self._dev[entry, :count].copy_(self._host[entry, :count], non_blocking=True)
        self._copied[entry].record()
        self.newest = self._dev[entry, :count]


class _Raiser:
    """Raises SAMPLED where a device has no stream memory operations: a thread that waits for events. Nothing
    is known there of when a running kernel's stores reach the host; those of one that has ended did."""

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
            event.synchronize()
            self._region.store(Counter.SAMPLED, step)
