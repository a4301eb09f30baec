"""Which runtime a pipeline with grammars gets: by its device and its mode."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import MODES, Mode
from guided_plugin.errors import ConfigError, PipelineError, did_you_mean
from guided_plugin.pipeline.inline import InlineRuntime
from guided_plugin.worker.engine.runtime import WorkerRuntime
from guided_plugin.worker.ranks.leader import Peer

_log = logging.getLogger(__name__)


def make_runtime(
    compiler: GrammarCompiler,
    max_slots: int,
    device: torch.device,
    mode: Mode,
    drafts: int,
    followers: Sequence[Peer],
) -> WorkerRuntime | InlineRuntime:
    """Make the runtime where the grammars work. `followers`: the other ranks that mask
    with the same memory."""
    parts = compiler, max_slots, device, drafts, followers
    if resolve_mode(mode, device) == "process":
        try:
            return WorkerRuntime(*parts)
        except (PipelineError, OSError) as error:
            if mode == "process":
                raise
            _log.warning("grammars run inline, which is slower: %s", error)
    return InlineRuntime(*parts)


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
