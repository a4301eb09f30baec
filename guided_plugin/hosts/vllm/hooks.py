"""The step hooks of third-party plugins in vLLM: `post_sampling` and `after_stop_criteria`.

`post_sampling` fires when the sampler of a model runner returns, `after_stop_criteria` when
`Worker.sample_tokens` returns: the runner has appended the tokens by then, and what ends a request is checked
from here on. V2's sampler has no hook, so `GPUModelRunner.sample` is wrapped, in engines where a plugin
implements a step hook, and only there.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pkgutil import resolve_name
from typing import Any, Protocol

import torch
from torch import Tensor

from guided_plugin.hosts.step_hooks import SafeStepHooks
from guided_plugin.hosts.vllm.contract import Part, broken
from guided_plugin.hosts.vllm.wrapping import wrap
from guided_plugin.plugins import Plugins
from guided_plugin.step import NO_TOKEN, UNGUIDED, DecodeStep

_log = logging.getLogger(__name__)


class StepHooks(SafeStepHooks):
    """Tells the plugins of one engine about its steps."""

    def __init__(self, plugins: Plugins) -> None:
        super().__init__(plugins)
        self._index = 0
        self._step: DecodeStep | None = None
        """Sampled, and not appended yet."""

    def sampled(self, slots: Sequence[int], tokens: Tensor) -> None:
        """The step's tokens are sampled: [rows], or [rows, drafts + 1] under speculative decoding."""
        missing = tokens.shape[0] - len(slots)
        step = self._step = DecodeStep(self._index, [*slots, *[UNGUIDED] * missing], tokens)
        self._index += 1
        self.post_sampling(step)

    def appended(self) -> None:
        """They are appended. Does nothing for a step that sampled none."""
        step, self._step = self._step, None
        if step is not None:
            self.after_stop_criteria(step)


class _Runner(Protocol):
    engine: Any

    def slots_of(self, batch: Any) -> Sequence[int]: ...


def wrap_v2_sample(kind: type[_Runner]) -> None:
    """Have V2's model runner tell the processors behind it what was sampled. Does nothing the second time."""
    error = broken(Part.HOOKS)
    if error is not None:
        _log.error("step hooks are not called: %s", error.reason)
        return

    def make(original: Any) -> Any:
        def sample(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            batch = kwargs["input_batch"] if "input_batch" in kwargs else args[1]
            for processor in self.sampler.logits_processors:
                runner = getattr(processor, "runner", None)
                if isinstance(runner, kind) and runner.engine.hooks is not None:
                    runner.engine.hooks.sampled(runner.slots_of(batch), _tokens(*result[:2]))
            return result

        return sample

    wrap(resolve_name("vllm.v1.worker.gpu.model_runner:GPUModelRunner"), "sample", make)


def _tokens(output: Any, counts: Tensor) -> Tensor:
    """What counts of the sampled tokens. NO_TOKEN for rejected drafts and in the middle of a prompt."""
    sampled: Tensor = output.sampled_token_ids
    position = torch.arange(sampled.shape[1], device=sampled.device)
    tokens = torch.where(position < counts.unsqueeze(1), sampled, NO_TOKEN)
    return tokens.view(-1) if tokens.shape[1] == 1 else tokens
