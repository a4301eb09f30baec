"""The part that both model runners of vLLM share: the pipeline, and how a request
begins and ends. Imports torch.

Nothing in here raises for one request. A request that can't be guided is closed: its
row allows a stop token and nothing else, so that no unconstrained text leaves as
constrained, and its failure goes to the scheduler with the output of that step, so that
it does not look finished.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence, Set
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

import torch

from guided_plugin.compiling.background import in_background
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.errors import ConfigError, GuidedError, RequestError
from guided_plugin.grammar.base import Prepared
from guided_plugin.hosts.vllm import logs
from guided_plugin.hosts.vllm.common import (
    RUST_FRONTEND,
    EngineSpec,
    drafts_of,
    engine_spec,
    ranks_of,
    rust_frontend,
    settings_of,
    stop_tokens,
    unsupported_reason,
    vocabulary_of,
)
from guided_plugin.hosts.vllm.failures import AT_ONCE, Ledger
from guided_plugin.hosts.vllm.health import ENGINES, engine_of
from guided_plugin.hosts.vllm.hold import NEEDED
from guided_plugin.hosts.vllm.logits import GuidedRequest, StepHooks
from guided_plugin.hosts.vllm.names import REQUEST_LIMITS, Part, When
from guided_plugin.hosts.vllm.patches import broken, patch
from guided_plugin.metrics import Growth, Times
from guided_plugin.pipeline.pipeline import StepPipeline
from guided_plugin.pipeline.runtime import resolve_mode
from guided_plugin.plugins import Plugins
from guided_plugin.spec import OutputSpec
from guided_plugin.spec.memo import remembered
from guided_plugin.spec.output_spec import spec_bytes
from guided_plugin.step import UNGUIDED, Closure
from guided_plugin.worker.ranks.group import agree, not_shared

_log = logging.getLogger(__name__)

T = TypeVar("T")

_FIRST = OutputSpec.choice(["a"])
"""A spec that starts the grammar worker."""

_STARTED = "guided decoding"
"""The part awaited at an engine's start: the grammar worker, inline its backends."""


_SECONDS = 60.0
"""The most seconds that an engine waits at its start, in each of its processes."""


