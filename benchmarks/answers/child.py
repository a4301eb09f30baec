"""One vLLM engine of `benchmarks.answers`. Imports vLLM."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.answers.ways import UNGUIDED, Way
from benchmarks.harness import (
    Json,
    generated,
    own_schema,
    plugin_metrics,
    serve,
    start,
)


def measure(question: Json, tell: Callable[[Json], None]) -> None:
    """Answer every kind of task in every way, or one job in turns."""
    bench = _Bench(question)
    if "repetitions" in question:
        _job(bench, question, tell)
        return
    cases = []
    for kind, tasks in itertools.groupby(question["tasks"], lambda task: task["kind"]):
        known = list(tasks)
        for way in map(Way.named, question["ways"]):
            answers = bench.answers(way, known)
            cases.append({"kind": kind, "way": way.name, **answers})
            tell({"cases": cases})


def _job(bench: _Bench, question: Json, tell: Callable[[Json], None]) -> None:
    """The turns of `benchmarks.answers.job`. Each begins with another way, so that a
    machine that slows down favours none; the first one warms up."""
    guided, *ending = map(Way.named, question["ways"])
    tasks = _new(question["tasks"], "0")
    newest = bench.answers(guided, tasks)
    turns = []
    for turn in range(question["repetitions"] + 1):
        same = [
            {**task, "max_tokens": max(1, output["tokens"])}
            for task, output in zip(tasks, newest["outputs"], strict=True)
        ]
        known = tasks
        tasks = _new(question["tasks"], f"{turn + 1}")
        asked: dict[str, Callable[[], Json]] = {
            "new": partial(bench.answers, guided, tasks),
            "unguided": partial(
                bench.answers, Way.named(UNGUIDED), same, ignore_eos=True
            ),
            "known": partial(bench.answers, guided, known),
        }
        for way in ending:
            own = _new(question["tasks"], f"{turn + 1} with an end")
            asked["closed"] = partial(bench.answers, way, own)
        order = deque(asked)
        order.rotate(turn)
        found = {way: asked[way]() for way in order}
        newest = found["new"]
        if turn:
            turns.append(found)
            tell({"turns": turns})


def _new(tasks: list[Json], name: str) -> list[Json]:
    """The tasks with schemas that were never asked for."""
    return [{**task, "schema": own_schema(task["schema"], name)} for task in tasks]


class _Bench:
    def __init__(self, question: Json) -> None:
        self._question = question
        self.llm = start(question)
        self._refused: list[str] = []
        """Of each request of a call: the reason, empty if it was not refused."""
        self._leave_out_refused()

    def _leave_out_refused(self) -> None:
        """Make `LLM` leave out a request that is refused: it would give up all others
        of the call."""
        from vllm.exceptions import VLLMValidationError

        add = self.llm._add_request

        def added(*args: Any, **kwargs: Any) -> str:
            try:
                name = str(add(*args, **kwargs))
            except (ValueError, VLLMValidationError) as error:
                self._refused.append(str(error))
                return f"refused {len(self._refused)}"
            self._refused.append("")
            return name

        self.llm._add_request = added

    def answers(self, way: Way, tasks: list[Json], **more: Any) -> Json:
        """Return the outputs of all tasks, answered in one call, the seconds that it
        took, those between two outputs of the engine, the CPU time of vLLM's thread, and
        how many were told unprotected. `more`: of `SamplingParams`."""
        from vllm import SamplingParams

        self._refused.clear()
        before = self._unprotected()
        prompts = [task["tokens"] for task in tasks]
        params = [
            SamplingParams(
                temperature=0.0,
                max_tokens=task["max_tokens"],
                **_constraint(way, task),
                **more,
            )
            for task in tasks
        ]
        run = generated(self.llm, prompts, params)
        outputs = iter(run.outputs)
        # what the parent tells of an engine that comes to its limit
        print(f"{way.name}: {len(tasks)} requests in {run.seconds:.1f} s", flush=True)
        return {
            "seconds": run.seconds,
            "thread": run.thread,
            "steps": run.gaps,
            "outputs": [
                _refusal(reason) if reason else _told(next(outputs))
                for reason in self._refused
            ],
            "unprotected": self._unprotected() - before,
        }

    def _unprotected(self) -> int:
        """Outputs so far that were told unprotected."""
        known = plugin_metrics(self.llm, self._question)
        return sum(one["worker"]["unprotected_outputs"] for one in known)


def _constraint(way: Way, task: Json) -> Json:
    from vllm.sampling_params import StructuredOutputsParams

    asked = way.constraint(task["schema"])
    if "json" in asked:
        return {"structured_outputs": StructuredOutputsParams(json=asked["json"])}
    return {"extra_args": asked} if asked else {}


def _told(own: Any) -> Json:
    reason = str(own.stop_reason) if own.finish_reason == "error" else None
    return {
        "text": own.text,
        "tokens": len(own.token_ids),
        "finish": own.finish_reason,
        "reason": reason,
    }


def _refusal(reason: str) -> Json:
    return {"text": "", "tokens": 0, "finish": "refused", "reason": reason}


if __name__ == "__main__":
    serve(measure)
