"""The start of the ranks of a model: all get a runtime, or none does. Imports torch.

process  every rank says which one it is, and what its masks would follow from
offer    the first rank of each machine says where its region is: the memory has no name
verdict  every rank says whether it has what it needs
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from guided_plugin._version import __version__
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.errors import PipelineError
from guided_plugin.worker.layout import Region
from guided_plugin.worker.ranks.follower import RegionOffer, follow
from guided_plugin.worker.ranks.group import RankGroup, agree, not_shared
from guided_plugin.worker.ranks.leader import Peer
from guided_plugin.worker.ranks.machines import Machines
from guided_plugin.worker.runtime import GrammarRuntime

_TAGS = itertools.count(0x67750000)
"""Not those of the host."""


def join(
    group: RankGroup | None,
    device: torch.device,
    compiler: GrammarCompiler,
    lead: Callable[[Sequence[Peer]], GrammarRuntime],
) -> GrammarRuntime:
    """The runtime of a rank. Raises PipelineError if any rank can't take part.
    `lead` makes a runtime with grammars, whose memory other ranks map."""
    if group is None:
        return lead(())
    masks_of = f"{__version__} {compiler.vocabulary.fingerprint} {compiler.config}"
    leader = group.leaders[group.rank]
    here = [rank for rank, one in enumerate(group.leaders) if one == leader]
    pids, kinds, tags = zip(
        *group.gather((os.getpid(), masks_of, next(_TAGS))), strict=True
    )
    runtime: GrammarRuntime | None = None
    region: Region | None = None
    offer = None
    reasons: list[str] = []
    try:
        with _noted(reasons):
            if kinds[leader] != kinds[0]:
                what = "its package, vocabulary or options are not those of rank 0"
                raise PipelineError(what)
            if leader == group.rank:
                runtime = lead([Peer(pids[rank], rank) for rank in here[1:]])
                region = runtime.region
                offer = RegionOffer(
                    region.fd,
                    region.shape,
                    runtime.newest,
                    runtime.mode,
                )
        offers: list[RegionOffer | None] = group.gather(offer)
        with _noted(reasons):
            if offer is None and (offered := offers[leader]) is not None:
                peer = Peer(pids[leader], leader)
                runtime = follow(offered, peer, here.index(group.rank) - 1, device)
        reason = agree(group, "; ".join(reasons))
        if reason or runtime is None:
            raise not_shared(reason)
    except BaseException:
        if runtime is not None:
            runtime.close()
        raise
    if region is not None and any(group.leaders):
        runtime.machines = Machines(group, tags[0], region)
    return runtime


@contextmanager
def _noted(reasons: list[str]) -> Iterator[None]:
    """An error, of the device too, becomes a reason: the other ranks wait."""
    try:
        yield
    except Exception as error:
        reasons.append(str(error) or repr(error))
