"""`StepPipeline`: the five verbs of a decode step. Depends on a grammar runtime and the
mask kernel.

    plan(n)             which slots sit in which logits rows this step
    fill_mask(n)        the grammars fill the masks of those rows
    apply_mask(n)       main stream: wait for the masks, mask the logits
       sample           (host)
    schedule_update(n)  the sampled tokens start for the grammars
       append, stop     (host)
    finish_update(n)    the grammars accept the tokens

With speculative drafts two calls take their place: `send_drafts` and `draft_masks`.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from guided_plugin.compiling.background import outside_own_threads
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import Mode
from guided_plugin.errors import PipelineError
from guided_plugin.kernels import mask_rows
from guided_plugin.metrics import PipelineMetrics, Times
from guided_plugin.pipeline.requests import PipelineRequests
from guided_plugin.pipeline.runtime import checked_device, make_runtime
from guided_plugin.step import (
    UNGUIDED,
    OfferedDrafts,
    RequestInfo,
    StepPlan,
    TokenSink,
)
from guided_plugin.worker.ranks.group import RankGroup
from guided_plugin.worker.ranks.join import join
from guided_plugin.worker.runtime import GrammarRuntime

_NOTHING = StepPlan((), ())

# How far a step is: the calls that may come next. The first of them is the one that is
# due.
_ENDED = ("plan",)
_PLANNED = ("fill_mask",)
# another plan: a host that planned ahead has other rows
_FILLED = ("apply_mask", "take_masks", "plan")
_MASKED = ("schedule_update", "take_masks")
_SAMPLED = ("finish_update",)
_DRAFTS = ("send_drafts", "draft_masks")
_ORDER = (
    "the order is plan, fill_mask, apply_mask, schedule_update, finish_update; remove_request makes a plan"
    " stale; StepPipeline(drafts=...) has send_drafts and draft_masks alone"
)


class DraftStep(NamedTuple):
    """A step whose drafts are with the grammars."""

    number: int
    masks: int
    offers: OfferedDrafts | None
    """The drafts to verify, where the worker chooses them; see `Buffers`."""


class StepPipeline(PipelineRequests, AbstractContextManager["StepPipeline"]):
    """Guides the rows of one decode loop."""

    def __init__(
        self,
        compiler: GrammarCompiler,
        *,
        max_slots: int,
        device: torch.device | str = "cpu",
        mode: Mode = "auto",
        drafts: int = 0,
        ranks: RankGroup | None = None,
    ) -> None:
        """`mode` says where the grammars work: `inline`, `process`, or `auto`: a
        process where the logits live on CUDA. The process starts in the background.

        `drafts`: for hosts that propose up to so many tokens a request and judge them
        together.

        `ranks`: of a model that runs on several (`TorchRanks`). Each has a pipeline and
        makes the same calls; the grammars work at the first rank of each machine, and
        the others there mask with its memory."""
        self.device = checked_device(device)
        if max_slots < 1:
            raise PipelineError(f"max_slots must be at least 1, not {max_slots}")
        lead = partial(make_runtime, compiler, max_slots, self.device, mode, drafts)
        runtime = join(ranks, self.device, compiler, lead)
        super().__init__(
            compiler, runtime, max_slots, None if ranks is None else ranks.rank
        )
        self.drafts = drafts
        # At the latest when the interpreter exits. The runtime holds no reference to
        # this object.
        self._finalizer = weakref.finalize(self, _close, os.getpid(), self.runtime)
        self.vocabulary_size = compiler.vocabulary.size
        """Columns of the logits from here on are forbidden."""
        self._plan = _NOTHING
        self._due: tuple[str, ...] = _DRAFTS if drafts else _ENDED
        self._last_slots: tuple[int, ...] = ()
        self._width = -1
        self.mask: Tensor | None = None
        """[guided rows, words] int32: the masks that the last step used."""
        self._spent = 0.0
        """Seconds of the host's thread in the calls of this step."""
        self._steps = self._guided_rows = 0
        """Steps with a guided row, and the guided rows in all of them."""
        self._seconds = Times()
        """Times of each step with a guided row."""

    # The five verbs

    def plan(self, slots: Sequence[int]) -> None:
        """Say which slot sits in each logits row of this step; UNGUIDED where no
        grammar does."""
        start = time.perf_counter()
        # a step without guided rows may be given up anywhere
        if self._plan.rows or self.drafts:
            self._check_order("plan")
        self._due = _ENDED
        chosen = tuple(slots)
        if chosen is not self._last_slots and chosen != self._last_slots:
            self._plan = _make_plan(chosen, self._requests)
            self._last_slots = chosen
        if self._plan.rows:
            self.runtime.plan(self._plan)
        self._due = _PLANNED
        self._spent += time.perf_counter() - start

    def fill_mask(self) -> None:
        """Start filling this step's masks and copying them to the device."""
        self._check_order("fill_mask")
        if self._plan.rows:
            start = time.perf_counter()
            self.runtime.fill()
            if failures := self.runtime.take_failures():
                self._report(failures)
            self._spent += time.perf_counter() - start
        self._due = _FILLED

    def apply_mask(self, logits: Tensor) -> Tensor:
        """Mask the guided rows of [rows, width] logits in place, on the current stream."""
        self._check_order("apply_mask")
        rows = self._plan.rows
        if rows:
            start = time.perf_counter()
            _check_rows("logits", logits, rows)
            self.mask, rows_dev = self._fetch_masks(
                self.runtime.newest, len(rows), logits
            )
            mask_rows(logits, self.mask, rows_dev, self.vocabulary_size)
            self._spent += time.perf_counter() - start
        self._due = _MASKED
        return logits

    def take_masks(self, logits: Tensor) -> Tensor:
        """In place of `apply_mask`, for hosts that mask by themselves: the [guided
        rows, words] masks of this step, in the order of the plan, on the device. What
        is launched next sees them complete. `logits`: what they are for."""
        start = time.perf_counter()
        self._check_order("take_masks")
        self.mask, _ = self._fetch_masks(
            self.runtime.newest, len(self._plan.rows), logits
        )
        self._due = _MASKED
        self._spent += time.perf_counter() - start
        return self.mask

    def schedule_update(self, tokens: Tensor) -> None:
        """Right after sampling, on the stream that samples: get the [rows] sampled
        tokens on their way to the grammars. NO_TOKEN says that a row had none, as in
        the middle of a prompt."""
        self._check_order("schedule_update")
        rows = self._plan.rows
        if rows:
            start = time.perf_counter()
            if tokens.dim() != 1:
                raise PipelineError(
                    f"sampled tokens must be [rows], not {tuple(tokens.shape)}"
                )
            _check_rows("sampled tokens", tokens, rows)
            _check_place("tokens", tokens, self.device)
            self.runtime.sampled(tokens)
            self._spent += time.perf_counter() - start
        self._due = _SAMPLED

    def token_sink(self) -> TokenSink | None:
        """In place of `schedule_update`, for hosts whose own kernel knows the tokens:
        where that kernel may write them, in the order of the plan. It must be launched
        on the stream that samples, after that. None where tokens have to be handed
        over."""
        if not self._plan.rows or self._due is not _MASKED:
            return None
        start = time.perf_counter()
        sink = self.runtime.token_sink()
        if sink is not None:
            self._due = _SAMPLED
        self._spent += time.perf_counter() - start
        return sink

    def finish_update(self) -> None:
        """After the append and stop kernels: accept the tokens that have arrived, and
        end the step. Ranks that have no grammars need not have handed over any."""
        start = time.perf_counter()
        if not self.runtime.follows or self._due is not _MASKED:
            self._check_order("finish_update")
        rows = len(self._plan.rows)
        if rows:
            self.runtime.finish()
            if failures := self.runtime.take_failures():
                self._report(failures)
            self._spent += time.perf_counter() - start
        self._due = _ENDED
        self._end_step(rows)

    # In place of the five verbs

    def send_drafts(
        self, slots: Sequence[int], tokens: Tensor, *, offers: bool | None = None
    ) -> DraftStep:
        """For a host that proposes drafts and masks by itself, the first half of a
        step: new tokens and drafts of the requests in `slots` are on their way to the
        grammars. `draft_masks` must come before the third call after this
        one.

        `tokens` has blocks in the order of `slots`: `drafts + 1` with the tokens that
        were sampled for each slot since its last step, then `drafts` with what is
        proposed to follow them; NO_TOKEN where there are no more.

        `offers`, once before each run of the model: whether the worker may replace
        them; see `DraftStep`."""
        start = time.perf_counter()
        self._check_order("send_drafts")
        chosen = tuple(slots)
        if chosen != self._last_slots:
            self._plan = _make_plan(chosen, self._requests)
            self._last_slots = chosen
            if len(self._plan.rows) != len(chosen) or not chosen:
                self._forget_plan()
                raise PipelineError(
                    "only guided slots have drafts", hint="leave the others out"
                )
        due = len(chosen) * (2 * self.drafts + 1)
        if tokens.shape != (due,):
            raise PipelineError(
                f"{due} sampled and proposed tokens are expected, not {tuple(tokens.shape)}",
                hint="see StepPipeline(drafts=...)",
            )
        _check_place("tokens", tokens, self.device)
        # Nothing of a step is announced before its tokens are there: no worker could do
        # anything with it.
        self.runtime.plan(self._plan, offers=offers)
        self.runtime.sampled(tokens)
        self.runtime.fill()
        offered = self.runtime.offered() if offers else None
        self.runtime.finish()
        self._report(self.runtime.take_failures())
        self._spent += time.perf_counter() - start
        self._end_step(len(chosen))
        return DraftStep(self.runtime.newest, len(chosen) * (self.drafts + 1), offered)

    def draft_masks(self, step: DraftStep, logits: Tensor) -> Tensor:
        """The second half: `drafts + 1` blocks of [slots, words] masks on the device:
        the masks after none of a request's drafts, after the first, and so on. What is
        launched next sees them complete. `logits`: as in `take_masks`."""
        self._check_order("draft_masks")
        if self.runtime.newest - step.number > 2:
            what = "draft_masks was called where the masks of its step are gone"
            raise PipelineError(
                what, hint="call it before the third send_drafts after that of its step"
            )
        self.mask, _ = self._fetch_masks(step.number, step.masks, logits)
        return self.mask

    # Around them

    def remove_request(self, request_id: str) -> RequestInfo:
        """End a request, finished or not; its slot is free. A plan with it is stale."""
        request = super().remove_request(request_id)
        self._forget_plan()
        return request

    @property
    def planned(self) -> tuple[int, ...]:
        """The slots of the newest plan, as long as none of its requests has left."""
        return self._last_slots

    @property
    def filled(self) -> bool:
        """True if its masks were asked for, and not used yet."""
        return self._due is _FILLED

    def metrics(self) -> PipelineMetrics:
        """Counts and times since the start. Not for every step: it computes medians."""
        self._count_late()
        return PipelineMetrics(
            mode=self.mode,
            steps=self._steps,
            rows=self._guided_rows,
            running=len(self._slots),
            added=self._added.total(),
            failed=self._failed,
            backends=dict(self._added),
            unenforced=dict(self._unenforced),
            main_thread=self._seconds.median(),
            times={"main_thread": self._seconds.counts()},
            worker=self.runtime.metrics(),
        )

    def close(self) -> None:
        """End the worker, if there is one. The pipeline cannot be used afterwards."""
        self._finalizer()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _end_step(self, rows: int) -> None:
        if rows:
            self._steps += 1
            self._guided_rows += rows
            self._seconds.add(self._spent)
        self._spent = 0.0
        machines = self.runtime.machines
        if rows and machines is not None:
            planned = [self._requests[slot] for slot in self._plan.slots]
            for request, error in machines.stepped(self.runtime.newest, planned):
                self._fail(request, error)

    def _check_order(self, call: str) -> None:
        """Raise PipelineError unless this call may come next: out of order, logits
        would stay unmasked, or tokens would not be accepted."""
        if call not in self._due:
            raise PipelineError(
                f"{call} was called where {self._due[0]} is due", hint=_ORDER
            )

    def _fetch_masks(
        self, step: int, count: int, logits: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The masks of a step, which has so many, and their row numbers. `logits`: what
        they are for."""
        if logits.shape[1] != self._width:
            self._check_logits(logits)
        return self.runtime.masks(step, count)

    def _check_logits(self, logits: Tensor) -> None:
        if logits.dim() != 2 or not logits.is_floating_point():
            raise PipelineError(
                f"logits must be [rows, width] floats, not {tuple(logits.shape)} {logits.dtype}"
            )
        _check_place("logits", logits, self.device)
        width = logits.shape[1]
        self.compiler.vocabulary.check_width(width)
        self._width = width

    def _forget_plan(self) -> None:
        # Slot numbers come back: a kept plan must not be taken for the new request's.
        if self._plan.rows and self._due not in (_SAMPLED, _DRAFTS):
            self._due = _ENDED
        self._last_slots = ()
        self._plan = _NOTHING


def _close(pid: int, runtime: GrammarRuntime) -> None:
    if os.getpid() == pid:  # else this is a fork of the process that it belongs to
        if runtime.machines is not None:
            runtime.machines.close()
        outside_own_threads(runtime.close)


def _check_rows(what: str, given: Tensor, rows: Sequence[int]) -> None:
    if rows[-1] >= given.shape[0]:
        raise PipelineError(
            f"row {rows[-1]} is planned, there are {given.shape[0]} rows of {what}"
        )


def _check_place(what: str, given: Tensor, device: torch.device) -> None:
    if given.device.type != device.type:
        raise PipelineError(
            f"{what} are on {given.device}, the pipeline is on {device}"
        )


def _make_plan(slots: tuple[int, ...], requests: dict[int, RequestInfo]) -> StepPlan:
    rows = tuple([row for row, slot in enumerate(slots) if slot != UNGUIDED])
    guided = tuple([slots[row] for row in rows])
    for slot in set(guided).difference(requests):
        what = f"slot {slot} of row {slots.index(slot)} has no request"
        raise PipelineError(what, hint="call add_request first")
    if len(set(guided)) != len(guided):
        raise PipelineError(
            "a slot is planned for two rows", hint="each request has one row a step"
        )
    return StepPlan(rows, guided)
