"""Right answers: a real model, real tasks, judged by what is right, in each way of
guiding.

    python -m benchmarks.answers fetch smollm2-135m bfcl
    python -m benchmarks.answers --model smollm2-135m --tasks bfcl,lists --count 100 --out FILE
    python -m benchmarks.answers --model DIR --tasks FILE.jsonl --ways unguided,compact,flexible,guidance

Greedy, float32 on the CPU and bfloat16 on a GPU. All ways of a task get the same
prompt. Each engine is a process of its own, and each way asks all tasks of a kind in
one `generate` call. Nearly every task of `bfcl` has a schema of its own: `s` is what a
job of new schemas takes.

    right      by the task's judge (benchmarks/answers/judges.py). Text around the first JSON value is skipped
    valid      valid under the task's schema, by `jsonschema`: objects are open there. A finished answer of
               this package that is not, or has text around it, makes the exit code 1
    cut        ended by the token limit
    refused    not admitted, as for lack of room: shorter than the shortest answer
    failed     ended with an error
    unprotected    told so, of `+close`: no end was known. The exit code is 1 where this is more than one in a
               hundred, an answer failed, or one was cut and that was not told
    items      items of lists that were found, of those expected; `lists empty`: empty lists in all answers
    s          of the `generate` call; on a CPU only the first way of an engine pays for the prompts
    p          McNemar's exact test of two ways, by the tasks that only one of them answers right

`--texts` keeps the outputs, one JSON line each; the raw file of `--out` has none.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.answers import models
from benchmarks.answers.figures import (
    COLUMNS,
    PAIR_COLUMNS,
    TOLD,
    broken_promises,
    figure,
    pairs,
)
from benchmarks.answers.judges import judged
from benchmarks.answers.prompts import prompt_tokens
from benchmarks.answers.tasks import KINDS, Task, load_tasks
from benchmarks.answers.ways import (
    PLUGIN,
    UNGUIDED,
    Way,
    engine_arguments,
)
from benchmarks.harness import (
    Engine,
    Json,
    Options,
    counts,
    given,
    head,
    measured,
    names,
    write,
)
from benchmarks.tables import show_table, writable
from guided_plugin.cli.loading import InputError, load_tokenizer, show_error
from guided_plugin.errors import GuidedError

_WAYS = "unguided,compact,spaced,flexible,guidance,xgrammar"


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch, or measure and print.

    Returns 1 if an engine failed or this package finished an answer that is not valid,
    2 for a command that cannot be carried out.
    """
    words = given(arguments)
    try:
        if words[:1] == ["fetch"]:
            models.fetch(words[1:])
            return 0
        options = parsed(words)
        result = measure(options, head("benchmarks.answers", words))
    except GuidedError as error:
        return show_error(error)
    result["pairs"] = pairs(result["figures"])
    write(result, options.out)
    clear = [pair for pair in result["pairs"] if pair["p"] < TOLD]
    for lines, columns in ((result["figures"], COLUMNS), (clear, PAIR_COLUMNS)):
        if lines:
            show_table(lines, columns)
    failures = [*result["failed"], *broken_promises(result["figures"])]
    for failure in failures:
        print(failure, file=sys.stderr)
    return int(bool(failures))


def parsed(arguments: Sequence[str]) -> Any:
    """Read the options."""
    parser = Options(__doc__, prog="python -m benchmarks.answers")
    add_tasks(parser, "bfcl,lists", 3600.0)
    parser.add("--ways", names(_WAYS), "see benchmarks/answers/ways.py", names)
    parser.add(
        "--texts", None, "also write all outputs here, one JSON line each", writable
    )
    return parser.parse_args(arguments)


def add_tasks(parser: Options, tasks: str, limit: float) -> None:
    """The options of every command that asks tasks."""
    add = parser.add
    kinds = f"{', '.join(KINDS)}, JSON lines or MaskBench (benchmarks/answers/tasks.py)"
    add("--model", "smollm2-135m", "folder of a model, or a name that `fetch` knows")
    add("--tasks", names(tasks), kinds, names)
    add("--count", 0, "at most so many tasks of a kind; 0: all")
    add("--tokens", [0], "tokens of an answer at most; 0: what its task gives", counts)
    add("--bfcl", None, "folder with BFCL's data, if not what `fetch` keeps", Path)
    add("--longest", 4096, "tokens of a prompt; tasks with longer ones are left out")
    add("--rows", 64, "requests that run at once")
    parser.engine(limit)
    parser.set_defaults(device="cpu")


