"""vLLM's V2 model runner, through its official interface; what it shows besides is
wrapped in `logits`.

Which requests are in a step, and which have left, is what `Worker.execute_model` was
given (`engine.execute_model`). Mask rows are in an order of our own: a table on the
device leads from a request's index to its mask.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from guided_plugin.hosts.vllm.common import drafts_of, engine_spec
from guided_plugin.hosts.vllm.engine import Engine, limits_of, timed
from guided_plugin.hosts.vllm.logits import ForcedRows, GuidedRequest
from guided_plugin.hosts.vllm.names import Part, When
from guided_plugin.hosts.vllm.patches import patch
from guided_plugin.kernels import indexed_kernels
from guided_plugin.kernels.loading import load_kernels
from guided_plugin.kernels.uploads import Uploads
from guided_plugin.step import NEVER, UNGUIDED

Members: TypeAlias = NDArray[np.bool_]
"""By index in a runner's tables, whether a request is one of these."""


class Plan(NamedTuple):
    """Requests in the order of their masks."""

    slots: tuple[int, ...]
    table: Tensor
    """[max requests] int32, device: index -> mask row, -1 where there is none."""
    order: Tensor
    """[planned] int64, device: their indices."""


class IndexedRequests:
    """The guided requests of a V2 runner by their index in its tables, and their
    histories there."""

    def __init__(self, engine: Engine, states: Any) -> None:
        self.engine = engine
        self.states = states
        self.entered: dict[int, Any] = {}
        """Params of those that came since the last step. What had their index is over,
        also where vLLM does not say so, as of an input that is streamed: its next part
        is another request, which nothing may guide."""
        self._running: dict[str, tuple[int, GuidedRequest]] = {}
        """By id, with their indices."""
        self.slots = np.full(states.max_num_reqs, UNGUIDED, np.int32)
        """By index; UNGUIDED where a request has no mask."""
        # [max requests] int32, device: how long each history was when its last token
        # was taken
        self._lengths = torch.full(
            (states.max_num_reqs,), NEVER, dtype=torch.int32, device=states.device
        )
        self.upload = Uploads(2 * states.max_num_reqs, states.device)
        self.forced = ForcedRows((), self.upload)
        stages = engine.config.parallel_config.pipeline_parallel_size
        self._plans: deque[tuple[object, Plan]] = deque(maxlen=stages + 2)
        """The last ones, by what they follow from: of batches that take turns, as many
        as a pipeline has stages; two more for requests that enter, and that come late,
        with drafts."""

    def __bool__(self) -> bool:
        return bool(self._running)

    def update(self) -> tuple[list[int], list[int]]:
        """End requests that have left, and begin those that have come. The indices of
        the first, and of the second that have a mask."""
        entered = self.entered
        self.entered = {}
        left = []
        # on all ranks in the same order
        for name, (index, guided) in [*self._running.items()]:
            if name in self.engine.left or index in entered:
                left.append(index)
                self.slots[index] = UNGUIDED
                self.engine.end(guided)
                del self._running[name]
        for index, params in entered.items():
            if engine_spec(params) is None:
                continue
            guided = self.engine.begin(params, self._produced(index))
            self._running[guided.request_id] = index, guided
            self.slots[index] = guided.slot
        if entered:
            indices = [*entered]
            lengths = self.states.prefill_len.np[indices].tolist()
            there, values = self.upload([*indices, *lengths]).chunk(2)
            # Not `lengths[there] = values`: that waits for the device.
            self._lengths.index_copy_(0, there, values.to(torch.int32))
        if left or entered:
            self._plans.clear()
            self.forced = ForcedRows(self._running.values(), self.upload)
        return left, [one for one in entered if self.slots[one] != UNGUIDED]

    def members(self, indices: NDArray[np.intp]) -> Members:
        """Return which of these requests have a mask."""
        found = np.zeros(len(self.slots), np.bool_)
        found[indices] = self.slots[indices] != UNGUIDED
        return found

    def scheduled(self, names: Sequence[str] | None) -> Members:
        """Return which requests of a step have a mask; None is all."""
        found: Members = self.slots != UNGUIDED
        if names is not None:
            skipped = self._running.keys() - set(names)
            found[[self._running[name][0] for name in skipped]] = False
        return found

    def plan(self, key: object, members: Callable[[], Members]) -> Plan:
        """The plan of these, which follow from the key until some come or go."""
        for known, plan in self._plans:
            if known == key:
                return plan
        planned = np.flatnonzero(members())
        size = len(self.slots)
        places = np.full(size + len(planned), -1)
        places[planned], places[size:] = np.arange(len(planned)), planned
        there = self.upload(places)
        slots = tuple(self.slots[planned].tolist())
        plan = Plan(slots, there[:size].to(torch.int32), there[size:])
        self._plans.append((key, plan))
        return plan

    def _produced(self, index: int) -> list[int]:
        """The output of a request that was preempted and is back."""
        prompt = int(self.states.prompt_len.np[index])
        end = int(self.states.prefill_len.np[index])
        if end <= prompt:
            return []
        # The device is waited for, which is rare enough.
        output: list[int] = self.states.all_token_ids.gpu[index, prompt:end].tolist()
        return output

    @property
    def histories(self) -> tuple[Tensor, Tensor, Tensor]:
        """By index: lengths as they were taken, lengths as they are, the tokens."""
        return self._lengths, self.states.total_len.gpu, self.states.all_token_ids.gpu


