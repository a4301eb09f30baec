"""Which ranks of one model can map each other's memory: those of one machine. Depends on the group."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from guided_plugin.worker.ranks.group import RankGroup


def machine() -> str:
    """This machine, as far as its processes see each other: two containers of one machine are two."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


class Machines:
    """Where the ranks of a group are. Made by all of them."""

    def __init__(self, group: RankGroup) -> None:
        names: list[str] = group.gather(machine())
        self._first = [names.index(name) for name in names]

    def first(self, rank: int) -> int:
        """The first rank of this one's machine, which has the memory that the others of it map."""
        return self._first[rank]

    def ranks(self, first: int) -> list[int]:
        """All ranks of a machine."""
        return [rank for rank, found in enumerate(self._first) if found == first]

    @property
    def others(self) -> list[int]:
        """The first rank of each machine but that of rank 0."""
        return sorted({*self._first} - {0})
