"""Where the grammars of a pipeline work: what it needs of that place, and which one it gets.

Three classes have these calls: `InlineRuntime` works in the calling thread, `WorkerRuntime` in a process of
its own, where the host's thread waits for nothing, and `FollowerRuntime` leaves all work to another rank.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Protocol

import torch
from torch import Tensor

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import Mode
from guided_plugin.errors import GuidedError, PipelineError
from guided_plugin.grammar.request_state import Phase
from guided_plugin.metrics import WorkerMetrics
from guided_plugin.pipeline.device import resolve_mode
from guided_plugin.pipeline.inline import InlineRuntime, LeadingInlineRuntime
from guided_plugin.spec import OutputSpec
from guided_plugin.step import Admission, Closure, StepPlan, TokenSink
from guided_plugin.worker.engine.runtime import WorkerRuntime
from guided_plugin.worker.ranks.follower import follow
from guided_plugin.worker.ranks.group import Machines, RankGroup, not_shared

__all__ = ["GrammarRuntime", "make_runtime", "share_runtime"]

_log = logging.getLogger(__name__)


class GrammarRuntime(Protocol):
    """Where the grammars of one pipeline live. Slots are taken and plans are checked before it is called."""

    mode: Mode
    """`inline` or `process`. The same at all ranks of a model, as hosts plan ahead in one of them only."""
    ready: threading.Event
    """Set when no request waits for what all need: the worker with its backends, or nothing at all."""

    def prepare(self, spec: OutputSpec) -> Future[Admission]:
        """Have a spec compiled; doesn't wait."""

    def add(self, slot: int, request_id: str, spec: OutputSpec, tokens: Iterable[int]) -> None:
        """Start a request in a slot, after the tokens it had produced before."""

    def add_failed(self, slot: int, request_id: str, spec: OutputSpec, error: GuidedError) -> None:
        """A request takes a slot, but can't begin: its rows are closed from its first step on."""

    def remove(self, slot: int) -> None:
        """Free a slot. Tokens on their way count for the request that leaves."""

    def plan(self, plan: StepPlan) -> None:
        """Announce the next step; it has at least one row."""

    def fill(self) -> None:
        """Get the step's masks on their way to the device."""

    def masks(self) -> tuple[Tensor, Tensor]:
        """Masks and row numbers on the device; what is launched next sees them complete."""

    def sampled(self, tokens: Tensor) -> None:
        """Get the step's tokens on their way to the grammars."""

    def token_sink(self) -> TokenSink | None:
        """Where a kernel may write the step's tokens itself, if it may; then it must."""

    def finish(self) -> None:
        """The step is over: tokens that are there may be accepted."""

    def tokens(self, slot: int) -> tuple[int, ...]:
        """What the request in a slot has produced, once all that happened to it is known."""

    def phase(self, slot: int) -> Phase:
        """The phase of the request in a slot, once all that happened to it is known."""

    def take_failures(self) -> list[tuple[int, GuidedError]]:
        """Slots whose requests failed since the last call."""

    @property
    def newest(self) -> int:
        """The number of the newest planned step."""

    def take_closed(self) -> list[Closure]:
        """Requests that were closed since the last call, each with the first step that is closed for it.
        Complete for every step whose masks are there. From any thread."""

    def refusal(self) -> GuidedError | None:
        """Why a new request would be refused now, if it would. From any thread."""

    def refused_for(self) -> float:
        """For how many more seconds, at least; infinite where it is for good. From any thread."""

    def metrics(self) -> WorkerMetrics:
        """Figures of the worker, if there is one."""

    def close(self) -> None:
        """End what runs."""


def make_runtime(
    compiler: GrammarCompiler, max_slots: int, device: torch.device, mode: Mode, drafts: int
) -> GrammarRuntime:
    """Of a pipeline that is alone."""
    if resolve_mode(mode, device) == "process":
        try:
            return WorkerRuntime(compiler, max_slots, device, drafts=drafts)
        except (PipelineError, OSError) as error:
            if mode == "process":
                raise
            _log.warning("grammars work inline, which is slower: %s", error)
    return InlineRuntime(compiler, max_slots, device, drafts=drafts)


def share_runtime(
    compiler: GrammarCompiler,
    max_slots: int,
    device: torch.device,
    mode: Mode,
    drafts: int,
    ranks: RankGroup,
) -> GrammarRuntime:
    """Of one rank. All ranks call this, and all of them get a runtime or raise PipelineError."""
    machines = Machines(ranks)
    if ranks.rank > 0:
        return follow(ranks, machines, device)
    leading: WorkerRuntime | LeadingInlineRuntime
    try:
        if machines.others and not isinstance(ranks, RankGroup):
            raise not_shared("they are on several machines, and their group sends no tensors")
        if resolve_mode(mode, device) == "process":
            leading = WorkerRuntime(compiler, max_slots, device, drafts=drafts, followers=ranks.size - 1)
        else:
            if device.type != "cpu" or drafts:
                raise not_shared("mode inline shares masks on the CPU only, and without drafts")
            leading = LeadingInlineRuntime(compiler, max_slots, device, ranks.size - 1)
    except Exception as error:  # of the device too: the others wait for an offer
        ranks.gather(str(error))
        raise
    try:
        leading.followers.invite(ranks, machines, leading.mode)
    except BaseException:
        leading.close()
        raise
    return leading
