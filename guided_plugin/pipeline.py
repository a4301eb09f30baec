"""`StepPipeline`: the five verbs of a decode step. Touches the grammar table, buffers and kernels.

    plan(n)             which slots sit in which logits rows this step
    fill_mask(n)        the grammar side fills the masks of those rows
    apply_mask(n)       main stream: wait for the masks, mask the logits
       sample           (host)
    schedule_update(n)  side stream: copy the sampled tokens to the host
       append, stop     (host)
    finish_update(n)    the grammars accept the tokens

The grammar side runs inline, in the calling thread. On CUDA nothing but the wait for a step's own token
copy blocks the host: `finish_update` accepts at once what has landed and leaves the rest to the next
`fill_mask`, which a host calls when its next forward pass is already launched.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from guided_plugin.buffers import RING_DEPTH, make_buffers
from guided_plugin.errors import GuidedError, PipelineError
from guided_plugin.grammar.compiler import GrammarCompiler
from guided_plugin.grammar.table import GrammarTable, Phase
from guided_plugin.kernels import mask_rows
from guided_plugin.slots import Slots
from guided_plugin.spec import OutputSpec
from guided_plugin.step import UNGUIDED, RequestInfo, StepStatistics

__all__ = ["StepPipeline"]


@dataclass(frozen=True, slots=True)
class _Plan:
    """The guided rows of a step; reused as long as they don't change."""

    rows: tuple[int, ...]
    slots: tuple[int, ...]


_NOTHING = _Plan((), ())


