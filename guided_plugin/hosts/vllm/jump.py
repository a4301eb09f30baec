"""`jump_forward` in vLLM's V2 runner: what makes it speculate where nobody else does,
and shows its drafts to the runner of this package. Imports vLLM lazily.

vLLM verifies drafts adaptively: the surest first, and as many as are likely to pay on
the device. The host's thread has more to do for a step that may have drafts, and is the
bottleneck where batches are large and prompts come in every step. So the scheduler
measures both ways, and places drafts where they pay. With drafts outputs end sooner, so
more steps begin requests, which vLLM launches piece by piece. Where that pays, none
begins in the next steps.
"""

from __future__ import annotations

import copy
import logging
import math
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from itertools import repeat
from typing import Any

import numpy as np
import torch
from torch import Tensor

from guided_plugin.config import GuidedConfig
from guided_plugin.errors import GuidedError
from guided_plugin.hosts.vllm.common import options_of
from guided_plugin.hosts.vllm.logits import Uploads
from guided_plugin.hosts.vllm.telling import adopt_handlers
from guided_plugin.kernels import indexed_kernels

_log = logging.getLogger(__name__)

_OWN = "guided_plugin_jump"
"""The key of `additional_config` by which engines know that the speculative config is
ours."""

RUNNERS: weakref.WeakSet[Any] = weakref.WeakSet()
"""Each `V2DraftRunner` of this process."""

_TRIAL = 12
"""Steps of a trial."""
_FIRST = 64
"""Steps before a trial, the fewest."""
_LONG = 4096
"""Steps before a trial, the most."""
_TRIED = 0.004
"""The part of the time that trials may cost."""

_KEPT = 0.7
"""How much of what was known of a size counts beside a trial. In simulations of hosts
whose speed drifts by a third it was 1.6% slower than the better way in 3,000 steps;
with prompts not told apart 2.5%."""
_GAIN = 0.1
"""What is known at first: the logarithm of the time without drafts by that with
them."""
_CLEAR = 0.3
"""The most that one trial says of it."""

_PAUSE = 3
"""Steps that begin no request after one that did, while a queue waits: a token took
0.70 of the time without pauses on an H100, 64 rows; 0.89 with one step."""

_LATELY = 64
"""Steps of which it is known how many drafts rows had. Of real documents at 1 to 256
rows a token took 0.2 to 3.3% longer than if it were known beforehand; as vLLM guesses,
3 to 26% (`benchmarks.replay.budget`)."""

_SETTLED = 6
"""Steps after a change, of whatever size, that say nothing: those that were scheduled
before it, and those in which fewer drafts were found yet: on an H100, 64 rows, 1.0 to
1.3 tokens a row of 1.6 later."""


def create_engine_config(original: Any) -> Any:
    """`EngineArgs.create_engine_config`: a speculative config of ours, where that can
    be. Where not, a line in the log says why, in vLLM's own words."""

    def replaced(self: Any, *args: Any, **kwargs: Any) -> Any:
        wanted = _wanted(self)
        if wanted is None:
            return original(self, *args, **kwargs)
        drafts = wanted.jump_drafts
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
            # For any size. Makes vLLM's scheduler look it up in each step, where
            # `DraftSwitch` changes it.
            "num_speculative_tokens_per_batch_size": [(1, 1 << 20, drafts)],
        }
        trial.additional_config = {**(self.additional_config or {}), _OWN: True}
        try:
            config = original(trial, *args, **kwargs)
            why = _unsupported(config)
        except ValueError as error:
            # pydantic's: without what it was made of
            told = getattr(error, "errors", None)
            why = (
                "; ".join(one["msg"] for one in told()) if told else str(error).strip()
            )
            why += " (it needs vLLM's V2 runner on CUDA)"
        if not why:
            _log.info(
                "jump_forward is on: up to %d forced tokens in one forward pass", drafts
            )
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
        return (
            f"it needs CUDA, and the model runs on {config.device_config.device_type!r}"
        )
    if getattr(config.parallel_config, "nnodes", 1) > 1:
        return "the ranks are on several machines"
    if getattr(config.parallel_config, "enable_batch_sharded_sampling", False):
        return "each rank samples a part of the batch (enable_batch_sharded_sampling)"
    return ""


