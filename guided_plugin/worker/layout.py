"""The shared memory between an engine and its grammar worker, for both processes; no
tensors.

    page 0    counters, one a cache line, written after the data that they announce
    ranks     [followers]    what the other ranks of a model say              followers -> engine
    plans     [PLAN_DEPTH]   a step's guided slots                        engine -> worker
    masks     [PLAN_DEPTH]   [max_slots, words] int32                     worker -> device
    tokens    [TOKEN_DEPTH]  [max_slots] int64                            device -> worker
              with drafts: a mask and a token for each position, the drafts themselves; see `Shape.drafts`
    figures   [FIGURES]      what is counted                              worker -> engine
    times     [WORKER_TIMES] what steps took                              worker -> engine
    closures  [max_slots]    which request of the slot failed, and why    worker -> engine
    slow      [max_slots]    what the masks of a slow request cost        worker -> engine

The file has no name (a memfd), so nothing remains however the processes end; the worker
gets it as a file descriptor. Its pages are reserved when it is made: too little memory
is an error at that moment, not a SIGBUS in the middle of a step. Step numbers
are 32 bits in here and wrap; each process counts without bounds and compares as the GPU
does, by signed difference.

Where several ranks run one model, the first one of a machine is the engine of a region,
and the others, its followers, map the same memory (`worker/ranks`). They read plans and
masks, and write nothing but their own line of `ranks`. A follower says there up to
which step it has used the masks (TAKEN). The plan and the masks of step n + PLAN_DEPTH
take the place of those of step n, and are written after the engine has planned that
step, which it does when every follower has taken n: so nothing changes under a rank
that is late. A follower has taken n at its first plan after n at which nothing of it
reads the masks of n in this memory any more: at the next one on the CPU, on CUDA when
the copy to the device is done, and at n + PLAN_DEPTH at the latest. So it waits for no
rank that is less than PLAN_DEPTH steps behind. A worker that takes over after a death
writes no masks at or below FILLED.
"""

from __future__ import annotations

import itertools
import mmap
import os
import platform
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from guided_plugin.errors import PipelineError
from guided_plugin.grammar.base import MaskArray, few_tokens
from guided_plugin.metrics import WORKER_COUNTERS, WORKER_TIMES, Times
from guided_plugin.worker.words import Counter, PlanField, RankWord

PLAN_DEPTH = 4
"""Steps in flight: one that is masked, one that is filled, and room for a host that
runs ahead."""

TOKEN_DEPTH = 1024
"""Deep enough to be the source of the journals: the engine reads a hundred steps at a
time, and the tokens that a dead worker did not report are still here."""

FIGURES = (*WORKER_COUNTERS, "learnt_bytes")
"""The fields of `WorkerMetrics` that a worker counts."""

_PAGE = 4096
_LINE = 128  # two lines of 64: neighbours are prefetched in pairs
_CLOSURE = np.dtype(
    [
        ("serial", "<i8"),
        ("step", "<i8"),
        ("led", "<i8"),
        ("place", "<i8"),
        ("reason", "S1000"),
    ]
)
_Number = TypeVar("_Number", bound=np.generic)


class Places(NamedTuple):
    """The offsets of the parts of a region, each on a page of its own, in bytes."""

    ranks: int
    """Followers may write up to `plans`, and nothing else."""
    plans: int
    masks: int
    tokens: int
    figures: int
    times: int
    closures: int
    slow: int
    end: int


