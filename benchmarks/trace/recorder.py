"""A timeline of the reference loop: host, device and worker on one clock. Imports
torch.

The host's calls are timed where they are made, the worker's are read from its ring of
times, and the device's are measured by timed events around each launch, so a trace
costs some microseconds a step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.measuring import PROMPT, WARM_UP, prompts
from benchmarks.models import GraphedModel
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import Mode
from guided_plugin.errors import PluginError
from guided_plugin.hosts.loop import DecodeLoop
from guided_plugin.spec import OutputSpec
from guided_plugin.worker.engine.runtime import WorkerRuntime
from guided_plugin.worker.engine.steps import step_times
from guided_plugin.worker.words import Time

TRACKS = ("engine thread", "main stream", "side stream", "worker")
WAIT = "wait"
"""The part of a call or launch in which it waits for another track; it lies inside the
other's span."""


@dataclass(frozen=True, slots=True)
class Span:
    """One call, launch or task. Nanoseconds of the monotonic clock."""

    track: str
    name: str
    start: int
    end: int
    step: int


def trace_loop(
    model: Any,
    compiler: GrammarCompiler,
    spec: OutputSpec,
    *,
    rows: int,
    steps: int,
    mode: Mode = "auto",
    graph: bool = False,
) -> list[Span]:
    """Decode `steps` tokens in `rows` guided rows; what ran in those steps, by start.

    `graph`: the model's decode step is one CUDA graph, as in engines.
    """
    if graph:
        model = GraphedModel(model, rows, PROMPT + WARM_UP + steps)
    recorder = _Recorder(model.device)
    loop = _TracedLoop(model, compiler, max_rows=rows, mode=mode, recorder=recorder)
    try:
        for output in loop.run(
            prompts(rows),
            [spec] * rows,
            max_new_tokens=steps + WARM_UP,
            ignore_stop=True,
        ):
            if output.error is not None:
                raise output.error
        spans = recorder.spans()
        if isinstance(loop.pipeline.runtime, WorkerRuntime):
            spans += _worker_spans(loop.pipeline.runtime)
    finally:
        loop.pipeline.close()
    # With a worker, one more step is planned than is decoded.
    wanted = range(WARM_UP, WARM_UP + steps)
    spans += waits(spans)
    return sorted(
        (span for span in spans if span.step in wanted),
        key=lambda span: (span.start, -span.end),
    )


def lanes(spans: list[Span]) -> list[str]:
    """The tracks on which anything ran: on the CPU there are no streams, inline there
    is no worker."""
    found = {span.track for span in spans}
    return [track for track in TRACKS if track in found]


def waits(spans: list[Span]) -> list[Span]:
    """Where a span waited for one of another track, as `_awaited` says."""
    ends = {(span.track, span.name, span.step): span.end for span in spans}
    found = []
    for (track, name), (other, awaited, steps_before) in _awaited(lanes(spans)).items():
        for span in spans:
            if (span.track, span.name) == (track, name):
                end = min(
                    span.end, ends.get((other, awaited, span.step - steps_before), 0)
                )
                if end > span.start:
                    found.append(Span(track, WAIT, span.start, end, span.step))
    return found


def _awaited(tracks: list[str]) -> dict[tuple[str, str], tuple[str, str, int]]:
    """Which spans wait for the end of which others, and of how many steps before."""
    if "main stream" in tracks:
        found = {("main stream", "apply_mask"): ("side stream", "upload", 0)}
        if "worker" in tracks:
            return {**found, ("side stream", "upload"): ("worker", "fill", 0)}
        return {**found, ("engine thread", "fill_mask"): ("side stream", "download", 1)}
    return {("engine thread", "apply_mask"): ("worker", "fill", 0)}