def measure(options: Any, result: Json) -> Json:
    """Run the engines one after the other."""
    ways = [Way.named(name) for name in options.ways]
    folder = models.model_folder(options.model)
    kinds, left_out = chosen(options, folder)
    result |= {"benchmark": "answers", "model": folder.name, "left_out": left_out}
    result["figures"] = []
    if options.texts is not None:
        options.texts.write_text("")

    def take(engine: Engine, answer: Json) -> None:
        for case in answer["cases"]:
            tasks = [task for task, _ in kinds[case["kind"]]]
            result["figures"].append(_judged(case, tasks, options.texts))
        if len(answer["cases"]) < len(engine.question["ways"]) * len(kinds):
            late = f"ended, or took {options.limit:g} s, before all was measured"
            result["failed"].append(f"{engine.name}: {late}")
        result["figures"].sort(key=place)

    def place(one: Json) -> tuple[int, int]:
        return list(kinds).index(one["kind"]), options.ways.index(one["way"])

    engines = [
        engine_of(options, folder, engine, own, kinds)
        for engine, own in by_engine(ways).items()
    ]
    measured(result, engines, options, take)
    return result


Asked = dict[str, list[tuple[Task, list[int]]]]
"""By kind: the tasks, with the tokens of their prompts."""


def chosen(options: Any, folder: Path) -> tuple[Asked, dict[str, int]]:
    """Choose the tasks; count by kind those whose prompt is too long."""
    tokenizer = load_tokenizer(folder)
    kinds: Asked = {}
    left_out = {}
    for name, tokens in itertools.product(options.tasks, options.tokens):
        known = load_tasks(name, options.bfcl, options.count)
        if tokens:
            known = [
                dataclasses.replace(task, max_tokens=min(task.max_tokens, tokens))
                for task in known
            ]
        with_tokens = [(task, prompt_tokens(tokenizer, task)) for task in known]
        fitting = [one for one in with_tokens if len(one[1]) <= options.longest]
        if not fitting:
            what = "has no task that can be asked"
            raise InputError(what, where=name, hint="--longest is the limit")
        kind = fitting[0][0].kind
        if len(options.tokens) > 1:
            kind = f"{kind}, {tokens} tokens"
        kinds[kind] = [
            (dataclasses.replace(task, kind=kind), prompt) for task, prompt in fitting
        ]
        if len(fitting) < len(known):
            left_out[kind] = len(known) - len(fitting)
    return kinds, left_out


def by_engine(ways: Sequence[Way]) -> dict[str, list[Way]]:
    """Group the ways by the engine that answers. Unguided ones are asked in the first
    engine of all."""
    guided = [way.engine for way in ways if way.name != UNGUIDED]
    first = guided[0] if guided else PLUGIN
    engines: dict[str, list[Way]] = {}
    for way in ways:
        engine = first if way.name == UNGUIDED else way.engine
        engines.setdefault(engine, []).append(way)
    return engines


def engine_of(
    options: Any, folder: Path, name: str, ways: Sequence[Way], kinds: Asked
) -> Engine:
    """The engine that answers all tasks in these ways."""
    tasks = [
        {**dataclasses.asdict(task), "tokens": tokens}
        for asked in kinds.values()
        for task, tokens in asked
    ]
    longest = max(len(task["tokens"]) + task["max_tokens"] for task in tasks)
    on_cpu = options.device == "cpu"
    arguments = {
        "max_num_seqs": options.rows,
        "max_model_len": longest + 8,
        "dtype": "float32" if on_cpu else "bfloat16",
        "enforce_eager": on_cpu,
        # Prompts take most of the time on a CPU, and all ways of an engine have the
        # same.
        "enable_prefix_caching": on_cpu,
        **engine_arguments(name),
        **options.engine,
    }
    question = {
        "model": str(folder),
        "engine": arguments,
        "tasks": tasks,
        "ways": [way.name for way in ways],
    }
    return Engine(
        name,
        "benchmarks.answers.child",
        question,
        {} if name == PLUGIN else None,
        v2=not on_cpu,
    )


def _judged(case: Json, tasks: list[Task], texts: Path | None) -> Json:
    """Judge the outputs of a case; write them where they are to be kept."""
    verdicts = [
        judged(output["text"], task.schema, task.judge)
        for task, output in zip(tasks, case["outputs"], strict=True)
    ]
    if texts is not None:
        with texts.open("a") as out:
            for task, output, verdict in zip(
                tasks, case["outputs"], verdicts, strict=True
            ):
                line = {
                    "kind": task.kind,
                    "id": task.id,
                    "way": case["way"],
                    "right": verdict.right,
                    "valid": verdict.valid,
                    **output,
                }
                out.write(json.dumps(line) + "\n")
    return figure(case, tasks, verdicts)


if __name__ == "__main__":
    sys.exit(main())
