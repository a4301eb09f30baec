"""The memory of rank 0 on another machine: written from its messages, in a thread. Depends on the layout.

It belongs to the first rank there. All ranks there map it, as those of rank 0's machine map that of rank 0.
"""

from __future__ import annotations

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
        self._closing = False
        self.offer = replace(offer, pid=os.getpid(), fd=self._region.fd, identity=self._region.identity)
        """For the ranks of this machine."""

    def start(self, group: TensorGroup, pids: list[int]) -> None:
        """Write what comes. `pids` are the processes of the ranks."""
        self._followers.watch([Peer(pid) for pid in pids])
        self._thread = threading.Thread(target=self._run, args=(group,), name="guided-mirror", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Listen no longer, if rank 0 closes as well; else with the process."""
        self._closing = True
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)
        self._followers.close()
        self._region.close()

    def _run(self, group: TensorGroup) -> None:
        end = End.LOST
        try:
            while self._take(group):
                pass
            end = End.CLOSED
        except Exception as error:  # of the group's backend, or of a rank that is late
            if not self._closing:
                _log.error("no more masks come from rank 0: %s", error)
        finally:
            self._region.store(Counter.ENDED, end)

    def _take(self, group: TensorGroup) -> bool:
        """Write a step, when no rank uses the masks in its place any more. False after the last one."""
        message, region = self._in, self._region
        group.receive(message.head_tensor, 0)
        step = int(message.head[Head.STEP])
        if step in (ENDED, IDLE):
            return step == IDLE
        if message.head[Head.NEW]:
            group.receive(message.new(), 0)
        self._followers.wait(step - PLAN_DEPTH)
        record, slots = region.plans[step % PLAN_DEPTH], message.slots()
        record[PlanField.STEP], record[PlanField.COUNT] = step & 0xFFFFFFFF, len(slots)
        record[PlanField.SLOTS : PlanField.SLOTS + len(slots)] = slots.astype("int32").view("uint32")
        message.read(region.masks[step % PLAN_DEPTH, : int(message.head[Head.MASKS])])
        region.store(Counter.FILLED, step)
        return True
