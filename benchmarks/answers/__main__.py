"""Right answers: a real model, real tasks, judged by what is right, in each way of
guiding.

    python -m benchmarks.answers fetch smollm2-135m bfcl
    python -m benchmarks.answers --model smollm2-135m --tasks bfcl,lists --count 100 --out FILE
    python -m benchmarks.answers --model DIR --tasks FILE.jsonl --ways unguided,compact,flexible,guidance
    python -m benchmarks.answers --read A.json,B.json --out BOTH.json

Greedy, float32 on the CPU and bfloat16 on a GPU. All ways of a task get the same
prompt. Each engine is a process of its own, and each way asks all tasks of a kind in
one `generate` call.

    right      by the task's judge (benchmarks/answers/judges.py). Text around the first JSON value is skipped
    valid      valid under the task's schema, by `jsonschema`: objects are open there. A finished answer of
               this package that is not, or has text around it, makes the exit code 1
    cut        ended by the token limit
    refused    not admitted, or failed: ended with an error
    items      items of lists that were found, of those expected; `lists empty`: empty lists in all answers
    s          of the `generate` call; on a CPU only the first way of an engine pays for the prompts
    p          McNemar's exact test of two ways, by the tasks that only one of them answers right

`--texts` keeps the outputs, one JSON line each; the raw file of `--out` has none. Ways
may be measured by calls of their own, and read together.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TextIO

from benchmarks.answers import models
from benchmarks.answers.figures import (
    COLUMNS,
    PAIR_COLUMNS,
    TOLD,
    broken_promises,
    figure,
    pairs,
)
from benchmarks.answers.judges import as_calls, judged
from benchmarks.answers.prompts import prompt_tokens
from benchmarks.answers.tasks import KINDS, Task, load_tasks
from benchmarks.answers.ways import UNGUIDED, Way, engine_arguments, engine_environment
from benchmarks.engines import run_child
from guided_plugin.cli.loading import InputError, load_tokenizer
from guided_plugin.cli.results import check_out, progress, show_table, write_json
from guided_plugin.errors import GuidedError, PipelineError

_WAYS = "unguided,compact,spaced,flexible,guidance,xgrammar"
_DTYPES = {"cpu": "float32", "cuda": "bfloat16"}
_POLL = 0.5


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch, or measure and print.

    Returns 1 if an engine failed or this package finished an answer that is not valid,
    2 for a command that cannot be carried out.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        if given[:1] == ["fetch"]:
            models.fetch(given[1:])
            return 0
        options = parsed(given)
        check_out(options.out, "--out")
        if options.read:
            result = merged([json.loads(path.read_text()) for path in options.read])
        else:
            result = measure(
                options, "python -m benchmarks.answers " + shlex.join(given)
            )
    except GuidedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    result["pairs"] = pairs(result["figures"])
    write_json(result, options.out)
    clear = [pair for pair in result["pairs"] if pair["p"] < TOLD]
    for lines, columns in ((result["figures"], COLUMNS), (clear, PAIR_COLUMNS)):
        if lines:
            show_table(lines, columns)
    failures = [*result["failed"], *broken_promises(result["figures"])]
    for failure in failures:
        print(failure, file=sys.stderr)
    return int(bool(failures))


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.answers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )

    def add(name: str, default: Any, what: str, kind: Any = None) -> None:
        parser.add_argument(
            name, default=default, help=what, type=kind or type(default)
        )

    add("--model", "smollm2-135m", "folder of a model, or a name that `fetch` knows")
    add(
        "--tasks",
        "bfcl,lists",
        f"of {', '.join(KINDS)}, or files of JSON lines (benchmarks/answers/tasks.py)",
    )
    add("--ways", _WAYS, "see benchmarks/answers/ways.py")
    add("--count", 0, "at most so many tasks of a kind; 0: all")
    add(
        "--tokens",
        0,
        "at most so many tokens of an answer; 0: as many as its task gives",
    )
    add(
        "--bfcl", None, "folder with BFCL's data; what `fetch` keeps if not given", Path
    )
    add(
        "--sample",
        None,
        "schemas for `documents`: a folder or a tar archive of MaskBench files",
        Path,
    )
    add("--longest", 4096, "tokens of a prompt; tasks with longer ones are left out")
    add("--rows", 64, "requests that run at once")
    add("--device", "cpu", "cpu or cuda")
    add("--engine", {}, "more arguments of the engines, as JSON", json.loads)
    add("--limit", 3600.0, "seconds of an engine; ways that were measured then count")
    add("--texts", None, "also write all outputs here, one JSON line each", Path)
    add("--read", [], "files of earlier calls, to show together", _paths)
    add("--out", None, "also write the JSON here", Path)
    options = parser.parse_args(arguments)
    if options.device not in _DTYPES:
        parser.error(f"--device is one of {', '.join(_DTYPES)}")
    return options


def _paths(text: str) -> list[Path]:
    return [Path(name) for name in text.split(",")]


def measure(options: argparse.Namespace, command: str) -> dict[str, Any]:
    """Run the engines one after the other; the result is written after each."""
    check_out(options.texts, "--texts")
    ways = [Way.named(name) for name in options.ways.split(",")]
    if options.device == "cpu" and any("jump" in way.changes for way in ways):
        raise InputError(
            "+jump needs a GPU",
            where="--ways",
            hint="leave it out, or use --device cuda",
        )
    folder = models.model_folder(options.model)
    tasks, left_out = chosen(options, folder)
    result: dict[str, Any] = {
        "command": command,
        "date": None,
        "benchmark": "answers",
        "model": folder.name,
    }
    result |= {"left_out": left_out, "figures": [], "failed": []}
    asked = [{**dataclasses.asdict(task), "tokens": tokens} for task, tokens in tasks]
    kinds = _by_kind([task for task, _ in tasks])
    unasked = [way.name for way in ways if not any(map(way.asks, kinds))]
    if unasked:
        hint = "the tasks `calls` are asked in the ways `tools`, all others in the other ways"
        raise InputError(
            f"{', '.join(unasked)} would be asked nothing", where="--ways", hint=hint
        )
    count = sum(len(kinds[kind]) for kind in kinds for way in ways if way.asks(kind))
    with (
        progress("answers", count) as advance,
        _opened(options.texts) as texts,
    ):
        for engine, own in _by_engine(ways):
            try:
                found = _run(options, folder, engine, own, asked, advance)
            except PipelineError as error:
                result["failed"].append(str(error))
                continue
            known = found["environment"]
            result |= {"date": known["date"], "environment": known}
            for case in found["cases"]:
                result["figures"].append(_judged(case, kinds[case["kind"]], texts))
            if len(found["cases"]) < sum(
                way.asks(kind) for way in own for kind in kinds
            ):
                result["failed"].append(
                    f"{engine}: ended, or took {options.limit:g} s, before all was measured"
                )
            write_json(result, options.out)
    names = [way.name for way in ways]
    result["figures"].sort(
        key=lambda one: (list(kinds).index(one["kind"]), names.index(one["way"]))
    )
    return result


def chosen(
    options: argparse.Namespace, folder: Path
) -> tuple[list[tuple[Task, list[int]]], dict[str, int]]:
    """Choose the tasks, with the tokens of their prompts; count by kind those whose
    prompt is too long."""
    sources = {"bfcl": options.bfcl, "sample": options.sample}
    tokenizer = load_tokenizer(folder)
    tasks: list[tuple[Task, list[int]]] = []
    left_out: dict[str, int] = {}
    for kind in options.tasks.split(","):
        known = load_tasks(kind, sources, options.count)
        if options.tokens:
            known = [shortened(task, options.tokens) for task in known]
        with_tokens = [(task, prompt_tokens(tokenizer, task)) for task in known]
        fitting = [one for one in with_tokens if len(one[1]) <= options.longest]
        if not fitting:
            raise InputError(
                "has no task that can be asked",
                where=kind,
                hint="--longest is the limit",
            )
        tasks += fitting
        if len(fitting) < len(known):
            left_out[kind] = len(known) - len(fitting)
    return tasks, left_out


def shortened(task: Task, tokens: int) -> Task:
    """Return the task with answers of at most so many tokens."""
    return dataclasses.replace(task, max_tokens=min(task.max_tokens, tokens))


def _by_kind(tasks: Sequence[Task]) -> dict[str, list[Task]]:
    kinds: dict[str, list[Task]] = {}
    for task in tasks:
        kinds.setdefault(task.kind, []).append(task)
    return kinds


def _by_engine(ways: Sequence[Way]) -> Iterator[tuple[str, list[Way]]]:
    """Group the ways by the engine that answers. Unguided ones are asked in the first
    engine of all."""
    guided = [way for way in ways if way.name != UNGUIDED]
    first = guided[0].engine if guided else "plugin"
    engines: dict[str, list[Way]] = {}
    for way in ways:
        engines.setdefault(first if way.name == UNGUIDED else way.engine, []).append(
            way
        )
    yield from engines.items()


def _run(
    options: argparse.Namespace,
    folder: Path,
    engine: str,
    ways: Sequence[Way],
    asked: list[dict[str, Any]],
    advance: Callable[..., None],
) -> dict[str, Any]:
    """Return what an engine answers. Its process adds a byte to a file for each
    answer."""
    longest = max(len(task["tokens"]) + task["max_tokens"] for task in asked)
    arguments = {
        "max_num_seqs": options.rows,
        "max_model_len": longest + 8,
        "dtype": _DTYPES[options.device],
        "enforce_eager": options.device == "cpu",
        # Prompts take most of the time on a CPU, and all ways of an engine have the
        # same.
        "enable_prefix_caching": options.device == "cpu",
        **engine_arguments(engine),
        **options.engine,
    }
    with tempfile.NamedTemporaryFile() as answered, ThreadPoolExecutor(1) as pool:
        question = {
            "model": str(folder),
            "device": options.device,
            "plugin": engine.startswith("plugin"),
            "engine": arguments,
            "tasks": asked,
            "ways": [way.name for way in ways],
            "answered": answered.name,
        }
        where = f"benchmarks.answers, {engine}"
        environment = engine_environment(engine, options.device)
        running = pool.submit(
            run_child,
            "benchmarks.answers.child",
            question,
            environment,
            options.limit,
            where,
        )
        _follow(running, Path(answered.name), lambda: advance(f"answers, {engine}"))
        return running.result()


def _follow(running: Future[Any], answered: Path, advance: Callable[[], None]) -> None:
    """Advance by each byte of a file until the process has ended."""
    shown = 0
    while True:
        done = running.done()
        count = answered.stat().st_size
        for _ in itertools.repeat(None, count - shown):
            advance()
        shown = count
        if done:
            return
        time.sleep(_POLL)


def _judged(
    case: dict[str, Any], tasks: Sequence[Task], texts: TextIO | None
) -> dict[str, Any]:
    """Judge the outputs of a case; write them where they are to be kept."""
    outputs = case["outputs"]
    read = as_calls if tasks[0].kind == "calls" else str
    verdicts = [
        judged(read(output["text"]), task.schema, task.judge)
        for task, output in zip(tasks, outputs, strict=True)
    ]
    if texts is not None:
        for task, output, verdict in zip(tasks, outputs, verdicts, strict=True):
            line = {"kind": task.kind, "id": task.id, "way": case["way"]}
            line |= {"right": verdict.right, "valid": verdict.valid, **output}
            texts.write(json.dumps(line) + "\n")
    return figure(case["way"], tasks, outputs, verdicts, case["seconds"])


def _opened(path: Path | None) -> Any:
    return contextlib.nullcontext() if path is None else path.open("w")


def merged(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Put several results together. Raises InputError if a kind had other tasks in one
    of them."""
    figures = [one for result in results for one in result["figures"]]
    digests: dict[str, str] = {}
    for one in figures:
        if digests.setdefault(one["kind"], one["digest"]) != one["digest"]:
            hint = "measure with the same --tasks, --count, --longest and tokenizer"
            raise InputError(
                f"{one['kind']} had different tasks in these files",
                where="--read",
                hint=hint,
            )
    failed = [failure for result in results for failure in result["failed"]]
    commands = "; ".join(result["command"] for result in results)
    return {**results[0], "command": commands, "figures": figures, "failed": failed}


if __name__ == "__main__":
    sys.exit(main())
