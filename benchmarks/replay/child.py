"""One vLLM engine of `benchmarks.replay`. Engines of one call start and measure in
turns. Imports vLLM."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from typing import Any

from benchmarks.harness import (
    Json,
    own_schema,
    serve,
    start,
    thread_clock,
    turn,
    watched,
)
from benchmarks.replay.documents import passes_of
from benchmarks.replay.force import KEY, install
from benchmarks.replay.trace import Case, Trace
from benchmarks.turns import median
from guided_plugin.errors import PipelineError
from guided_plugin.hosts.vllm.common import GUIDED, METRICS

# here: the engine's processes are forked from this one, or import this file first
install()

PROMPT = 8
"""Tokens of a prompt."""
ROOM = 64
"""How many more tokens than its document's a request may have: it ends by its stop
token, as answers do. vLLM learns of that a step later than of an end by number."""


def measure(question: Json, tell: Callable[[Json], None]) -> None:
    """All batch sizes, one after the other."""
    with turn(question["turns"]):
        bench = _Bench(question)
    figures: list[Json] = []
    for rows in question["rows"]:
        figures += bench.figures(rows)
        tell({"figures": figures})


class _Bench:
    def __init__(self, question: Json) -> None:
        self.question = question
        length = PROMPT + question["longest"] + ROOM + 16
        rows = max(question["rows"])
        self.llm = start(question, max_num_seqs=rows, max_model_len=length)
        self.random = random.Random(1)
        self.numbers = itertools.count()

    def figures(self, rows: int) -> list[Json]:
        """Of every kind and form. They take turns, and the order is reversed every
        other time."""
        cases = [Case(leg, rows) for leg in self.question["legs"]]
        for case in cases:
            case.passes = passes_of(self._queue(case), case.leg["drafts"])
        for repetition in range(self.question["repetitions"] + 1):
            for case in cases if repetition % 2 == 0 else reversed(cases):
                with turn(self.question["turns"]):
                    self._repeat(case, counts=repetition > 0)
        return [self._figure(case) for case in cases]

    def _queue(self, case: Case) -> list[Json]:
        documents = case.leg["documents"]
        count = max(self.question["least"], self.question["queue"] * case.rows)
        return [documents[number % len(documents)] for number in range(count)]

    def _repeat(self, case: Case, *, counts: bool) -> None:
        rows = case.rows
        queue = self._queue(case)
        trace, _ = self._run(case, queue, counts=counts)
        seconds = [
            self._run(
                case,
                queue[at : at + rows],
                counts=counts,
            )[1]
            for at in range(
                0,
                max(rows, self.question["least"] // 2),
                rows,
            )
        ]
        if not counts:
            return
        run = trace.queued(len(queue))
        tokens = case.passes["tokens"] / len(queue)
        document_ms = rows * tokens / run["tokens_per_second"] * 1e3
        run["document_ms"] = round(document_ms, 3)
        run["batch_ms"] = round(sum(seconds) / len(seconds) * 1e3, 3)
        case.runs.append(run)

    def _run(
        self, case: Case, documents: list[Json], *, counts: bool
    ) -> tuple[Trace, float]:
        """Answer these requests, which begin when all are handed in. The trace; seconds
        from then on."""
        engine = self.llm.llm_engine
        trace = Trace(case.rows, thread_clock())
        asked = {}
        outputs = {}
        with watched(self.llm, trace.note):
            for number, document in enumerate(documents):
                prompt = self.random.choices(range(100, 1000), k=PROMPT)
                admitted = case.rows if number == len(documents) - 1 else 0
                name = engine.add_request(
                    str(number),
                    {"prompt_token_ids": prompt},
                    self._params(document, admitted),
                )
                asked[name] = document
            start = time.monotonic()
            while engine.has_unfinished_requests():
                outputs.update((int(one.request_id), one) for one in engine.step())
        if max(len(tokens) for _, tokens, *_ in trace.steps) > case.rows:
            what = f"more than {case.rows} rows ran: vLLM limits them in another way than expected"
            raise PipelineError(what, where="benchmarks.replay.force")
        if counts:
            given = [outputs[number].outputs[0] for number in range(len(documents))]
            case.judge(documents, given)
            case.count_unforced(asked, trace)
        return trace, trace.steps[-1][0] - start

    def _params(self, document: Json, admitted: int) -> Any:
        from vllm import SamplingParams

        extra = {KEY: {"tokens": document["tokens"], "rows": admitted}}
        spec = document["spec"]
        if self.question["guided"] and spec is not None:
            if self.question["new"]:
                schema = own_schema(spec["json_schema"], next(self.numbers))
                spec = {**spec, "json_schema": schema}
            extra[GUIDED] = spec
        most = len(document["tokens"]) + ROOM
        return SamplingParams(
            max_tokens=most, temperature=0.0, detokenize=False, extra_args=extra
        )

    def _figure(self, case: Case) -> Json:
        figure = {name: case.leg[name] for name in ("kind", "form", "digest")}
        for name in ("rows", "outputs", "wrong", "differences", "unforced"):
            figure[name] = getattr(case, name)
        for name in ("bound", "alone"):
            figure[name] = case.passes[name]
        for name in case.runs[0]:
            figure[name] = median((run[name] for run in case.runs), 3)
        figure["runs"] = case.runs
        if self.question["guided"]:
            answers = self.llm.collective_rpc(METRICS)
            figure["metrics"] = [answer[0] for answer in answers if answer]
        return figure


if __name__ == "__main__":
    serve(measure)
