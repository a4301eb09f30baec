"""The ranks of one model: where they are, and what they send each other. Imports torch.

They do over the group that the host has already.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any, Protocol

import torch.distributed as dist
from torch import Tensor

from guided_plugin.errors import PipelineError


class RankGroup(Protocol):
    """The ranks of one model, which decode the same batches in the same order."""

    @property
    def rank(self) -> int:
        """This one's number."""

    @property
    def leaders(self) -> list[int]:
        """By rank, the first one of its machine: that has the grammars there."""

    def gather(self, value: Any) -> list[Any]:
        """Return what each rank passed, in order. Each call is made by all."""

    def send(self, tensor: Tensor, rank: int, tag: int) -> None:
        """Send a tensor on the CPU; waits until it may be changed. In a thread of its
        own, to another machine."""

    def receive(self, tensor: Tensor, rank: int, tag: int) -> None:
        """Wait for what a rank sends with this tag, in the order in which it does."""


class TorchRanks:
    """The ranks of a group of `torch.distributed` whose backend takes objects on the
    CPU, as gloo does. All of them make one."""

    def __init__(self, group: Any = None) -> None:
        """`group`: a ProcessGroup, or None for that of all processes."""
        self._group = group
        self.rank: int = dist.get_rank(group)
        machines = self.gather(machine())
        self.leaders = [machines.index(one) for one in machines]

    def gather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(values, value, group=self._group)
        return values

    def send(self, tensor: Tensor, rank: int, tag: int) -> None:
        dist.send(tensor, group=self._group, tag=tag, group_dst=rank)

    def receive(self, tensor: Tensor, rank: int, tag: int) -> None:
        dist.recv(tensor, group=self._group, tag=tag, group_src=rank)


def machine() -> str:
    """This machine, as far as its processes see each other: two containers of one
    machine are two."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def agree(group: RankGroup, reason: str) -> str:
    """Every rank says why it can't take part, or an empty text. The first reason of any
    of them."""
    reasons: list[str] = group.gather(reason)
    return next((f"rank {rank}: {one}" for rank, one in enumerate(reasons) if one), "")


def not_shared(reason: str) -> PipelineError:
    """Why the ranks can't mask alike."""
    return PipelineError(
        f"the ranks cannot share their masks: {reason}",
        where="tensor parallelism",
        hint="run all ranks of one machine as one user, in one container",
    )


def different_steps(rank: int) -> PipelineError:
    """The error of a rank which finds that another one makes other steps."""
    return PipelineError(
        f"rank {rank} plans different steps from this rank",
        where="tensor parallelism",
        hint="all ranks must decode the same batches in the same order; report it",
    )
