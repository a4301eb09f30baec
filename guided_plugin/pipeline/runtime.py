"""Which runtime a pipeline gets: by its mode, and by its rank where a model runs on several."""

from __future__ import annotations

import logging

import torch

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import Mode
from guided_plugin.errors import PipelineError
from guided_plugin.pipeline.device import resolve_mode
from guided_plugin.pipeline.inline import InlineRuntime, LeadingInlineRuntime
from guided_plugin.worker.engine.runtime import WorkerRuntime
from guided_plugin.worker.ranks.follower import follow
from guided_plugin.worker.ranks.group import Machines, RankGroup, not_shared
from guided_plugin.worker.runtime import GrammarRuntime

__all__ = ["make_runtime", "share_runtime"]

_log = logging.getLogger(__name__)


def make_runtime(
    compiler: GrammarCompiler, max_slots: int, device: torch.device, mode: Mode, drafts: int
) -> GrammarRuntime:
    """Of a pipeline that is alone."""
    if resolve_mode(mode, device) == "process":
        try:
            return WorkerRuntime(compiler, max_slots, device, drafts=drafts)
        except (PipelineError, OSError) as error:
            if mode == "process":
                raise
            _log.warning("grammars work inline, which is slower: %s", error)
    return InlineRuntime(compiler, max_slots, device, drafts=drafts)


def share_runtime(
    compiler: GrammarCompiler,
    max_slots: int,
    device: torch.device,
    mode: Mode,
    drafts: int,
    ranks: RankGroup,
) -> GrammarRuntime:
    """Of one rank. All ranks call this, and all of them get a runtime or raise PipelineError."""
    machines = Machines(ranks)
    if ranks.rank > 0:
        return follow(ranks, machines, device)
    leading: WorkerRuntime | LeadingInlineRuntime
    try:
        if machines.others and not isinstance(ranks, RankGroup):
            raise not_shared("they are on several machines, and their group sends no tensors")
        if resolve_mode(mode, device) == "process":
            leading = WorkerRuntime(compiler, max_slots, device, drafts=drafts, followers=ranks.size - 1)
        else:
            if device.type != "cpu" or drafts:
                raise not_shared("mode inline shares masks on the CPU only, and without drafts")
            leading = LeadingInlineRuntime(compiler, max_slots, device, ranks.size - 1)
    except Exception as error:  # of the device too: the others wait for an offer
        ranks.gather(str(error))
        raise
    try:
        leading.followers.invite(ranks, machines, leading.mode)
    except BaseException:
        leading.close()
        raise
    return leading
