"""The guided requests of one pipeline: their slots, what hooks see of them, how many
came and failed."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import replace

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.errors import GuidedError, PipelineError
from guided_plugin.grammar.request_state import Phase, RequestState
from guided_plugin.grammar.waiting import LED
from guided_plugin.spec import OutputSpec, check_is_spec, check_room
from guided_plugin.step import Admission, RequestInfo
from guided_plugin.worker.runtime import GrammarRuntime

_log = logging.getLogger(__name__)


class PipelineRequests:
    """The part of a pipeline that is about requests. `StepPipeline` adds the steps."""

    def __init__(
        self,
        compiler: GrammarCompiler,
        runtime: GrammarRuntime,
        max_slots: int,
        rank: int | None,
    ) -> None:
        self.compiler = compiler
        self.runtime = runtime
        """The runtime where the grammars work."""
        self.mode = runtime.mode
        self.rank = rank
        """The rank of this process among those of a model; None where there is one
        only."""
        self._free = list(range(max_slots - 1, -1, -1))
        """Slots, of which the last is taken first. A request keeps its slot to its
        end."""
        self._slots: dict[str, int] = {}
        self._requests: dict[int, RequestInfo] = {}
        self._failed = 0
        self._added: Counter[str] = Counter()
        """Requests by backend."""
        self._unenforced: Counter[str] = Counter()
        """Requests by the keywords that nothing enforces in them."""
        self._verdicts: deque[Future[Admission]] = deque()
        """Verdicts on requests that did not wait for their compile, and are not counted
        yet. Other threads append."""

    def prepare(self, spec: OutputSpec) -> Future[Admission]:
        """Start compiling a spec, and don't wait. `add_request` is quick once the
        future has a result."""
        check_is_spec(spec)
        return self.runtime.prepare(spec)

    def add_request(
        self,
        request_id: str,
        spec: OutputSpec,
        *,
        tokens: Iterable[int] = (),
        wait: bool = True,
    ) -> int:
        """Compile a spec, start it, and give it a slot. `tokens` replays what it had
        produced before.

        Waits for the compile. Raises the spec's own error; the pipeline and its other
        requests are as they were. Without `wait` a spec that does not compile fails its
        request later on, where the grammars work in a process.

        With several ranks each must take the same slots, and not all know of an error:
        there it takes a slot, closed, and at rank 0 its `request` has the error.
        """
        try:
            return self._begin(request_id, spec, tokens, wait=wait)
        except GuidedError as error:
            if self.rank is None:
                raise
            return self.add_failed(request_id, spec, error)

    def add_failed(self, request_id: str, spec: OutputSpec, error: GuidedError) -> int:
        """A slot for a request that can't begin: its rows allow stop tokens only."""
        slot = self._take(request_id)
        self._requests[slot] = RequestInfo(request_id, slot, spec, "")
        self.runtime.add_failed(slot, request_id, spec, error)
        self.compiler.plugins.request_added(self._requests[slot])
        self._report(self.runtime.take_failures())
        return slot

    def _fail(self, request: RequestInfo, error: GuidedError) -> None:
        """A request fails for what its grammar does not know of, if it still runs. It
        is in its slot again, closed."""
        name = request.request_id
        if name not in self._slots:
            _log.error("%s", error.for_request(name))
        # it may have failed here
        elif self.phase(name) is not Phase.FAILED:
            self.remove_request(name)
            self.add_failed(name, request.spec, error)

    def _begin(
        self, request_id: str, spec: OutputSpec, tokens: Iterable[int], *, wait: bool
    ) -> int:
        verdict = self.prepare(spec)
        late = not wait and self.mode == "process"
        admission = Admission("") if late else verdict.result()
        if not late:
            check_room(admission.least, spec.room)
        slot = self._take(request_id)
        try:
            self.runtime.add(slot, request_id, spec, tokens)
        except BaseException:
            self._give_back(request_id)
            raise
        self._requests[slot] = RequestInfo(
            request_id, slot, spec, admission.backend, unenforced=admission.unenforced
        )
        if late:
            verdict.add_done_callback(self._verdicts.append)
        else:
            self._count(admission)
        self.compiler.plugins.request_added(self._requests[slot])
        self._report(self.runtime.take_failures())
        return slot

    def remove_request(self, request_id: str) -> RequestInfo:
        """End a request, finished or not; its slot is free."""
        slot = self._give_back(request_id)
        self.runtime.remove(slot)
        self._report(self.runtime.take_failures())
        request = self._requests.pop(slot)
        self.compiler.plugins.request_finished(request)
        return request

    def request(self, request_id: str) -> RequestInfo:
        """A running request; its `error` is set once it failed, at rank 0. Waits for
        the steps so far."""
        closed = ""
        if not self.rank:
            state = self.state(request_id)
            closed = state.unprotected or LED[state.led]
        return replace(self._requests[self._slot_of(request_id)], closed=closed)

    def tokens(self, request_id: str) -> tuple[int, ...]:
        """Return the tokens that a request has produced, as its grammar saw them. Waits
        for the steps so far."""
        return tuple(self.state(request_id).tokens)

    def phase(self, request_id: str) -> Phase:
        """Return the phase of a request: it waits for its start, is active, done or
        failed. Waits for the steps so far."""
        return self.state(request_id).phase

    def state(self, request_id: str) -> RequestState:
        """Return the state of a request: its tokens, its phase, and where its constrained
        part begins. Waits for the steps so far."""
        state = self.runtime.state(self._slot_of(request_id))
        self._report(self.runtime.take_failures())
        return state

    def _count_late(self) -> None:
        """Count the requests that did not wait for their compile."""
        while self._verdicts:
            verdict = self._verdicts.popleft()
            if verdict.exception() is None:
                self._count(verdict.result())

    def _count(self, admission: Admission) -> None:
        self._added[admission.backend] += 1
        self._unenforced.update(admission.unenforced)

    def _report(self, failures: list[tuple[int, GuidedError]]) -> None:
        for slot, error in failures:
            failed = self._requests[slot] = replace(self._requests[slot], error=error)
            self._failed += 1
            if self.rank:  # rank 0 cannot tell why
                _log.error("%s", error)
            self.compiler.plugins.request_failed(failed)

    def _slot_of(self, request_id: str) -> int:
        if request_id not in self._slots:
            raise PipelineError("is not running", request_id=request_id)
        return self._slots[request_id]

    def _take(self, request_id: str) -> int:
        if request_id in self._slots:
            raise PipelineError(
                "is running already",
                request_id=request_id,
                hint="request ids must be unique",
            )
        if not self._free:
            raise PipelineError(
                f"all {len(self._slots)} slots are taken",
                request_id=request_id,
                hint="raise max_slots",
            )
        slot = self._slots[request_id] = self._free.pop()
        return slot

    def _give_back(self, request_id: str) -> int:
        slot = self._slot_of(request_id)
        del self._slots[request_id]
        self._free.append(slot)
        return slot
