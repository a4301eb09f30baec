"""Sends the masks of rank 0 to other machines, in a thread. Depends on the layout.

The host's thread of rank 0 says which step is planned, and goes on. This thread waits for the masks, as a
device of this machine does, and has used them when they are sent.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from queue import Empty, SimpleQueue

from torch import Tensor

from guided_plugin.errors import PipelineError
from guided_plugin.worker.layout import (
    FENCED,
    PLAN_DEPTH,
    Counter,
    PlanField,
    RankWord,
    Region,
    fence,
    unwrap,
)
from guided_plugin.worker.ranks.changes import ENDED, IDLE, Head, Outgoing
from guided_plugin.worker.ranks.group import TensorGroup
from guided_plugin.worker.ranks.peers import PATIENCE, wait_until

_log = logging.getLogger(__name__)

_IDLE_SECONDS = 10.0
"""After which other machines are told that rank 0 is there: who waits for a message has a limit of time."""

_CLOSE_SECONDS = 5.0


class Sender:
    """Where the masks of a region go over the group."""

    def __init__(
        self, group: TensorGroup, tag: int, to: Sequence[int], region: Region, lines: Sequence[memoryview]
    ) -> None:
        """`to`: the first rank of each machine. `lines`: those of all ranks there."""
        self._group, self._tag, self._to, self._region, self._lines = group, tag, list(to), region, lines
        self._out = Outgoing(region.shape)
        self._steps: SimpleQueue[int | None] = SimpleQueue()
        self._closing = False
        self.sent_bytes = 0
        """To each machine."""
        self._thread = threading.Thread(target=self._run, name="guided-sender", daemon=True)
        self._sent_at = 0.0
        self._over = False

    def start(self) -> None:
        """When all ranks have agreed."""
        self._thread.start()

    def planned(self, step: int) -> None:
        """A step whose masks are there, or will be."""
        if not self._over:
            self._steps.put(step)

    def alive(self) -> bool:
        """Whether masks are sent."""
        return not self._over

    def close(self) -> None:
        """Send what is filled, and that it was the last."""
        self._closing = True
        self._steps.put(None)
        if self._thread.ident is not None:
            self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        try:
            while (step := self._wait()) is not None:
                if step == IDLE:
                    self._say(IDLE)
                else:
                    self._send_step(step)
        except Exception as error:  # a thread that ends without a word would leave all waiting
            _log.error("the masks of this engine are no longer sent to other machines: %s", error)
        finally:
            self._over = True
            self._say(ENDED)

    def _wait(self) -> int | None:
        try:
            return self._steps.get(timeout=_IDLE_SECONDS)
        except Empty:
            return IDLE

    def _send_step(self, step: int) -> None:
        region = self._region

        def filled() -> bool:
            return unwrap(region.load(Counter.FILLED), step) >= step

        def goes_on(late: bool) -> bool:
            if late:
                raise PipelineError(f"the masks of step {step} were not filled for {PATIENCE:g} s")
            if time.monotonic() > self._sent_at + _IDLE_SECONDS:
                self._say(IDLE)
            return not self._closing

        wait_until(filled, goes_on)
        if not filled():
            return
        record = region.plans[step % PLAN_DEPTH]
        count = int(record[PlanField.COUNT])
        slots = record[PlanField.SLOTS : PlanField.SLOTS + count]
        new = self._out.write(step, slots, region.masks[step % PLAN_DEPTH, : count * region.shape.positions])
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
                    _log.warning("the machine of rank %d is not sent to any more: %s", rank, error)


class Sent:
    """A rank of another machine, as a `Peer`: what it has used is what was sent."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    def alive(self) -> bool:
        """Whether anything is still to be sent to it."""
        return self._sender.alive()

    def close(self) -> None:
        """Nothing is held."""
