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

import argparse
import json
import shlex
import statistics
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.engine_child import watched
from benchmarks.replay.__main__ import write
from benchmarks.samples import served_schemas
from guided_plugin.bench import environment
from guided_plugin.cli.results import check_out, progress, show_table
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.demo import MODEL_DIR
from guided_plugin.errors import GuidedError
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.hosts.vllm.common import GUIDED
from guided_plugin.spec import OutputSpec

_COLUMNS = tuple(
    (name, f"{{{name}}}")
    for name in ("rows", "far", "near", "slowest", "closed", "invalid")
)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=str(MODEL_DIR), help="folder of a model")
    parser.add_argument(
        "--tokenizer", help="tokenizer folder; the model's if not given"
    )
    parser.add_argument(
        "--sample",
        type=Path,
        required=True,
        help="a folder or a tar archive of MaskBench",
    )
    parser.add_argument("--schemas", type=int, default=28, help="so many of them")
    parser.add_argument(
        "--rows", default="8,256", help="batch sizes, separated by commas"
    )
    parser.add_argument(
        "--tokens", type=int, default=256, help="the limit of a request"
    )
    parser.add_argument("--last", type=int, default=48, help="steps that are near it")
    parser.add_argument(
        "--repetitions",
        type=int,
        default=4,
        help="pairs of runs, after one that warms up",
    )
    parser.add_argument("--device", default="cuda", help="cpu or cuda")
    parser.add_argument(
        "--engine",
        type=json.loads,
        default={},
        help="more arguments of the engine, as JSON",
    )
    parser.add_argument(
        "--out", type=Path, help="also write the JSON here, compressed: FILE.json.gz"
    )
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(given)
    check_out(options.out, "--out")
    bench = _Bench(options)
    command = "python -m benchmarks.near_end " + shlex.join(given)
    known = environment(options.device)
    result = {
        "command": command,
        "date": known["date"],
        "environment": known,
        "benchmark": "near_end",
    }
    rows = [int(count) for count in options.rows.split(",")]
    with progress("near the end", len(rows)) as advance:
        figures = []
        for count in rows:
            figures.append(bench.figure(count))
            write(
                {**result, "schemas": len(bench.schemas), "figures": figures},
                options.out,
            )
            advance(f"near the end, {count} rows")
    show_table([{**one, **one["ratios"]} for one in figures], _COLUMNS)
    return int(any(one["invalid"] for one in figures))


class _Bench:
    def __init__(self, options: Any) -> None:
        from vllm import LLM

        self.options = options
        counts = [int(count) for count in options.rows.split(",")]
        self.llm: Any = LLM(
            options.model,
            tokenizer=options.tokenizer or options.model,
            max_num_seqs=max(counts),
            max_model_len=options.tokens + 16,
            enable_prefix_caching=False,
            **options.engine,
        )
        vocabulary = Vocabulary.from_tokenizer(self.llm.get_tokenizer())
        self.texts, compiler = vocabulary.text_tokens, GrammarCompiler(vocabulary)
        found = served_schemas(options.sample, 4 * options.schemas, _behind_a_text)
        self.schemas = [one for one in found if self._fits(compiler, one)][
            : options.schemas
        ]

    def _fits(self, compiler: GrammarCompiler, schema: dict[str, Any]) -> bool:
        """Whether there is an end for it well within the steps that are near the
        limit."""
        try:
            spec = OutputSpec.parse(_request(schema, closes=True))
            grammar = None if spec is None else compiler.compile(spec)
        except GuidedError:
            return False
        return (
            grammar is not None
            and grammar.shortest is not None
            and len(grammar.shortest) < self.options.last
        )

    def figure(self, rows: int) -> dict[str, Any]:
        """With the option beside without, for so many rows."""
        times: dict[bool, list[list[float]]] = {False: [], True: []}
        closed = invalid = 0
        for repetition in range(self.options.repetitions + 1):
            for closes in (False, True) if repetition % 2 else (True, False):
                steps, outputs = self._run(rows, repetition, closes=closes)
                if repetition:
                    times[closes].append(steps)
                if closes:
                    closed += sum(
                        one.outputs[0].stop_reason == "close_before_length"
                        for one in outputs
                    )
                    invalid += self._invalid(outputs)
        near = slice(-self.options.last, None)
        middle = slice(self.options.tokens // 4, -self.options.last)
        medians = {
            closes: [statistics.median(step) for step in zip(*runs, strict=False)]
            for closes, runs in times.items()
        }
        ratios = {
            name: round(
                ask(medians[True][part]) / statistics.median(medians[False][part]), 4
            )
            for name, part, ask in (
                ("far", middle, statistics.median),
                ("near", near, statistics.median),
                ("slowest", near, max),
            )
        }
        usual = max(medians[False][near]) / statistics.median(medians[False][near])
        return {
            "rows": rows,
            "ratios": ratios,
            "slowest_without": round(usual, 4),
            "closed": closed,
            "invalid": invalid,
            "ms": {
                "with" if closes else "without": [round(one * 1e3, 3) for one in steps]
                for closes, steps in medians.items()
            },
        }

    def _run(
        self, rows: int, seed: int, *, closes: bool
    ) -> tuple[list[float], list[Any]]:
        """Seconds of each step, and the outputs."""
        from vllm import SamplingParams

        params = [
            SamplingParams(
                max_tokens=self.options.tokens,
                detokenize=False,
                temperature=1.0,
                seed=1000 * seed + row,
                extra_args={
                    GUIDED: _request(
                        self.schemas[row % len(self.schemas)], closes=closes
                    )
                },
            )
            for row in range(rows)
        ]
        prompts = [
            {"prompt_token_ids": [100 + (seed + row) % 900] * 8} for row in range(rows)
        ]
        stamps: list[float] = []

        def note(step: Any) -> None:
            if step.outputs:
                stamps.append(step.timestamp)

        with watched(self.llm.llm_engine.engine_core, note):
            outputs = self.llm.generate(prompts, params, use_tqdm=False)
        return [later - earlier for earlier, later in pairwise(stamps)], outputs

    def _invalid(self, outputs: list[Any]) -> int:
        from jsonschema.validators import validator_for

        wrong = 0
        for row, output in enumerate(outputs):
            try:
                schema = self.schemas[row % len(self.schemas)]
                text = b"".join(
                    self.texts[token] or b"" for token in output.outputs[0].token_ids
                )
                wrong += not validator_for(schema)(schema).is_valid(json.loads(text))
            except ValueError:
                wrong += 1
        return wrong


def _behind_a_text(schema: dict[str, Any]) -> dict[str, Any]:
    """A free text, and then this."""
    kept = {
        key: schema[key] for key in ("$schema", "$defs", "definitions") if key in schema
    }
    rest = {key: value for key, value in schema.items() if key not in kept}
    properties = {"text": {"type": "string"}, "rest": rest}
    return {
        **kept,
        "type": "object",
        "properties": properties,
        "required": ["text", "rest"],
    }


def _request(schema: dict[str, Any], *, closes: bool) -> dict[str, Any]:
    return {"json_schema": schema, **({"close_before_length": True} if closes else {})}


if __name__ == "__main__":
    sys.exit(main())
