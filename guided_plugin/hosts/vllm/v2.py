"""vLLM's V2 model runner, through its official interface; what it shows besides is
wrapped in `logits`.

V2 never says that a request has ended: its index just stops appearing in batches, until
another request gets it. So what ran last and what is new is planned; a request that
skips a step keeps its state, and is planned again when it is back. Under pipeline
parallelism as many batches as there are stages take turns: there "last" is the last
time that it was this batch's turn. Mask rows are in an order of our own: a table on the
device leads from a request's index to its mask.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from guided_plugin.hosts.vllm.common import engine_spec
from guided_plugin.hosts.vllm.engine import Engine, limits_of
from guided_plugin.hosts.vllm.logits import ForcedRows, GuidedRequest, Uploads
from guided_plugin.hosts.vllm.names import Part, When
from guided_plugin.hosts.vllm.patches import broken, patch
from guided_plugin.kernels import indexed_kernels
from guided_plugin.step import NEVER, UNGUIDED, TokenSink

Indices: TypeAlias = NDArray[np.intp]
"""Of requests, in a runner's tables."""

NONE: Indices = np.zeros(0, np.intp)


class IndexedRequests:
    """The guided requests of a V2 runner by their index in its tables, and their
    histories there."""

    def __init__(self, engine: Engine, states: Any) -> None:
        self.engine = engine
        self.states = states
        self.entered: dict[int, Any] = {}
        """Params of requests that came since the last step; None for those that nothing
        guides."""
        self._running: dict[int, GuidedRequest] = {}
        """Those that ended stay until their index is used again."""
        self._places: dict[str, int] = {}
        """Their indices by their names."""
        self._forced: set[int] = set()
        """Those of them that need more than a mask."""
        self.slots = np.full(states.max_num_reqs, UNGUIDED, np.int32)
        """By index; UNGUIDED where a request has no mask."""
        # [max requests] int32, device: how long each history was when its last token
        # was taken
        self._lengths = torch.full(
            (states.max_num_reqs,), NEVER, dtype=torch.int32, device=states.device
        )
        self.upload = Uploads(2 * states.max_num_reqs, states.device)

    def __bool__(self) -> bool:
        return bool(self._running)

    def masked(self, indices: Indices) -> Indices:
        """Those that have a mask."""
        found: Indices = indices[self.slots[indices] != UNGUIDED]
        return found

    def those(self, indices: Indices | list[int]) -> NDArray[np.bool_]:
        """By index, whether it is one of these."""
        found = np.zeros(len(self.slots), np.bool_)
        found[indices] = True
        return found

    def add(self, index: int, params: Any) -> bool:
        """A request has come; what had its index before is over. Whether it is
        guided."""
        guided = engine_spec(params) is not None
        if guided or index in self._running or index in self.entered:
            self.entered[index] = params if guided else None
        return guided

    def enter(self) -> Tensor:
        """The histories of what has come begin; its indices, on the device."""
        entered = list(self.entered)
        lengths = [
            NEVER
            if self.entered[index] is None
            else int(self.states.prefill_len.np[index])
            for index in entered
        ]
        there, values = self.upload([*entered, *lengths]).chunk(2)
        # Not `lengths[there] = NEVER`: that copies the number to the device, and waits
        # for it.
        self._lengths.index_copy_(0, there, values.to(torch.int32))
        return there

    def begin(self) -> Indices:
        """Begin what has come, end what had its index. The indices that have a mask
        from now on."""
        entered = self.entered
        self.entered = {}
        for index, params in entered.items():
            self._leave(index)
            guided = (
                None
                if params is None
                else self.engine.begin(params, self._produced(index))
            )
            if guided is not None:
                # It was preempted, and its old place was never given to another.
                self._leave(self._places.get(guided.request_id, index))
                self._running[index], self._places[guided.request_id] = guided, index
                self.slots[index] = guided.slot
                if guided.slot == UNGUIDED or guided.limits:
                    self._forced.add(index)
        return self.masked(np.fromiter(entered, np.intp, len(entered)))

    def due(self, running: Indices, new: Indices) -> Indices:
        """The requests of the step that begins, without new ones: those that ran last,
        unless some skip it or are back."""
        names = self.engine.scheduled
        if names is None:
            return running
        there = self.those([self._places[one] for one in self._places.keys() & names])
        there[new] = False
        stays = there[running]
        there[running] = False
        back = self.masked(np.flatnonzero(there))
        if stays.all() and not len(back):
            return running
        return np.concatenate([running[stays], back])

    def forced(self, indices: Indices, planned: Indices) -> ForcedRows:
        """Which of these requests need more than a mask. `planned`: in the order of the
        mask rows."""
        rows = []
        if self._forced:
            places = dict(zip(planned.tolist(), range(len(planned)), strict=True))
            rows = [
                (index, places.get(index, -1), self._running[index])
                for index in self._forced.intersection(indices.tolist())
            ]
        return ForcedRows(rows, self.states.device)

    def _leave(self, index: int) -> None:
        old = self._running.pop(index, None)
        if old is not None:
            self.engine.end(old)
            del self._places[old.request_id]
            self._forced.discard(index)
            self.slots[index] = UNGUIDED

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


