"""`StepPipeline`: the five verbs of a decode step. Touches the grammar side and the kernels.

    plan(n)             which slots sit in which logits rows this step
    fill_mask(n)        the grammar side fills the masks of those rows
    apply_mask(n)       main stream: wait for the masks, mask the logits
       sample           (host)
    schedule_update(n)  the sampled tokens start for the grammars
       append, stop     (host)
    finish_update(n)    the grammars accept the tokens

The grammar side is one of two, with the same calls: `InlineRuntime` works in the calling thread,
`WorkerRuntime` in a process of its own, where the host's thread waits for nothing.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Literal, Protocol

import torch
from torch import Tensor

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.errors import ConfigError, GuidedError, PipelineError, did_you_mean
from guided_plugin.grammar.request_state import Phase
from guided_plugin.kernels import mask_rows
from guided_plugin.metrics import PipelineMetrics, Recent, WorkerMetrics
from guided_plugin.pipeline.inline import InlineRuntime
from guided_plugin.pipeline.slots import Slots
from guided_plugin.spec import OutputSpec
from guided_plugin.step import (
    UNGUIDED,
    Admission,
    Closure,
    RequestInfo,
    StepPlan,
    StepStatistics,
    TokenSink,
)
from guided_plugin.worker.engine.runtime import WorkerRuntime

__all__ = ["MODES", "GrammarRuntime", "Mode", "StepPipeline"]

_log = logging.getLogger(__name__)

Mode = Literal["auto", "inline", "process"]
MODES = ("auto", "inline", "process")


class GrammarRuntime(Protocol):
    """Where the grammars of one pipeline live. Slots are taken and plans are checked before it is called."""

    def prepare(self, spec: OutputSpec) -> Future[Admission]:
        """Have a spec compiled; doesn't wait."""
        ...

    def admit(self, spec: OutputSpec) -> Admission:
        """Wait until a spec has compiled, or raise its error."""
        ...

    def add(self, slot: int, request_id: str, spec: OutputSpec, tokens: Iterable[int]) -> None:
        """Start a request in a slot, after the tokens it had produced before."""
        ...

    def remove(self, slot: int) -> None:
        """Free a slot."""
        ...

    def plan(self, plan: StepPlan) -> None:
        """The next step; it has at least one row."""
        ...

    def fill(self) -> None:
        """Get the step's masks on their way to the device."""
        ...

    def masks(self) -> tuple[Tensor, Tensor]:
        """Masks and row numbers on the device; what is launched next sees them complete."""
        ...

    def sampled(self, tokens: Tensor) -> None:
        """Get the step's tokens on their way to the grammars."""
        ...

    def token_sink(self) -> TokenSink | None:
        """Where a kernel may write the step's tokens itself, if it may; then it must."""
        ...

    def finish(self) -> None:
        """The step is over."""
        ...

    def settle(self, slot: int) -> None:
        """Wait until all that happened to a request is known."""
        ...

    def tokens(self, slot: int) -> tuple[int, ...]:
        """What the request in a slot has produced; settles."""
        ...

    def phase(self, slot: int) -> Phase:
        """Where it is; settles."""
        ...

    def take_failures(self) -> list[tuple[int, GuidedError]]:
        """Slots that failed since the last call."""
        ...

    @property
    def newest(self) -> int:
        """The number of the newest planned step."""
        ...

    def take_closed(self) -> list[Closure]:
        """Requests that were closed since the last call, each with the first step that is closed for it.
        Complete for every step whose masks are there. From any thread."""
        ...

    def refusal(self) -> GuidedError | None:
        """Why a new request would be refused now, if it would. From any thread."""
        ...

    def metrics(self) -> WorkerMetrics:
        """Figures of the worker, if there is one."""
        ...

    def close(self) -> None:
        """End what runs."""
        ...


_NOTHING = StepPlan((), ())
_MAX_CHOICES = 64


