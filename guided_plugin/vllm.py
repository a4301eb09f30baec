"""The logits processor that vLLM loads, for both of its model runners. Imports vLLM.

Where the package is installed, vLLM finds it (entry point `vllm.logits_processors`).
Requests ask with `SamplingParams(extra_args={"guided": spec})`. See docs/vllm.md.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from vllm.v1.sample.logits_processor import LogitsProcessor as V1LogitsProcessor
from vllm.v1.worker.gpu.sample.logits_processor import (
    LogitsProcessor as V2LogitsProcessor,
)

from guided_plugin.errors import ConfigError
from guided_plugin.hosts.vllm.common import samples
from guided_plugin.hosts.vllm.gate import install

__all__ = ["GuidedLogitsProcessor"]

install()

_guides: weakref.WeakSet[GuidedLogitsProcessor] = weakref.WeakSet()


class GuidedLogitsProcessor(V1LogitsProcessor, V2LogitsProcessor):
    """Guides the requests that ask for it. V1 runners make it with (config, device,
    pin_memory), V2 runners with (config, request states); loaded twice in one engine,
    the second does nothing."""

    def __init__(self, vllm_config: Any, *runner: Any) -> None:
        self._config = vllm_config
        self.runner: Any = None
        if any(guide._config is vllm_config for guide in _guides):
            return
        _guides.add(self)
        if not samples(vllm_config):
            return
        if len(runner) == 2:
            from guided_plugin.hosts.vllm.v1 import V1Runner

            self.runner = V1Runner(vllm_config, runner[0])
        elif len(runner) == 1:
            from guided_plugin.hosts.vllm.drafts import V2DraftRunner
            from guided_plugin.hosts.vllm.v2 import V2Runner

            made = V2Runner if vllm_config.speculative_config is None else V2DraftRunner
            self.runner = made(vllm_config, runner[0])
        else:
            raise ConfigError(
                f"vLLM made a logits processor with {len(runner) + 1} arguments",
                where="GuidedLogitsProcessor",
                hint="this version of vLLM is not supported, see docs/operations.md#vllm",
            )
        # vLLM calls the runner itself: one call less for each of its calls.
        for name in ("update_state", "add_request", "apply_staged_writes", "apply"):
            if hasattr(self.runner, name):
                setattr(self, name, getattr(self.runner, name))

    def is_argmax_invariant(self) -> bool:
        """V1: greedy sampling needs the mask too."""
        return False

    # What vLLM calls in a processor that does nothing: the second one in an engine, one
    # of the other runner, or one of a pipeline stage that does not sample.

    def update_state(self, batch_update: Any) -> None:
        """V1: before each forward pass."""

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """V2: a request enters the batch. Returns whether it is guided."""
        return False

    def apply_staged_writes(self) -> None:
        """V2: before each forward pass."""

    def apply(self, logits: torch.Tensor, *context: Any) -> torch.Tensor:
        """Mask the guided rows, in place."""
        return logits