class V2Runner:
    """The processor behind `GuidedLogitsProcessor` in a V2 runner. In a step vLLM calls

    add_request             of requests that enter
    apply_staged_writes     plan, fill_mask
       forward
    mask                    in place of apply_mask
    apply                   of rows that need more than a mask
       sample, append
    appended                schedule_update, finish_update
    """

    def __init__(self, vllm_config: Any, states: Any) -> None:
        self.engine = Engine(vllm_config, states.device, states.max_num_reqs, Part.V2)
        self.requests = IndexedRequests(self.engine, states)
        self._kernels = indexed_kernels(states.device)
        self._positions = drafts_of(vllm_config) + 1
        self._plan: Plan | None = None
        """That of this step."""
        self._applied = False
        """True if its masks were used."""
        self.wrapped = self.engine.unsupported_reason is None
        """True if vLLM's sampler calls `mask`."""
        if self.wrapped:
            self._pipeline = self.engine.pipeline
            self.engine.appended = self.appended
            patch(When.V2)
            if self.engine.hooks is not None:
                patch(When.SAMPLE)
            # the model's logits, and those that vLLM has copied
            kinds = {torch.float32, vllm_config.model_config.dtype}
            load_kernels(
                states.device,
                kinds,
                states.vocab_size,
                self._pipeline.vocabulary_size,
                self.requests.histories,
                self._pipeline.drafts,
            )

    def add_request(self, index: int, params: Any) -> bool:
        """A request enters at an index of the runner's tables. Returns whether vLLM
        must call `apply` for it."""
        guided = engine_spec(params) is not None
        if guided or self.requests:
            self.requests.entered[index] = params
        return guided and (not self.wrapped or limits_of(params) != "")

    @timed
    def apply_staged_writes(self) -> None:
        """Before a forward pass: requests come and go, and masks are filled."""
        requests = self.requests
        if not (requests or requests.entered):
            return
        if requests.entered or self.engine.left:
            requests.update()
        names = self.engine.scheduled
        self._plan = plan = requests.plan(names, partial(requests.scheduled, names))
        if plan.slots:
            self._pipeline.plan(plan.slots)
            self._pipeline.fill_mask()

    @timed
    def mask(self, logits: Tensor, context: Any) -> None:
        """Mask the guided rows of the batch, or of a part of it, before vLLM copies
        what needs processing."""
        if not self.requests:
            return
        self._mask(logits, context)
        if self.requests.forced:
            self.requests.forced.masked(logits, context.expanded_idx_mapping)

    @timed
    def apply(self, logits: Tensor, context: Any) -> Tensor:
        """Rows that need more than a mask, after what vLLM itself forbids."""
        rows = context.expanded_idx_mapping, context.expanded_local_pos
        self.requests.forced.spare(
            logits, *rows, self._positions, self.engine.failed.limited
        )
        return logits

    @timed
    def appended(self) -> None:
        """The tokens of a step are in the histories: they go to the grammars."""
        if not self._applied or self._plan is None:
            return
        self._applied = False
        if self.engine.serves:
            tokens = self._kernels.take_tokens(
                self._plan.order,
                *self.requests.histories,
                self._pipeline.token_sink(),
            )
            if tokens is not None:
                self._pipeline.schedule_update(tokens)
        self._pipeline.finish_update()

    def _mask(self, logits: Tensor, context: Any) -> None:
        if self._plan is not None and self._plan.slots:
            self._kernels.mask_rows(
                logits,
                self._pipeline.take_masks(logits),
                context.expanded_idx_mapping,
                self._plan.table,
                self._pipeline.vocabulary_size,
            )
            self._applied = True
