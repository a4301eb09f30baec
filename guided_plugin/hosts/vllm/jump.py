"""`jump_forward` in vLLM's V2 runner: makes it verify drafts where no other drafter
does, and shows its drafts to the runner of this package. Imports vLLM lazily.

A step has drafts by two rules. The scheduler places them in batches of at most
`jump_rows` requests, by vLLM's own list, while guided requests are there. `DraftBudget`
verifies as many of the places as pay by the times of forward passes that vLLM measures
at start. `jump_rows` can't follow from these: large batches are bound by vLLM's thread,
which has more to do for a step with drafts, and vLLM measures no time of it; and it
captures its CUDA graphs by the list before it measures.
"""

from __future__ import annotations

import copy
import logging
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from guided_plugin.config import GuidedConfig
from guided_plugin.errors import GuidedError
from guided_plugin.hosts.vllm.common import settings_of
from guided_plugin.hosts.vllm.logs import adopt_handlers
from guided_plugin.kernels import indexed_kernels
from guided_plugin.kernels.uploads import Uploads

_log = logging.getLogger(__name__)

_OWN = "guided_plugin_jump"
"""The key of `additional_config` by which engines know that the speculative config is
ours."""

RUNNER = "_guided_runner"
"""The attribute of the token ids of vLLM's requests with the `V2DraftRunner` over
them."""

_LATELY = 64
"""Steps of which it is known how many drafts rows had. With real documents at 1 to 256
rows a token took 0.2 to 3.3% longer than if it were known beforehand; as vLLM guesses,
3 to 26% (simulated, 2026-11-27)."""


def create_engine_config(self: Any, *args: Any, original: Any, **kwargs: Any) -> Any:
    """`EngineArgs.create_engine_config`: a speculative config of ours, where that can
    be. Where not, a line in the log says why, in vLLM's own words."""
    wanted = _wanted(self)
    if wanted is None:
        return original(self, *args, **kwargs)
    drafts = wanted.jump_drafts
    rows = wanted.jump_rows
    adopt_handlers()
    trial = copy.deepcopy(self)
    trial.speculative_config = {
        # Kept for its place in vLLM: asynchronous scheduling stays on with this
        # one. It never runs.
        "method": "ngram_gpu",
        "num_speculative_tokens": drafts,
        "prompt_lookup_max": 4,
        "prompt_lookup_min": 2,
        "enable_adaptive_verification": True,
        # The last entry holds for all larger batches.
        "num_speculative_tokens_per_batch_size": [
            (1, rows, drafts),
            (rows + 1, rows + 1, 0),
        ],
    }
    trial.additional_config = {**(self.additional_config or {}), _OWN: True}
    try:
        config = original(trial, *args, **kwargs)
        why = _unsupported(config)
    except ValueError as error:
        # pydantic's: without what it was made of
        told = getattr(error, "errors", None)
        reasons = [one["msg"] for one in told()] if told else [str(error).strip()]
        why = f"{'; '.join(reasons)} (it needs vLLM's V2 runner on CUDA)"
    if why:
        _log.warning("jump_forward stays off: %s", why)
        return original(self, *args, **kwargs)
    where = f"in batches of at most {rows} requests (jump_rows)"
    if config.speculative_config.num_speculative_tokens_per_batch_size is None:
        where = "in batches of any size: vLLM sets no limit with data parallelism"
    _log.info(
        "jump_forward is on: up to %d forced tokens in one forward pass, %s",
        drafts,
        where,
    )
    return config


def _wanted(arguments: Any) -> GuidedConfig | None:
    """The options of an engine that is to verify drafts and has no other drafter."""
    taken = "speculative_config", "spec_method", "spec_model", "spec_tokens"
    if any(getattr(arguments, name, None) is not None for name in taken):
        return None
    try:
        options, _ = settings_of(arguments)
    except GuidedError:  # told where the engine starts
        return None
    return options if options.enabled and options.jump_forward else None


def _unsupported(config: Any) -> str:
    """Why an engine of this configuration has to run without."""
    if not getattr(config, "use_v2_model_runner", False):
        return "vLLM's V1 model runner runs"
    if config.device_config.device_type != "cuda":
        return (
            f"it needs CUDA, and the model runs on {config.device_config.device_type!r}"
        )
    if getattr(config.parallel_config, "nnodes", 1) > 1:
        return "the ranks are on several machines"
    if getattr(config.parallel_config, "enable_batch_sharded_sampling", False):
        return "each rank samples a part of the batch (enable_batch_sharded_sampling)"
    return ""


