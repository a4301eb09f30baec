"""The device of a pipeline's logits, checked before anything is allocated on it, and its mode."""

from __future__ import annotations

import torch

from guided_plugin.config import MODES, Mode
from guided_plugin.errors import ConfigError, did_you_mean


def checked_device(device: torch.device | str) -> torch.device:
    """The device of a name. Raises a ConfigError for one that PyTorch cannot use here."""
    try:
        found = torch.device(device)
    except RuntimeError:
        raise ConfigError(f"{device!r} is not a device", where="device", hint="cpu or cuda") from None
    if found.type == "cuda":
        why = cuda_reason(found.index or 0)
        if why:
            raise ConfigError(f"{str(found)!r} cannot be used: {why}", where="device", hint=_HINT)
    return found


def cuda_reason(index: int = 0) -> str:
    """Why PyTorch cannot use a CUDA device; empty if it can."""
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
    count = torch.cuda.device_count()
    return "" if index < count else f"there are {count} CUDA devices, numbered from 0"


def resolve_mode(mode: Mode, device: torch.device) -> Mode:
    """`inline` or `process`. `auto` is a worker process where the logits are on CUDA."""
    if mode not in MODES:
        raise ConfigError(f"unknown mode {mode!r}", where="mode", hint=did_you_mean(mode, MODES))
    if mode == "auto":
        return "process" if device.type == "cuda" else "inline"
    return mode


_HINT = "use device='cpu', or a PyTorch and a driver that show torch.cuda.is_available()"
