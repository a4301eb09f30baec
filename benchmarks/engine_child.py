"""One vLLM engine of `benchmarks.engines`, in a process of its own: with the plugin, or
vLLM's own backend.

    python -m benchmarks.engine_child OPTIONS.json RESULT.json

Imports vLLM. The parent chooses the runner and the plugin by environment variables.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.measuring import quantile, question_in
from benchmarks.samples import served_schemas
from guided_plugin.bench import (
    SCHEMAS,
    endless,
    environment,
    refused_at,
    repeated,
)
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import UNBOUNDED, GuidedConfig
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.hosts.vllm.common import METRICS
from guided_plugin.spec import OutputSpec

REAL_WORLD = "real-world"
"""Schemas of a MaskBench sample, `_REAL_WORLD_COUNT` of them at once, each as an array
that is too long."""
_REAL_WORLD_COUNT = 28
_WAYS = ("unguided", "guided")
_FIRST_STEPS = 32
_TOO_LONG = 8.0
"""Seconds of a run (not of the first) after which it is not repeated."""


def main(options_path: str, result_path: str) -> None:
    """Measure what the options ask for."""
    options = question_in(options_path)
    bench = _Bench(options)
    result: dict[str, Any] = {
        "environment": environment(options["device"]),
        "starts": bench.starts(),
    }
    result |= {"figures": [], "mixed": []}
    for rows in options["rows"]:
        result["figures"] += bench.figures(rows)
        answer(result, result_path)
    if options["mixed"]:
        result["mixed"] = [bench.mixed(way) for way in _WAYS]
        answer(result, result_path)


def answer(result: dict[str, Any], path: str) -> None:
    """Write it in place of the last one, all at once: the parent takes what is there
    when the time is up."""
    partly = Path(f"{path}.part")
    partly.write_text(json.dumps(result))
    os.replace(partly, path)


class _Bench:
    def __init__(self, options: dict[str, Any]) -> None:
        from vllm import LLM

        self.options = options
        arguments = dict(options["engine"])
        if options["plugin"]:
            from guided_plugin.vllm import GuidedLogitsProcessor

            arguments["logits_processors"] = [GuidedLogitsProcessor]
        self.llm: Any = LLM(
            options["model"],
            tokenizer=options["tokenizer"],
            max_num_seqs=max(options["rows"]),
            max_model_len=options["steps"] + 64,
            enable_prefix_caching=False,
            **arguments,
        )
        self.vocabulary = Vocabulary.from_tokenizer(self.llm.get_tokenizer())
        self.compiler = GrammarCompiler(
            self.vocabulary, config=GuidedConfig(isolate_compiles=False)
        )
        self.random = random.Random(1)
        self.refused: list[Any] = []
        """Schemas of the sample that vLLM's own backend does not take: its figures are
        about the others."""
        self.new: list[Any] = []
        """As many as those of the sample that the figures are about, which no request
        has asked for."""
        self.documents = {name: [schema] for name, schema in SCHEMAS.items()}
        """The schemas of a name. Requests take them in turn."""
        if options["sample"]:
            found = served_schemas(
                Path(options["sample"]), 2 * _REAL_WORLD_COUNT, repeated
            )
            backend = (
                options["engine"].get("structured_outputs_config", {}).get("backend")
            )
            self.refused = [one for one in found if not self._takes(backend, one)]
            found = [one for one in found if one not in self.refused]
            self.documents[REAL_WORLD] = found[:_REAL_WORLD_COUNT]
            self.new = found[_REAL_WORLD_COUNT:]

    def figures(self, rows: int) -> list[dict[str, Any]]:
        """Milliseconds a step of every way: the median over the repetitions after the
        first. The ways take turns, so that slow changes of the machine affect all of
        them."""
        cases = [
            _Case(way, schema)
            for way in _WAYS
            for schema in (self.options["schemas"] if way == "guided" else ["none"])
        ]
        for _ in range(self.options["repetitions"] + 1):
            for case in cases:
                if max(case.seconds[1:], default=0.0) < _TOO_LONG:
                    self._repeat(case, rows)
        return [self._figure(case, rows) for case in cases]

    def _repeat(self, case: _Case, rows: int) -> None:
        chosen = {
            "max_tokens": self.options["steps"],
            "ignore_eos": True,
            "temperature": 1.0,
        }
        documents = self._documents(case, rows)
        # As in an application: one for all prompts of a schema.
        made = {id(one): self._params(case.way, one, **chosen) for one in documents}
        params = [made[id(one)] for one in documents]
        prompts = [self._prompt() for _ in range(rows)]
        stamps: list[float] = []
        clock = thread_clock()
        before = clock()
        start = time.perf_counter()
        with watched(
            self.llm.llm_engine.engine_core,
            lambda outputs: stamps.append(outputs.timestamp),
        ):
            case.outputs = self.llm.generate(prompts, params, use_tqdm=False)
        case.seconds.append(time.perf_counter() - start)
        case.threads.append(clock() - before)
        case.steady.append(_steady(stamps))
        if self.options["plugin"] and case.way == "guided":
            # Ranks that follow another one, and stages that do not sample, answer
            # nothing.
            ranks = [answer[0] for answer in self.llm.collective_rpc(METRICS) if answer]
            case.metrics = ranks[0]
            case.rank_threads = [
                round(metrics["host_thread"] * 1e6, 1) for metrics in ranks
            ]

    def _figure(self, case: _Case, rows: int) -> dict[str, Any]:
        times = [seconds / self.options["steps"] * 1e3 for seconds in case.seconds]
        typical = statistics.median(times[1:])
        figure = {
            "rows": rows,
            "way": case.way,
            "schema": case.schema,
            "ms_per_step": round(typical, 4),
            "steady_ms": round(statistics.median(case.steady[1:]) * 1e3, 4),
            "tokens_per_second": round(rows / typical * 1e3),
            "all_ms": [round(value, 4) for value in times],
            "thread_us": round(
                statistics.median(case.threads[1:]) / self.options["steps"] * 1e6
            ),
            "wrong_outputs": self._wrong(
                zip(self._documents(case, rows), case.outputs, strict=True)
                if case.way == "guided"
                else ()
            ),
            "metrics": case.metrics,
            "host_thread_us_by_rank": case.rank_threads,
        }
        print(json.dumps(figure), flush=True)
        return figure

    def mixed(self, way: str) -> dict[str, Any]:
        """Requests at random moments, every other one guided, with schemas that appear
        one after the other. Times are those that the engine puts on its outputs."""
        engine = self.llm.llm_engine
        waiting = self._arrivals(way, **self.options["mixed"])
        asked: list[tuple[str, float, Any]] = []
        """Of each request: the engine's name for it, when it was due, its schema.
        `outputs` go by index."""
        outputs: dict[str, Any] = {}
        came: dict[str, list[float]] = {}

        def note(step: Any) -> None:
            for one in step.outputs:
                came.setdefault(one.request_id, []).extend(
                    [step.timestamp] * len(one.new_token_ids)
                )

        start = time.monotonic()
        with watched(engine.engine_core, note):
            while waiting or engine.has_unfinished_requests():
                now = time.monotonic() - start
                while waiting and waiting[0][0] <= now:
                    due, document, params = waiting.popleft()
                    name = engine.add_request(str(len(asked)), self._prompt(), params)
                    asked.append((name, start + due, document))
                if engine.has_unfinished_requests():
                    outputs.update(
                        (o.request_id, o) for o in engine.step() if o.finished
                    )
                elif waiting:
                    time.sleep(max(0.0, start + waiting[0][0] - time.monotonic()))
        between = [
            later - earlier
            for times in came.values()
            for earlier, later in pairwise(times)
        ]
        first = [came[name][0] - due for name, due, _ in asked]
        stamps = [stamp for times in came.values() for stamp in times]
        figure = {
            "way": way,
            "requests": len(asked),
            "tokens_per_second": round(len(stamps) / (max(stamps) - min(stamps))),
            "inter_token_ms": _quantiles(between),
            "first_token_ms": _quantiles(first),
            "wrong_outputs": self._wrong(
                (document, outputs[str(place)])
                for place, (_, _, document) in enumerate(asked)
                if document is not None and way == "guided"
            ),
        }
        print(json.dumps(figure), flush=True)
        return figure

    def _arrivals(
        self, way: str, seconds: float, rate: float
    ) -> deque[tuple[float, Any, Any]]:
        """(when, schema or None, params), at the same moments for every way."""
        chance = random.Random(2)
        found: deque[tuple[float, Any, Any]] = deque()
        now = chance.expovariate(rate)
        while now < seconds:
            known = 1 + int(now / seconds * len(_MIXED_SCHEMAS))
            document = chance.choice(_MIXED_SCHEMAS[:known]) if len(found) % 2 else None
            options = {
                "max_tokens": _MIXED_TOKENS,
                "ignore_eos": True,
                "temperature": 1.0,
            }
            params = self._params(
                "unguided" if document is None else way, document, **options
            )
            found.append((now, document, params))
            now += chance.expovariate(rate)
        return found

    def starts(self) -> dict[str, float]:
        """How many schemas are refused. Milliseconds of short runs: the first guided
        one of this engine and the same again; of schemas that are new, all at once, and
        the same again."""
        plain = [SCHEMAS["plain"]] * min(self.options["rows"])
        found: dict[str, float] = {"refused": len(self.refused)}
        for names, documents in (
            (("first", "warm"), plain),
            (("new", "known"), self.new),
        ):
            for name in names if documents else ():
                params = [
                    self._params("guided", one, max_tokens=_FIRST_STEPS)
                    for one in documents
                ]
                prompts = [self._prompt() for _ in documents]
                start = time.perf_counter()
                self.llm.generate(prompts, params, use_tqdm=False)
                found[f"{name}_ms"] = round((time.perf_counter() - start) * 1e3, 3)
        return found

    def _takes(self, backend: str | None, document: Any) -> bool:
        from vllm.exceptions import VLLMValidationError
        from vllm.v1.structured_output.backend_guidance import validate_guidance_grammar
        from vllm.v1.structured_output.backend_xgrammar import validate_xgrammar_grammar

        try:
            if backend == "xgrammar":
                validate_xgrammar_grammar(self._params("guided", document))
            elif backend == "guidance":
                validate_guidance_grammar(
                    self._params("guided", document), tokenizer=None
                )
        except (ValueError, VLLMValidationError):
            return False
        return True

    def _documents(self, case: _Case, rows: int) -> list[Any]:
        """The schema of each request of a case."""
        found = self.documents.get(case.schema, [None])
        return [found[row % len(found)] for row in range(rows)]

    def _params(self, way: str, document: Any, **options: Any) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import StructuredOutputsParams

        if way == "unguided":
            return SamplingParams(**options)
        # Compact, so that the same language is measured.
        outputs = StructuredOutputsParams(json=document, disable_any_whitespace=True)
        return SamplingParams(structured_outputs=outputs, **options)

    def _prompt(self) -> dict[str, list[int]]:
        return {
            "prompt_token_ids": [self.random.randrange(100, 1000) for _ in range(8)]
        }

    def _wrong(self, outputs: Iterable[tuple[Any, Any]]) -> int:
        """How many of (schema, output) a fresh matcher refuses: as wide a one as the
        schema allows, where it is not the plugin's own language."""
        wide = {
            "whitespace": "flexible",
            "strict": False,
            **dataclasses.asdict(UNBOUNDED),
        }
        own = {} if self.options["plugin"] else wide
        return sum(
            refused_at(
                self.compiler,
                OutputSpec.json_schema(document, **own),
                output.outputs[0].token_ids,
            )
            is not None
            for document, output in outputs
        )