class StepPipeline:
    """Guides the rows of one decode loop."""

    def __init__(
        self, compiler: GrammarCompiler, *, max_slots: int, device: torch.device | str = "cpu"
    ) -> None:
        self.compiler = compiler
        self.device = torch.device(device)
        self._slots = Slots(max_slots)
        self._requests: dict[int, RequestInfo] = {}
        self._table = GrammarTable(compiler.vocabulary)
        self._buffers = make_buffers(self.device, max_slots, compiler.vocabulary.words)
        self._step = 0
        self._last_slots: tuple[int, ...] = ()
        self._plan = _NOTHING
        self._unaccepted: tuple[_Plan, int] | None = None
        self._width = -1
        self._filled = False
        self._clock = [0.0] * 5
        self.statistics: StepStatistics | None = None
        """Of the last finished step."""

    # Requests

    def add_request(self, request_id: str, spec: OutputSpec, *, tokens: Iterable[int] = ()) -> int:
        """Compile a spec, start it, and give it a slot. `tokens` replays what it had produced before.

        Raises the spec's own error; the pipeline and its other requests are as they were.
        """
        grammar = self.compiler.compile(spec)
        backend = self.compiler.backend(grammar.backend)
        slot = self._slots.take(request_id)
        try:
            self._table.add(slot, request_id, spec, grammar, backend, tokens)
        except GuidedError:
            self._slots.give_back(request_id)
            raise
        self._requests[slot] = RequestInfo(request_id, slot, spec, grammar.backend)
        self.compiler.plugins.request_added(self._requests[slot])
        self._report_failures()
        return slot

    def remove_request(self, request_id: str) -> RequestInfo:
        """End a request, finished or not; its slot is free."""
        slot = self._slots.of(request_id)
        if slot is not None:
            # Its tokens may still be on their way: they count, and must not reach the slot's next user.
            self._settle()
        slot = self._slots.give_back(request_id)
        self._table.remove(slot)
        # Slot numbers come back: a kept plan must not be taken for the new request's.
        self._last_slots, self._plan = (), _NOTHING
        request = self._requests.pop(slot)
        self.compiler.plugins.request_finished(request)
        return request

    def request(self, request_id: str) -> RequestInfo:
        """A running request; its `error` is set once it failed."""
        self._settle()
        return self._requests[self._slot_of(request_id)]

    def tokens(self, request_id: str) -> tuple[int, ...]:
        """What a request has produced, as its grammar saw it."""
        self._settle()
        return self._table.tokens(self._slot_of(request_id))

    def phase(self, request_id: str) -> Phase:
        """Whether a request is waiting for its start, active, done or failed."""
        self._settle()
        return self._table.phase(self._slot_of(request_id))

    # The five verbs

    def plan(self, slots: Sequence[int]) -> None:
        """Say which slot sits in each logits row of this step; UNGUIDED where no grammar does."""
        start = time.perf_counter()
        self._filled = False
        chosen = tuple(slots)
        if chosen != self._last_slots:
            self._settle()
            self._plan = self._make_plan(chosen)
            self._last_slots = chosen
            if self._plan.rows:
                self._buffers.set_rows(self._plan.rows)
        self._clock[0] = time.perf_counter() - start

    def fill_mask(self) -> None:
        """Accept what is left of the last step, then fill this step's masks and send them up."""
        if not self._plan.rows:
            return
        start = time.perf_counter()
        self._settle()
        entry = self._step % RING_DEPTH
        self._table.fill(self._plan.slots, self._buffers.mask_np(entry))
        self._buffers.upload(entry, len(self._plan.rows))
        self._filled = True
        self._report_failures()
        self._clock[1] = time.perf_counter() - start

    def apply_mask(self, logits: Tensor) -> Tensor:
        """Mask the guided rows of [rows, width] logits in place, on the current stream."""
        if not self._plan.rows:
            return logits
        start = time.perf_counter()
        if not self._filled:
            raise PipelineError(
                "apply_mask without fill_mask", hint="the order is plan, fill_mask, apply_mask"
            )
        if logits.shape[1] != self._width:
            self._check_logits(logits)
        if self._plan.rows[-1] >= logits.shape[0]:
            raise PipelineError(
                f"row {self._plan.rows[-1]} is planned, the logits have {logits.shape[0]} rows"
            )
        mask, rows = self._buffers.mask_dev(self._step % RING_DEPTH, len(self._plan.rows))
        mask_rows(logits, mask, rows, self.compiler.vocabulary.size)
        self._clock[2] = time.perf_counter() - start
        return logits

    def schedule_update(self, tokens: Tensor) -> None:
        """Right after sampling: start copying the [rows] sampled tokens to the host."""
        if not self._plan.rows:
            return
        start = time.perf_counter()
        if self._unaccepted is not None:
            raise PipelineError("schedule_update twice in one step", hint="call plan and fill_mask first")
        if tokens.dim() != 1:
            raise PipelineError(f"sampled tokens must be [rows], not {tuple(tokens.shape)}")
        entry = self._step % RING_DEPTH
        self._buffers.download(entry, tokens)
        self._unaccepted = self._plan, entry
        self._clock[3] = time.perf_counter() - start

    def finish_update(self) -> None:
        """After the append and stop kernels: accept the tokens that landed, end the step."""
        start = time.perf_counter()
        guided = len(self._plan.rows)
        if self._unaccepted is not None and self._buffers.landed(self._unaccepted[1]):
            self._settle()
        self._step += 1
        if guided:
            self._clock[4] = time.perf_counter() - start
            self.statistics = StepStatistics(self._step - 1, guided, *self._clock)
            if self.compiler.plugins.wants_statistics:
                self.compiler.plugins.step_finished(self.statistics)

    # Inside

    def _settle(self) -> None:
        """Accept the tokens of the last sampled step, waiting for them if they are still on their way."""
        if self._unaccepted is None:
            return
        (plan, entry), self._unaccepted = self._unaccepted, None
        self._table.accept(plan.slots, self._buffers.tokens(entry))
        self._report_failures()

    def _make_plan(self, slots: tuple[int, ...]) -> _Plan:
        guided = [(row, slot) for row, slot in enumerate(slots) if slot != UNGUIDED]
        for row, slot in guided:
            if slot not in self._requests:
                raise PipelineError(f"slot {slot} of row {row} has no request", hint="call add_request first")
        if len({slot for _, slot in guided}) != len(guided):
            raise PipelineError("a slot is planned for two rows", hint="each request has one row a step")
        return _Plan(tuple(row for row, _ in guided), tuple(slot for _, slot in guided))

    def _check_logits(self, logits: Tensor) -> None:
        if logits.dim() != 2 or not logits.is_floating_point():
            raise PipelineError(
                f"logits must be [rows, width] floats, not {tuple(logits.shape)} {logits.dtype}"
            )
        if logits.device.type != self.device.type:
            raise PipelineError(f"logits are on {logits.device}, the pipeline is on {self.device}")
        self.compiler.vocabulary.check_width(logits.shape[1])
        self._width = logits.shape[1]

    def _report_failures(self) -> None:
        if not self._table.failures:
            return
        failures, self._table.failures = self._table.failures, []
        for slot, error in failures:
            old = self._requests[slot]
            failed = RequestInfo(old.request_id, slot, old.spec, old.backend, error)
            self._requests[slot] = failed
            self.compiler.plugins.request_failed(failed)

    def _slot_of(self, request_id: str) -> int:
        slot = self._slots.of(request_id)
        if slot is None:
            raise PipelineError("is not running", request_id=request_id)
        return slot
