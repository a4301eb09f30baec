"""One job of many requests in one `LLM`: guided with new schemas, with known ones, and
the same requests unguided with answers of the same lengths.

    python -m benchmarks.answers.job --model DIR --device cuda --engines plugin,guidance,xgrammar --out FILE

One process an engine; the ways take turns in it. A schema is new in each turn by its
`$comment`. The unguided requests write as many tokens as the guided ones of the turn
did, and stop at nothing else. The first turn warms up and is not counted.

    seconds    from the first prompt that is handed in to the last answer: median, lowest, highest
    ratio      to the unguided requests of the same turn: median, lowest, highest
    step ms    between two outputs of the engine, 50th and 99th percentile of all turns
    valid      answers of `new` that are valid under their schema, by jsonschema
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.answers.__main__ import shortened
from benchmarks.answers.child import Bench
from benchmarks.answers.judges import judged
from benchmarks.answers.models import model_folder
from benchmarks.answers.prompts import prompt_tokens
from benchmarks.answers.tasks import load_tasks
from benchmarks.answers.ways import Way, engine_arguments, engine_environment
from benchmarks.engine_child import answer
from benchmarks.engines import run_child
from benchmarks.measuring import question_in
from guided_plugin.bench import environment, median
from guided_plugin.cli.loading import load_tokenizer
from guided_plugin.cli.results import check_out, progress, show_table, write_json
from guided_plugin.errors import PipelineError

WAYS = ("new", "unguided", "known")
_COLUMNS = tuple(
    (name, f"{{{name}}}")
    for name in ("engine", "way", "tokens", "valid", "seconds", "ratio", "step_ms")
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. Returns 1 if an engine failed."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parsed(given)
    check_out(options.out, "--out")
    tokenizer = load_tokenizer(model_folder(options.model))
    tasks = load_tasks(
        options.tasks, {"bfcl": options.bfcl, "sample": None}, options.count
    )
    asked = [
        {
            **dataclasses.asdict(shortened(task, options.tokens or task.max_tokens)),
            "tokens": prompt_tokens(tokenizer, task),
        }
        for task in tasks
    ]
    result: dict[str, Any] = {
        "command": shlex.join(["python", "-m", "benchmarks.answers.job", *given]),
        "date": None,
        "benchmark": "job",
        "requests": len(asked),
        "rows": options.rows,
        "repetitions": options.repetitions,
        "figures": [],
        "failed": [],
    }
    engines = options.engines.split(",")
    with progress("job", len(engines)) as advance:
        for engine in engines:
            try:
                found = _run(options, engine, asked)
            except PipelineError as error:
                result["failed"].append(str(error))
                continue
            result |= {
                "date": found["environment"]["date"],
                "environment": found["environment"],
            }
            result["figures"] += _figures(engine, found["turns"], tasks)
            write_json(result, options.out)
            advance(engine)
    if result["figures"]:
        show_table(result["figures"], _COLUMNS)
    for failure in result["failed"]:
        print(failure, file=sys.stderr)
    return bool(result["failed"])


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.answers.job",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tasks", default="bfcl")
    parser.add_argument("--bfcl", type=Path, help="folder with BFCL's data")
    parser.add_argument("--count", type=int, default=0, help="0: all requests")
    parser.add_argument("--tokens", type=int, default=0, help="0: as tasks give")
    parser.add_argument("--engines", default="plugin,guidance,xgrammar")
    parser.add_argument("--whitespace", default="flexible")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--limit", type=float, default=300.0, help="seconds an engine")
    parser.add_argument("--out", type=Path)
    return parser.parse_args(arguments)


def _run(
    options: argparse.Namespace, engine: str, asked: list[dict[str, Any]]
) -> dict[str, Any]:
    longest = max(len(task["tokens"]) + task["max_tokens"] for task in asked)
    question = {
        "model": str(model_folder(options.model)),
        "device": options.device,
        "plugin": engine.startswith("plugin"),
        "engine": {
            "max_num_seqs": options.rows,
            "max_model_len": longest + 8,
            "dtype": {"cpu": "float32", "cuda": "bfloat16"}[options.device],
            "enforce_eager": options.device == "cpu",
            "enable_prefix_caching": False,
            **engine_arguments(engine),
        },
        "way": options.whitespace if engine.startswith("plugin") else engine,
        "tasks": asked,
        "repetitions": options.repetitions,
        "answered": "/dev/null",
    }
    return run_child(
        "benchmarks.answers.job",
        question,
        engine_environment(engine, options.device),
        options.limit,
        f"benchmarks.answers.job, {engine}",
    )


def _figures(
    engine: str, turns: list[dict[str, Any]], tasks: Sequence[Any]
) -> list[dict[str, Any]]:
    valid = sum(
        judged(output["text"], task.schema, task.judge).valid
        for task, output in zip(tasks, turns[-1]["new"]["outputs"], strict=True)
    )
    figures = []
    for way in WAYS:
        seconds = [turn[way]["seconds"] for turn in turns]
        ratios = [turn[way]["seconds"] / turn["unguided"]["seconds"] for turn in turns]
        steps = sorted(
            itertools.chain.from_iterable(turn[way]["steps"] for turn in turns)
        )
        figures.append(
            {
                "engine": engine,
                "way": way,
                "tokens": sum(one["tokens"] for one in turns[-1][way]["outputs"]),
                "valid": valid if way == "new" else None,
                "seconds": median(seconds, 2),
                "all_seconds": [round(one, 2) for one in seconds],
                "ratio": median(ratios, 3),
                "all_ratios": [round(one, 3) for one in ratios],
                "step_ms": [
                    round(1e3 * steps[int(part * (len(steps) - 1))], 2)
                    for part in (0.5, 0.99)
                ],
            }
        )
    return figures


def measured(options_path: str, result_path: str) -> None:
    """The engine's process: the turns, written again after each."""
    options = question_in(options_path)
    bench = Bench(options)
    way, unguided = Way.named(options["way"]), Way.named("unguided")
    result = {"environment": environment(options["device"]), "turns": list[Any]()}
    for turn in range(options["repetitions"] + 1):
        tasks = [
            {**task, "schema": {**task["schema"], "$comment": f"turn {turn}"}}
            for task in options["tasks"]
        ]
        found = {"new": _timed(bench, way, tasks)}
        lengths = [output["tokens"] for output in found["new"]["outputs"]]
        same = [
            {**task, "max_tokens": max(1, length)}
            for task, length in zip(tasks, lengths, strict=True)
        ]
        found["unguided"] = _timed(bench, unguided, same, ignore_eos=True)
        found["known"] = _timed(bench, way, tasks)
        if turn:
            result["turns"].append(found)
            answer(result, result_path)


def _timed(
    bench: Bench, way: Way, tasks: list[dict[str, Any]], **more: Any
) -> dict[str, Any]:
    bench.stepped.clear()
    found = bench.answers(way, tasks, **more)
    steps = [after - before for before, after in itertools.pairwise(bench.stepped)]
    time.sleep(0.5)
    return {**found, "steps": steps}


if __name__ == "__main__":
    if len(sys.argv) == 3 and not sys.argv[1].startswith("-"):
        measured(*sys.argv[1:])
    else:
        sys.exit(main())
