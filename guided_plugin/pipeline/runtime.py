"""Which runtime a pipeline gets: by its mode, and by its rank where a model runs on several."""

from __future__ import annotations

import logging

import torch

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import Mode
from guided_plugin.errors import PipelineError
from guided_plugin.pipeline.device import resolve_mode
from guided_plugin.pipeline.inline import InlineRuntime
from guided_plugin.worker.engine.runtime import WorkerRuntime
from guided_plugin.worker.ranks.follower import follow
from guided_plugin.worker.ranks.group import Machines, RankGroup, not_shared
from guided_plugin.worker.runtime import GrammarRuntime

__all__ = ["make_runtime"]

_log = logging.getLogger(__name__)


def make_runtime(
    compiler: GrammarCompiler,
    max_slots: int,
    device: torch.device,
    mode: Mode,
    drafts: int,
    ranks: RankGroup | None,
) -> GrammarRuntime:
    """Of a pipeline that is alone, or of one rank. All ranks call this: all get a runtime, or all raise."""
    if ranks is None:
        return _leading(compiler, max_slots, device, mode, drafts, 0)
    machines = Machines(ranks)
    if ranks.rank > 0:
        return follow(ranks, machines, device)
    try:
        if machines.others and not isinstance(ranks, RankGroup):
            raise not_shared("they are on several machines, and their group sends no tensors")
        leading = _leading(compiler, max_slots, device, mode, drafts, ranks.size - 1)
    except Exception as error:  # of the device too: the others wait for an offer
        ranks.gather(str(error))
        raise
    try:
        leading.followers.invite(ranks, machines, leading.mode)
    except BaseException:
        leading.close()
        raise
    return leading


def _leading(
    compiler: GrammarCompiler, max_slots: int, device: torch.device, mode: Mode, drafts: int, followers: int
) -> WorkerRuntime | InlineRuntime:
    """Where the grammars work."""
    if resolve_mode(mode, device) == "process":
        try:
            return WorkerRuntime(compiler, max_slots, device, drafts=drafts, followers=followers)
        except (PipelineError, OSError) as error:
            if mode == "process":
                raise
            _log.warning("grammars work inline, which is slower: %s", error)
    return InlineRuntime(compiler, max_slots, device, drafts=drafts, followers=followers)