def init_speculator(
    vllm_config: Any, device: torch.device, req_states: Any, *, original: Any
) -> Any:
    """Make the speculator of a V2 runner: one without guesses in place of vLLM's. What
    any of them proposes goes to the `V2DraftRunner` over the same requests."""
    confidences = None
    if _is_own(vllm_config):
        speculator: Any = _NoGuesses(vllm_config, device)
        confidences = speculator.draft_token_confidence_probs
    else:
        speculator = original(vllm_config, device, req_states)
    greedy = getattr(speculator, "draft_logits", None) is None
    propose = speculator.propose

    def watched(input_batch: Any, *args: Any, **kwargs: Any) -> Any:
        drafts = propose(input_batch, *args, **kwargs)
        runner = getattr(req_states.all_token_ids, RUNNER, None)
        if runner is not None and not kwargs.get("dummy_run"):
            verified = kwargs.get("num_speculative_tokens") != 0
            given = input_batch, drafts, confidences
            runner.propose(*given, greedy=greedy, verified=verified)
        return drafts

    speculator.propose = watched
    return speculator


def maybe_create_adaptive_verification_manager(
    *args: Any, original: Any, req_states: Any, vllm_config: Any, **kwargs: Any
) -> Any:
    """Make vLLM's `AdaptiveVerificationManager`. Where drafts are ours, `DraftBudget`
    chooses."""
    manager = original(*args, req_states=req_states, vllm_config=vllm_config, **kwargs)
    if manager is not None and _is_own(vllm_config):
        own = DraftBudget(manager)
        manager.add_request = lambda index: None  # nothing is known of its drafts
        for name in ("record_confidences", "get_num_tokens", "reallocate_drafts"):
            setattr(manager, name, getattr(own, name))
    return manager


