"""`jump_forward` in vLLM's V2 runner: what makes it speculate where nobody else does, and shows its drafts to
the runner of this package. Imports vLLM lazily.

vLLM verifies drafts adaptively: it ranks them by confidence and verifies as many as pay on the device. The
host's thread has more to do for a step that may have drafts, and is the bottleneck where batches are large
and prompts come in every step. So the scheduler measures both ways, and places drafts where they pay.
"""

from __future__ import annotations

import copy
import logging
import math
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from guided_plugin.config import GuidedConfig
from guided_plugin.errors import GuidedError
from guided_plugin.hosts.vllm.common import options_of
from guided_plugin.hosts.vllm.telling import adopt_handlers

_log = logging.getLogger(__name__)

_OWN = "guided_plugin_jump"
"""The key of `additional_config` by which engines know that the speculative config is ours."""

RUNNERS: weakref.WeakSet[Any] = weakref.WeakSet()
"""Each `V2DraftRunner` of this process."""

_TRIAL, _FIRST, _LONG, _TRIED = 12, 64, 4096, 0.004
"""Steps of a trial, and before it: the fewest and the most; the part of the time that trials may cost."""

_KEPT, _GAIN = 0.7, 0.1
"""How much of what was known of a size counts beside a trial, and what is known at first: the logarithm of
the time without drafts by that with them. In simulations this was 0.3 to 3.0% slower than the better way;
where the last trial alone decided, and waits grew whatever the gain was, 0.2 to 4.4%."""

_SETTLED = 4
"""Steps after a change, of whatever size, that say nothing: those that were scheduled before it, and vLLM
chooses how many drafts it verifies by confidences that are two steps old."""


def create_engine_config(original: Any) -> Any:
    """`EngineArgs.create_engine_config`: a speculative config of ours, where that can be. Where not, a line
    in the log says why, in vLLM's own words."""

    def replaced(self: Any, *args: Any, **kwargs: Any) -> Any:
        wanted = _wanted(self)
        if wanted is None:
            return original(self, *args, **kwargs)
        drafts = wanted.jump_drafts
        adopt_handlers()
        trial = copy.deepcopy(self)
        trial.speculative_config = {
            # Kept for its place in vLLM: asynchronous scheduling stays on with this one. It never runs.
            "method": "ngram_gpu",
            "num_speculative_tokens": drafts,
            "prompt_lookup_max": 4,
            "prompt_lookup_min": 2,
            "enable_adaptive_verification": True,
            # For any size. Makes vLLM's scheduler look it up in each step, where `DraftSwitch` changes it.
            "num_speculative_tokens_per_batch_size": [(1, 1 << 20, drafts)],
        }
        trial.additional_config = {**(self.additional_config or {}), _OWN: True}
        try:
            config = original(trial, *args, **kwargs)
            why = _unsupported(config)
        except ValueError as error:  # pydantic's too
            why = str(error).strip()
        if not why:
            _log.info("jump_forward is on: up to %d forced tokens in one forward pass", drafts)
            return config
        _log.warning("jump_forward stays off: %s", why)
        return original(self, *args, **kwargs)

    return replaced


def _wanted(arguments: Any) -> GuidedConfig | None:
    """The options of an engine that is to verify drafts and has no other drafter."""
    taken = "speculative_config", "spec_method", "spec_model", "spec_tokens"
    if any(getattr(arguments, name, None) is not None for name in taken):
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
        own = _is_own(vllm_config)
        speculator = _NoGuesses(vllm_config, device) if own else original(vllm_config, device, req_states)
        _watch(speculator, req_states, own=own)
        return speculator

    return replaced


def _is_own(vllm_config: Any) -> bool:
    own = vllm_config.additional_config
    return isinstance(own, Mapping) and own.get(_OWN) is True


def switch_of(scheduler: Any) -> DraftSwitch | None:
    """What says which steps of a scheduler have drafts, where the speculative config is ours."""
    lookup = getattr(scheduler, "dynamic_sd_lookup", None)
    if lookup is not None and not isinstance(lookup, DraftSwitch) and _is_own(scheduler.vllm_config):
        lookup = scheduler.dynamic_sd_lookup = DraftSwitch(max(lookup))
    return lookup if isinstance(lookup, DraftSwitch) else None


