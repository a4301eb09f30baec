"""vLLM's V2 model runner, through its official interface; what it shows besides is wrapped in `logits`.

    add_request           a request enters at an index of the runner's tables
    apply_staged_writes   before each forward pass: the last step's tokens, plan, fill_mask
    show, shown           batch-sharded sampling: the whole batch, before and after the sampler has a part
    mask_early            in the sampler: the masks, row by row through the runner's own index
    apply                 in the sampler, where a request needs processing by vLLM: rows that need more than
                          a mask; the masks too where vLLM's sampler could not be wrapped

V2 never says that a request has ended: its index just stops appearing in batches, until another request gets
it. So what ran last and what is new is planned; a request that skips a step keeps its state, and is planned
again when it is back. Under pipeline parallelism as many batches as there are stages take turns: there "last"
is the last time that it was this batch's turn. Mask rows are in an order of our own: a table on the device
leads from a request's index to its mask.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from guided_plugin.hosts.vllm.common import GUIDED, REQUEST, shards
from guided_plugin.hosts.vllm.engine import Engine, limits_of
from guided_plugin.hosts.vllm.logits import (
    ForcedRows,
    GuidedRequest,
    PlannedBatch,
    upload,
)
from guided_plugin.hosts.vllm.names import Part, When
from guided_plugin.hosts.vllm.patches import broken, patch
from guided_plugin.kernels import indexed_kernels
from guided_plugin.step import NEVER, UNGUIDED, TokenSink


class V2Runner:
    """The processor behind `GuidedLogitsProcessor` in a V2 runner."""

    needs: tuple[Part, ...] = (Part.V2,)

    def __init__(self, vllm_config: Any, states: Any) -> None:
        self.engine = Engine(vllm_config, states.device, states.max_num_reqs, *self.needs)
        self._states = states
        self._kernels = indexed_kernels(states.device)
        self._entered: dict[int, Any] = {}
        """Params by index, of requests that came since the last step; None for those that nothing guides."""
        self._requests: dict[int, GuidedRequest] = {}
        """By index; those that ended stay until their index is used again."""
        stages = vllm_config.parallel_config.pipeline_parallel_size
        self._turns = deque(PlannedBatch(states.max_num_reqs, states.device) for _ in range(stages))
        self._batch = self._turns[0]
        """Whose turn it is."""
        self._early = False
        """Whether this runner's sampler was seen to call `mask_early`: guided requests need no processing by
        vLLM then, and no copy of the logits is made for them."""
        self._applied = False
        """Whether masks were used since the last plan."""
        self._whole: Any = None
        """vLLM's own batch, where this rank samples a part of it."""
        self._masks: Tensor | None = None
        """Those of this step, once they are taken: a batch may come in parts, and be masked twice."""
        self._masked = False
        """Whether the logits that `apply` will be called with have their masks."""
        self._spent = 0.0
        """Seconds of the host's thread in this step so far."""
        # [max requests] int32, device: how long each history was when its last token was taken
        self._lengths = torch.full((states.max_num_reqs,), NEVER, dtype=torch.int32, device=states.device)
        if self.engine.unsupported_reason is None:
            self._pipeline = self.engine.pipeline
            patch(When.V2)
            if self.engine.hooks is not None and broken(Part.HOOKS):
                self.engine.hooks = None
            if self.engine.hooks is not None or shards(vllm_config):
                patch(When.SAMPLE)
            if states.device.type == "cuda":
                self._warm_up()

    def add_request(self, index: int, params: Any) -> bool:
        """A request enters; what had the index before is over. Whether vLLM must call `apply` for it."""
        extra = params.extra_args
        guided = bool(extra) and extra.get(GUIDED) is not None
        if guided or index in self._requests or index in self._entered:
            self._entered[index] = params if guided else None
        return guided and (not self._early or limits_of(params) != "")

    def apply_staged_writes(self) -> None:
        """Before a forward pass."""
        if not self._requests and not self._entered:
            return
        self._begin_step()
        start = time.perf_counter()
        entered = self._entered
        if entered and self._requests:
            # Their histories are other requests' now.
            self._lengths[self._upload(list(entered))] = NEVER
        if self._applied:
            self._applied = False
            self._finish()
        self._turn()
        batch = self._batch
        # In most steps all that was planned ran, and nothing is new: then no row is looked at.
        if entered or not batch.ran or len(batch.running) != len(batch.planned):
            self._replan(entered, batch.running if batch.ran else [])
        batch.ran = False
        if batch.planned:
            self._pipeline.plan(batch.slots)
            self._pipeline.fill_mask()
        self._spent += time.perf_counter() - start

    def show(self, batch: Any) -> None:
        """The whole batch, of which the sampler will be called with a part, or not at all."""
        if not self._requests:
            return
        start = time.perf_counter()
        self._whole = batch
        self._see(batch.idx_mapping_np)
        self._spent += time.perf_counter() - start

    def shown(self) -> None:
        """The sampler is done with its part. The masks were a step of this rank, also where it had no row."""
        whole = self._whole
        if whole is None:
            return
        if self._batch.planned:
            if self._masks is None:
                self._take_masks(None, whole)
            self._look_at_stops()
        self._masks = self._whole = None

    def mask_early(self, logits: Tensor, context: Any, *, again: bool = False) -> None:
        """Mask the guided rows of the batch, or of a part of it, before vLLM copies what needs processing.
        `again`: `apply` masks too, as other processors come between."""
        self._early = not again
        if not self._requests:
            return
        start = time.perf_counter()
        self._mask(logits, context)
        self._batch.forced.close(logits, context.expanded_idx_mapping)
        self._masked = not again
        if self._masked and self._whole is None:
            self._masks = None
        self._spent += time.perf_counter() - start

    def apply(self, logits: Tensor, context: Any) -> Tensor:
        """Rows that need more than a mask, after what vLLM itself forbids."""
        if not self._requests:
            return logits
        start = time.perf_counter()
        if not self._masked:
            self._mask(logits, context)
        self._batch.forced.close(logits, context.expanded_idx_mapping)
        self._batch.forced.spare(logits, context.expanded_idx_mapping)
        if self._whole is None:
            self._look_at_stops()
            self._masks = None
        self._spent += time.perf_counter() - start
        return logits

    def slots_of(self, batch: Any) -> Sequence[int]:
        """The slot of each row of a batch, for hooks."""
        requests = map(self._requests.get, batch.idx_mapping_np.tolist())
        return [UNGUIDED if request is None else request.slot for request in requests]

    def _begin_step(self) -> None:
        self._masked, self._masks = False, None
        if self._spent:
            self.engine.seconds.add(self._spent)
            self._spent = 0.0

    def _mask(self, logits: Tensor, context: Any) -> None:
        if self._whole is None:
            self._see(context.idx_mapping_np)
        if self._batch.planned:
            if self._masks is None:
                self._masks = self._take_masks(logits, context)
            self._mask_rows(logits, self._masks, context)

    def _see(self, indices: Any) -> None:
        """The requests of a whole batch."""
        batch, seen = self._batch, indices.tobytes()
        batch.ran = True
        if seen != batch.seen:
            self._follow(indices)
            batch.forced, batch.seen = self._forced(indices), seen

    def _take_masks(self, logits: Tensor | None, context: Any) -> Tensor:
        masks = self._pipeline.take_masks(logits)
        self._applied = True
        return masks

    def _mask_rows(self, logits: Tensor, masks: Tensor, context: Any) -> None:
        size = self._pipeline.vocabulary_size
        self._kernels.mask_rows(logits, masks, context.expanded_idx_mapping, self._batch.table, size)

    def _look_at_stops(self) -> None:
        """Which stop tokens the grammars forbid, of rows that may have been given one."""
        forced = self._batch.forced
        if forced.fragile and (mask := self._pipeline.mask) is not None:
            self.engine.limited(forced.limited, forced.refused_stops(mask, self._pipeline.drafts))

    def _turn(self) -> None:
        if len(self._turns) > 1:
            self._turns.rotate(-1)
            self._batch = self._turns[0]

    def _finish(self) -> None:
        """Hand on the tokens of the last step, where the grammars are."""
        pipeline, order = self._pipeline, self._batch.order
        if self.engine.leads and pipeline.planned:
            tokens = self._kernels.take_tokens(order, *self._histories, pipeline.token_sink())
            if tokens is not None:
                pipeline.schedule_update(tokens)
        pipeline.finish_update()

    def _replan(self, entered: dict[int, Any], running: list[int]) -> None:
        """Plan what ran last and what is new."""
        self._entered = {}
        new = self._enter(entered)
        for batch in self._turns if entered else ():
            batch.look_again()
        planned = [index for index in running if index not in entered and index in self._requests]
        planned += new
        if planned != self._batch.planned or entered:
            self._plan(planned)

    def _enter(self, entered: dict[int, Any]) -> list[int]:
        """Begin what is new, end what had its index. The indices that are to be planned."""
        new = []
        for index, params in entered.items():
            self._leave(index)
            if params is not None and self.engine.runs(params.extra_args.get(REQUEST)):
                # A preempted request comes back at another index than it had.
                name = params.extra_args[REQUEST]
                for older in [at for at, one in self._requests.items() if one.request_id == name]:
                    self._leave(older)
            guided = self._begin(index, params) if params is not None else None
            if guided is not None:
                self._requests[index] = guided
                if guided.slot != UNGUIDED:
                    new.append(index)
        if new:
            there = self._upload(new)
            self._lengths[there] = self._states.total_len.gpu[there]
        return new

    def _leave(self, index: int) -> None:
        """What had an index is over."""
        old = self._requests.pop(index, None)
        if old is not None:
            self.engine.end(old)
            for batch in self._turns:
                batch.leave(index)

    def _begin(self, index: int, params: Any) -> GuidedRequest | None:
        prompt = int(self._states.prompt_len.np[index])
        end = int(self._states.prefill_len.np[index])
        if end <= prompt:
            return self.engine.begin(params)
        # Preempted, and back with what it had produced. The device is waited for, which is rare enough.
        return self.engine.begin(params, self._states.all_token_ids.gpu[index, prompt:end].tolist())

    def _follow(self, indices: Any) -> None:
        """Adapt to the requests of a batch, and plan again if one of them is not planned."""
        batch = self._batch
        running = {index for index in indices.tolist() if self._has_slot(index)}
        back = running.difference(batch.planned)
        if back:
            self._plan([*batch.planned, *sorted(back)])
            self._pipeline.plan(batch.slots)
            self._pipeline.fill_mask()
        batch.running = [index for index in batch.planned if index in running]

    def _has_slot(self, index: int) -> bool:
        request = self._requests.get(index)
        return request is not None and request.slot != UNGUIDED

    def _forced(self, indices: Any) -> ForcedRows:
        """Which of these requests need more than a mask."""
        forced = ForcedRows()
        places = {index: place for place, index in enumerate(self._batch.planned)}
        for index in indices.tolist():
            request = self._requests.get(index)
            if request is not None:
                forced.add(index, places.get(index, -1), request)
        return forced

    @property
    def _histories(self) -> tuple[Tensor, Tensor, Tensor]:
        """By index: lengths as they were taken, lengths as they are, the tokens."""
        return self._lengths, self._states.total_len.gpu, self._states.all_token_ids.gpu

    def _plan(self, planned: list[int]) -> None:
        slots = tuple(self._requests[index].slot for index in planned)
        self._batch.plan(planned, slots, self._upload(planned))

    def _upload(self, indices: list[int]) -> Tensor:
        return upload(torch.tensor(indices, dtype=torch.int64), self._states.device)

    def _warm_up(self) -> None:
        """Load the kernels now: the first time takes a tenth of a second and waits for the device."""
        device, vocabulary = self._states.device, self._pipeline.compiler.vocabulary
        mask = torch.zeros(1, vocabulary.words, dtype=torch.int32, device=device)
        # Of the types that vLLM's own have.
        none = torch.zeros(1, dtype=torch.int64, device=device)
        first = torch.zeros(1, dtype=torch.int32, device=device)
        context = SimpleNamespace(expanded_idx_mapping=none, expanded_local_pos=first)
        # The model's logits, and those that vLLM has copied.
        for kind in {torch.float32, getattr(self.engine.config.model_config, "dtype", torch.float32)}:
            logits = torch.zeros(1, self._states.vocab_size, dtype=kind, device=device)
            self._mask_rows(logits, mask, context)
        self._warm_up_tokens(none, first)

    def _warm_up_tokens(self, none: Tensor, first: Tensor) -> None:
        ring, word = torch.zeros(2, 1, dtype=torch.int64, device=none.device)
        self._kernels.take_tokens(none, *self._histories, TokenSink(ring.data_ptr(), word.data_ptr(), 0))