def chrome_trace(spans: list[Span]) -> dict[str, Any]:
    """The spans in the format of Chrome and Perfetto."""
    origin = min((span.start for span in spans), default=0)
    events: list[dict[str, Any]] = [
        {
            "ph": "M",
            "name": "thread_name",
            "pid": 0,
            "tid": TRACKS.index(track),
            "args": {"name": track},
        }
        for track in lanes(spans)
    ]
    events += [
        {
            "ph": "X",
            "name": span.name,
            "pid": 0,
            "tid": TRACKS.index(span.track),
            "ts": (span.start - origin) / 1e3,
            "dur": (span.end - span.start) / 1e3,
            "args": {"step": span.step},
        }
        for span in spans
    ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def read_chrome_trace(document: Any) -> list[Span]:
    """The spans of what `chrome_trace` wrote. Raises a PluginError for any other
    document."""
    try:
        events = document["traceEvents"]
        tracks = {
            event["tid"]: event["args"]["name"]
            for event in events
            if event["ph"] == "M"
        }
        spans = [
            Span(
                tracks[event["tid"]],
                str(event["name"]),
                round(event["ts"] * 1e3),
                round((event["ts"] + event["dur"]) * 1e3),
                int(event["args"]["step"]),
            )
            for event in events
            if event["ph"] == "X"
        ]
    except (KeyError, TypeError, ValueError, AttributeError):
        spans = []
    if not spans or not {span.track for span in spans} <= set(TRACKS):
        raise PluginError(
            "is not a trace of this command",
            where="--read",
            hint="give what --out wrote",
        )
    return spans


class _TracedLoop(DecodeLoop):
    """The reference loop, in which every call of a step is timed."""

    def __init__(self, *arguments: Any, recorder: _Recorder, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._recorder = recorder
        for verb in ("plan", "fill_mask", "schedule_update", "finish_update"):
            recorder.wrap(self.pipeline, verb)
        recorder.wrap(self.pipeline, "apply_mask", "main stream")
        runtime: Any = self.pipeline.runtime
        recorder.wrap(runtime.buffers.masks, "upload", "side stream", inside=True)
        # Tokens are written by a kernel on the stream that samples.
        recorder.wrap(runtime.buffers.tokens, "write", "main stream", inside=True)

        self._traced: Any = None
        """The batch whose calls are timed."""

    def step(self, batch: Any, index: int) -> None:
        """One decode step."""
        if batch is not self._traced:
            self._traced = batch
            for name in ("forward", "sample", "append", "check_stop"):
                self._recorder.wrap(batch, name, "main stream")
        self._recorder.step = index
        super().step(batch, index)


class _Recorder:
    """Times calls on the host and, on CUDA, what they launched."""

    def __init__(self, device: torch.device) -> None:
        self.step = 0
        self._cuda = device.type == "cuda"
        self._host: list[Span] = []
        self._device: list[tuple[str, str, int, Any, Any]] = []
        self._origin: Any = None
        self._origin_ns = 0
        if self._cuda:
            self._origin = self._event(None)
            torch.cuda.synchronize(device)
            self._origin_ns = time.perf_counter_ns()

    def wrap(
        self, owner: Any, name: str, track: str = "", *, inside: bool = False
    ) -> None:
        """Time a method of one object. `track` is where the device runs what the method
        launches; `inside` means that its host time is part of another call's."""
        original: Callable[..., Any] = getattr(owner, name)
        on_device = self._cuda and bool(track)
        side = owner.side_stream if on_device and track == "side stream" else None

        def call(*arguments: Any) -> Any:
            before = self._event(side) if on_device else None
            start = time.perf_counter_ns()
            result = original(*arguments)
            end = time.perf_counter_ns()
            step = self.step
            if name == "finish_update":
                self.step += 1  # later calls belong to the next step
            if on_device:
                self._device.append((track, name, step, before, self._event(side)))
            if not inside:
                self._host.append(Span("engine thread", name, start, end, step))
            return result

        setattr(owner, name, call)

    def spans(self) -> list[Span]:
        """Everything so far; waits for the device."""
        found = list(self._host)
        if self._cuda:
            torch.cuda.synchronize()
        for track, name, step, before, after in self._device:
            start = self._origin_ns + int(self._origin.elapsed_time(before) * 1e6)
            end = self._origin_ns + int(self._origin.elapsed_time(after) * 1e6)
            found.append(Span(track, name, start, end, step))
        return found

    def _event(self, stream: Any) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record(stream)  # None is the current one
        return event


def _worker_spans(runtime: WorkerRuntime) -> list[Span]:
    """What the worker did, from its ring. The pipeline is new: its step n is the loop's
    n - 1."""
    spans = []
    for row in step_times(runtime.region, runtime.steps.planned).tolist():
        step = row[Time.STEP] - 1
        spans.append(Span("worker", "fill", row[Time.FILL], row[Time.FILLED], step))
        if row[Time.ACCEPTED] > row[Time.PLANNED]:
            spans.append(
                Span("worker", "accept", row[Time.ACCEPT], row[Time.ACCEPTED], step)
            )
    return spans
