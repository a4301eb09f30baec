"""The memory of rank 0 on another machine: written from its messages, in a thread. Depends on the layout.

It belongs to the first rank there. All ranks there map it, as those of rank 0's machine map that of rank 0.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from dataclasses import replace

from guided_plugin.worker.layout import PLAN_DEPTH, Counter, End, PlanField, Region
from guided_plugin.worker.ranks.changes import ENDED, IDLE, Head, Incoming
from guided_plugin.worker.ranks.group import Offer, TensorGroup
from guided_plugin.worker.ranks.leader import Followers
from guided_plugin.worker.ranks.peers import Peer

_log = logging.getLogger(__name__)

_CLOSE_SECONDS = 2.0


class Mirror:
    """A region with the masks of another one."""

    def __init__(self, offer: Offer, ranks: list[int]) -> None:
        """`ranks`: those of this machine, which map it."""
        self._region = Region.create(offer.shape)
        self._region.store(Counter.FILLED, offer.first_step)
        self._followers = Followers(self._region, offer.first_step, ranks)
        self._in = Incoming(offer.shape)
        self._thread: threading.Thread | None = None
        self._own = _Own()
        self.offer = replace(offer, pid=os.getpid(), fd=self._region.fd, identity=self._region.identity)
        """For the ranks of this machine."""

    def start(self, group: TensorGroup, pids: list[int]) -> None:
        """Write what comes. `pids` are the processes of the ranks, that of this one first."""
        self._followers.watch([self._own, *(Peer(pid) for pid in pids[1:])])
        thread = threading.Thread(target=self._run, args=(group,), name="guided-mirror", daemon=True)
        thread.start()
        self._thread = thread

    def close(self) -> None:
        """This rank uses the memory no more. The others of its machine do, as long as rank 0 sends."""
        self._own.here = False
        if self._thread is None:
            self._end(End.LOST)
        else:
            self._thread.join(_CLOSE_SECONDS)

    def _run(self, group: TensorGroup) -> None:
        end = End.LOST
        try:
            while self._take(group):
                pass
            end = End.CLOSED
        except Exception as error:  # of the group's backend, or of a rank that is late
            if self._own.here:
                _log.error("no more masks come from rank 0: %s", error)
        finally:
            self._end(end)
        # Rank 0 waits until each message is taken.
        with contextlib.suppress(Exception):
            while end == End.LOST and self._hear(group) != ENDED:
                pass

    def _end(self, end: End) -> None:
        self._region.store(Counter.ENDED, end)
        self._followers.close()
        self._region.close()

    def _hear(self, group: TensorGroup) -> int:
        message = self._in
        group.receive(message.head_tensor, 0, self.offer.tag)
        step = int(message.head[Head.STEP])
        if step not in (ENDED, IDLE) and message.head[Head.NEW]:
            group.receive(message.new(), 0, self.offer.tag)
        return step

    def _take(self, group: TensorGroup) -> bool:
        """Write a step, when no rank uses the masks in its place any more. False after the last one."""
        message, region = self._in, self._region
        step = self._hear(group)
        if step in (ENDED, IDLE):
            return step == IDLE
        self._followers.wait(step - PLAN_DEPTH)
        record, slots = region.plans[step % PLAN_DEPTH], message.slots()
        record[PlanField.STEP], record[PlanField.COUNT] = step & 0xFFFFFFFF, len(slots)
        record[PlanField.SLOTS : PlanField.SLOTS + len(slots)] = slots.astype("int32").view("uint32")
        message.read(region.masks[step % PLAN_DEPTH, : int(message.head[Head.MASKS])])
        region.store(Counter.FILLED, step)
        return True


class _Own:
    """The rank that has the mirror, as a `Peer`."""

    def __init__(self) -> None:
        self.here = True

    def alive(self) -> bool:
        """Whether it is waited for."""
        return self.here

    def close(self) -> None:
        """Nothing is held."""