class Engine:
    """The plugin's part of one vLLM engine."""

    def __init__(
        self, vllm_config: Any, device: torch.device, max_requests: int, runner: Part
    ) -> None:
        logs.adopt_handlers()
        self.config = vllm_config
        self.options, sources = settings_of(vllm_config)
        if self.options.enabled and self.options.take_over and rust_frontend():
            # requests that the plugin was to take over would come past it
            raise ConfigError(
                f"vLLM's Rust frontend ({RUST_FRONTEND}) sends requests past the plugin",
                where="take_over",
                hint=f"unset {RUST_FRONTEND}, or take_over: vLLM serves its own structured outputs then",
            )
        self.unsupported_reason = unsupported_reason(
            vllm_config, self.options
        ) or broken(Part.WORKER, runner)
        """Why nothing can be guided here, if nothing can."""
        self._pipeline: StepPipeline | None = None
        self.hooks: StepHooks | None = None
        """The step hooks, where a plugin implements one."""
        self.ahead = 0
        """Steps that are sent for the next output already."""
        self.serves = True
        """True if this rank has grammars: the first one of each machine."""
        self._growth = Growth()
        self.spent = 0.0
        """Seconds of vLLM's thread in this step so far, the runner's part included."""
        self._seconds = Times()
        """Seconds of vLLM's thread in all steps."""
        self._running: dict[str, GuidedRequest] = {}
        self.scheduled: Sequence[str] | None = None
        """The requests of the step that begins; None where no step was seen."""
        self.left: Set[str] = frozenset()
        """Requests that have ended before the step, or were preempted."""
        self.appended: Callable[[], None] = lambda: None
        """The action of a model runner when the tokens of a step are in its tables."""
        self.failed = Ledger()
        """Requests that failed, until vLLM knows."""
        self._started = False
        """True if a spec has compiled here: the grammar worker takes seconds to
        start."""
        self._ready = threading.Event()
        """Set when no request waits for what all need."""
        ENGINES.add(self)
        patch(When.ENGINE)
        if self.unsupported_reason is None:
            try:
                self._pipeline = self._make_pipeline(device, max_requests)
                compiler = self._pipeline.compiler
                self._start(self._pipeline)
                if compiler.plugins.listens_to_steps:
                    self.hooks = StepHooks(compiler.plugins)
            except GuidedError as error:
                self.refuse(error)
        line = logs.engine_line(
            self.options,
            self.unsupported_reason,
            "" if self._pipeline is None else self._pipeline.mode,
            max_requests,
            drafts_of(self.config),
        )
        _log.info("%s; %s", line, self.options.told(sources))

    def _start(self, pipeline: StepPipeline) -> None:
        """Make what the first request would wait for, where requests are likely to
        come."""
        if not self.options.take_over or not self.serves:
            self._ready.set()
        elif pipeline.mode == "inline":
            self._ready = in_background(pipeline.compiler.warm_up, "guided-engine")
        else:
            self._ready = pipeline.runtime.ready
            pipeline.prepare(_FIRST)

    def _make_pipeline(self, device: torch.device, max_requests: int) -> StepPipeline:
        """Make the pipeline: of several ranks, all get one, or none does."""
        ranks = ranks_of(self.config)
        if ranks is not None:
            self.failed.tells = ranks.rank == 0
            self.serves = ranks.leaders[ranks.rank] == ranks.rank
        error: GuidedError | None = None
        try:
            # Third parties' hooks are called where their backends work, not by each
            # rank.
            plugins = (
                None
                if self.serves
                else Plugins(disabled=self.options.disabled_plugins, entry_points=False)
            )
            mode = resolve_mode(self.options.mode, device)
            compiler = GrammarCompiler(
                vocabulary_of(self.config),
                config=self.options,
                plugins=plugins,
                serves=self.serves and mode != "inline",
            )
            compiler.tells = False  # frontends have told it
        except GuidedError as problem:
            error = problem
        if ranks is not None and (
            reason := agree(ranks, "" if error is None else error.reason)
        ):
            error = not_shared(reason)
        if error is not None:
            raise error
        return StepPipeline(
            compiler,
            max_slots=max_requests,
            device=device,
            mode=mode,
            drafts=drafts_of(self.config),
            ranks=ranks,
        )

    @property
    def pipeline(self) -> StepPipeline:
        """The pipeline; there is one where a request has a slot."""
        if self._pipeline is None:
            # a copy: an error that is raised keeps what raised it
            raise copy.copy(self.unsupported_reason) or RuntimeError("no pipeline")
        return self._pipeline

    def refuse(self, error: GuidedError) -> None:
        """Guide nothing: every guided request is closed."""
        self.unsupported_reason = error
        _log.warning("guided requests will be refused: %s", error)

    def begin(self, params: Any, tokens: Iterable[int]) -> GuidedRequest:
        """Start a request, after the output it had already produced: again, if it runs.
        Tokens that V1 does not know (-1) fail it."""
        told = engine_spec(params) or EngineSpec("", None, None)
        request_id = told.request_id or uuid4().hex
        try:
            if not told.request_id:
                self.refuse(_UNNAMED)
            if self.unsupported_reason is not None:
                raise copy.copy(self.unsupported_reason)
            older = self._running.get(request_id)
            if older is not None:
                self.end(older)
            spec = told.read()
            vocabulary = self.pipeline.compiler.vocabulary
            stops = stop_tokens(params, vocabulary)
            if not spec.stop_token_ids:
                spec = _stopping(spec, stops)
            # Only what comes before the grammar worker has started waits for it.
            slot = self.pipeline.add_request(
                request_id, spec, tokens=tokens, wait=not self._started
            )
            self._started = True
        except GuidedError as problem:
            # not guided at all: it ends as an error
            self.failed.add(Closure(request_id, AT_ONCE, problem.reason))
            return GuidedRequest(
                request_id, UNGUIDED, min(params.all_stop_token_ids, default=0)
            )
        stop = (spec.stop_token_ids or stops)[0]
        guided = self._running[request_id] = GuidedRequest(
            request_id, slot, stop, limits_of(params)
        )
        return guided

    def prepare(self, told: EngineSpec, tell: Callable[[object], None]) -> None:
        """Get the spec of a request that will come ready, or refused, and tell then.
        Never blocks; any thread."""
        try:
            spec = told.read()
            compiler = self.pipeline.compiler
            if told.made is not None and compiler.kept(spec) is None:
                compiler.keep(spec, Prepared.received(spec, told.made))
            self.pipeline.prepare(spec).add_done_callback(tell)
        except GuidedError as error:  # `begin` says it
            tell(error)

    def get_ready(self, needed: Iterable[EngineSpec]) -> None:
        """Get specs ready that a step brings; outputs tell when they are."""
        if self.serves:
            for told in needed:
                self.prepare(told, partial(self.failed.tell_ready, told.request_id))

    def end(self, guided: GuidedRequest) -> None:
        """A request has left; it may come back as another one."""
        if guided.slot != UNGUIDED:
            self.pipeline.remove_request(guided.request_id)
            del self._running[guided.request_id]
            guided.slot = UNGUIDED

    def watch(self, output: Any) -> Any:
        """The output of the step that was just sampled. It will carry the failures of
        the step."""
        self.appended()
        if self._running:
            self._seconds.add(self.spent)
        self.spent = 0.0
        if self.hooks is not None:
            self.hooks.appended()
        if not self.failed.tells or not (self._running or self.failed):
            return output
        runtime = None if self._pipeline is None else self._pipeline.runtime
        return self.failed.attach(output, runtime, self.ahead)

    def health(self) -> tuple[str, float]:
        """Why no request can be guided now, empty if requests are served; and in how
        many seconds one may be, as far as is known."""
        if self.unsupported_reason is not None:
            return self.unsupported_reason.reason, math.inf  # only a restart helps
        runtime = self.pipeline.runtime
        error = runtime.refusal()
        if error is None and not self._ready.is_set():
            error = RequestError(
                f"{_STARTED} is still starting", hint="send the request again later"
            )
        return "" if error is None else error.reason, runtime.refused_for()

    def wait_ready(self) -> None:
        """Wait until guided requests need not, for a bounded time."""
        if self.unsupported_reason is not None or not self.options.take_over:
            return
        start = time.monotonic()
        if self._ready.wait(_SECONDS):
            self._started = True
            _log.info("%s is ready after %.2f s", _STARTED, time.monotonic() - start)
        else:
            _log.warning(
                "%s is not ready after %g s: guided requests get status 503 until then",
                _STARTED,
                _SECONDS,
            )

    def metrics(self, growth: bool = False) -> dict[str, Any]:
        """The figures of its pipeline as plain data, for other processes. `growth`:
        with what its counters and times have grown by since that was last asked for."""
        if self._pipeline is None:
            return {"refused": str(self.unsupported_reason)}
        now = self._pipeline.metrics()
        metrics = dataclasses.asdict(now)
        if growth:
            metrics["growth"] = self._growth.take(
                now, host_thread=self._seconds.counts()
            )
        metrics["host_thread"] = self._seconds.median()
        metrics["learnt_limit_bytes"] = self.options.learnt_bytes
        return metrics

    def close(self) -> None:
        """End the grammar worker, if there is one. No worker of vLLM answers for this
        engine any more."""
        ENGINES.discard(self)
        if self._pipeline is not None:
            self._pipeline.close()


