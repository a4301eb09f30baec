"""One vLLM engine of `benchmarks.answers`. Imports vLLM."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from typing import Any

from benchmarks.answers.ways import CPU, UNGUIDED, Way
from benchmarks.harness import Json, own_schema, serve, start, watched
from guided_plugin.hosts.vllm.common import METRICS


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
            if way.asks(kind):
                answers = bench.answers(way, known)
                cases.append({"kind": kind, "way": way.name, **answers})
                tell({"cases": cases})


def _job(bench: _Bench, question: Json, tell: Callable[[Json], None]) -> None:
    """The turns of `benchmarks.answers.job`; the first one warms up."""
    way = Way.named(question["ways"][0])
    turns = []
    for turn in range(question["repetitions"] + 1):
        tasks = _new(question["tasks"], f"{turn}")
        found = {"new": bench.answers(way, tasks)}
        lengths = [output["tokens"] for output in found["new"]["outputs"]]
        same = [
            {**task, "max_tokens": max(1, length)}
            for task, length in zip(tasks, lengths, strict=True)
        ]
        unguided = Way.named(UNGUIDED)
        found["unguided"] = bench.answers(unguided, same, ignore_eos=True)
        found["known"] = bench.answers(way, tasks)
        if len(question["ways"]) > 1:
            ending = Way.named(question["ways"][1])
            asked = _new(question["tasks"], f"{turn} with an end")
            found["closed"] = bench.answers(ending, asked)
        if turn:
            turns.append(found)
            tell({"turns": turns})


def _new(tasks: list[Json], name: str) -> list[Json]:
    """The tasks with schemas that were never asked for."""
    return [{**task, "schema": own_schema(task["schema"], name)} for task in tasks]


class _Bench:
    def __init__(self, question: Json) -> None:
        if question["device"] == "cpu":
            os.environ.update(CPU)
        if os.environ["GUIDED_PLUGIN"] != "0":
            from guided_plugin.vllm import GuidedLogitsProcessor

            question["engine"]["logits_processors"] = [GuidedLogitsProcessor]
        self.llm = start(question)
        self._refused: dict[int, str] = {}
        """Reasons, by the number of the request in a call."""
        self._added = 0
        self._leave_out_refused()

    def _leave_out_refused(self) -> None:
        """Make `LLM` leave out a request that is refused: it would give up all others
        of the call."""
        from vllm.exceptions import VLLMValidationError

        add = self.llm._add_request

        def added(*args: Any, **kwargs: Any) -> str:
            number = self._added
            self._added += 1
            try:
                return str(add(*args, **kwargs))
            except (ValueError, VLLMValidationError) as error:
                self._refused[number] = str(error)
                return f"refused {number}"

        self.llm._add_request = added

    def answers(self, way: Way, tasks: list[Json], **more: Any) -> Json:
        """Return the outputs of all tasks, answered in one call, the seconds that it
        took, those between two outputs of the engine, and how many were told
        unprotected. `more`: of `SamplingParams`."""
        from vllm import SamplingParams, TokensPrompt

        self._added = 0
        self._refused.clear()
        before = self._unprotected()
        prompts = [TokensPrompt(prompt_token_ids=task["tokens"]) for task in tasks]
        params = [
            SamplingParams(
                temperature=0.0,
                max_tokens=task["max_tokens"],
                **_constraint(way, task),
                **more,
            )
            for task in tasks
        ]
        stamps: list[float] = []
        with watched(self.llm, lambda outputs: stamps.append(outputs.timestamp)):
            start = time.monotonic()
            outputs = iter(self.llm.generate(prompts, params, use_tqdm=False))
            seconds = time.monotonic() - start
        # what the parent tells of an engine that comes to its limit
        print(f"{way.name}: {len(tasks)} requests in {seconds:.1f} s", flush=True)
        steps = [after - before for before, after in itertools.pairwise(stamps)]
        told = [
            _refusal(self._refused[number])
            if number in self._refused
            else _told(next(outputs))
            for number in range(len(tasks))
        ]
        unprotected = self._unprotected() - before
        return {
            "seconds": seconds,
            "steps": steps,
            "outputs": told,
            "unprotected": unprotected,
        }

    def _unprotected(self) -> int:
        """Outputs so far that were told unprotected."""
        if os.environ["GUIDED_PLUGIN"] == "0":
            return 0
        return sum(
            figures["worker"]["unprotected_outputs"]
            for of_worker in self.llm.collective_rpc(METRICS)
            for figures in of_worker
        )


def _constraint(way: Way, task: Json) -> Json:
    from vllm.sampling_params import StructuredOutputsParams

    asked = way.constraint(task["schema"], task["tools"])
    if "json" in asked:
        return {"structured_outputs": StructuredOutputsParams(json=asked["json"])}
    return {"extra_args": asked} if asked else {}


def _told(output: Any) -> Json:
    own = output.outputs[0]
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
