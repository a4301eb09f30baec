"""Where the grammars of a pipeline work: in the calling thread or in a worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guided_plugin.config import MODES, Mode
from guided_plugin.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    import torch


def resolve_mode(mode: Mode, device: torch.device) -> Mode:
    """`inline` or `process`. `auto` is a worker process where the logits are on CUDA."""
    if mode not in MODES:
        raise ConfigError(f"unknown mode {mode!r}", where="mode", hint=did_you_mean(mode, MODES))
    if mode == "auto":
        return "process" if device.type == "cuda" else "inline"
    return mode