class PlannedBatch:
    """What is planned for a batch, and what follows from that. Under pipeline
    parallelism as many batches as there are stages take turns, each with requests of
    its own; else there is one."""

    def __init__(self, max_requests: int, device: torch.device) -> None:
        self.planned = self.running = NONE
        """Indices, in the order of the mask rows; those of them that were there when it
        ran last."""
        self.slots: tuple[int, ...] = ()
        """Those of the planned."""
        self.ran = False
        """Whether it ran since its last plan."""
        self.seen: bytes | None = None
        """The indices of its requests when it was last looked at; None: look at the
        next one, whatever it is."""
        self.forced = ForcedRows((), device)
        """Which of its rows need more than a mask."""
        self.masks: Tensor | None = None
        """Those of the rows in the sampler."""
        self.count = 0
        """With drafts: masks of a position."""
        # [max requests] int32, device: index -> mask row, -1 where there is none
        self.table = torch.full((max_requests,), -1, dtype=torch.int32, device=device)
        # [planned] int64, device
        self.order = torch.zeros(0, dtype=torch.int64, device=device)

    def plan(self, planned: Indices, requests: IndexedRequests) -> None:
        """Plan these indices."""
        self.planned, self.slots = planned, tuple(requests.slots[planned].tolist())
        size = len(self.table)
        places = np.full(size + len(planned), -1)
        places[planned], places[size:] = np.arange(len(planned)), planned
        there = requests.upload(places)
        self.table.copy_(there[:size])
        self.order = there[size:]
        self.seen = None