def init_speculator(original: Any) -> Any:
    """What makes the speculator of a V2 runner: one without guesses in place of vLLM's.
    What any of them proposes goes to `V2DraftRunner.propose`."""

    def replaced(vllm_config: Any, device: torch.device, req_states: Any) -> Any:
        own = _is_own(vllm_config)
        speculator = (
            _NoGuesses(vllm_config, device)
            if own
            else original(vllm_config, device, req_states)
        )
        _watch(speculator, req_states, own=own)
        return speculator

    return replaced


def maybe_create_adaptive_verification_manager(original: Any) -> Any:
    """What makes vLLM's `AdaptiveVerificationManager`. Where drafts are ours,
    `DraftBudget` chooses."""

    def replaced(*args: Any, req_states: Any, vllm_config: Any, **kwargs: Any) -> Any:
        manager = original(
            *args, req_states=req_states, vllm_config=vllm_config, **kwargs
        )
        if manager is not None and _is_own(vllm_config):
            own = DraftBudget(manager)
            manager.add_request = lambda index: None  # nothing is known of its drafts
            for name in ("record_confidences", "get_num_tokens", "reallocate_drafts"):
                setattr(manager, name, getattr(own, name))
        return manager

    return replaced


class DraftBudget:
    """Which drafts a step verifies: as many as are likely to pay, by how many there
    were lately. One kernel places them, in 51 us of vLLM's thread at 64 rows where its
    own dozen took 378 (one H100)."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        req_states = manager.req_states
        self._upload = Uploads(2 * req_states.max_num_reqs, req_states.device)
        self._place = indexed_kernels(req_states.device).place_drafts
        self._lately = np.ones(_LATELY)  # drafts of a row, in each of the last steps
        self._turn = 0
        # By index: the places for drafts that a request has in this step, and its other
        # tokens.
        self._counts = np.zeros((2, req_states.max_num_reqs), np.int64)
        manager._batch_budget = None, None, 0
        self.reallocate_drafts([], self._upload([]))  # compiles it

    def record_confidences(self, confidences: Tensor, batch: Any) -> None:
        """Those of a step's drafts, by index. Those of the last step are on the host
        then."""
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
        req_states = self._manager.req_states
        count = len(tokens)
        rows = np.fromiter(
            map(req_states.req_id_to_index.__getitem__, tokens), np.intp, count
        )
        asked = np.fromiter(
            map(len, map(drafts.get, tokens, repeat(()))), np.int64, count
        )
        others = np.fromiter(tokens.values(), np.int64, count) - asked
        self._counts[:, rows] = asked, others
        before = manager._stale_confidences[manager._stale_idx].np[rows[asked > 0]]
        self._lately[self._turn] = np.count_nonzero(before) / len(before)
        self._turn = (self._turn + 1) % _LATELY
        most = int(
            min(
                asked.sum(),
                max(0, manager._max_total_logits - count * manager.num_bonus_tokens),
            )
        )
        fewer = np.searchsorted(
            np.sort(self._lately) * len(before), np.arange(most), "right"
        )
        ends = req_states.num_computed_tokens_np[rows] + others
        sampled = np.count_nonzero(ends >= req_states.prefill_len.np[rows])
        taken = sampled + np.concatenate(([0.0], (1 - fewer / _LATELY).cumsum()))
        least, (drafting, verifying) = int(others.sum()), manager.cost_tables
        budget = int(
            (taken / (drafting[count] + verifying[least : least + most + 1])).argmax()
        )
        manager._batch_budget = None, None, budget
        return least + budget

    def reallocate_drafts(
        self, names: Sequence[str], indices: Tensor
    ) -> tuple[Any, ...]:
        """Where the logits and the tokens of each request end, and how many drafts
        there are."""
        manager = self._manager
        (*_, most), manager._batch_budget = manager._batch_budget, None
        rows = np.fromiter(
            map(manager.req_states.req_id_to_index.__getitem__, names),
            np.intp,
            len(names),
        )
        counts = self._upload(self._counts[:, rows].ravel())
        bonus = manager.num_bonus_tokens
        ends = manager._cu_num_logits[: len(rows) + 1], manager.query_start_loc
        self._place(manager._confidence_probs, indices, counts, most, bonus, *ends)
        return (
            *ends,
            most,
            *((None,) if hasattr(manager, "_copy_admitted_drafts_to_host") else ()),
        )


def _is_own(vllm_config: Any) -> bool:
    own = vllm_config.additional_config
    return isinstance(own, Mapping) and own.get(_OWN) is True


def switch_of(scheduler: Any) -> DraftSwitch | None:
    """What says which steps of a scheduler have drafts, where the speculative config is
    ours."""
    lookup = getattr(scheduler, "dynamic_sd_lookup", None)
    if (
        lookup is not None
        and not isinstance(lookup, DraftSwitch)
        and _is_own(scheduler.vllm_config)
    ):
        lookup = scheduler.dynamic_sd_lookup = DraftSwitch(max(lookup))
    return lookup if isinstance(lookup, DraftSwitch) else None


def schedule(original: Any) -> Any:
    """`Scheduler.schedule`: requests that wait may do so for some more steps."""

    def replaced(
        self: Any, throttle_prefills: bool = False, *args: Any, **kwargs: Any
    ) -> Any:
        switch = switch_of(self)
        if switch is not None and switch.pauses(len(self.running)):
            # vLLM gives up such pauses while more requests wait than it has room for.
            throttle_prefills = True
            self.prefill_capacity_bound = False
        scheduled = original(self, throttle_prefills, *args, **kwargs)
        if switch is not None:
            counts = scheduled.num_scheduled_tokens
            begun = sum(
                counts[request.req_id] for request in scheduled.scheduled_new_reqs
            )
            switch.scheduled(len(counts), begun, queue=bool(self.waiting))
        return scheduled

    return replaced


class DraftSwitch:
    """The drafts that a scheduler places for each row of a batch, by its size, in place
    of vLLM's list: while guided requests are there, for sizes that are faster with
    them. And where requests begin."""

    def __init__(self, drafts: int) -> None:
        self._drafts = drafts  # of a row
        self._pause = 0  # steps behind one that begins some, where that pays
        self._since = 0  # so many since one did
        # by `size_of`
        self._sizes: defaultdict[int, SizeTrial] = defaultdict(SizeTrial)
        self._pauses: defaultdict[int, SizeTrial] = defaultdict(
            lambda: SizeTrial(_PAUSE + 1)
        )
        self.guided: set[str] = set()  # the requests that are there
        # when the tokens of the last step were there; None: nothing ran then
        self._last: float | None = None
        self._drafted = True
        """Whether the last step's size has drafts."""
        self._same = 0
        """So many steps since that was otherwise."""
        self._held: tuple[int, float, float, float, bool, bool] | None = None
        """The last step: its size, seconds, tokens of a row and of a place, whether
        settled, with prompts."""

    def __getitem__(self, rows: int) -> int:
        return self._drafts if self.guided and self._sizes[size_of(rows)].on else 0

    def pauses(self, rows: int) -> bool:
        """Whether the next step begins none, as one before it did."""
        return (
            self._since < self._pause
            and bool(self.guided)
            and self._pauses[size_of(rows)].on
        )

    def scheduled(self, rows: int, begun: int, *, queue: bool) -> None:
        """A step is, with prompts of so many tokens that begin; with a queue, more of
        them wait. Prompts that take longer than drafts gain nothing by pauses."""
        self._since = 0 if begun else self._since + 1
        if begun:
            self._pause = (
                0 if begun > rows * (self._drafts + 1) else _PAUSE if queue else 1
            )

    def note(self, scheduled: Any, tokens: list[list[int]]) -> None:
        """The tokens of a step are there. `scheduled`: vLLM's SchedulerOutput."""
        before = self._last
        now = time.perf_counter()
        counts = scheduled.num_scheduled_tokens
        self._last = now if counts else None
        if not self.guided:
            return
        # New ones, or the next part of a long one.
        prompts = (
            bool(scheduled.scheduled_new_reqs)
            or max(counts.values(), default=0) > self._drafts + 1
        )
        if self._held is not None:
            # It took what launching this one took, if that was longer: with prompts if
            # either has.
            size, seconds, row, place, settled, own = self._held
            trial = self._sizes[size]
            pauses = self._pauses[size]
            was = self._sizes[size].worse
            # else pauses change nothing
            near = self._pause > 0 and self._since <= self._pause
            if not (near and pauses.trying):
                trial.add(seconds, row, settled=settled, prompts=own or prompts)
            # which steps have prompts depends on them
            if near and (pauses.trying or not trial.trying):
                pauses.add(seconds, place, settled=settled, prompts=False)
            if trial.worse != was:
                _log.info(
                    "jump_forward: batches of about %d requests have %s from now on: a token takes %.2f ms "
                    "with drafts, %.2f ms without",
                    *(1 << size, "no drafts" if trial.worse else "drafts"),
                    *(trial.seconds[True] * 1e3, trial.seconds[False] * 1e3),
                )
        self._held, sampled, total = None, sum(map(bool, tokens)), sum(map(len, tokens))
        if before is not None and sampled:
            size = size_of(len(counts))
            drafts = self._sizes[size].on
            self._drafted, self._same = (
                drafts,
                self._same + 1 if drafts == self._drafted else 0,
            )
            tokens_of = total / sampled, total / (1 << size)
            self._held = size, now - before, *tokens_of, self._same >= _SETTLED, prompts
        self.guided -= scheduled.finished_req_ids


