"""`jump_forward` in vLLM's V2 runner: what makes it speculate where nobody else does, and shows its drafts to
the runner of this package. Imports vLLM lazily.

vLLM verifies drafts adaptively: it ranks them by confidence and verifies as many as pay at this batch size.
So rows without drafts cost next to nothing on the device. The host's thread has more to do for a step that
may have drafts, and is the bottleneck where batches are large and prompts come in every step: batches of more
than `jump_rows` have none.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from guided_plugin.config import GuidedConfig
from guided_plugin.errors import GuidedError
from guided_plugin.hosts.vllm.common import options_of
from guided_plugin.hosts.vllm.telling import adopt_handlers

_log = logging.getLogger(__name__)

_ANY = 1 << 20
"""More requests than a batch has."""

_OWN = "guided_plugin_jump"
"""The key of `additional_config` by which workers know that the speculative config is ours."""


def create_engine_config(original: Any) -> Any:
    """`EngineArgs.create_engine_config`: a speculative config of ours, where that can be. Where not, a line
    in the log says why, in vLLM's own words."""

    def replaced(self: Any, *args: Any, **kwargs: Any) -> Any:
        wanted = _wanted(self)
        if wanted is None:
            return original(self, *args, **kwargs)
        drafts, rows = wanted.jump_drafts, wanted.jump_rows
        adopt_handlers()
        trial = copy.deepcopy(self)
        trial.speculative_config = {
            # Kept for its place in vLLM: asynchronous scheduling stays on with this one. It never runs.
            "method": "ngram_gpu",
            "num_speculative_tokens": drafts,
            "prompt_lookup_max": 4,
            "prompt_lookup_min": 2,
            "enable_adaptive_verification": True,
            "num_speculative_tokens_per_batch_size": [(1, rows, drafts), (rows + 1, _ANY, 0)],
        }
        trial.additional_config = {**(self.additional_config or {}), _OWN: True}
        try:
            config = original(trial, *args, **kwargs)
            why = _unsupported(config)
        except ValueError as error:  # pydantic's too
            why = str(error).strip()
        if not why:
            _log.info(
                "jump_forward is on: up to %d forced tokens in one forward pass, while at most %d requests "
                "run",
                *(drafts, rows),
            )
            return config
        _log.warning("jump_forward stays off: %s", why)
        return original(self, *args, **kwargs)

    return replaced


def _wanted(arguments: Any) -> GuidedConfig | None:
    """The options of an engine that is to verify drafts and has no other drafter."""
    taken = (
        arguments.speculative_config,
        *(getattr(arguments, name, None) for name in ("spec_method", "spec_model", "spec_tokens")),
    )
    if any(one is not None for one in taken):
        return None
    try:
        options = options_of(arguments)
    except GuidedError:  # told where the engine starts
        return None
    return options if options.enabled and options.jump_forward else None


def _unsupported(config: Any) -> str:
    """Why an engine of this configuration has to run without."""
    if not getattr(config, "use_v2_model_runner", False):
        return "vLLM's V1 model runner runs"
    if config.device_config.device_type != "cuda":
        return f"it needs CUDA, and the model runs on {config.device_config.device_type!r}"
    if getattr(config.parallel_config, "nnodes", 1) > 1:
        return "the ranks are on several machines"
    return ""


def init_speculator(original: Any) -> Any:
    """What makes the speculator of a V2 runner: one without guesses in place of vLLM's. What any of them
    proposes goes to `V2DraftRunner.propose`."""

    def replaced(vllm_config: Any, device: torch.device, req_states: Any) -> Any:
        additional = vllm_config.additional_config
        own = isinstance(additional, Mapping) and additional.get(_OWN) is True
        speculator = _NoGuesses(vllm_config, device) if own else original(vllm_config, device, req_states)
        _watch(speculator, req_states, own=own)
        return speculator

    return replaced


class _NoGuesses:
    """vLLM's `BaseSpeculator` without a guess of its own."""

    supports_mm_inputs = False
    draft_logits = None
    enable_adaptive_verification = True
    num_query_per_req, num_extra_query_per_req = 1, 0

    def __init__(self, vllm_config: Any, device: torch.device) -> None:
        self.num_speculative_steps: int = vllm_config.speculative_config.num_speculative_tokens
        size = vllm_config.scheduler_config.max_num_seqs, self.num_speculative_steps
        self._drafts = torch.zeros(size, dtype=torch.int64, device=device)
        self.draft_token_confidence_probs = torch.zeros(size, dtype=torch.float32, device=device)

    def init_cudagraph_manager(self, cudagraph_mode: Any) -> None:
        """There is nothing to capture."""

    def capture(self) -> None:
        """There is nothing to capture."""

    def propose(self, input_batch: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Nothing: what is here is written over, or not verified."""
        return self._drafts[: input_batch.num_reqs]


def _watch(speculator: Any, states: Any, *, own: bool) -> None:
    """Show what it proposes to the runner over these requests."""
    from guided_plugin.hosts.vllm.drafts import runners_of

    original = speculator.propose
    greedy = getattr(speculator, "draft_logits", None) is None

    def propose(input_batch: Any, *args: Any, **kwargs: Any) -> Any:
        drafts = original(input_batch, *args, **kwargs)
        if not kwargs.get("dummy_run"):
            confidences = speculator.draft_token_confidence_probs if own else None
            verified = kwargs.get("num_speculative_tokens") != 0
            for runner in runners_of(states):
                runner.propose(input_batch, drafts, confidences, greedy=greedy, verified=verified)
        return drafts

    speculator.propose = propose
