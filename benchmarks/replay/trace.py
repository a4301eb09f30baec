"""What the outputs of an engine tell of a run: its pace while requests wait, and which
drafts were accepted.

Knows no vLLM.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any

from benchmarks.measuring import quantile
from guided_plugin.bench import median
from guided_plugin.errors import PipelineError


@dataclass(slots=True)
class Trace:
    """When the tokens of some requests came, by the engine's own clock."""

    rows: int
    thread: Callable[[], float]
    """Tells the CPU seconds of vLLM's main threads."""
    steps: list[tuple[float, dict[str, int], int, float]] = field(default_factory=list)
    """Of each: its time, how many tokens each request got, how many of these requests
    it finished, and the threads' seconds then."""

    def note(self, step: Any) -> None:
        """Take a step's outputs."""
        tokens = {
            one.request_id: len(one.new_token_ids)
            for one in step.outputs
            if one.new_token_ids
        }
        if tokens:
            ended = sum(one.finished for one in step.outputs)
            self.steps.append((step.timestamp, tokens, ended, self.thread()))

    def queued(self, requests: int) -> dict[str, float]:
        """The part of a run of so many requests in which every row is taken: from the
        first full step to the one that leaves fewer requests than rows."""
        window: list[tuple[float, dict[str, int], int, float]] = []
        for step in self.steps:
            if window or len(step[1]) == self.rows:
                window.append(step)
            requests -= step[2]
            if requests < self.rows:
                break
        if len(window) < 2:
            raise PipelineError(
                f"{self.rows} rows had no queue behind them",
                where="benchmarks.replay",
                hint="raise --queue",
            )
        seconds, thread = (window[-1][at] - window[0][at] for at in (0, 3))
        tokens = sum(sum(step[1].values()) for step in window[1:])
        # milliseconds of steps
        took: dict[str, list[float]] = {"plain": [], "draft": [], "prompt": []}
        prompts = [any(those) for those in pairwise(self._begins())][
            self.steps.index(window[0]) + 1 :
        ]
        for (before, step), prompt in zip(pairwise(window), prompts, strict=False):
            kind = (
                "prompt"
                if prompt
                else "draft"
                if max(step[1].values()) > 1
                else "plain"
            )
            took[kind].append((step[0] - before[0]) * 1e3)
        return {
            "tokens_per_second": round(tokens / seconds, 2),
            "ms_per_step": round(seconds / (len(window) - 1) * 1e3, 4),
            "forwards_per_token": round(
                sum(len(step[1]) for step in window[1:]) / tokens, 4
            ),
            "seconds": round(seconds, 4),
            **{
                f"{kind}_step_ms": median(times or [0.0])
                for kind, times in took.items()
            },
            "prompt_steps": round(len(took["prompt"]) / (len(window) - 1), 4),
            "p99_step_ms": round(quantile(list(chain(*took.values())), 0.99), 4),
            "thread_step_ms": round(thread / (len(window) - 1) * 1e3, 3),
        }

    def _begins(self) -> list[bool]:
        """Of each step, whether a request begins in it; and of the next, which begins
        none."""
        begun: set[str] = set()
        begins = []
        for _, tokens, *_ in self.steps:
            begins.append(not begun.issuperset(tokens))
            begun.update(tokens)
        return [*begins, False]


_LARGEST = 12
"""Kernels and pauses that are told."""


def device_times(events: list[dict[str, Any]], steps: int) -> dict[str, Any]:
    """From the events of PyTorch's profiler, of the stream that works most:
    milliseconds a step in which it works, and microseconds a step of its largest
    kernels and pauses, by the kernels around them."""
    work: dict[Any, list[tuple[float, float, str]]] = {}
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            place = event["ts"], event["ts"] + event["dur"], event["name"][:60]
            work.setdefault(event["args"]["stream"], []).append(place)
    busiest = max(
        work.values(), key=lambda kernels: sum(end - start for start, end, _ in kernels)
    )
    kernels: Counter[str] = Counter()
    pauses: Counter[str] = Counter()
    for start, end, name in busiest:
        kernels[name] += end - start
    for (_, end, name), (start, _, following) in pairwise(sorted(busiest)):
        pauses[f"{name} -> {following}"] += max(start - end, 0.0)
    told = {
        which: {name: round(us / steps, 1) for name, us in counts.most_common(_LARGEST)}
        for which, counts in (("kernels_us", kernels), ("pauses_us", pauses))
    }
    return {"device_step_ms": round(sum(kernels.values()) / steps / 1e3, 3), **told}


_DIFFERENCES = 5
"""Of a case, at most."""


@dataclass(slots=True)
class Case:
    leg: dict[str, Any]
    rows: int
    passes: dict[str, Any] = field(default_factory=dict)
    """What `passes_of` says of the documents of a run."""
    runs: list[dict[str, float]] = field(default_factory=list)
    outputs: int = 0
    wrong: int = 0
    """Outputs that are not their documents."""
    differences: list[dict[str, Any]] = field(default_factory=list)
    """The first of them: where they differ, and how they ended."""
    unforced: int = 0
    """Drafts that were accepted at places that the grammar leaves open."""

    def judge(self, documents: list[dict[str, Any]], outputs: list[Any]) -> None:
        """Compare outputs with their documents."""
        self.outputs += len(outputs)
        for document, output in zip(documents, outputs, strict=True):
            wanted = document["tokens"]
            got = list(output.token_ids)
            if got == wanted:
                continue
            self.wrong += 1
            if len(self.differences) < _DIFFERENCES:
                pairs = enumerate(zip(wanted, got, strict=False))
                at = next(
                    (at for at, (one, other) in pairs if one != other),
                    min(len(wanted), len(got)),
                )
                around = {"wanted": wanted[at : at + 3], "got": got[at : at + 3]}
                ended = str(output.finish_reason), str(output.stop_reason)
                self.differences.append(
                    {"name": document["name"], "at": at, **around, "ended": ended}
                )

    def count_unforced(
        self, documents: dict[str, dict[str, Any]], trace: Trace
    ) -> None:
        """Of the tokens that a step adds to a request, all but the last one are
        accepted drafts."""
        places = dict.fromkeys(documents, 0)
        for _, tokens, *_ in trace.steps:
            for name, count in tokens.items():
                at, places[name] = places[name], places[name] + count
                self.unforced += documents[name]["forced"][at : at + count - 1].count(
                    False
                )
