"""The ranks of one model: where they are, and how they find each other's memory at the
start. Imports torch.

    agree    every rank says whether it can take part; all hear the same
    machine  every rank says where it is
    offer    rank 0 says where its region is (a process and a descriptor of it: the memory has no name)
    mirrors  the first rank of each machine says where its region is: rank 0 again, others of their copies
    answers  every other rank says whether it has mapped the one of its machine
    verdict  rank 0 says whether all have: then they share, else none does

On one machine these are the only messages between ranks. They go over the group that
the host has already, as do the masks for other machines.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch.distributed as dist
from torch import Tensor

from guided_plugin.config import Mode
from guided_plugin.errors import PipelineError
from guided_plugin.worker.layout import Shape


@runtime_checkable
class RankGroup(Protocol):
    """The ranks of one model, which decode the same batches in the same order."""

    @property
    def rank(self) -> int:
        """This one's number."""

    @property
    def size(self) -> int:
        """How many there are."""

    def gather(self, value: Any) -> list[Any]:
        """What each rank passed, in order. Each call is made by all."""

    def send(self, tensor: Tensor, rank: int, tag: int) -> None:
        """Send a tensor on the CPU; waits until it may be changed. In a thread of its
        own, to another machine."""

    def receive(self, tensor: Tensor, rank: int, tag: int) -> None:
        """Wait for what a rank sends with this tag, in the order in which it does."""


class TorchRanks:
    """The ranks of a group of `torch.distributed` whose backend takes objects on the
    CPU, as gloo does."""

    def __init__(self, group: Any = None) -> None:
        """`group`: a ProcessGroup, or None for that of all processes."""
        self._group = group
        self.rank: int = dist.get_rank(group)
        self.size: int = dist.get_world_size(group)

    def gather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self._group)
        return values

    def send(self, tensor: Tensor, rank: int, tag: int) -> None:
        dist.send(tensor, self._global(rank), self._group, tag)

    def receive(self, tensor: Tensor, rank: int, tag: int) -> None:
        dist.recv(tensor, self._global(rank), self._group, tag)

    def _global(self, rank: int) -> int:
        return rank if self._group is None else dist.get_global_rank(self._group, rank)


def machine() -> str:
    """This machine, as far as its processes see each other: two containers of one
    machine are two."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


class Machines:
    """Which ranks can map each other's memory: those of one machine. Made by all ranks
    of a group."""

    def __init__(self, group: RankGroup) -> None:
        names: list[str] = group.gather(machine())
        self._first = [names.index(name) for name in names]

    def first(self, rank: int) -> int:
        """The first rank of this one's machine, which has the memory that the others of
        it map."""
        return self._first[rank]

    def ranks(self, first: int) -> list[int]:
        """All ranks of a machine."""
        return [rank for rank, found in enumerate(self._first) if found == first]

    @property
    def others(self) -> list[int]:
        """The first rank of each machine but that of rank 0."""
        return sorted({*self._first} - {0})


@dataclass(frozen=True, slots=True)
class RegionOffer:
    """Where the shared memory is, and what is in it."""

    pid: int
    fd: int
    shape: Shape
    identity: bytes
    first_step: int
    mode: Mode
    tag: int
    """Of what rank 0 sends to other machines."""


@dataclass(frozen=True, slots=True)
class RankAnswer:
    """A rank's process, and why it can't map the memory, if it can't."""

    pid: int
    error: str = ""


def agree(group: RankGroup, reason: str) -> str:
    """Every rank says why it can't take part, or an empty text. The first reason of any
    of them."""
    reasons: list[str] = group.gather(reason)
    return next((f"rank {rank}: {one}" for rank, one in enumerate(reasons) if one), "")


def not_shared(reason: str) -> PipelineError:
    """Why the ranks can't share the masks of rank 0."""
    return PipelineError(
        f"the ranks cannot share their masks: {reason}",
        where="tensor parallelism",
        hint="run all ranks of one machine as one user, in one container",
    )