def timed(method: Callable[..., T]) -> Callable[..., T]:
    """A runner's method whose seconds count as its engine's."""

    def replaced(self: Any, *args: Any, **kwargs: Any) -> T:
        start = time.perf_counter()
        result = method(self, *args, **kwargs)
        self.engine.spent += time.perf_counter() - start
        return result

    return replaced


@remembered(spec_bytes)
def _stopping(spec: OutputSpec, stops: tuple[int, ...]) -> OutputSpec:
    return dataclasses.replace(spec, stop_token_ids=stops)


def limits_of(params: Any) -> str:
    """The options of a request by which vLLM forbids tokens."""
    return ", ".join(name for name in REQUEST_LIMITS if getattr(params, name))


_UNNAMED = RequestError(
    "vLLM's scheduler does not run the plugin, so a failed request would look finished",
    hint="install the package in the environment of all of vLLM's processes, and don't filter its entry "
    "points (VLLM_PLUGINS)",
)


def sample_tokens(self: Any, *args: Any, original: Any, **kwargs: Any) -> Any:
    """`Worker.sample_tokens`: the output of a step goes by the worker's engine, which
    attaches its failures."""
    engine = _engine_in(self)
    output = original(self, *args, **kwargs)
    return output if engine is None else engine.watch(output)


def execute_model(
    self: Any, scheduler_output: Any, *args: Any, original: Any, **kwargs: Any
) -> Any:
    """`Worker.execute_model`: a step brings specs, and its output without tokens tells
    which grammars are ready."""
    engine = _engine_in(self)
    if engine is not None:
        engine.get_ready(getattr(scheduler_output, NEEDED, ()))
        engine.scheduled = [*scheduler_output.num_scheduled_tokens]
        preempted = scheduler_output.preempted_req_ids or ()
        engine.left = scheduler_output.finished_req_ids.union(preempted)
    output = original(self, scheduler_output, *args, **kwargs)
    return output if engine is None or output is None else engine.watch(output)


def _engine_in(worker: Any) -> Engine | None:
    """The engine of one of vLLM's workers, found once: this is called in each step."""
    found: Engine | None = worker.__dict__.get("_guided_engine")
    if found is None:
        found = worker._guided_engine = engine_of(worker)
    return found