class DraftBudget:
    """The number of drafts that a step verifies: the one with the most tokens a
    millisecond. The milliseconds are those of vLLM's cost tables. How many drafts the
    requests have is not known yet: each of the last steps counts as equally likely. One
    kernel places the drafts, in 51 us of vLLM's thread at 64 rows where its own dozen
    took 378 (one H100)."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        req_states = manager.req_states
        self._upload = Uploads(2 * req_states.max_num_reqs, req_states.device)
        self._place = indexed_kernels(req_states.device).place_drafts
        # drafts of a request, in each of the last steps
        self._lately = np.ones(_LATELY)
        self._turn = 0
        # By index: the places for drafts that a request has in this step, and its other
        # tokens.
        self._counts = np.zeros((2, req_states.max_num_reqs), np.int64)
        manager._batch_budget = None, None, 0
        self.reallocate_drafts([], self._upload([]))  # compiles it

    def record_confidences(self, confidences: Tensor, batch: Any) -> None:
        """Record the confidences of a step's drafts, by index. The last step's are on
        the host then."""
        manager = self._manager
        written = manager._stale_idx
        manager._stale_idx = 1 - manager._stale_idx
        manager._copy_events[manager._stale_idx].synchronize()
        manager._confidence_probs = confidences
        manager._stale_confidences[written].cpu.copy_(confidences, non_blocking=True)
        manager._copy_events[written].record()

    def get_num_tokens(
        self, tokens: Mapping[str, int], drafts: Mapping[str, Any]
    ) -> int:
        """The tokens of a step, with as many drafts as are likely to pay."""
        manager = self._manager
        count = len(tokens)
        indices = self._indices(tokens)
        places = np.array([len(drafts.get(name, ())) for name in tokens])
        others = np.array(list(tokens.values())) - places
        self._counts[:, indices] = places, others
        least = int(others.sum())
        # vLLM's sampler verifies all logits of a step in one piece.
        room = max(0, manager._max_total_logits - count * manager.num_bonus_tokens)
        most = min(int(places.sum()), room)
        # A request gets a token in any case, unless it has more of its prompt to come.
        ends = manager.req_states.num_computed_tokens_np[indices] + others
        sampled = np.count_nonzero(ends >= manager.req_states.prefill_len.np[indices])
        taken = sampled + self._accepted(indices[places > 0], most)
        drafting, verifying = manager.cost_tables
        milliseconds = drafting[count] + verifying[least : least + most + 1]
        budget = int((taken / milliseconds).argmax())
        manager._batch_budget = None, None, budget
        return least + budget

    def _accepted(self, indices: NDArray[np.intp], most: int) -> NDArray[np.float64]:
        """Return the number of drafts that 0 to `most` places are likely to hold.
        `indices`: of the requests that have places."""
        manager = self._manager
        # A draft has a confidence, an empty place has none.
        before = manager._stale_confidences[manager._stale_idx].np[indices]
        self._lately[self._turn] = np.count_nonzero(before) / len(indices)
        self._turn = (self._turn + 1) % _LATELY
        # So many drafts these requests would have had in each of the last steps.
        counts = np.sort(self._lately) * len(indices)
        # In so many of these steps a place, by its number, would have stayed empty.
        empty = np.searchsorted(counts, np.arange(most), "right")
        chances = 1 - empty / _LATELY
        return np.concatenate(([0.0], chances.cumsum()))

    def reallocate_drafts(
        self, names: Sequence[str], indices: Tensor
    ) -> tuple[Any, ...]:
        """Return the ends of the logits and the tokens of each request, and the number
        of drafts."""
        manager = self._manager
        (*_, most), manager._batch_budget = manager._batch_budget, None
        counts = self._upload(self._counts[:, self._indices(names)].ravel())
        bonus = manager.num_bonus_tokens
        ends = manager._cu_num_logits[: len(names) + 1], manager.query_start_loc
        self._place(manager._confidence_probs, indices, counts, most, bonus, *ends)
        # since vLLM 0.33 one more
        rest = (None,) if hasattr(manager, "_copy_admitted_drafts_to_host") else ()
        return *ends, most, *rest

    def _indices(self, names: Iterable[str]) -> NDArray[np.intp]:
        known = self._manager.req_states.req_id_to_index
        return np.array([known[name] for name in names], np.intp)


def _is_own(vllm_config: Any) -> bool:
    own = vllm_config.additional_config
    return isinstance(own, Mapping) and own.get(_OWN) is True


class DraftsBySize:
    """vLLM's list of the drafts that a request gets, by the size of its batch, while
    guided requests are in the scheduler; else all of it is 0."""

    def __init__(self, listed: Sequence[int]) -> None:
        self._listed = listed
        self.guided = weakref.WeakValueDictionary[str, Any]()
        """vLLM's requests by id; they are here as long as the scheduler has them."""

    def __getitem__(self, rows: int) -> int:
        return self._listed[rows] if self.guided else 0


def drafts_by_size(scheduler: Any) -> DraftsBySize | None:
    """The list of a scheduler whose speculative config is ours; takes the place of
    vLLM's list at the first call."""
    listed = getattr(scheduler, "dynamic_sd_lookup", None)
    if listed is None or not _is_own(scheduler.vllm_config):
        return None
    if not isinstance(listed, DraftsBySize):
        listed = scheduler.dynamic_sd_lookup = DraftsBySize(listed)
    return listed


class _NoGuesses:
    """vLLM's `BaseSpeculator` without a guess of its own."""

    supports_mm_inputs = False
    draft_logits = None
    enable_adaptive_verification = True
    num_query_per_req = 1
    num_extra_query_per_req = 0

    def __init__(self, vllm_config: Any, device: torch.device) -> None:
        self.num_speculative_steps: int = (
            vllm_config.speculative_config.num_speculative_tokens
        )
        size = vllm_config.scheduler_config.max_num_seqs, self.num_speculative_steps
        self._drafts = torch.zeros(size, dtype=torch.int64, device=device)
        # by index
        self.draft_token_confidence_probs = torch.zeros(
            size, dtype=torch.float32, device=device
        )

    def capture(self, *args: Any, **kwargs: Any) -> None:
        """There is nothing to capture."""

    init_cudagraph_manager = capture

    def propose(self, input_batch: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Nothing: what is here is written over, or not verified."""
        return self._drafts[: input_batch.num_reqs]
