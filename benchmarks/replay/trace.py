"""What the outputs of an engine tell of a run: its pace while requests wait, and which
drafts were accepted.

Knows no vLLM.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any

from benchmarks.harness import Json, quantile
from benchmarks.turns import median
from guided_plugin.errors import PipelineError

Step = tuple[float, dict[str, int], int, float]
"""Its time, how many tokens each request got, how many of these requests it finished,
and the threads' seconds then."""


@dataclass(slots=True)
class Trace:
    """When the tokens of some requests came, by the engine's own clock."""

    rows: int
    thread: Callable[[], float]
    """Tells the CPU seconds of vLLM's main threads."""
    steps: list[Step] = field(default_factory=list)

    def note(self, step: Any) -> None:
        """Take a step's outputs."""
        given = [one for one in step.outputs if one.new_token_ids]
        if given:
            tokens = {one.request_id: len(one.new_token_ids) for one in given}
            ended = sum(one.finished for one in step.outputs)
            self.steps.append((step.timestamp, tokens, ended, self.thread()))

    def queued(self, requests: int) -> Json:
        """The part of a run of so many requests in which every row is taken: from the
        first full step to the one that leaves fewer requests than rows."""
        window: list[Step] = []
        for step in self.steps:
            if window or len(step[1]) == self.rows:
                window.append(step)
            requests -= step[2]
            if requests < self.rows:
                break
        if len(window) < 2:
            what = f"{self.rows} rows had no queue behind them"
            raise PipelineError(what, where="benchmarks.replay", hint="raise --queue")
        first, last = window[0], window[-1]
        steps = len(window) - 1
        seconds = last[0] - first[0]
        tokens = sum(sum(step[1].values()) for step in window[1:])
        forwards = sum(len(step[1]) for step in window[1:])
        took = self._step_ms(window)
        return {
            "tokens_per_second": round(tokens / seconds, 2),
            "ms_per_step": round(seconds / steps * 1e3, 4),
            "forwards_per_token": round(forwards / tokens, 4),
            "seconds": round(seconds, 4),
            **{f"{kind}_step_ms": median(ms or [0.0]) for kind, ms in took.items()},
            "prompt_steps": round(len(took["prompt"]) / steps, 4),
            "p99_step_ms": round(quantile(list(chain(*took.values())), 0.99), 4),
            "thread_step_ms": round((last[3] - first[3]) / steps * 1e3, 3),
        }

    def _step_ms(self, window: list[Step]) -> dict[str, list[float]]:
        """Milliseconds of the steps of a window, by what is in them."""
        took: dict[str, list[float]] = {"plain": [], "draft": [], "prompt": []}
        begins = [any(those) for those in pairwise(self._begins())]
        prompts = begins[self.steps.index(window[0]) + 1 :]
        for (before, step), prompt in zip(pairwise(window), prompts, strict=False):
            kind = "draft" if max(step[1].values()) > 1 else "plain"
            took["prompt" if prompt else kind].append((step[0] - before[0]) * 1e3)
        return took

    def _begins(self) -> list[bool]:
        """Of each step, whether a request begins in it; and of the next, which begins
        none."""
        begun: set[str] = set()
        begins = []
        for _, tokens, *_ in self.steps:
            begins.append(not begun.issuperset(tokens))
            begun.update(tokens)
        return [*begins, False]


_DIFFERENCES = 5
"""Of a case, at most."""


@dataclass(slots=True)
class Case:
    """The runs of one leg with so many rows."""

    leg: Json
    rows: int
    passes: Json = field(default_factory=dict)
    """What `passes_of` says of the documents of a run."""
    runs: list[Json] = field(default_factory=list)
    outputs: int = 0
    wrong: int = 0
    """Outputs that are not their documents."""
    differences: list[Json] = field(default_factory=list)
    """The first of them: where they differ, and how they ended."""
    unforced: int = 0
    """Drafts that were accepted at places that the grammar leaves open."""

    def judge(self, documents: list[Json], outputs: list[Any]) -> None:
        """Compare outputs with their documents."""
        self.outputs += len(outputs)
        for document, output in zip(documents, outputs, strict=True):
            wanted = document["tokens"]
            got = list(output.token_ids)
            if got == wanted:
                continue
            self.wrong += 1
            if len(self.differences) == _DIFFERENCES:
                continue
            same = [one == other for one, other in zip(wanted, got, strict=False)]
            at = [*same, False].index(False)
            difference = {
                "name": document["name"],
                "at": at,
                "wanted": wanted[at : at + 3],
                "got": got[at : at + 3],
                "ended": [str(output.finish_reason), str(output.stop_reason)],
            }
            self.differences.append(difference)

    def count_unforced(self, documents: dict[str, Json], trace: Trace) -> None:
        """Of the tokens that a step adds to a request, all but the last one are
        accepted drafts."""
        places = dict.fromkeys(documents, 0)
        for _, tokens, *_ in trace.steps:
            for name, count in tokens.items():
                at = places[name]
                places[name] += count
                drafts = documents[name]["forced"][at : at + count - 1]
                self.unforced += drafts.count(False)