def size_of(rows: int) -> int:
    """Batches nearest to one power of two: full ones are mostly as large, and lack a
    row now and then."""
    return (rows * rows).bit_length() // 2


class SizeTrial:
    """Whether one way pays for batches of about one size: now and then some steps go
    the other way. `together`: steps that are one sample."""

    def __init__(self, together: int = 1) -> None:
        self.worse = False
        """Whether steps that go this way were not faster, by token."""
        self.seconds: dict[bool, float] = {}
        """Of a token for a row, this way and the other, when they were compared
        last."""
        self.trying = False
        self._gain = _GAIN
        self._together = together
        self._wait = _FIRST
        """Samples between two trials."""
        self._left = _FIRST * together
        """Steps until the way changes."""
        self._steps = {
            kind: deque[tuple[float, float]](maxlen=_FIRST * together)
            for kind in (False, True)
        }
        # of a token, by way, then by whether prompts came
        self._paces: dict[bool, dict[bool, float]] = {}

    @property
    def on(self) -> bool:
        """Whether the next steps go this way."""
        return self.worse == self.trying

    def add(
        self, seconds: float, tokens: float, *, settled: bool, prompts: bool
    ) -> None:
        """A step took so long, and brought a row so many tokens; counts only if it is
        settled."""
        self._left -= 1
        if settled:
            self._steps[prompts].append((seconds, tokens))
        if self._left > 0:
            return
        counts = {
            kind: len(steps)
            for kind, steps in self._steps.items()
            if len(steps) >= self._together
        }
        self._paces[self.on] = {
            kind: _pace(self._steps[kind], self._together) for kind in counts
        }
        counts = {
            kind: counts[kind]
            for kind in counts.keys() & self._paces.get(not self.on, {})
        }
        if self.trying and (total := sum(counts.values())):
            for way, paces in self._paces.items():  # in steps of the same kinds
                self.seconds[way] = (
                    sum(count * paces[kind] for kind, count in counts.items()) / total
                )
            gain = math.log(self.seconds[False] / self.seconds[True])
            self._gain += (max(-_CLEAR, min(gain, _CLEAR)) - self._gain) * (1 - _KEPT)
            self.worse = self._gain <= 0
            self._wait = min(max(int(_TRIAL * abs(self._gain) / _TRIED), _FIRST), _LONG)
        self.trying = not self.trying
        self._left = (_TRIAL if self.trying else self._wait) * self._together
        for steps in self._steps.values():
            steps.clear()


def _pace(steps: Collection[tuple[float, float]], together: int) -> float:
    """Seconds of a token in the middle half: now and then the host makes a step several
    times as long."""
    samples = (
        np.array(steps)[: len(steps) // together * together]
        .reshape(-1, together, 2)
        .sum(1)
    )
    most = len(samples) // 4
    seconds, tokens = samples[samples[:, 0].argsort()][most : len(samples) - most].sum(
        0
    )
    return float(seconds / tokens)


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
                    runner.propose(
                        input_batch,
                        drafts,
                        confidences,
                        greedy=greedy,
                        verified=verified,
                    )
        return drafts

    speculator.propose = propose
