"""vLLM's V2 model runner, through its official interface alone. Imports vLLM's types only to be told of them.

    add_request           a request enters at an index of the runner's tables
    apply_staged_writes   before each forward pass: the last step's tokens, plan, fill_mask
    apply                 in the sampler: the masks, row by row through the runner's own index

V2 never says that a request has ended: its index just stops appearing in batches, until another request gets
it. So what ran last and what is new is planned; whoever skips a step keeps its state, and is planned again
when it is back. Mask rows are in an order of our own: a table on the device leads from a request's index to
its mask.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from guided_plugin.hosts.vllm.common import GUIDED, REQUEST
from guided_plugin.hosts.vllm.engine import Engine, GuidedRequest
from guided_plugin.hosts.vllm.rows import Fragile, close_rows, spare_rows, upload
from guided_plugin.kernels.indexed import gather_tokens, mask_indexed_rows, publish_tokens
from guided_plugin.step import NEVER, UNGUIDED, TokenSink

__all__ = ["V2Runner"]


class V2Runner:
    """The processor behind `GuidedLogitsProcessor` in a V2 runner."""

    def __init__(self, vllm_config: Any, states: Any) -> None:
        self.engine = Engine(vllm_config, states.device, states.max_num_reqs)
        self._states = states
        self._device: torch.device = states.device
        self._entered: dict[int, Any] = {}
        """Params by index, of requests that came since the last step; None for those that nothing guides."""
        self._requests: dict[int, GuidedRequest] = {}
        """By index; those that ended stay until their index is used again."""
        self._planned: list[int] = []
        """Indices, in the order of the mask rows."""
        self._slots: tuple[int, ...] = ()
        """The same as slots."""
        self._running: list[int] = []
        """Those of the planned that were in the last batch."""
        self._applied = False
        """Whether there was a batch since the last plan."""
        self._batch = b""
        """The indices of the last batch that was looked at, as bytes."""
        self._stale = True
        """Whether it must be looked at again though it is the same."""
        self._closed: list[tuple[int, int]] = []
        """Where closed requests are, with their stop tokens."""
        self._fragile: list[Fragile] = []
        self._limited: list[GuidedRequest] = []
        """The fragile requests."""
        self._spent = 0.0
        """Seconds of the host's thread in this step so far."""
        # [max requests] int32, device: index -> mask row, -1 where there is none
        self._table = torch.full((states.max_num_reqs,), -1, dtype=torch.int32, device=self._device)
        # [max requests] int32, device: how long each history was when its last token was taken
        self._lengths = torch.full((states.max_num_reqs,), NEVER, dtype=torch.int32, device=self._device)
        # [planned] int64, device
        self._order = torch.zeros(0, dtype=torch.int64, device=self._device)
        if self.engine.unsupported_reason is None:
            self._size = self.engine.pipeline.compiler.vocabulary.size
            if self._device.type == "cuda":
                self._warm_up()

    def add_request(self, index: int, params: Any) -> bool:
        """A request enters; whatever had the index before is over."""
        extra = params.extra_args
        guided = bool(extra) and extra.get(GUIDED) is not None
        if guided or index in self._requests or index in self._entered:
            self._entered[index] = params if guided else None
        return guided

    def apply_staged_writes(self) -> None:
        """Before a forward pass."""
        if not self._requests and not self._entered:
            return
        start = time.perf_counter()
        entered, ran = self._entered, self._applied
        if entered and self._planned:
            # Their histories are other requests' now.
            self._lengths[self._upload(list(entered))] = NEVER
        if ran:
            self._applied = False
            self._finish()
        # In most steps whoever was planned ran, and nobody is new: then nothing is looked at row by row.
        if entered or not ran or len(self._running) != len(self._planned):
            self._entered = {}
            running = self._running if ran else []
            new = self._enter(entered)
            planned = [index for index in running if index not in entered and index in self._requests]
            planned += new
            if planned != self._planned or entered:
                self._plan(planned)
        if self._planned:
            pipeline = self.engine.pipeline
            pipeline.plan(self._slots)
            pipeline.fill_mask()
        self._spent = time.perf_counter() - start

    def apply(self, logits: Tensor, context: Any) -> Tensor:
        """Mask the guided rows of the batch."""
        if not self._requests:
            return logits
        start = time.perf_counter()
        batch = context.idx_mapping_np
        if self._stale or batch.tobytes() != self._batch:
            self._follow(batch)
        if self._planned:
            self._mask(logits, context)
        if self._closed or self._fragile:
            self._force_stop(logits, context)
        self.engine.spent(self._spent + time.perf_counter() - start)
        self._spent = 0.0
        return logits

    def _mask(self, logits: Tensor, context: Any) -> None:
        masks = self.engine.pipeline.take_masks(logits)
        mask_indexed_rows(logits, masks, context.expanded_idx_mapping, self._table, self._size)
        self._applied = True

    def _force_stop(self, logits: Tensor, context: Any) -> None:
        mask = self.engine.pipeline.mask if self._fragile else None
        if self._closed:
            close_rows(logits, self._closed)
        if mask is not None:
            self.engine.spared(self._limited, spare_rows(logits, self._fragile, mask))

    def _finish(self) -> None:
        """Hand on the tokens of the last step."""
        pipeline = self.engine.pipeline
        sink = pipeline.token_sink()
        if sink is None:
            pipeline.schedule_update(gather_tokens(self._order, *self._histories))
        else:
            publish_tokens(self._order, *self._histories, sink)
        pipeline.finish_update()

    def _enter(self, entered: dict[int, Any]) -> list[int]:
        """Begin what is new, end what had its index. The indices that are to be planned."""
        new = []
        for index, params in entered.items():
            self._leave(index)
            if params is not None and self.engine.runs(params.extra_args.get(REQUEST)):
                self._leave_older(params.extra_args[REQUEST])
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

    def _leave_older(self, request_id: str) -> None:
        """A preempted request comes back at another index than it had."""
        for index in [at for at, one in self._requests.items() if one.request_id == request_id]:
            self._leave(index)

    def _begin(self, index: int, params: Any) -> GuidedRequest | None:
        prompt = int(self._states.prompt_len.np[index])
        end = int(self._states.prefill_len.np[index])
        if end <= prompt:
            return self.engine.begin(params)
        # Preempted, and back with what it had produced. The device is waited for, which is rare enough.
        return self.engine.begin(params, self._states.all_token_ids.gpu[index, prompt:end].tolist())

    def _follow(self, batch: Any) -> None:
        """What follows from which requests are in the batch."""
        running = set(self._present(batch))
        back = running.difference(self._planned)
        if back:
            self._plan([*self._planned, *sorted(back)])
            self._stale = False
            self.engine.pipeline.plan(self._slots)
            self.engine.pipeline.fill_mask()
        self._running = [index for index in self._planned if index in running]
        self._find_fragile(batch)

    def _present(self, batch: Any) -> list[int]:
        """The indices of a batch that have masks; remembers the batch, and which of it are closed."""
        self._batch, self._stale = batch.tobytes(), False
        there = [(row, index) for row, index in enumerate(batch.tolist()) if index in self._requests]
        guided = [(self._place(row, index), self._requests[index]) for row, index in there]
        self._closed = [(place, one.stop) for place, one in guided if one.slot == UNGUIDED]
        return [index for _, index in there if self._requests[index].slot != UNGUIDED]

    def _find_fragile(self, batch: Any) -> None:
        """Remember which requests of a planned batch are fragile."""
        self._fragile, self._limited = [], []
        for row, index in enumerate(batch.tolist()):
            one = self._requests.get(index)
            if one is not None and one.slot != UNGUIDED and one.limits:
                self._fragile.append(Fragile(self._place(row, index), self._planned.index(index), one.stop))
                self._limited.append(one)

    def _place(self, row: int, index: int) -> int:
        """By what a row of a batch is found in the logits."""
        return row

    @property
    def _histories(self) -> tuple[Tensor, Tensor, Tensor]:
        """By index: lengths as they were taken, lengths as they are, the tokens."""
        return self._lengths, self._states.total_len.gpu, self._states.all_token_ids.gpu

    def _plan(self, planned: list[int]) -> None:
        self._planned = planned
        self._slots = tuple(self._requests[index].slot for index in planned)
        self._order = self._upload(planned)
        self._table.fill_(-1)
        self._table[self._order] = torch.arange(len(planned), dtype=torch.int32, device=self._device)
        self._stale = True

    def _upload(self, indices: list[int]) -> Tensor:
        return upload(torch.tensor(indices, dtype=torch.int64), self._device)

    def _warm_up(self) -> None:
        """Load the kernels now: the first time takes a tenth of a second and waits for the device."""
        width = self._states.vocab_size
        words = self.engine.pipeline.compiler.vocabulary.words
        logits = torch.zeros(1, width, device=self._device)
        mask = torch.zeros(1, words, dtype=torch.int32, device=self._device)
        nobody = torch.zeros(1, dtype=torch.int64, device=self._device)  # as vLLM's own indices are
        mask_indexed_rows(logits, mask, nobody, self._table, self._size)
        tokens = gather_tokens(nobody, *self._histories)
        publish_tokens(nobody, *self._histories, TokenSink(tokens.data_ptr(), nobody.data_ptr(), 0))
