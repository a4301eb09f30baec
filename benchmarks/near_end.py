"""What `close_before_length` costs a step of vLLM: far from the token limit, and where
all rows come to it.

    python -m benchmarks.near_end --model DIR --tokenizer DIR --sample SAMPLE --rows 8,256 --out FILE.json.gz

One engine. Every request writes a free text first, which a model with random weights
does not end, then what a schema of the sample asks for: all rows still have that to
write when their limit comes near. With the option and without take turns, with the same
seeds. `far`: the median of a step's time in the middle of the runs; `near`: that of the
last steps, and the slowest of them. Outputs with the option are judged by jsonschema.
Exit code 1: one is not valid.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.harness import (
    Json,
    Options,
    Run,
    counts,
    generated,
    given,
    head,
    start,
    write,
)
from benchmarks.samples import served_schemas
from benchmarks.tables import show_table
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.errors import GuidedError
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.hosts.vllm.common import GUIDED
from guided_plugin.spec import OutputSpec

_SCHEMAS = 28
_LAST = 48
"""Steps that are near the limit."""
_COLUMNS = (
    ("rows", "{rows}"),
    ("far", "{ratios[far]}"),
    ("near", "{ratios[near]}"),
    ("slowest", "{ratios[slowest]}"),
    ("closed", "{closed}"),
    ("invalid", "{invalid}"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = Options(__doc__)
    parser.model(needs_sample=True)
    parser.add("--rows", [8, 256], "batch sizes, separated by commas", counts)
    parser.add("--tokens", 256, "the limit of a request")
    parser.add("--repetitions", 4, "pairs of runs, after one that warms up")
    parser.engine()
    options = parser.parse_args(arguments)
    bench = _Bench(options)
    result = head("benchmarks.near_end", given(arguments), options.device)
    result |= {"benchmark": "near_end", "schemas": len(bench.schemas), "figures": []}
    for rows in options.rows:
        result["figures"].append(bench.figure(rows))
        write(result, options.out)
    show_table(result["figures"], _COLUMNS)
    return int(any(one["invalid"] for one in result["figures"]))


class _Bench:
    def __init__(self, options: Any) -> None:
        self.options = options
        self.llm = start(
            vars(options),
            max_num_seqs=max(options.rows),
            max_model_len=options.tokens + 16,
        )
        vocabulary = Vocabulary.from_tokenizer(self.llm.get_tokenizer())
        self.texts = vocabulary.text_tokens
        self.compiler = GrammarCompiler(vocabulary)
        found = served_schemas(options.sample, 4 * _SCHEMAS, _behind_a_text)
        self.schemas = list(filter(self._fits, found))[:_SCHEMAS]

    def _fits(self, schema: Json) -> bool:
        """Whether there is an end for it well within the steps that are near the
        limit."""
        try:
            spec = OutputSpec.json_schema(schema, close_before_length=True)
            shortest = self.compiler.compile(spec).shortest
        except GuidedError:
            return False
        return shortest is not None and len(shortest) < _LAST

    def figure(self, rows: int) -> Json:
        """With the option beside without, for so many rows."""
        runs: dict[bool, list[Run]] = {False: [], True: []}
        for repetition in range(self.options.repetitions + 1):
            for closes in (False, True) if repetition % 2 else (True, False):
                runs[closes].append(self._run(rows, repetition, closes=closes))
        without, with_ = (_steps(runs[closes][1:]) for closes in (False, True))
        middle = slice(self.options.tokens // 4, -_LAST)
        near = slice(-_LAST, None)
        usual = statistics.median(without[near])
        far = statistics.median(with_[middle]) / statistics.median(without[middle])
        ratios = {
            "far": far,
            "near": statistics.median(with_[near]) / usual,
            "slowest": max(with_[near]) / usual,
        }
        reasons = [one.stop_reason for run in runs[True] for one in run.outputs]
        return {
            "rows": rows,
            "ratios": {name: round(ratio, 4) for name, ratio in ratios.items()},
            "slowest_without": round(max(without[near]) / usual, 4),
            "closed": reasons.count("close_before_length"),
            "invalid": sum(map(self._invalid, runs[True])),
            "ms": {
                "without": [round(one * 1e3, 3) for one in without],
                "with": [round(one * 1e3, 3) for one in with_],
            },
        }

    def _run(self, rows: int, seed: int, *, closes: bool) -> Run:
        from vllm import SamplingParams

        prompts = [[100 + (seed + row) % 900] * 8 for row in range(rows)]
        params = [
            SamplingParams(
                max_tokens=self.options.tokens,
                detokenize=False,
                temperature=1.0,
                seed=1000 * seed + row,
                extra_args={
                    GUIDED: {
                        "json_schema": self.schemas[row % len(self.schemas)],
                        "close_before_length": closes,
                    }
                },
            )
            for row in range(rows)
        ]
        return generated(self.llm, prompts, params)

    def _invalid(self, run: Run) -> int:
        from jsonschema.validators import validator_for

        wrong = 0
        for row, output in enumerate(run.outputs):
            schema = self.schemas[row % len(self.schemas)]
            text = b"".join(self.texts[token] or b"" for token in output.token_ids)
            try:
                wrong += not validator_for(schema)(schema).is_valid(json.loads(text))
            except ValueError:
                wrong += 1
        return wrong


def _steps(runs: Sequence[Run]) -> list[float]:
    """Seconds of each step: the median of the runs."""
    times = zip(*(run.gaps for run in runs), strict=False)
    return [statistics.median(step) for step in times]


def _behind_a_text(schema: Json) -> Json:
    """A free text, and then this."""
    kept: Json = {
        key: schema[key] for key in ("$schema", "$defs", "definitions") if key in schema
    }
    rest = {key: value for key, value in schema.items() if key not in kept}
    return {
        **kept,
        "type": "object",
        "properties": {"text": {"type": "string"}, "rest": rest},
        "required": ["text", "rest"],
    }


if __name__ == "__main__":
    sys.exit(main())