class V2Runner:
    """The processor behind `GuidedLogitsProcessor` in a V2 runner. In a step vLLM calls

    add_request             of requests that enter
    apply_staged_writes     schedule_update, finish_update, plan, fill_mask
       forward
    mask                    in place of apply_mask
    apply                   of rows that need more than a mask
       sample, append
    """

    needs: tuple[Part, ...] = (Part.V2,)

    def __init__(self, vllm_config: Any, states: Any) -> None:
        self.engine = Engine(
            vllm_config, states.device, states.max_num_reqs, *self.needs
        )
        self.requests = IndexedRequests(self.engine, states)
        self._kernels = indexed_kernels(states.device)
        stages = vllm_config.parallel_config.pipeline_parallel_size
        self._turns = deque(
            PlannedBatch(states.max_num_reqs, states.device) for _ in range(stages)
        )
        """The batches; the first one's turn it is."""
        self._applied = False
        """Whether masks were used since the last plan."""
        self._sources: list[Any] = []
        """What the masks of the rows in the sampler come from."""
        self._spent = 0.0
        """Seconds of the host's thread in this step so far."""
        self.wrapped = self.engine.unsupported_reason is None
        """Whether vLLM's sampler calls `mask`; else `apply` closes what is guided."""
        if self.wrapped:
            self._pipeline = self.engine.pipeline
            patch(When.V2)
            if self.engine.hooks is not None:
                if broken(Part.HOOKS):
                    self.engine.hooks = None
                else:
                    patch(When.SAMPLE)
            if states.device.type == "cuda":
                self._warm_up(states)

    def add_request(self, index: int, params: Any) -> bool:
        """A request enters at an index of the runner's tables; what had it before is
        over. Returns whether vLLM must call `apply` for it."""
        guided = self.requests.add(index, params)
        return guided and (not self.wrapped or limits_of(params) != "")

    def apply_staged_writes(self) -> None:
        """Before a forward pass: the last step's tokens go to the grammars, and the
        masks of this one are filled."""
        if not self.requests and not self.requests.entered:
            return
        start = self._begin_step()
        entered = list(self.requests.entered)
        if entered:
            self.requests.enter()
        if self._applied:
            self._schedule_update()
            self._pipeline.finish_update()
        self._turns.rotate(-1)
        self._choose(entered)
        if self._batch.slots:
            self._pipeline.plan(self._batch.slots)
            self._pipeline.fill_mask()
        self._spent += time.perf_counter() - start

    def mask(self, logits: Tensor, context: Any) -> None:
        """Mask the guided rows of the batch, or of a part of it, before vLLM copies
        what needs processing."""
        if not self.requests:
            return
        start = time.perf_counter()
        self._take(logits, context)
        indices = context.expanded_idx_mapping
        for batch in self._sources:
            if batch.masks is not None:
                positions = context.expanded_local_pos if batch.count else None
                size = self._pipeline.vocabulary_size
                given = indices, batch.table, size, positions, batch.count
                self._kernels.mask_rows(logits, batch.masks, *given)
            batch.forced.close(logits, indices)
        self._spent += time.perf_counter() - start

    def apply(self, logits: Tensor, context: Any) -> Tensor:
        """Rows that need more than a mask, after what vLLM itself forbids."""
        if not self.requests:
            return logits
        if not self.wrapped:
            self.mask(logits, context)
        start = time.perf_counter()
        for batch in self._sources:
            found = batch.forced.spare(
                logits, context.expanded_idx_mapping, batch.masks, batch.count
            )
            if found is not None:
                self.engine.failed.limited(*found)
        self._spent += time.perf_counter() - start
        return logits

    def slots_of(self, batch: Any) -> Sequence[int]:
        """The slot of each row of a batch, for hooks."""
        slots: list[int] = self.requests.slots[batch.idx_mapping_np].tolist()
        return slots

    @property
    def _batch(self) -> PlannedBatch:
        return self._turns[0]

    def _begin_step(self) -> float:
        if self._spent:
            self.engine.seconds.add(self._spent)
            self._spent = 0.0
        return time.perf_counter()

    def _take(self, logits: Tensor, context: Any) -> None:
        """The masks of the batch in the sampler."""
        batch = self._batch
        seen = context.idx_mapping_np.tobytes()
        batch.ran = True
        if seen != batch.seen:
            self._follow(context.idx_mapping_np)
            batch.forced = self.requests.forced(context.idx_mapping_np, batch.planned)
            batch.seen = seen
        self._sources = [batch]
        batch.masks = None
        if batch.slots:
            batch.masks = self._pipeline.take_masks(logits)
            self._applied = True

    def _schedule_update(self) -> None:
        """Hand on the tokens of the last step, where the grammars are."""
        self._applied = False
        if self.engine.serves:
            tokens = self._kernels.take_tokens(
                self._batch.order,
                *self.requests.histories,
                self._pipeline.token_sink(),
            )
            if tokens is not None:
                self._pipeline.schedule_update(tokens)

    def _choose(self, entered: list[int]) -> None:
        """The requests of the batch whose turn it is: those that ran last, and those
        that have these indices now."""
        batch = self._batch
        new = NONE
        if entered:
            others = ~self.requests.those(entered)
            new = self.requests.begin()
            for one in self._turns:
                one.running = self.requests.masked(one.running[others[one.running]])
                one.seen = None
        planned = self.requests.due(batch.running if batch.ran else NONE, new)
        if len(new) or not (
            planned is batch.planned or np.array_equal(planned, batch.planned)
        ):
            batch.plan(np.concatenate([planned, new]), self.requests)
        batch.ran = False

    def _follow(self, indices: Indices) -> None:
        """Adapt to the requests of a batch, and plan again if one of them is not
        planned."""
        batch = self._batch
        running = self.requests.masked(indices)
        back = running[~self.requests.those(batch.planned)[running]]
        if len(back):
            batch.plan(np.concatenate([batch.planned, np.sort(back)]), self.requests)
            self._pipeline.plan(batch.slots)
            self._pipeline.fill_mask()
        there = self.requests.those(running)[batch.planned]
        batch.running = batch.planned if there.all() else batch.planned[there]

    def _warm_up(self, states: Any) -> None:
        """Load the kernels now: the first time takes a tenth of a second and waits for
        the device. All arguments are of the types that vLLM's own have."""
        kernels = self._kernels
        device = states.device
        vocabulary = self._pipeline.compiler.vocabulary
        drafts = self._pipeline.drafts
        table = self._batch.table
        histories = self.requests.histories
        none = torch.zeros(1, dtype=torch.int64, device=device)
        first = torch.zeros(1, dtype=torch.int32, device=device)
        mask = torch.zeros(1, vocabulary.words, dtype=torch.int32, device=device)
        # The model's logits, and those that vLLM has copied.
        for kind in {torch.float32, self.engine.config.model_config.dtype}:
            logits = torch.zeros(1, states.vocab_size, dtype=kind, device=device)
            size = vocabulary.size
            places = (first, 1) if drafts else ()
            kernels.mask_rows(logits, mask, none, table, size, *places)
        if not drafts:
            ring, word = torch.zeros(2, 1, dtype=torch.int64, device=device)
            sink = TokenSink(ring.data_ptr(), word.data_ptr(), 0)
            kernels.take_tokens(none, *histories, sink)
            return
        cut = torch.zeros(1, drafts + 1, dtype=torch.int8, device=device)
        proposed = torch.zeros(1, drafts, dtype=torch.int64, device=device)
        sure = torch.zeros(1, drafts, dtype=torch.float32, device=device)
        given = none, *histories, table, none
        kernels.gather_drafts(*given, first, first, drafts)
        tokens = kernels.gather_drafts(*given, None, proposed, drafts)
        for confidences in (None, sure):
            kernels.take_offers(
                tokens.data_ptr(), table, none, proposed, confidences, cut, 1
            )
        kernels.cut_drafts(cut, none, first)
