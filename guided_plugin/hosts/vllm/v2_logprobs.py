"""Raw logprobs in vLLM's V2 model runner: those of masked logits, as with vLLM's own structured output.

The runner's samplers copy the logits before any processor runs, and take raw logprobs from the original. So
the original is masked too, in steps in which a request asks for logprobs. Imports vLLM lazily.
"""

from __future__ import annotations

import logging
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any, Protocol

from torch import Tensor

from guided_plugin.hosts.vllm.contract import V2_CONTEXT, broken
from guided_plugin.hosts.vllm.parts import Part
from guided_plugin.hosts.vllm.wrapping import wrap

_log = logging.getLogger(__name__)


class _Runner(Protocol):
    def mask_raw(self, logits: Tensor, context: Any) -> None: ...


def wrap_v2_sampler(kind: type[_Runner]) -> None:
    """Have V2's sampler show the processors behind it the logits of which it takes raw logprobs. Does nothing
    the second time."""
    error = broken(Part.LOGPROBS)
    if error is not None:
        _log.error("logprobs of guided requests are those of unmasked logits: %s", error.reason)
        return

    def make(original: Any) -> Any:
        def apply_sampling_params(self: Any, logits: Any, *args: Any, **kwargs: Any) -> Any:
            rows = kwargs["idx_mapping_np"] if "idx_mapping_np" in kwargs else args[2]
            # The first says whether processors will run: only then is a step begun.
            if self.needs_logits_processing[rows].any() and self.get_logprobs_dims(rows) is not None:
                context = SimpleNamespace(**{**dict(zip(V2_CONTEXT, args, strict=False)), **kwargs})
                for processor in self.logits_processors:
                    runner = getattr(processor, "runner", None)
                    if isinstance(runner, kind):
                        runner.mask_raw(logits, context)
            return original(self, logits, *args, **kwargs)

        return apply_sampling_params

    wrap(resolve_name("vllm.v1.worker.gpu.sample.sampler:Sampler"), "apply_sampling_params", make)
