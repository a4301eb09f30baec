"""Sends the masks of rank 0 to other machines, in a thread. Depends on the layout.

The host's thread of rank 0 says which step is planned, and goes on. The sender's thread
waits for the masks, as a device of this machine does, and has used them when they are
sent.

Most masks of a step were there in one of the steps before, at one row or another. So
the other side keeps the masks that it was sent, and rank 0 sends which of them each row
has, and those that are new. When there is no room for more, rank 0 begins again with
none:

    head     int64               as `Head`; then the slots, then for each row which mask it has
    masks    [new, words] int32  come behind those that are kept
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from enum import IntEnum
from queue import Empty, SimpleQueue

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from guided_plugin.errors import PipelineError
from guided_plugin.grammar.base import MaskArray
from guided_plugin.worker.layout import FENCED, PLAN_DEPTH, Region, Shape, fence
from guided_plugin.worker.ranks.group import RankGroup
from guided_plugin.worker.ranks.peers import PATIENCE, wait_until
from guided_plugin.worker.words import PlanField, RankWord

_log = logging.getLogger(__name__)

ENDED = -1
"""In place of a step: no more steps come."""
IDLE = -2
"""In place of a step: rank 0 is there, and had nothing to say for a while."""

_DEEP = 4
"""Masks of how many full steps are kept."""

_IDLE_SECONDS = 10.0
"""After which other machines are told that rank 0 is there: who waits for a message has
a limit of time."""

CLOSE_SECONDS = 2.0
"""For which a pipeline that closes waits for its thread."""


class Head(IntEnum):
    """The first numbers of a message."""

    STEP = 0
    SLOTS = 1
    KEPT = 2
    """How many masks the other side keeps."""
    NEW = 3
    REST = 4


class _Message:
    """What both sides have."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.most = shape.max_slots * shape.positions
        """Masks of a step."""
        self.head: NDArray[np.int64] = np.zeros(
            Head.REST + shape.max_slots + self.most, np.int64
        )
        self.head_tensor = torch.from_numpy(self.head)

    def slots(self) -> NDArray[np.int64]:
        """Of the plan."""
        return self.head[Head.REST :][: self.head[Head.SLOTS]]

    def rows(self) -> NDArray[np.int64]:
        """Which mask each row has."""
        count = self.head[Head.SLOTS] * self.shape.positions
        return self.head[Head.REST + self.shape.max_slots :][:count]


class Outgoing(_Message):
    """Rank 0's side."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self._kept: dict[bytes, int] = {}
        """The masks that the other side keeps, in its order."""

    def write(self, step: int, slots: NDArray[np.uint32], masks: MaskArray) -> Tensor:
        """Put a step into the head; returns the masks that go with it."""
        kept = self._kept
        if len(kept) + len(masks) > _DEEP * self.most:
            kept.clear()
        self.head[: Head.REST] = step, len(slots), len(kept), 0
        self.slots()[:] = slots.view(np.int32)
        rows = self.rows()
        new = []
        for row, mask in enumerate(masks):
            key = mask.tobytes()
            if key not in kept:
                kept[key] = len(kept)
                new.append(row)
            rows[row] = kept[key]
        self.head[Head.NEW] = len(new)
        return torch.from_numpy(masks[new])


class Incoming(_Message):
    """The side of the other machine."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self._kept: MaskArray = np.zeros((_DEEP * self.most, shape.words), np.int32)

    def new(self) -> Tensor:
        """Where the masks of the message go that has come in."""
        kept = self._kept[self.head[Head.KEPT] :]
        return torch.from_numpy(kept[: self.head[Head.NEW]])

    def read(self, masks: MaskArray) -> None:
        """Write the masks of the step."""
        masks[: len(self.rows())] = self._kept[self.rows()]


class Sender:
    """Where the masks of a region go over the group."""

    def __init__(
        self,
        group: RankGroup,
        tag: int,
        to: Sequence[int],
        region: Region,
        lines: Sequence[memoryview],
    ) -> None:
        """`to`: the first rank of each machine. `lines`: those of all ranks there."""
        self._group, self._tag, self._to, self._region, self._lines = (
            group,
            tag,
            list(to),
            region,
            lines,
        )
        self._out = Outgoing(region.shape)
        self._steps: SimpleQueue[int | None] = SimpleQueue()
        self._closing = self._over = False
        self._sent_at = 0.0
        self.sent_bytes = 0
        """To each machine."""
        self._thread = threading.Thread(
            target=self._run, name="guided-sender", daemon=True
        )

    def start(self) -> None:
        """When all ranks have agreed."""
        self._thread.start()

    def planned(self, step: int) -> None:
        """A step whose masks are there, or will be."""
        if not self._over:
            self._steps.put(step)

    def alive(self) -> bool:
        """Whether masks are sent: what ranks of other machines have used is what was
        sent."""
        return not self._over

    def close(self) -> None:
        """Send what is filled, and that it was the last."""
        self._closing = True
        self._steps.put(None)
        if self._thread.ident is not None:
            self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        try:
            while (step := self._wait()) is not None:
                if step == IDLE:
                    self._say(IDLE)
                else:
                    self._send_step(step)
        # a thread that ends without a word would leave all waiting
        except Exception as error:
            _log.error(
                "the masks of this engine are no longer sent to other machines: %s",
                error,
            )
        finally:
            self._over = True
            self._say(ENDED)

    def _wait(self) -> int | None:
        try:
            return self._steps.get(timeout=_IDLE_SECONDS)
        except Empty:
            return IDLE

    def _send_step(self, step: int) -> None:
        def goes_on(late: bool) -> bool:
            if late:
                raise PipelineError(
                    f"the masks of step {step} were not filled for {PATIENCE:g} s"
                )
            if time.monotonic() > self._sent_at + _IDLE_SECONDS:
                self._say(IDLE)
            return not self._closing

        region = self._region
        wait_until(lambda: region.filled(step), goes_on)
        if not region.filled(step):
            return
        record = region.plans[step % PLAN_DEPTH]
        count = int(record[PlanField.COUNT])
        slots = record[PlanField.SLOTS : PlanField.SLOTS + count]
        new = self._out.write(
            step,
            slots,
            region.masks[step % PLAN_DEPTH, : count * region.shape.positions],
        )
        if FENCED:
            fence()
        for line in self._lines:
            line[RankWord.TAKEN] = step & 0xFFFFFFFF
        self._send(self._out.head_tensor)
        if len(new):
            self._send(new)

    def _say(self, word: int) -> None:
        self._out.head[Head.STEP] = word
        self._send(self._out.head_tensor)

    def _send(self, tensor: Tensor) -> None:
        self._sent_at = time.monotonic()
        self.sent_bytes += tensor.nbytes
        for rank in list(self._to):
            try:
                self._group.send(tensor, rank, self._tag)
            except Exception as error:  # of the group's backend
                self._to.remove(rank)
                if not self._closing:
                    _log.warning(
                        "no more masks are sent to the machine of rank %d: %s",
                        rank,
                        error,
                    )
