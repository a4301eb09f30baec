"""Which runtime a pipeline gets: by its device, its mode, and its rank where a model
runs on several."""

from __future__ import annotations

import logging

import torch

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import MODES, Mode
from guided_plugin.errors import ConfigError, PipelineError, did_you_mean
from guided_plugin.pipeline.inline import InlineRuntime
from guided_plugin.worker.engine.runtime import WorkerRuntime
from guided_plugin.worker.ranks.follower import follow
from guided_plugin.worker.ranks.group import Machines, RankGroup, not_shared
from guided_plugin.worker.runtime import GrammarRuntime

_log = logging.getLogger(__name__)


def make_runtime(
    compiler: GrammarCompiler,
    max_slots: int,
    device: torch.device,
    mode: Mode,
    drafts: int,
    ranks: RankGroup | None,
) -> GrammarRuntime:
    """Of a pipeline that is alone, or of one rank. All ranks call this: all get a
    runtime, or all raise."""
    if ranks is None:
        return _leading(compiler, max_slots, device, mode, drafts, 0)
    machines = Machines(ranks)
    if ranks.rank > 0:
        return follow(ranks, machines, device)
    try:
        if machines.others and not isinstance(ranks, RankGroup):
            raise not_shared(
                "they are on several machines, and their group sends no tensors"
            )
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
    compiler: GrammarCompiler,
    max_slots: int,
    device: torch.device,
    mode: Mode,
    drafts: int,
    followers: int,
) -> WorkerRuntime | InlineRuntime:
    """Where the grammars work."""
    if resolve_mode(mode, device) == "process":
        try:
            return WorkerRuntime(
                compiler, max_slots, device, drafts=drafts, followers=followers
            )
        except (PipelineError, OSError) as error:
            if mode == "process":
                raise
            _log.warning("grammars run inline, which is slower: %s", error)
    return InlineRuntime(
        compiler, max_slots, device, drafts=drafts, followers=followers
    )


def checked_device(device: torch.device | str) -> torch.device:
    """The device of a name. Raises a ConfigError for one that PyTorch cannot use
    here."""
    try:
        found = torch.device(device)
    except RuntimeError:
        raise ConfigError(
            f"{device!r} is not a device", where="device", hint="cpu or cuda"
        ) from None
    if found.type == "cuda":
        why = cuda_reason(found.index or 0)
        if why:
            raise ConfigError(
                f"{str(found)!r} cannot be used: {why}", where="device", hint=_HINT
            )
    return found


def cuda_reason(index: int = 0) -> str:
    """Why PyTorch cannot use a CUDA device; empty if it can."""
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
    count = torch.cuda.device_count()
    return "" if index < count else f"there are {count} CUDA devices, numbered from 0"


def check_mode(mode: Mode) -> None:
    """Raise ConfigError for a mode that there is not."""
    if mode not in MODES:
        raise ConfigError(
            f"unknown mode {mode!r}", where="mode", hint=did_you_mean(mode, MODES)
        )


def resolve_mode(mode: Mode, device: torch.device) -> Mode:
    """`inline` or `process`. `auto` is a worker process where the logits are on
    CUDA."""
    check_mode(mode)
    if mode == "auto":
        return "process" if device.type == "cuda" else "inline"
    return mode


_HINT = "use device='cpu', or a PyTorch and a driver with torch.cuda.is_available()"