@dataclass
class _Case:
    way: str
    schema: str
    seconds: list[float] = field(default_factory=list)
    """Of whole runs, from the first request in to the last output out."""
    steady: list[float] = field(default_factory=list)
    """Of a step in the middle of each."""
    threads: list[float] = field(default_factory=list)
    """CPU time of vLLM's main threads in each."""
    outputs: list[Any] = field(default_factory=list)
    metrics: dict[str, Any] | None = None
    rank_threads: list[float] = field(default_factory=list)
    """Microseconds that the plugin takes of the thread of each tensor-parallel rank in
    a step."""


_KINDS: list[dict[str, Any]] = [
    {"type": "string"},
    {"type": "integer"},
    {"type": "boolean"},
    {"enum": ["new", "open", "closed"]},
    {"type": "array", "items": {"type": "string"}},
    {"type": ["number", "null"]},
    {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
]
_MIXED_SCHEMAS = [
    endless(
        {
            f"field_{number}_{i}": _KINDS[(number + i) % len(_KINDS)]
            for i in range(3 + number % 6)
        }
    )
    for number in range(20)
]
"""Objects of ordinary properties, without bounds on lengths."""
_MIXED_TOKENS = 128


def thread_clock() -> Callable[[], float]:
    """Tells the CPU seconds that the main threads of vLLM's processes, those of this
    session, have used."""
    files = []
    session = os.getsid(0)
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if (
                os.getsid(int(process.name)) == session
                and b"VLLM::" in (process / "cmdline").read_bytes()
            ):
                files.append(process / "task" / process.name / "stat")
    tick = os.sysconf("SC_CLK_TCK")

    def seconds() -> float:
        fields = [file.read_text().rpartition(")")[2].split() for file in files]
        return sum(int(each[11]) + int(each[12]) for each in fields) / tick

    return seconds


@contextlib.contextmanager
def watched(core: Any, note: Callable[[Any], None]) -> Iterator[None]:
    """Call `note` with the engine's outputs of each step."""
    original = core.get_output

    def get_output() -> Any:
        outputs = original()
        note(outputs)
        return outputs

    core.get_output = get_output
    try:
        yield
    finally:
        del core.get_output


def _steady(stamps: list[float]) -> float:
    """Seconds a step in the middle half of a run, in which all rows are running."""
    quarter = len(stamps) // 4
    first = quarter
    last = len(stamps) - 1 - quarter
    return (stamps[last] - stamps[first]) / max(1, last - first)


def _quantiles(seconds: list[float]) -> dict[str, float]:
    """In milliseconds."""
    return {
        name: round(quantile(seconds, at) * 1e3, 3)
        for name, at in (("p50", 0.5), ("p99", 0.99))
    }


if __name__ == "__main__":
    main(*sys.argv[1:3])
