"""One vLLM engine of `benchmarks.engines`: with the plugin, or vLLM's own backend.
Imports vLLM."""

from __future__ import annotations

import dataclasses
import itertools
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness import (
    Json,
    Run,
    generated,
    own_schema,
    plugin_metrics,
    quantile,
    serve,
    start,
)
from benchmarks.samples import SCHEMAS, refused_at, repeated, served_schemas
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import UNBOUNDED, GuidedConfig
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.spec import OutputSpec

REAL_WORLD = "real-world"
"""Schemas of a MaskBench sample, `_REAL_WORLD_COUNT` of them at once, each as an array
that is too long."""
NEW = "new"
"""Schemas that no request has asked for."""
_REAL_WORLD_COUNT = 28
_TOO_LONG = 8.0
"""Seconds of a run (not of the first) after which it is not repeated."""


def measure(question: Json, tell: Callable[[Json], None]) -> None:
    """All batch sizes, one after the other."""
    bench = _Bench(question)
    result: Json = {"refused": len(bench.refused), "figures": []}
    for rows in question["rows"]:
        result["figures"] += bench.figures(rows)
        tell(result)


@dataclass
class _Case:
    way: str
    schema: str
    rows: int
    runs: list[Run] = field(default_factory=list)
    """The first one warms up."""
    documents: list[Any] = field(default_factory=list)
    """The schema of each request of the last run; None where it is unguided."""
    metrics: list[Json] = field(default_factory=list)
    """Of each tensor-parallel rank."""


class _Bench:
    def __init__(self, question: Json) -> None:
        self.question = question
        self.llm = start(
            question,
            max_num_seqs=max(question["rows"]),
            max_model_len=question["steps"] + 64,
        )
        vocabulary = Vocabulary.from_tokenizer(self.llm.get_tokenizer())
        self.compiler = GrammarCompiler(
            vocabulary, config=GuidedConfig(isolate_compiles=False)
        )
        self.random = random.Random(1)
        self.numbers = itertools.count()
        self.refused: list[Json] = []
        """Schemas of the sample that vLLM's own backend does not take: its figures are
        about the others."""
        self.schemas = {name: [schema] for name, schema in SCHEMAS.items()}
        """The schemas of a name. Requests take them in turn."""
        if question["sample"]:
            # Some of them may be refused.
            most = 2 * _REAL_WORLD_COUNT
            found = served_schemas(Path(question["sample"]), most, repeated)
            self.refused = [one for one in found if not self._takes(one)]
            taken = [one for one in found if one not in self.refused]
            self.schemas[REAL_WORLD] = taken[:_REAL_WORLD_COUNT]

    def figures(self, rows: int) -> list[Json]:
        """Milliseconds a step of every way: the median over the repetitions after the
        first. The ways take turns, so that slow changes of the machine affect all of
        them."""
        guided = [_Case("guided", name, rows) for name in self.question["schemas"]]
        cases = [_Case("unguided", "none", rows), *guided]
        for _ in range(self.question["repetitions"] + 1):
            for case in cases:
                if max((run.seconds for run in case.runs[1:]), default=0) < _TOO_LONG:
                    self._repeat(case)
        return [self._figure(case) for case in cases]

    def _repeat(self, case: _Case) -> None:
        case.documents = self._documents(case.schema, case.rows)
        steps = self.question["steps"]
        run = self._generate(case.documents, max_tokens=steps, ignore_eos=True)
        case.runs.append(run)
        if case.way == "guided":
            case.metrics = plugin_metrics(self.llm, self.question)

    def _documents(self, name: str, rows: int) -> list[Any]:
        """The schema of each request."""
        if name == NEW:
            known = REAL_WORLD if REAL_WORLD in self.schemas else "plain"
            found = self._documents(known, rows)
            return [own_schema(one, next(self.numbers)) for one in found]
        found = self.schemas.get(name, [None])
        return [found[row % len(found)] for row in range(rows)]

    def _generate(self, documents: Sequence[Any], **options: Any) -> Run:
        """A run with these schemas."""
        # As in an application: one object for all prompts of a schema.
        made = {id(one): self._params(one, **options) for one in documents}
        prompts = [self.random.choices(range(100, 1000), k=8) for _ in documents]
        return generated(self.llm, prompts, [made[id(one)] for one in documents])

    def _params(self, document: Any, **options: Any) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import StructuredOutputsParams

        if document is None:
            return SamplingParams(temperature=1.0, **options)
        # Compact, so that the same language is measured.
        outputs = StructuredOutputsParams(json=document, disable_any_whitespace=True)
        return SamplingParams(temperature=1.0, structured_outputs=outputs, **options)

    def _takes(self, document: Any) -> bool:
        """Tell whether the engine takes a schema."""
        from vllm.exceptions import VLLMValidationError

        try:
            self._generate([document], max_tokens=1)
        except (ValueError, VLLMValidationError):
            return False
        return True

    def _figure(self, case: _Case) -> Json:
        steps = self.question["steps"]
        times = [run.seconds / steps * 1e3 for run in case.runs]
        steady = statistics.median(_steady(run.stamps) for run in case.runs[1:])
        thread = statistics.median(run.thread for run in case.runs[1:])
        gaps = [*itertools.chain(*(run.gaps for run in case.runs[1:]))]
        return {
            "rows": case.rows,
            "way": case.way,
            "schema": case.schema,
            "ms_per_step": round(statistics.median(times[1:]), 4),
            "steady_ms": round(steady * 1e3, 4),
            "p99_ms": round(1e3 * quantile(gaps, 0.99), 4),
            "all_ms": [round(value, 4) for value in times],
            "thread_us": round(thread / steps * 1e6),
            "wrong_outputs": self._wrong(case) if case.way == "guided" else 0,
            "metrics": case.metrics,
        }

    def _wrong(self, case: _Case) -> int:
        """How many outputs a fresh matcher refuses: as wide a one as the schema allows,
        where it is not the plugin's own language."""
        wide = {"whitespace": "flexible", "strict": False}
        wide |= dataclasses.asdict(UNBOUNDED)
        options = {} if self.question["guided"] else wide
        wrong = 0
        for document, output in zip(case.documents, case.runs[-1].outputs, strict=True):
            spec = OutputSpec.json_schema(document, **options)
            wrong += refused_at(self.compiler, spec, output.token_ids) is not None
        return wrong


def _steady(stamps: list[float]) -> float:
    """Seconds a step in the middle half of a run, in which all rows are running."""
    first = len(stamps) // 4
    last = len(stamps) - 1 - first
    return (stamps[last] - stamps[first]) / max(1, last - first)


if __name__ == "__main__":
    serve(measure)