class StepPipeline:
    """Guides the rows of one decode loop."""

    def __init__(
        self,
        compiler: GrammarCompiler,
        *,
        max_slots: int,
        device: torch.device | str = "cpu",
        mode: Mode = "auto",
        drafts: int = 0,
    ) -> None:
        """`mode` says where the grammars work: `inline`, `process`, or `auto`: a process where the logits
        live on CUDA. The process starts in the background.

        `drafts`: for hosts that propose up to so many tokens a request and judge them together. The verbs
        of a step are then plan, schedule_update, fill_mask, take_masks, finish_update: see there."""
        self.compiler = compiler
        self.device = torch.device(device)
        self._on_cuda = self.device.type == "cuda"
        self._slots = Slots(max_slots)
        self.drafts = drafts
        self._requests: dict[int, RequestInfo] = {}
        self.runtime = self._make_runtime(mode)
        """Where the grammars live."""
        self.mode = "inline" if isinstance(self.runtime, InlineRuntime) else "process"
        # At the latest when the interpreter exits. The side holds no reference to this object.
        self._finalizer = weakref.finalize(self, self.runtime.close)
        self._step = 0
        self._last_slots: tuple[int, ...] = ()
        self._plan = _NOTHING
        self._width = -1
        self.mask: Tensor | None = None
        """[guided rows, words] int32: the masks that `apply_mask` or `take_masks` last saw."""
        self._filled = self._sampled = False
        self._cut = False
        """Whether a request has left since the plan, which therefore holds no more."""
        self._clock = [0.0] * 5
        self._finished: tuple[int, int, list[float]] | None = None
        """The last finished step: its number, its guided rows, its clock."""
        self._main_thread = Recent()
        self._steps = self._rows = self._failed = 0
        self._choices: dict[tuple[str, str], int] = {}
        self._verdicts: deque[Future[Admission]] = deque()
        """Of requests that nobody waited for, not counted yet. Other threads append."""

    # Requests

    def prepare(self, spec: OutputSpec) -> Future[Admission]:
        """Start compiling a spec, and don't wait. `add_request` is quick once the future has a result."""
        return self.runtime.prepare(spec)

    def add_request(
        self,
        request_id: str,
        spec: OutputSpec,
        *,
        tokens: Iterable[int] = (),
        wait: bool = True,
    ) -> int:
        """Compile a spec, start it, and give it a slot. `tokens` replays what it had produced before.

        Waits for the compile. Raises the spec's own error; the pipeline and its other requests are as
        they were. Without `wait` a spec that does not compile fails its request later on, where the
        grammars work in a process.
        """
        verdict = self.runtime.prepare(spec) if not wait and self.mode == "process" else None
        admission = self.runtime.admit(spec) if verdict is None else Admission("", 0.0)
        slot = self._slots.take(request_id)
        try:
            self.runtime.add(slot, request_id, spec, tokens)
        except GuidedError:
            self._slots.give_back(request_id)
            raise
        self._requests[slot] = RequestInfo(request_id, slot, spec, admission.backend)
        if verdict is None:
            self._count_choice(admission)
        else:
            verdict.add_done_callback(self._verdicts.append)
        self.compiler.plugins.request_added(self._requests[slot])
        self._report_failures()
        return slot

    def remove_request(self, request_id: str) -> RequestInfo:
        """End a request, finished or not; its slot is free."""
        slot = self._slots.give_back(request_id)
        self.runtime.remove(slot)
        self._report_failures()
        # Slot numbers come back: a kept plan must not be taken for the new request's.
        self._cut = self._cut or bool(self._plan.rows)
        self._last_slots, self._plan = (), _NOTHING
        request = self._requests.pop(slot)
        self.compiler.plugins.request_finished(request)
        return request

    def request(self, request_id: str) -> RequestInfo:
        """A running request; its `error` is set once it failed. Waits for the steps so far."""
        slot = self._slot_of(request_id)
        self.runtime.settle(slot)
        self._report_failures()
        return self._requests[slot]

    def tokens(self, request_id: str) -> tuple[int, ...]:
        """What a request has produced, as its grammar saw it. Waits for the steps so far."""
        tokens = self.runtime.tokens(self._slot_of(request_id))
        self._report_failures()
        return tokens

    def phase(self, request_id: str) -> Phase:
        """Whether a request is waiting for its start, active, done or failed. Waits for the steps so far."""
        phase = self.runtime.phase(self._slot_of(request_id))
        self._report_failures()
        return phase

    # The five verbs

    def plan(self, slots: Sequence[int]) -> None:
        """Say which slot sits in each logits row of this step; UNGUIDED where no grammar does. With drafts:
        which slots have logits rows in this step."""
        start = time.perf_counter()
        self._filled = self._sampled = self._cut = False
        chosen = tuple(slots)
        if chosen is not self._last_slots and chosen != self._last_slots:
            self._plan = self._make_plan(chosen)
            self._last_slots = chosen
        # With drafts it is announced when they are there: no worker could do anything with it before.
        if self._plan.rows and not self.drafts:
            self.runtime.plan(self._plan)
        self._clock[0] = time.perf_counter() - start

    def fill_mask(self) -> None:
        """Have this step's masks filled and sent up."""
        if not self._plan.rows:
            return
        start = time.perf_counter()
        if self.drafts and not self._sampled:
            raise PipelineError("the drafts of this step are not there", hint="call schedule_update first")
        self.runtime.fill()
        self._filled = True
        failures = self.runtime.take_failures()
        if failures:
            self._report(failures)
        self._clock[1] = time.perf_counter() - start

    def apply_mask(self, logits: Tensor) -> Tensor:
        """Mask the guided rows of [rows, width] logits in place, on the current stream."""
        if not self._plan.rows:
            self._check_whole()
            return logits
        start = time.perf_counter()
        if self._cut or not self._filled:
            self._check_order()
        if self.drafts:
            raise PipelineError("with drafts a host masks its rows by itself", hint="call take_masks")
        if logits.shape[1] != self._width:
            self._check_logits(logits)
        if self._plan.rows[-1] >= logits.shape[0]:
            raise PipelineError(
                f"row {self._plan.rows[-1]} is planned, the logits have {logits.shape[0]} rows"
            )
        mask, rows = self.runtime.masks()
        mask_rows(logits, mask, rows, self.compiler.vocabulary.size)
        self.mask = mask
        self._clock[2] = time.perf_counter() - start
        return logits

    def take_masks(self, logits: Tensor) -> Tensor:
        """For hosts that mask by themselves: the [guided rows, words] masks of this step, in the order of
        the plan, on the device. What is launched next on the current stream sees them complete.

        With drafts there are `drafts + 1` such blocks, one after the other: the masks after none of a
        request's drafts, after the first, and so on."""
        start = time.perf_counter()
        if self._cut or not self._filled:
            self._check_order()
        if logits.shape[1] != self._width:
            self._check_logits(logits)
        mask, _ = self.runtime.masks()
        self.mask = mask
        self._clock[2] = time.perf_counter() - start
        return mask

    def schedule_update(self, tokens: Tensor) -> None:
        """Right after sampling, on the stream that samples: get the [rows] sampled tokens on their way to the
        grammars. NO_TOKEN says that a row had none, as in the middle of a prompt.

        With drafts, right after `plan`, and blocks in its order: `drafts + 1` with the tokens that were
        sampled for each slot since its last step, then `drafts` with what is proposed to follow them;
        NO_TOKEN where there are no more."""
        if not self._plan.rows:
            return
        start = time.perf_counter()
        if self._sampled:
            raise PipelineError("schedule_update twice in one step", hint="call plan and fill_mask first")
        if tokens.dim() != 1:
            raise PipelineError(f"sampled tokens must be [rows], not {tuple(tokens.shape)}")
        if self.drafts:
            needed = len(self._plan.slots) * (2 * self.drafts + 1)
            if tokens.shape[0] != needed:
                raise PipelineError(f"{needed} sampled and proposed tokens are due, not {tokens.shape[0]}")
        elif self._plan.rows[-1] >= tokens.shape[0]:
            raise PipelineError(f"row {self._plan.rows[-1]} is planned, {tokens.shape[0]} tokens are sampled")
        if tokens.is_cuda != self._on_cuda:
            raise PipelineError(f"tokens are on {tokens.device}, the pipeline is on {self.device}")
        if self.drafts:
            self.runtime.plan(self._plan)
        self.runtime.sampled(tokens)
        self._sampled = True
        self._clock[3] = time.perf_counter() - start

    def token_sink(self) -> TokenSink | None:
        """In place of `schedule_update`, for hosts whose own kernel knows the tokens: where that kernel may
        write them, in the order of the plan. It must be launched on the stream that samples, after that.
        None where tokens have to be handed over."""
        if not self._plan.rows or self._sampled or self.drafts:
            return None
        start = time.perf_counter()
        place = self.runtime.token_sink()
        self._sampled = place is not None
        self._clock[3] = time.perf_counter() - start
        return place

    def finish_update(self) -> None:
        """After the append and stop kernels: let tokens that landed be accepted, end the step."""
        start = time.perf_counter()
        guided = len(self._plan.rows)
        if self._sampled:
            self.runtime.finish()
            failures = self.runtime.take_failures()
            if failures:
                self._report(failures)
        step = self._step
        self._step = step + 1
        if guided:
            self._steps += 1
            self._rows += guided
            clock = self._clock
            clock[4] = time.perf_counter() - start
            self._finished = step, guided, clock[:]
            self._main_thread.add(sum(clock))
            if self.compiler.plugins.wants_statistics:
                self.compiler.plugins.step_finished(StepStatistics(step, guided, *clock))

    # Around them

    @property
    def statistics(self) -> StepStatistics | None:
        """Of the last finished step."""
        if self._finished is None:
            return None
        step, rows, clock = self._finished
        return StepStatistics(step, rows, *clock)

    @property
    def planned(self) -> tuple[int, ...]:
        """The slots of the newest plan, as long as none of its requests has left."""
        return self._last_slots

    def metrics(self) -> PipelineMetrics:
        """Counts and times since the start. Not for every step: it computes medians."""
        while self._verdicts:
            verdict = self._verdicts.popleft()
            if verdict.exception() is None:
                self._count_choice(verdict.result())
        backends: dict[str, int] = {}
        for (backend, _), count in self._choices.items():
            backends[backend] = backends.get(backend, 0) + count
        return PipelineMetrics(
            mode=self.mode,
            steps=self._steps,
            rows=self._rows,
            running=len(self._slots),
            added=sum(backends.values()),
            failed=self._failed,
            backends=backends,
            choices=dict(self._choices),
            main_thread=self._main_thread.median(),
            worker=self.runtime.metrics(),
        )

    def close(self) -> None:
        """End the worker, if there is one. The pipeline is of no use afterwards."""
        self._finalizer()

    def __enter__(self) -> StepPipeline:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # Inside

    def _make_runtime(self, mode: str) -> GrammarRuntime:
        if mode not in MODES:
            raise ConfigError(f"unknown mode {mode!r}", where="mode", hint=did_you_mean(mode, MODES))
        if mode == "process" or (mode == "auto" and self.device.type == "cuda"):
            try:
                return WorkerRuntime(self.compiler, self._slots.capacity, self.device, drafts=self.drafts)
            except (PipelineError, OSError) as error:
                if mode == "process":
                    raise
                _log.warning("grammars work inline, which is slower: %s", error)
        return InlineRuntime(self.compiler, self._slots.capacity, self.device, drafts=self.drafts)

    def _make_plan(self, slots: tuple[int, ...]) -> StepPlan:
        guided = [(row, slot) for row, slot in enumerate(slots) if slot != UNGUIDED]
        if self.drafts and len(guided) != len(slots):
            raise PipelineError("with drafts only guided slots are planned", hint="leave the others out")
        for row, slot in guided:
            if slot not in self._requests:
                raise PipelineError(f"slot {slot} of row {row} has no request", hint="call add_request first")
        if len({slot for _, slot in guided}) != len(guided):
            raise PipelineError("a slot is planned for two rows", hint="each request has one row a step")
        return StepPlan(tuple(row for row, _ in guided), tuple(slot for _, slot in guided))

    def _check_whole(self) -> None:
        """Rows of a plan that holds no more must not pass as unguided ones."""
        if self._cut:
            raise PipelineError(
                "a request was removed after the plan of this step", hint="call plan and fill_mask again"
            )

    def _check_order(self) -> None:
        self._check_whole()
        if not self._filled:
            raise PipelineError(
                "the masks of this step were not asked for", hint="the order is plan, fill_mask, apply_mask"
            )

    def _check_logits(self, logits: Tensor) -> None:
        if logits.dim() != 2 or not logits.is_floating_point():
            raise PipelineError(
                f"logits must be [rows, width] floats, not {tuple(logits.shape)} {logits.dtype}"
            )
        if logits.device.type != self.device.type:
            raise PipelineError(f"logits are on {logits.device}, the pipeline is on {self.device}")
        self.compiler.vocabulary.check_width(logits.shape[1])
        self._width = logits.shape[1]

    def _count_choice(self, admission: Admission) -> None:
        choice = admission.backend, admission.reason
        if choice not in self._choices and len(self._choices) >= _MAX_CHOICES:
            # Some reasons quote a spec: without a bound clients could fill the memory.
            choice = admission.backend, "other"
        self._choices[choice] = self._choices.get(choice, 0) + 1

    def _report_failures(self) -> None:
        self._report(self.runtime.take_failures())

    def _report(self, failures: list[tuple[int, GuidedError]]) -> None:
        for slot, error in failures:
            old = self._requests[slot]
            failed = RequestInfo(old.request_id, slot, old.spec, old.backend, error)
            self._requests[slot] = failed
            self._failed += 1
            self.compiler.plugins.request_failed(failed)

    def _slot_of(self, request_id: str) -> int:
        slot = self._slots.of(request_id)
        if slot is None:
            raise PipelineError("is not running", request_id=request_id)
        return slot
