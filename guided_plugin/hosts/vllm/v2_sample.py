"""What vLLM's V2 model runner samples: `GPUModelRunner.sample`, wrapped. Imports vLLM lazily.

    before   batch-sharded sampling: the whole batch, as the sampler is called with this rank's part of it,
             and not at all where that is empty
    after    that this is over; the step hooks of plugins: the tokens

It is wrapped only in engines that need one of the two.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pkgutil import resolve_name
from typing import Any, Protocol

import torch
from torch import Tensor

from guided_plugin.hosts.vllm.contract import broken
from guided_plugin.hosts.vllm.parts import Part
from guided_plugin.hosts.vllm.wrapping import wrap
from guided_plugin.step import NO_TOKEN

_log = logging.getLogger(__name__)


class _Runner(Protocol):
    engine: Any

    def show(self, batch: Any) -> None: ...

    def shown(self) -> None: ...

    def slots_of(self, batch: Any) -> Sequence[int]: ...


def wrap_v2_sample(kind: type[_Runner], *, for_hooks: bool, for_shards: bool = False) -> None:
    """Have V2's model runner show the processors behind it whole batches, and tell their engines what was
    sampled. Does nothing the second time."""
    if for_hooks and (error := broken(Part.HOOKS)):
        _log.error("step hooks are not called: %s", error.reason)
        if not for_shards:
            return

    def make(original: Any) -> Any:
        def sample(self: Any, *args: Any, **kwargs: Any) -> Any:
            batch = kwargs["input_batch"] if "input_batch" in kwargs else args[1]
            found = (getattr(one, "runner", None) for one in self.sampler.logits_processors)
            runners = [one for one in found if isinstance(one, kind)]
            in_parts = getattr(self, "batch_sharder", None) is not None
            for runner in runners if in_parts else ():
                runner.show(batch)
            result = original(self, *args, **kwargs)
            for runner in runners if in_parts else ():
                runner.shown()
            for runner in runners:
                if runner.engine.hooks is not None and broken(Part.HOOKS) is None:
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
