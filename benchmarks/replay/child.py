"""One vLLM engine of `benchmarks.replay`. Engines of one call start and measure in
turns. Imports vLLM."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from benchmarks.harness import (
    Json,
    median,
    own_schema,
    plugin_metrics,
    quantile,
    serve,
    start,
    thread_clock,
    turn,
    watched,
)
from benchmarks.replay.force import KEY, install
from guided_plugin.errors import PipelineError
from guided_plugin.hosts.vllm.common import GUIDED

# here: the engine's processes are forked from this one, or import this file first
install()

PROMPT = 8
"""Tokens of a prompt."""
ROOM = 64
"""How many more tokens than its document's a request may have: it ends by its stop
token, as answers do. vLLM learns of that a step later than of an end by number."""
LEAST = 16
"""Documents of a run at least."""
_DIFFERENCES = 5
"""Of a case, at most."""


def measure(question: Json, tell: Callable[[Json], None]) -> None:
    """All batch sizes, one after the other."""
    # vLLM looks at the memory of the GPU that others use, unless it is told how much it
    # has.
    together = "kv_cache_memory_bytes" in question["engine"]
    with turn(question["turns"], together=together):
        bench = _Bench(question)
    figures: list[Json] = []
    for rows in question["rows"]:
        figures += bench.figures(rows)
        tell({"figures": figures})


class _Step(NamedTuple):
    """What came out of an engine at once."""

    time: float
    """By the engine's own clock."""
    rows: int
    """Requests that got tokens."""
    tokens: int
    ended: int
    """Requests that it finished."""
    thread: float
    """Seconds of vLLM's main threads until then."""


@dataclass
class _Case:
    """The runs of some documents with so many rows."""

    leg: Json
    rows: int
    runs: list[Json] = field(default_factory=list)
    outputs: int = 0
    different: list[Json] = field(default_factory=list)
    """Outputs that are not their documents: where they differ, and how they ended."""

    def judge(self, document: Json, output: Any) -> None:
        """Compare an output with its document."""
        self.outputs += 1
        wanted = document["tokens"]
        got = list(output.token_ids)
        if got == wanted:
            return
        same = [one == other for one, other in zip(wanted, got, strict=False)]
        at = [*same, False].index(False)
        difference = {
            "name": document["name"],
            "at": at,
            "wanted": wanted[at : at + 3],
            "got": got[at : at + 3],
            "ended": [str(output.finish_reason), str(output.stop_reason)],
        }
        self.different.append(difference)


class _Bench:
    def __init__(self, question: Json) -> None:
        self.question = question
        self.llm = start(
            question,
            max_num_seqs=max(question["rows"]),
            max_model_len=PROMPT + question["longest"] + ROOM + 16,
        )
        self.random = random.Random(1)
        self.numbers = itertools.count()

    def figures(self, rows: int) -> list[Json]:
        """Of every kind and form. They take turns, and the order is reversed every
        other time."""
        cases = [_Case(leg, rows) for leg in self.question["legs"]]
        for repetition in range(self.question["repetitions"] + 1):
            for case in cases if repetition % 2 == 0 else reversed(cases):
                with turn(self.question["turns"]):
                    run = self._run(case)
                if repetition:
                    case.runs.append(run)
        return [self._figure(case) for case in cases]

    def _run(self, case: _Case) -> Json:
        """Answer as many requests as the queue has, which begin when all are handed
        in."""
        engine = self.llm.llm_engine
        count = max(LEAST, self.question["queue"] * case.rows)
        documents = itertools.islice(itertools.cycle(case.leg["documents"]), count)
        thread = thread_clock()
        asked = {}
        steps = []

        def note(step: Any) -> None:
            given = [one for one in step.outputs if one.new_token_ids]
            if given:
                tokens = sum(len(one.new_token_ids) for one in given)
                ended = sum(one.finished for one in step.outputs)
                one = _Step(step.timestamp, len(given), tokens, ended, thread())
                steps.append(one)

        with watched(self.llm, note):
            for number, document in enumerate(documents, 1):
                prompt = self.random.choices(range(100, 1000), k=PROMPT)
                params = self._params(document, case.rows if number == count else 0)
                name = str(number)
                engine.add_request(name, {"prompt_token_ids": prompt}, params)
                asked[name] = document
            while engine.has_unfinished_requests():
                for output in engine.step():
                    if output.finished:
                        case.judge(asked[output.request_id], output.outputs[0])
        return _paced(steps, case.rows, count)

    def _params(self, document: Json, admitted: int) -> Any:
        from vllm import SamplingParams

        extra = {KEY: {"tokens": document["tokens"], "rows": admitted}}
        if self.question["guided"]:
            spec = extra[GUIDED] = dict(document["spec"])
            if self.question["new"]:
                number = next(self.numbers)
                spec["json_schema"] = own_schema(spec["json_schema"], number)
        most = len(document["tokens"]) + ROOM
        return SamplingParams(
            max_tokens=most, temperature=0.0, detokenize=False, extra_args=extra
        )

    def _figure(self, case: _Case) -> Json:
        return {
            "kind": case.leg["kind"],
            "form": case.leg["form"],
            "rows": case.rows,
            "outputs": case.outputs,
            "wrong": len(case.different),
            "differences": case.different[:_DIFFERENCES],
            **{
                name: median((run[name] for run in case.runs), 3)
                for name in case.runs[0]
            },
            "runs": case.runs,
            "metrics": plugin_metrics(self.llm, self.question),
        }


def _paced(steps: Sequence[_Step], rows: int, requests: int) -> Json:
    """The part of a run of so many requests in which every row is taken: from the first
    full step to the one that leaves fewer requests than rows."""
    if max(step.rows for step in steps) > rows:
        what = (
            f"more than {rows} rows ran: vLLM limits them in another way than expected"
        )
        raise PipelineError(what, where="benchmarks.replay.force")
    window: list[_Step] = []
    for step in steps:
        if window or step.rows == rows:
            window.append(step)
        requests -= step.ended
        if requests < rows:
            break
    if len(window) < 2:
        what = f"{rows} rows had no queue behind them"
        raise PipelineError(what, where="benchmarks.replay", hint="raise --queue")
    times = [later.time - earlier.time for earlier, later in pairwise(window)]
    tokens = sum(step.tokens for step in window[1:])
    forwards = sum(step.rows for step in window[1:])
    thread = window[-1].thread - window[0].thread
    return {
        "tokens_per_second": round(tokens / sum(times), 2),
        "ms_per_step": round(sum(times) / len(times) * 1e3, 4),
        "p99_step_ms": round(quantile(times, 0.99) * 1e3, 4),
        "forwards_per_token": round(forwards / tokens, 4),
        "thread_step_ms": round(thread / len(times) * 1e3, 3),
    }


if __name__ == "__main__":
    serve(measure)
