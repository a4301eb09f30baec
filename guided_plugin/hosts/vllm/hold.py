"""Requests wait in vLLM's scheduler until the engine has their grammar, as those of
vLLM's own backends do. Imports vLLM lazily.

`preprocess_add_request` runs beside the forward pass, for every frontend. It has the
grammar made ready and gives the request a stand-in for vLLM's own structured output:
the scheduler passes over the request until the stand-in has a grammar. Where the
workers are other processes, the next step brings them all specs that came since the
last one, and the outputs of steps tell which grammars are there (`failures`). Whether
the spec is refused there is for `Engine.begin` to say.
"""

from __future__ import annotations

import copy
import logging
import time
import weakref
from collections.abc import Iterable
from typing import Any

from guided_plugin.errors import GuidedError, RequestError, SpecError, printable
from guided_plugin.hosts.vllm.common import (
    MARK,
    EngineSpec,
    constraint,
    engine_spec,
    refused_unseen,
    settings_of,
)
from guided_plugin.hosts.vllm.health import engine_of
from guided_plugin.hosts.vllm.refusals import refusal
from guided_plugin.hosts.vllm.turns import Turns

_log = logging.getLogger(__name__)

NEEDED = "guided_needed"
"""The attribute of a SchedulerOutput with each `EngineSpec` that its step brings."""

_STATE = "_guided_state"  # of a scheduler: its `SchedulerState`

_SECONDS = 120.0
"""The most seconds that a request is held. A grammar worker takes seconds to start."""


class Held:
    """In place of a `StructuredOutputRequest`, until the grammar is there."""

    def __init__(
        self, request: Any, spec: EngineSpec, *, brought: bool = False
    ) -> None:
        """`brought`: the engine has heard of it; no step need tell it."""
        self.spec = spec
        self.brought = brought
        # whether vLLM still has a request is asked elsewhere (`DraftsBySize`)
        self._request = weakref.ref(request)
        self._until = time.monotonic() + _SECONDS

    def release(self, _: object = None) -> None:
        """The engine has the grammar, or has refused it. Any thread."""
        self._until = 0.0

    @property
    def waits(self) -> bool:
        """True if the grammar is awaited."""
        return time.monotonic() < self._until

    @property
    def grammar(self) -> Held | None:
        """None as long as the scheduler shall pass over the request. vLLM's own manager
        has no part in it after that."""
        if self.waits:
            return None
        request = self._request()
        if request is not None:
            request.structured_output_request = None
        return self


def preprocess_add_request(
    self: Any, request: Any, *args: Any, original: Any, **kwargs: Any
) -> Any:
    """`EngineCore.preprocess_add_request`. Every request passes it. One with a
    constraint that this plugin serves and without the gate's mark came past the check
    at admission: nothing has compiled its spec within the limits, and with `take_over`
    vLLM's own manager would serve what the operator gave to the plugin. It is
    refused."""
    # None where a request is pooled: it has no output to guide
    params = request.sampling_params
    error = passed_by(params, self.vllm_config)
    if error is None:
        spec = engine_spec(params)
        added = original(self, request, *args, **kwargs)
        if spec is not None:
            _hold(added[0], spec, engine_of(self))
        return added
    # vLLM's part all the same: its caches of images follow what frontends send. But
    # no grammar is made.
    request.sampling_params = copy.copy(params)
    request.sampling_params.structured_outputs = None
    original(self, request, *args, **kwargs)
    _log.error("request %s: refused: %s", printable(request.request_id), error.reason)
    raise refusal(error)


def _hold(request: Any, spec: EngineSpec, engine: Any) -> None:
    """Hold a request until its spec is ready in the engine. One that has its workers in
    this process hears of it now; None for others."""
    from vllm.v1.request import RequestStatus

    spec = spec._replace(request_id=request.request_id)
    held = Held(request, spec, brought=engine is not None)
    if engine is not None:
        engine.prepare(spec, held.release)
    if held.waits:
        request.structured_output_request = held
        request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR


class SchedulerState:
    """The plugin's state of one of vLLM's schedulers."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.watched = weakref.WeakValueDictionary[str, Any]()
        """Requests whose end has to be looked at, by id: their outputs are led, or
        their constrained part may not have begun."""
        self.needed: list[EngineSpec] = []
        """Specs that no step has brought to the workers yet."""
        self._loading: dict[str, Held] = {}
        """By request, oldest first; some longer than they wait."""
        self._runs = False
        """True if a spec was ready: the grammar worker, which takes seconds to start,
        runs."""

    def ask(self, request: Any) -> None:
        """A held request comes to the scheduler: have the next step bring its spec to
        the workers. One that loads within a forward pass is not held while no other
        spec is loading, as all rows of a step wait for it, and once the grammar worker
        runs."""
        held = request.structured_output_request
        if not isinstance(held, Held):
            return
        spec = held.spec
        if not held.brought:
            self.needed.append(spec)
        loading = self._loading
        while loading and not loading[first := next(iter(loading))].waits:
            del loading[first]
            self._runs = True
        loading[request.request_id] = held
        first = next(iter(loading))
        if spec.quick and spec.packed == loading[first].spec.packed and self._runs:
            from vllm.v1.request import RequestStatus

            request.structured_output_request = None
            request.status = RequestStatus.WAITING

    def release(self, request_ids: Iterable[str]) -> None:
        """The workers have told that the grammars of these requests are there."""
        for request_id in request_ids:
            if request_id in self._loading:
                self._loading[request_id].release()


def state_of(scheduler: Any) -> SchedulerState:
    """Return the plugin's state of a scheduler."""
    if not hasattr(scheduler, _STATE):
        setattr(scheduler, _STATE, SchedulerState())
    state: SchedulerState = getattr(scheduler, _STATE)
    return state


def schedule(self: Any, *args: Any, original: Any, **kwargs: Any) -> Any:
    """`Scheduler.schedule`: who waits for a turn is left out, and the step brings the
    workers what is needed."""
    state = state_of(self)
    state.turns.leave_out(self)
    output = original(self, *args, **kwargs)
    setattr(output, NEEDED, state.needed)
    state.needed = []
    return output


def check_ready(prompt: Any, vllm_config: Any) -> None:
    """Refuse what a caller gives a frontend as a request that is ready for the engine,
    if no gate made it."""
    error = passed_by(getattr(prompt, "sampling_params", None), vllm_config)
    if error is not None:
        raise refusal(error)


def passed_by(params: Any, vllm_config: Any) -> GuidedError | None:
    """Why a request in the engine is refused, if it came past the gate."""
    spec = engine_spec(params)
    if spec is not None:
        try:
            spec.read()
        except SpecError:
            return _PASSED_BY
        return None
    if constraint(params) is None:
        return None
    options, _ = settings_of(vllm_config)
    extra = params.extra_args or {}
    if options.refused == "vllm" and extra.get(MARK) is True:
        return None
    taken_over = options.take_over and refused_unseen(vllm_config, options) is None
    return _PASSED_BY if taken_over else None


_PASSED_BY = RequestError(
    "the request reached the engine without the plugin's check",
    hint="send it through a frontend that has loaded the plugin: see docs/operations.md#entrances",
)