class DraftSwitch:
    """The drafts that a scheduler places for each row of a batch, by its size, in place of vLLM's list: while
    guided requests are there, for sizes that are faster with them."""

    def __init__(self, drafts: int) -> None:
        self._drafts = drafts
        self._sizes: defaultdict[int, SizeTrial] = defaultdict(SizeTrial)
        """By `size_of`."""
        self._guided: set[str] = set()
        self._last: float | None = None
        """When the tokens of the last step were there; None: nothing ran then."""
        self._drafted, self._same = True, 0
        """Whether the last step's size has drafts, and so many steps since that was otherwise."""

    def __getitem__(self, rows: int) -> int:
        return self._drafts if self._guided and self._sizes[size_of(rows)].drafts else 0

    def begin(self, request_id: str) -> None:
        """A guided request comes."""
        self._guided.add(request_id)

    def note(self, scheduled: Any, tokens: list[list[int]]) -> None:
        """The tokens of a step are there. `scheduled`: vLLM's SchedulerOutput."""
        before, now, rows = self._last, time.perf_counter(), len(scheduled.num_scheduled_tokens)
        self._last = now if rows else None
        sampled = sum(map(bool, tokens))
        if self._guided and before is not None and sampled:
            trial = self._sizes[size_of(rows)]
            was, drafts = trial.worse, trial.drafts
            self._drafted, self._same = drafts, self._same + 1 if drafts == self._drafted else 0
            trial.add(now - before, sum(map(len, tokens)) / sampled, settled=self._same >= _SETTLED)
            if trial.worse != was:
                _log.info(
                    "jump_forward: batches of about %d requests have %s from now on: a token takes %.2f ms "
                    "with drafts, %.2f ms without",
                    *(1 << size_of(rows), "no drafts" if trial.worse else "drafts"),
                    *(trial.seconds[True] * 1e3, trial.seconds[False] * 1e3),
                )
        self._guided -= scheduled.finished_req_ids


def size_of(rows: int) -> int:
    """Batches nearest to one power of two: full ones are mostly as large, and lack a row now and then."""
    return (rows * rows).bit_length() // 2


class SizeTrial:
    """Whether drafts pay for batches of about one size: now and then some steps go the other way."""

    def __init__(self) -> None:
        self.worse = False
        """Whether steps with drafts were not faster, by token."""
        self.seconds: dict[bool, float] = {}
        """Of a token for a row, with drafts and without."""
        self._trying, self._gain = False, _GAIN
        self._wait = self._left = _FIRST
        """Steps between two trials; steps until the way changes."""
        self._steps: deque[tuple[float, float]] = deque(maxlen=_FIRST)

    @property
    def drafts(self) -> bool:
        """Whether the next steps have drafts."""
        return self.worse == self._trying

    def add(self, seconds: float, tokens: float, *, settled: bool) -> None:
        """A step took so long, and brought a row so many tokens; counts only if it is settled."""
        self._left -= 1
        if settled:
            self._steps.append((seconds, tokens))
        if self._left > 0:
            return
        if self._steps:
            # The middle half: a prompt or something else of the host makes a step several times as long.
            most = len(self._steps) // 4
            times, counts = zip(*sorted(self._steps)[most : len(self._steps) - most], strict=True)
            self.seconds[self.drafts] = sum(times) / sum(counts)
            if self._trying and len(self.seconds) == 2:
                gain = math.log(self.seconds[False] / self.seconds[True])
                self._gain += (gain - self._gain) * (1 - _KEPT)
                self.worse = self._gain <= 0
                self._wait = min(max(int(_TRIAL * abs(self._gain) / _TRIED), _FIRST), _LONG)
        self._trying = not self._trying
        self._left = _TRIAL if self._trying else self._wait
        self._steps.clear()


class _NoGuesses:
    """vLLM's `BaseSpeculator` without a guess of its own."""

    supports_mm_inputs, draft_logits, enable_adaptive_verification = False, None, True
    num_query_per_req, num_extra_query_per_req = 1, 0

    def __init__(self, vllm_config: Any, device: torch.device) -> None:
        self.num_speculative_steps: int = vllm_config.speculative_config.num_speculative_tokens
        size = vllm_config.scheduler_config.max_num_seqs, self.num_speculative_steps
        self._drafts = torch.zeros(size, dtype=torch.int64, device=device)
        self.draft_token_confidence_probs = torch.zeros(size, dtype=torch.float32, device=device)

    def capture(self, *args: Any, **kwargs: Any) -> None:
        """There is nothing to capture."""

    init_cudagraph_manager = capture

    def propose(self, input_batch: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Nothing: what is here is written over, or not verified."""
        return self._drafts[: input_batch.num_reqs]


def _watch(speculator: Any, states: Any, *, own: bool) -> None:
    """Show what it proposes to the runner over these requests."""
    original = speculator.propose
    greedy = getattr(speculator, "draft_logits", None) is None

    def propose(input_batch: Any, *args: Any, **kwargs: Any) -> Any:
        drafts = original(input_batch, *args, **kwargs)
        if not kwargs.get("dummy_run"):
            confidences = speculator.draft_token_confidence_probs if own else None
            verified = kwargs.get("num_speculative_tokens") != 0
            for runner in list(RUNNERS):
                if runner.requests.states.all_token_ids is states.all_token_ids:
                    runner.propose(input_batch, drafts, confidences, greedy=greedy, verified=verified)
        return drafts

    speculator.propose = propose
