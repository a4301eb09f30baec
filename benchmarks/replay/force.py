"""What makes an engine answer with a document, token by token: for measurements, never
for users.

    install()  # in every process that runs a part of the engine
    SamplingParams(temperature=0.0, extra_args={"replay": {"tokens": [...], "rows": 8}})

To the logit of the document's next token a large number is added, in every row of
logits by its own place, also in rows that verify drafts. So a draft is accepted where
it is the document's token, and nowhere else. What a mask forbids stays forbidden, and
the output differs from its document then. `rows` limits how many requests run at once
from then on; 0: they wait. This is no logits processor: next to one of third parties
the plugin masks twice. Imports vLLM.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.worker.gpu.sample.sampler import Sampler
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from guided_plugin.errors import PipelineError
from guided_plugin.kernels.uploads import Uploads

KEY = "replay"
"""In `extra_args`."""
_LEAD = 1e4
"""Further than any logit is ahead of another. Added, so that -inf stays."""


def install(replace: Callable[[Any, str, Any], None] = setattr) -> None:
    """Change vLLM's classes in this process."""

    def wrap(owner: Any, name: str, before: Any = None, after: Any = None) -> None:
        original = getattr(owner, name)

        @wraps(original)  # the plugin looks at signatures
        def replaced(self: Any, *args: Any, **kwargs: Any) -> Any:
            if before is not None:
                before(self, *args, **kwargs)
            result = original(self, *args, **kwargs)
            if after is not None:
                after(self, *args, **kwargs)
            return result

        replace(owner, name, replaced)

    wrap(Sampler, "__init__", after=_make_table)
    wrap(Sampler, "add_request", after=_enter)
    # ordinary sampling and verification both call it
    wrap(Sampler, "apply_sampling_params", before=_force)
    wrap(GPUModelRunner, "_sample", before=_force_v1)
    wrap(Scheduler, "add_request", before=_limit_rows)


def _document(params: Any) -> Any:
    return (params.extra_args or {}).get(KEY) if params is not None else None


def _make_table(sampler: Any, *args: Any, **kwargs: Any) -> None:
    states = sampler.req_states
    sampler.upload = Uploads(states.max_model_len, states.device)
    # [max requests, positions]: the token that follows each position of a request
    shape = states.max_num_reqs, states.max_model_len
    sampler.replayed = torch.zeros(
        shape,
        dtype=torch.int64,
        device=states.device,
    )


def _enter(sampler: Any, index: int, params: Any) -> None:
    document = _document(params)
    if document is not None:
        tokens = document["tokens"]
        first = int(sampler.req_states.prompt_len.np[index]) - 1
        sampler.replayed[index, first : first + len(tokens)] = sampler.upload(tokens)


def _force(
    sampler: Any,
    logits: Tensor,
    rows: Tensor,
    _requests: Any,
    _order: Any,
    pos: Tensor,
    *args: Any,
    **kwargs: Any,
) -> None:
    """Row i of the logits is the request at index rows[i], behind its token at
    pos[i]."""
    table = sampler.replayed
    following = table[rows.long(), pos.long().clamp(max=table.shape[1] - 1)].unsqueeze(
        1
    )
    logits.scatter_add_(
        1,
        following,
        torch.full_like(
            following,
            _LEAD,
            dtype=logits.dtype,
        ),
    )


def _force_v1(runner: Any, logits: Any, drafts: Any) -> None:
    if drafts is not None:
        what = "replays no drafts in vLLM's V1 model runner"
        raise PipelineError(what, where="benchmarks.replay", hint="--runner v2")
    for row, name in enumerate(runner.input_batch.req_ids):
        request = runner.requests[name]
        document = _document(request.sampling_params)
        if document is not None and len(request.output_token_ids) < len(
            document["tokens"]
        ):
            logits[row, document["tokens"][len(request.output_token_ids)]] += _LEAD


def _limit_rows(scheduler: Any, request: Any) -> None:
    document = _document(request.sampling_params)
    if document is not None:
        # 0.32 has a name of its own for the limit of requests that are admitted.
        active = hasattr(scheduler, "max_num_active_reqs")
        setattr(
            scheduler,
            "max_num_active_reqs" if active else "max_num_running_reqs",
            document["rows"],
        )
