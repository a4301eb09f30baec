"""One vLLM engine of `benchmarks.replay`, in a process of its own.

    python -m benchmarks.replay.child OPTIONS.json RESULT.json

The result is written again after each batch size, so that a time limit costs what was
not measured yet. Engines of one call start and measure in turns. Imports vLLM. The
parent chooses the runner and the plugin's options by environment variables.
"""

from __future__ import annotations

import gzip
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.engine_child import answer, thread_clock, watched
from benchmarks.measuring import question_in, turn
from benchmarks.replay.documents import passes_of
from benchmarks.replay.force import KEY, install
from benchmarks.replay.trace import Case, Trace, device_times
from guided_plugin.bench import environment, median
from guided_plugin.errors import PipelineError
from guided_plugin.hosts.vllm.common import GUIDED, METRICS

# here: the engine's processes are forked from this one, or import this file first
install()

PROMPT = 8
"""Tokens of a prompt."""
ROOM = 64
"""How many more tokens than its document's a request may have: it ends by its stop
token, as answers do. vLLM learns of that a step later than of an end by number."""


def main(options_path: str, result_path: str) -> None:
    """Measure what the options ask for."""
    options = question_in(options_path)
    with turn(options["turns"]):
        bench = _Bench(options)
    figures: list[dict[str, Any]] = []
    for rows in options["rows"]:
        figures += bench.figures(rows)
        answer(
            {"environment": environment(options["device"]), "figures": figures},
            result_path,
        )


class _Bench:
    def __init__(self, options: dict[str, Any]) -> None:
        from vllm import LLM

        self.options = options
        self.llm: Any = LLM(
            options["model"],
            tokenizer=options["tokenizer"],
            max_num_seqs=max(options["rows"]),
            max_model_len=PROMPT + options["longest"] + ROOM + 16,
            enable_prefix_caching=False,
            **options["engine"],
            **(_profiler(options["traces"]) if options["profile"] else {}),
        )
        self.random = random.Random(1)

    def figures(self, rows: int) -> list[dict[str, Any]]:
        """Of every kind and form. They take turns, and the order is reversed every
        other time."""
        cases = [Case(leg, rows) for leg in self.options["legs"]]
        for case in cases:
            case.passes = passes_of(self._queue(case), case.leg["drafts"])
        for repetition in range(self.options["repetitions"] + 1):
            for case in cases if repetition % 2 == 0 else reversed(cases):
                with turn(self.options["turns"]):
                    self._repeat(case, counts=repetition > 0)
        profiles: list[dict[str, Any]] = [{} for _ in cases]
        if rows in self.options["profile"]:
            with turn(self.options["turns"]):
                profiles = [self._profile(case) for case in cases]
        return [
            self._figure(case) | own for case, own in zip(cases, profiles, strict=True)
        ]

    def _queue(self, case: Case) -> list[dict[str, Any]]:
        documents = case.leg["documents"]
        count = max(self.options["least"], self.options["queue"] * case.rows)
        return [documents[number % len(documents)] for number in range(count)]

    def _profile(self, case: Case) -> dict[str, Any]:
        """Of one more run, which takes longer."""
        self.llm.start_profile()
        trace, _ = self._run(case, self._queue(case), counts=False)
        self.llm.stop_profile()
        # one of each rank
        first, *_ = files = sorted(Path(self.options["traces"]).glob("*.gz"))
        events = json.loads(gzip.decompress(first.read_bytes()))["traceEvents"]
        for path in files:
            path.unlink()
        return device_times(events, len(trace.steps))

    def _repeat(self, case: Case, *, counts: bool) -> None:
        rows = case.rows
        queue = self._queue(case)
        count = len(queue)
        trace, _ = self._run(case, queue, counts=counts)
        batches = [
            queue[at : at + rows]
            for at in range(0, max(rows, self.options["least"] // 2), rows)
        ]
        seconds = [self._run(case, batch, counts=counts)[1] for batch in batches]
        if counts:
            queued = trace.queued(count)
            document_ms = round(
                rows
                * case.passes["tokens"]
                / count
                / queued["tokens_per_second"]
                * 1e3,
                3,
            )
            batch_ms = round(sum(seconds) / len(seconds) * 1e3, 3)
            case.runs.append(
                {**queued, "document_ms": document_ms, "batch_ms": batch_ms}
            )

    def _run(
        self, case: Case, documents: list[dict[str, Any]], *, counts: bool
    ) -> tuple[Trace, float]:
        """Answer these requests, which begin when all are handed in. The trace; seconds
        from then on."""
        engine = self.llm.llm_engine
        trace = Trace(case.rows, thread_clock())
        names = []
        outputs = {}
        with watched(engine.engine_core, trace.note):
            for number, document in enumerate(documents):
                given = {
                    "prompt_token_ids": self.random.choices(range(100, 1000), k=PROMPT)
                }
                admitted = case.rows if number == len(documents) - 1 else 0
                names.append(
                    engine.add_request(
                        str(number), given, self._params(document, admitted)
                    )
                )
            start = time.monotonic()
            while engine.has_unfinished_requests():
                outputs.update(
                    (int(output.request_id), output) for output in engine.step()
                )
        if max(len(tokens) for _, tokens, *_ in trace.steps) > case.rows:
            what = f"more than {case.rows} rows ran: vLLM limits them in another way than expected"
            raise PipelineError(what, where="benchmarks.replay.force")
        if counts:
            case.judge(
                documents,
                [outputs[number].outputs[0] for number in range(len(documents))],
            )
            case.count_unforced(dict(zip(names, documents, strict=True)), trace)
        return trace, trace.steps[-1][0] - start

    def _params(self, document: dict[str, Any], admitted: int) -> Any:
        from vllm import SamplingParams

        extra = {KEY: {"tokens": document["tokens"], "rows": admitted}}
        if self.options["guided"] and document["spec"] is not None:
            extra[GUIDED] = document["spec"]
        most = len(document["tokens"]) + ROOM
        return SamplingParams(
            max_tokens=most, temperature=0.0, detokenize=False, extra_args=extra
        )

    def _figure(self, case: Case) -> dict[str, Any]:
        figure = {
            **{name: case.leg[name] for name in ("kind", "form", "digest")},
            **{
                name: getattr(case, name)
                for name in ("rows", "outputs", "wrong", "differences", "unforced")
            },
            **{name: case.passes[name] for name in ("bound", "alone")},
            **{
                name: median((run[name] for run in case.runs), 3)
                for name in case.runs[0]
            },
            "runs": case.runs,
        }
        if self.options["guided"]:
            figure["metrics"] = [
                answer[0] for answer in self.llm.collective_rpc(METRICS) if answer
            ]
        print(json.dumps(figure), flush=True)
        return figure


def _profiler(folder: str) -> dict[str, Any]:
    kind: dict[str, Any] = {
        "profiler": "torch",
        "torch_profiler_dir": folder,
        "ignore_frontend": True,
    }
    kind |= {"torch_profiler_with_stack": False, "torch_profiler_activities": ["CUDA"]}
    return {"profiler_config": {**kind, "torch_profiler_dump_cuda_time_total": False}}


if __name__ == "__main__":
    main(*sys.argv[1:3])
