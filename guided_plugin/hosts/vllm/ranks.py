"""The ranks of one vLLM engine. Imports vLLM lazily.

Under tensor parallelism every rank has all logits (they are all-gathered) and samples by itself, in both
model runners; rank 0's tokens are published. So every rank needs the same masks in the same step. The
grammars work at rank 0; the others mask with its memory (`worker/ranks`), or on another machine (`--nnodes`)
with a copy of it, which they hear of at the start, over vLLM's own CPU group. With drafts every rank proposes
and judges the same ones. Data parallelism needs
nothing: each engine has ranks of its own.
"""

from __future__ import annotations

from typing import Any

import torch

from guided_plugin.config import GuidedConfig
from guided_plugin.errors import RequestError
from guided_plugin.hosts.vllm.contract import Part, broken
from guided_plugin.pipeline.mode import resolve_mode
from guided_plugin.worker.ranks.group import RankGroup

_APART = "use data parallelism"
_SUPPORTED = "docs/scaling.md has what is supported"


def ranks_of(vllm_config: Any) -> RankGroup | None:
    """The ranks that sample the same tokens as this process; None if there is no other."""
    if vllm_config.parallel_config.tensor_parallel_size == 1:
        return None
    from vllm.distributed.parallel_state import get_tp_group

    from guided_plugin.worker.ranks.group import TorchRanks

    return TorchRanks(get_tp_group().cpu_group)


def unsupported_ranks(vllm_config: Any, options: GuidedConfig) -> RequestError | None:
    """Why the ranks of an engine of this configuration can't be guided, if they can't."""
    parallel = vllm_config.parallel_config
    if parallel.pipeline_parallel_size > 1:
        return _refused("pipeline parallelism is not supported yet", "use tensor or data parallelism")
    if parallel.tensor_parallel_size == 1:
        return None
    changed = broken(Part.RANKS)
    if changed is not None:
        return changed
    device = vllm_config.device_config.device_type
    if device not in ("cpu", "cuda"):
        return _refused(f"tensor parallelism is supported on CUDA and on the CPU, not on {device!r}", _APART)
    if device == "cuda" and _inline(options, device):
        return _refused("the mode inline serves several ranks on the CPU only", "leave mode at auto")
    backend = parallel.distributed_executor_backend
    if backend != "mp":
        return _refused(
            f"tensor parallelism is supported with the executor 'mp', not with {backend!r}",
            "--distributed-executor-backend mp",
        )
    if parallel.prefill_context_parallel_size > 1:
        return _refused("prefill context parallelism is not supported", "use tensor parallelism alone")
    if parallel.enable_batch_sharded_sampling:
        return _refused("batch-sharded sampling is not supported yet", "leave it off")
    if vllm_config.speculative_config is not None and _inline(options, device):
        return _refused("the mode inline serves speculative decoding on one rank only", "set mode to process")
    return None


def _inline(options: GuidedConfig, device: str) -> bool:
    return resolve_mode(options.mode, torch.device(device)) == "inline"


def _refused(what: str, hint: str) -> RequestError:
    return RequestError(what, where="guided requests on several ranks", hint=f"{hint}; {_SUPPORTED}")
