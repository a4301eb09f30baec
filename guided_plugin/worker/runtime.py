"""The place where the grammars of a pipeline work: what a pipeline needs of it.

Three classes derive from this: `InlineRuntime` works in the calling thread,
`WorkerRuntime` in a process of its own, where the host's thread waits for nothing, and
`FollowerRuntime` leaves all work to another rank.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any, Protocol

from torch import Tensor

from guided_plugin.config import Mode
from guided_plugin.errors import GuidedError
from guided_plugin.grammar.request_state import RequestState
from guided_plugin.metrics import WorkerMetrics
from guided_plugin.spec import OutputSpec
from guided_plugin.step import (
    Admission,
    Closure,
    OfferedDrafts,
    StepPlan,
    TokenSink,
)
from guided_plugin.worker.buffers import Buffers
from guided_plugin.worker.layout import Region


class GrammarRuntime(Protocol):
    """The runtime of one pipeline's grammars. Slots are taken and plans are checked
    before it is called. What has a body here is right where there is no worker."""

    mode: Mode
    """`inline` or `process`. The same at all ranks of a model, as hosts plan ahead in
    one of them only."""
    follows: bool = False
    """True if the grammars are another rank's, which takes the tokens too."""
    machines: Any = None
    """The `Machines` that run the same model, with grammars of their own (`ranks`)."""
    region: Region
    """The masks and tokens of its steps."""
    buffers: Buffers
    """The way between these and the device."""
    newest: int
    """The number of the newest planned step."""
    masks_planned: int = 0
    """The number of masks of that step."""
    ready: threading.Event
    """Set when no request waits for what all need: the worker with its backends, or
    nothing at all."""

    def prepare(self, spec: OutputSpec) -> Future[Admission]:
        """Have a spec compiled; doesn't wait."""

    def add(
        self, slot: int, request_id: str, spec: OutputSpec, tokens: Iterable[int]
    ) -> None:
        """Start a request in a slot, after the tokens it had produced before."""

    def add_failed(
        self, slot: int, request_id: str, spec: OutputSpec, error: GuidedError
    ) -> None:
        """A request takes a slot, but can't begin: its rows are closed from its first
        step on."""

    def remove(self, slot: int) -> None:
        """Free a slot. Tokens on their way count for the request that leaves."""

    def plan(self, plan: StepPlan, *, offers: bool | None = None) -> None:
        """Announce the next step; it has at least one row. `offers`: of drafts that are
        sent before the model runs, whether not these are verified, but what `offered`
        returns."""

    def fill(self) -> None:
        """Get the step's masks on their way to the device."""

    def masks(self, step: int, count: int) -> tuple[Tensor, Tensor]:
        """The masks of one of the last three steps, which has so many, and row numbers
        of the newest plan, on the device; what is launched next sees them complete."""
        return self.buffers.masks.fetch(step, count), self.buffers.tokens.rows

    def offered(self) -> OfferedDrafts:
        """The drafts of the newest step once they are final; what is launched next sees
        them."""
        rows = self.masks_planned // self.region.shape.positions
        return self.buffers.tokens.offered(self.newest, rows)

    def sampled(self, tokens: Tensor) -> None:
        """Get the step's tokens on their way to the grammars."""

    def token_sink(self) -> TokenSink | None:
        """Return the place where a kernel may write the step's tokens itself, if it
        may; then it must."""
        return None

    def finish(self) -> None:
        """The step is over: tokens that are there may be accepted."""
        return

    def state(self, slot: int) -> RequestState:
        """The state of the request in a slot, once all that happened to it is known."""

    def take_failures(self) -> list[tuple[int, GuidedError]]:
        """Slots whose requests failed since the last call."""
        return []

    def take_closed(self) -> list[Closure]:
        """Requests that were closed since the last call, each with the first step that
        is closed for it. Complete for every step whose masks are there. From any
        thread."""
        return []

    def slow(self) -> dict[str, float]:
        """Requests whose masks take too long for a step: seconds of processor time of
        the last one, by id. From any thread."""
        return {}

    def refusal(self) -> GuidedError | None:
        """Why a new request would be refused now, if it would. From any thread."""
        return None

    def refused_for(self) -> float:
        """For how many more seconds, at least; infinite where it is for good. From any
        thread."""
        return 0.0

    def metrics(self) -> WorkerMetrics:
        """Figures of the worker, if there is one."""

    def close(self) -> None:
        """End what runs."""