@dataclass(frozen=True, slots=True)
class Shape:
    """The numbers that the sizes follow from."""

    max_slots: int
    words: int
    drafts: int = 0
    """Draft tokens of a request in a step, at most. With drafts the tokens of a step
    come before its masks, in blocks of one token for each request of the plan:
    `positions` blocks of what was sampled since the step before (NO_TOKEN after the
    last), then `drafts` blocks of drafts. Block p of the masks is for p drafts. Where a
    plan says OFFERS, the worker writes over them (upper halves: confidences) and raises
    OFFERED."""
    followers: int = 0
    """Other ranks that mask with the same memory."""

    @property
    def positions(self) -> int:
        """Masks of a request, and the most tokens that a step brings it."""
        return self.drafts + 1

    @property
    def values(self) -> int:
        """Tokens of a request in the ring."""
        return self.positions + self.drafts

    def ring_rows(self, rows: Sequence[int]) -> Sequence[int]:
        """The tokens of a host that go into the ring: those of its rows, or with drafts
        all."""
        return range(len(rows) * self.values) if self.drafts else rows

    @property
    def places(self) -> Places:
        """The offsets of the parts of a region."""
        sizes = (
            _LINE * self.followers,
            4 * PLAN_DEPTH * (PlanField.SLOTS + self.max_slots),
            4 * PLAN_DEPTH * self.max_slots * self.positions * self.words,
            8 * TOKEN_DEPTH * self.max_slots * self.values,
            8 * len(FIGURES),
            8 * len(WORKER_TIMES) * Times.LENGTH,
            _CLOSURE.itemsize * self.max_slots,
            4 * self.max_slots,
        )
        pages = (-(-size // _PAGE) * _PAGE for size in sizes)
        return Places(*itertools.accumulate(pages, initial=_PAGE))

    @property
    def size(self) -> int:
        """Bytes of the whole region."""
        return self.places.end


class Region:
    """One mapping of the shared memory."""

    def __init__(self, fd: int, shape: Shape, *, follows: bool = False) -> None:
        """Map a region that exists, of the shape that its creator announced. What
        `follows` can write nothing but the pages of ranks. Without a file, `fd` is
        -1."""
        self.fd = fd
        self.shape = shape
        at = shape.places
        if fd < 0:
            self._map = mmap.mmap(-1, shape.size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        else:
            access = mmap.ACCESS_READ if follows else mmap.ACCESS_WRITE
            self._map = mmap.mmap(fd, shape.size, access=access)
        self._ranks = self._map
        if shape.followers:
            self._ranks = mmap.mmap(fd, at.plans - at.ranks, offset=at.ranks)
        self._counters = memoryview(self._map)[:_PAGE].cast("I")
        self.plans = self._array(
            np.uint32, at.plans, PLAN_DEPTH, PlanField.SLOTS + shape.max_slots
        )
        rows = shape.max_slots * shape.positions
        values = shape.max_slots * shape.values
        self.masks: MaskArray = self._array(
            np.int32, at.masks, PLAN_DEPTH, rows, shape.words
        )
        self.tokens = self._array(np.int64, at.tokens, TOKEN_DEPTH, values)
        figures = np.dtype([(name, "<i8") for name in FIGURES])
        self.figures = np.frombuffer(self._map, figures, 1, at.figures)[0]
        """Figures of the worker, by name."""
        times = self._array(np.float64, at.times, len(WORKER_TIMES), Times.LENGTH)
        each: list[Any] = [row.data for row in times]
        self.times = dict(zip(WORKER_TIMES, map(Times, each), strict=True))
        """Times of its steps, by name."""
        self.closures = np.frombuffer(self._map, _CLOSURE, shape.max_slots, at.closures)
        self.slow = self._array(np.float32, at.slow, shape.max_slots)
        """By slot, what masks took that take too long for a step: see `GrammarTable`."""
        self.address: int = self._array(np.uint8, 0, shape.size).ctypes.data

    @classmethod
    def create(cls, shape: Shape, *, shared: bool = True) -> Region:
        """A new region of this process. One that is not `shared` has no file: a fork
        gets a copy of it."""
        if not shared:
            return cls(-1, shape)
        fd = -1
        try:
            fd = os.memfd_create("guided_plugin")
            os.posix_fallocate(fd, 0, shape.size)
            return cls(fd, shape)
        except OSError as error:
            if fd >= 0:
                os.close(fd)
            raise PipelineError(
                f"cannot allocate {shape.size / 2**20:.1f} MiB: {error.strerror}",
                where="shared memory",
                hint="give the container more memory, lower max_slots, or use mode='inline'",
            ) from error

    def load(self, counter: Counter) -> int:
        """A counter; what it announces may be read now."""
        value = self._counters[counter * (_LINE // 4)]
        if FENCED:
            fence()
        return value

    def reached(self, counter: Counter, step: int) -> bool:
        """True if what a counter announces of a step is there."""
        return unwrap(self.load(counter), step) >= step

    def drafts(self, step: int, count: int) -> NDArray[np.int32]:
        """[drafts, count, 2]: of a step's `count` requests, the drafts and the bits of
        their confidences; a view."""
        shape = self.shape
        drafts = self.tokens[
            step % TOKEN_DEPTH, count * shape.positions : count * shape.values
        ]
        return drafts.view(np.int32).reshape(shape.drafts, count, 2)

    def store(self, counter: Counter, value: int) -> None:
        """Raise a counter; what it announces was written before."""
        if FENCED:
            fence()
        self._counters[counter * (_LINE // 4)] = value & 0xFFFFFFFF

    def word(self, counter: Counter) -> memoryview:
        """[1] uint32: a counter for code that runs in each step. On machines that are
        `FENCED` it calls `fence` after a read and before a write."""
        at = counter * (_LINE // 4)
        return self._counters[at : at + 1]

    def counter_offset(self, counter: Counter) -> int:
        """Return the offset of a counter in the region, for the device."""
        return counter * _LINE

    def rank_line(self, follower: int) -> memoryview:
        """The words of a follower, as `RankWord` names them. On machines that are
        `FENCED` it calls `fence` after a read and before a write."""
        first = follower * (_LINE // 4)
        return memoryview(self._ranks).cast("I")[first : first + len(RankWord)]

    def close_row(
        self, step: int, row: int, count: int, stop_token_ids: tuple[int, ...]
    ) -> None:
        """Fail a row of a step's `count` closed: masks that allow nothing but stop
        tokens."""
        masks = self.masks[
            step % PLAN_DEPTH, row : count * self.shape.positions : count
        ]
        masks[:] = few_tokens(self.shape.words, stop_token_ids)

    def slow_requests(self, requests: Mapping[int, Any]) -> dict[str, float]:
        """Return which of these requests, by slot, have masks that take too long for a
        step: seconds of the last one, by id. With drafts, no request can be left out of
        a step. Any thread."""
        if self.shape.drafts or not self.slow.any():
            return {}
        return {
            request.request_id: float(self.slow[slot])
            for slot, request in list(requests.items())
            if self.slow[slot]
        }

    def close(self) -> None:
        """Close the file; the memory is freed with the last array on it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _array(
        self, dtype: type[_Number], offset: int, *sizes: int
    ) -> NDArray[_Number]:
        count = int(np.prod(sizes))
        return np.frombuffer(self._map, dtype, count, offset).reshape(sizes)


def unwrap(value: int, near: int) -> int:
    """The unbounded number that a 32-bit one stands for, given one less than 2**31
    away."""
    return near + ((value - near + 0x80000000) & 0xFFFFFFFF) - 0x80000000


_barrier = threading.Lock()


def fence() -> None:
    """Order every access before against every access after, for other processors.

    Python has no fence, but its locks must be ones: a release orders what was before
    it, an acquire what comes after, and an acquire never overtakes a release.
    """
    with _barrier:
        pass
    with _barrier:
        pass


FENCED = platform.machine() not in ("x86_64", "AMD64")
"""x86 shows stores in the order in which they were made, and loads likewise."""
