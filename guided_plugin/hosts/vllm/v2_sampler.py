"""Masks on vLLM's own logits in its V2 model runner: `Sampler.apply_sampling_params`, wrapped. Torch.

A batch in which a request needs a logits processor gets a float32 copy of its logits first: three times the
bytes to move, twice the bytes to mask and to sample from. Masks need no copy, as those of vLLM's own
structured output don't. So they go on the original, and guided requests ask for no processing. Raw logprobs
are taken from the original: they are those of masked logits too.
"""

from __future__ import annotations

import logging
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any, Protocol

from torch import Tensor

from guided_plugin.hosts.vllm.contract import broken
from guided_plugin.hosts.vllm.parts import Part
from guided_plugin.hosts.vllm.wrapping import wrap

_log = logging.getLogger(__name__)


class _Runner(Protocol):
    def mask_early(self, logits: Tensor, context: Any, *, again: bool) -> None: ...


def wrap_v2_sampler(kind: type[_Runner]) -> None:
    """Have V2's sampler show the processors behind it the logits before it looks whether they need a copy.
    Does nothing the second time."""
    error = broken(Part.SAMPLER)
    if error is not None:
        _log.error(
            "logprobs of guided requests are those of unmasked logits, and vLLM copies the logits: %s",
            error.reason,
        )
        return

    def make(original: Any) -> Any:
        def apply_sampling_params(
            self: Any,
            logits: Any,
            expanded_idx_mapping: Any,
            idx_mapping: Any,
            idx_mapping_np: Any,
            pos: Any,
            input_ids: Any,
            expanded_local_pos: Any,
            *args: Any,
            **kwargs: Any,
        ) -> Any:
            context = SimpleNamespace(
                expanded_idx_mapping=expanded_idx_mapping,
                idx_mapping_np=idx_mapping_np,
                input_ids=input_ids,
                expanded_local_pos=expanded_local_pos,
            )
            found = [getattr(one, "runner", None) for one in self.logits_processors]
            for runner in found:
                if isinstance(runner, kind):
                    runner.mask_early(logits, context, again=_others(self))
            given = expanded_idx_mapping, idx_mapping, idx_mapping_np, pos, input_ids, expanded_local_pos
            return original(self, logits, *given, *args, **kwargs)

        return apply_sampling_params

    wrap(resolve_name("vllm.v1.worker.gpu.sample.sampler:Sampler"), "apply_sampling_params", make)


def _others(sampler: Any) -> bool:
    """Whether it has processors of third parties, which may write what the masks forbid."""
    return any(
        not type(one).__module__.startswith(("vllm.", "guided_plugin.")) for one in sampler.logits_processors
    )
