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
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.harness import (
    Json,
    Options,
    counts,
    given,
    head,
    start,
    watched,
    write,
)
from benchmarks.samples import served_schemas
from benchmarks.tables import show_table
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.demo import MODEL_DIR
from guided_plugin.errors import GuidedError
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.hosts.vllm.common import GUIDED
from guided_plugin.spec import OutputSpec

_SCHEMAS = 28
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
    parser.add("--model", str(MODEL_DIR), "folder of a model")
    parser.add("--tokenizer", None, "tokenizer folder; the model's if not given", str)
    parser.add("--sample", None, "a folder or a tar archive of MaskBench", Path)
    parser.add("--rows", [8, 256], "batch sizes, separated by commas", counts)
    parser.add("--tokens", 256, "the limit of a request")
    parser.add("--last", 48, "steps that are near it")
    parser.add("--repetitions", 4, "pairs of runs, after one that warms up")
    parser.engine()
    options = parser.parse_args(arguments)
    if options.sample is None:
        parser.error("--sample is needed")
    bench = _Bench(options)
    result = head("benchmarks.near_end", given(arguments), options.device)
    figures: list[Json] = []
    result |= {"benchmark": "near_end", "schemas": len(bench.schemas)}
    result["figures"] = figures
    for rows in options.rows:
        figures.append(bench.figure(rows))
        write(result, options.out)
    show_table(figures, _COLUMNS)
    return int(any(one["invalid"] for one in figures))


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
        found = served_schemas(
            options.sample,
            4 * _SCHEMAS,
            _behind_a_text,
        )
        self.schemas = list(filter(self._fits, found))[:_SCHEMAS]

    def _fits(self, schema: Json) -> bool:
        """Whether there is an end for it well within the steps that are near the
        limit."""
        try:
            spec = OutputSpec.parse(_request(schema, closes=True))
            shortest = self.compiler.compile(spec).shortest
        except GuidedError:
            return False
        return shortest is not None and len(shortest) < self.options.last

    def figure(self, rows: int) -> Json:
        """With the option beside without, for so many rows."""
        times: dict[bool, list[list[float]]] = {False: [], True: []}
        closed = invalid = 0
        for repetition in range(self.options.repetitions + 1):
            for closes in (False, True) if repetition % 2 else (True, False):
                steps, outputs = self._run(rows, repetition, closes=closes)
                if repetition:
                    times[closes].append(steps)
                if closes:
                    reasons = [one.stop_reason for one in outputs]
                    closed += reasons.count("close_before_length")
                    invalid += self._invalid(outputs)
        without, with_ = (
            [statistics.median(step) for step in zip(*times[closes], strict=False)]
            for closes in (False, True)
        )
        middle = slice(self.options.tokens // 4, -self.options.last)
        near = slice(-self.options.last, None)
        usual = statistics.median(without[near])
        far = statistics.median(with_[middle]) / statistics.median(without[middle])
        ratios = {
            "far": far,
            "near": statistics.median(with_[near]) / usual,
            "slowest": max(with_[near]) / usual,
        }
        return {
            "rows": rows,
            "ratios": {name: round(ratio, 4) for name, ratio in ratios.items()},
            "slowest_without": round(max(without[near]) / usual, 4),
            "closed": closed,
            "invalid": invalid,
            "ms": {
                "without": [round(one * 1e3, 3) for one in without],
                "with": [round(one * 1e3, 3) for one in with_],
            },
        }

    def _run(
        self, rows: int, seed: int, *, closes: bool
    ) -> tuple[list[float], list[Any]]:
        """Seconds of each step, and the outputs."""
        from vllm import SamplingParams

        prompts = []
        params = []
        for row in range(rows):
            schema = self.schemas[row % len(self.schemas)]
            prompts.append({"prompt_token_ids": [100 + (seed + row) % 900] * 8})
            sampling = SamplingParams(
                max_tokens=self.options.tokens,
                detokenize=False,
                temperature=1.0,
                seed=1000 * seed + row,
                extra_args={GUIDED: _request(schema, closes=closes)},
            )
            params.append(sampling)
        stamps: list[float] = []

        def note(step: Any) -> None:
            if step.outputs:
                stamps.append(step.timestamp)

        with watched(self.llm, note):
            outputs = self.llm.generate(prompts, params, use_tqdm=False)
        seconds = [later - earlier for earlier, later in pairwise(stamps)]
        return seconds, [output.outputs[0] for output in outputs]

    def _invalid(self, outputs: list[Any]) -> int:
        from jsonschema.validators import validator_for

        wrong = 0
        for row, output in enumerate(outputs):
            schema = self.schemas[row % len(self.schemas)]
            text = b"".join(self.texts[token] or b"" for token in output.token_ids)
            try:
                wrong += not validator_for(schema)(schema).is_valid(json.loads(text))
            except ValueError:
                wrong += 1
        return wrong


def _behind_a_text(schema: Json) -> Json:
    """A free text, and then this."""
    kept = {
        key: schema[key] for key in ("$schema", "$defs", "definitions") if key in schema
    }
    rest = {key: value for key, value in schema.items() if key not in kept}
    return {
        **kept,
        "type": "object",
        "properties": {"text": {"type": "string"}, "rest": rest},
        "required": ["text", "rest"],
    }


def _request(schema: Json, *, closes: bool) -> Json:
    return {"json_schema": schema, "close_before_length": closes}


if __name__ == "__main__":
    sys.exit(main())
