"""The ranks of one vLLM engine. Imports vLLM lazily.

Under tensor parallelism every rank has all logits (they are all-gathered) and samples by itself, in both
model runners; rank 0's tokens are published. So every rank needs the same masks in the same step. The
grammars work at rank 0; the others mask with its memory (`worker/ranks`), or on another machine (`--nnodes`)
with a copy of it, which they hear of at the start, over vLLM's own CPU group. With drafts every rank proposes
and judges the same ones. With batch-sharded sampling each samples some of the requests, and all plan the
whole batch. Under pipeline parallelism the ranks of the last stage sample, and the others have no part in
this. Data parallelism needs nothing: each engine has ranks of its own.
"""

from __future__ import annotations

from typing import Any

import torch

from guided_plugin.config import GuidedConfig
from guided_plugin.errors import RequestError
from guided_plugin.hosts.vllm.contract import broken
from guided_plugin.hosts.vllm.parts import Part
from guided_plugin.pipeline.device import resolve_mode
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


def samples(vllm_config: Any) -> bool:
    """Whether this process samples: its pipeline stage is the last one."""
    if vllm_config.parallel_config.pipeline_parallel_size == 1:
        return True
    from vllm.distributed.parallel_state import get_pp_group

    return bool(get_pp_group().is_last_rank)


def shards(vllm_config: Any) -> bool:
    """Whether each rank samples a part of the batch."""
    return bool(getattr(vllm_config.parallel_config, "enable_batch_sharded_sampling", False))


def unsupported_ranks(vllm_config: Any, options: GuidedConfig) -> RequestError | None:
    """Why the ranks of an engine of this configuration can't be guided, if they can't."""
    parallel = vllm_config.parallel_config
    if getattr(parallel, "prefill_context_parallel_size", 1) > 1:
        return _refused("prefill context parallelism is not supported", "use tensor parallelism alone")
    stages, ranks = parallel.pipeline_parallel_size, parallel.tensor_parallel_size
    if stages == ranks == 1:
        return None
    parts = (Part.STAGES,) * (stages > 1) + (Part.RANKS,) * (ranks > 1)
    changed = broken(*parts, *(Part.SHARDS,) * shards(vllm_config))
    if changed is not None:
        return changed
    backend = parallel.distributed_executor_backend
    if backend != "mp":
        return _refused(
            f"several ranks are supported with the executor 'mp', not with {backend!r}",
            "--distributed-executor-backend mp",
        )
    if ranks == 1:
        return None
    device = vllm_config.device_config.device_type
    if device not in ("cpu", "cuda"):
        return _refused(f"tensor parallelism is supported on CUDA and on the CPU, not on {device!r}", _APART)
    if device == "cuda" and _inline(options, device):
        return _refused("the mode inline serves several ranks on the CPU only", "leave mode at auto")
    if vllm_config.speculative_config is not None and _inline(options, device):
        return _refused("the mode inline serves speculative decoding on one rank only", "set mode to process")
    return None


def _inline(options: GuidedConfig, device: str) -> bool:
    return resolve_mode(options.mode, torch.device(device)) == "inline"


def _refused(what: str, hint: str) -> RequestError:
    return RequestError(what, where="guided requests on several ranks", hint=f"{hint}; {_SUPPORTED}")
