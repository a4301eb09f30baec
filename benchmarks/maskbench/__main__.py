"""MaskBench: which schemas of a sample get the right answers, and how long their masks
take.

    python -m benchmarks.maskbench SAMPLE --tokenizer DIR [--backend auto,llguidance] [--json OUT]

SAMPLE is a folder or a tar archive of JSON files with `schema` and `tests`. Files are
measured in child processes: a schema that makes a backend hang or crash costs its own
row. Early stops are schemas with a position where a stop token is allowed before the
output is complete, or missing when it is, or where another special token is allowed.
The exit code is 2 for input that can't be used.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Json, Options, given, head, names, quantile, write
from benchmarks.maskbench.child import Child, FileResult, Settings
from benchmarks.samples import open_sample
from guided_plugin.cli.loading import load_tokenizer, show_error
from guided_plugin.cli.results import progress, show_table
from guided_plugin.errors import GuidedError
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.plugins import Plugins

# Fits in 80 columns.
_COLUMNS = (
    ("backend", "{backend}"),
    ("pass", "{passing}"),
    ("wrong\naccepts", "{wrong_accepts}"),
    ("wrong\nrefuses", "{wrong_refusals}"),
    ("early\nstops", "{early_stops}"),
    ("refused", "{refused}"),
    ("died", "{died}"),
    ("faults", "{faults}"),
    ("mask us\navg/p99/p99.9", "{mask_times}"),
    ("first ms\np50/p90/p99", "{first_times}"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = Options(__doc__)
    parser.sample()
    parser.add("--backend", ["auto"], "backends, with commas: a row each", names)
    parser.add("--jobs", 1, "files measured side by side")
    parser.add("--limit", 60.0, "seconds a file may take")
    options = parser.parse_args(arguments)
    result = {
        **head("benchmarks.maskbench", given(arguments)),
        "benchmark": "maskbench",
        "tokenizer": options.tokenizer.resolve().name,
        "jobs": options.jobs,
        "limit_seconds": options.limit,
        "runs": [],
    }
    try:
        for name in options.backend:
            if name != "auto":
                Plugins().backend(name)
        _measure(options, result)
    except GuidedError as error:
        return show_error(error)
    write(result, options.json)
    show_table(
        map(_shown, result["runs"]),
        _COLUMNS,
        padding=0,
    )
    return 0


def _measure(options: Any, result: Json) -> None:
    tokenizer = load_tokenizer(options.tokenizer)
    vocabulary = replace(Vocabulary.from_tokenizer(tokenizer), encode=None)
    encoder = getattr(tokenizer, "backend_tokenizer", None)
    result["vocabulary"] = vocabulary.size
    with open_sample(options.source) as files:
        chosen = dict(list(files.items())[:: options.every])
        result["files"] = len(chosen)
        runs = len(chosen) * len(options.backend)
        with progress("measuring", runs) as advance:
            for backend in options.backend:
                settings = Settings(vocabulary, encoder, backend, options.limit)
                rows = []
                for row in measured(chosen, settings, options.jobs):
                    rows.append(row)
                    advance(backend)
                run = {"backend": backend, "summary": summarise(rows)}
                result["runs"].append(
                    {
                        **run,
                        "files": list(map(_row, rows)),
                    }
                )


def measured(
    files: dict[str, Path], settings: Settings, jobs: int
) -> Iterator[FileResult]:
    """The result of each file, in up to `jobs` children."""
    idle: SimpleQueue[Child | None] = SimpleQueue()
    for _ in range(jobs):
        idle.put(None)

    def one(item: tuple[str, Path]) -> FileResult:
        child: Child | None = idle.get() or Child(settings)
        result = child.measure(item[1])
        result.name = item[0]
        if result.status == "died":
            child.stop()
            child = None
        idle.put(child)
        return result

    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(one, files.items())
    for _ in range(jobs):
        child = idle.get()
        if child is not None:
            child.stop()


def summarise(rows: Sequence[FileResult]) -> Json:
    """The row of the table. Times are those of every file that compiled and didn't
    die."""
    with_status = Counter(row.status for row in rows)
    firsts = [row.first_mask_ms for row in rows if row.first_mask_ms is not None]

    def having(what: Callable[[FileResult], Any]) -> int:
        return sum(bool(what(row)) for row in rows)

    return {
        "files": len(rows),
        "passing": with_status["passing"],
        "wrong_accepts": having(lambda row: row.wrong_accepts),
        "wrong_refusals": having(lambda row: row.wrong_refusals),
        "early_stops": with_status["early stop"],
        "refused": with_status["refused"],
        "died": with_status["died"],
        "tests": sum(row.tests for row in rows),
        "faults": sum(len(row.faults) for row in rows),
        "masks": _masks(np.concatenate([row.mask_ns for row in rows])),
        "first_mask_ms": {
            f"p{share * 100:g}": round(quantile(firsts, share), 4)
            for share in (0.5, 0.9, 0.99)
            if firsts
        },
    }


def _masks(nanoseconds: NDArray[np.int64]) -> Json:
    if not len(nanoseconds):
        return {"count": 0}
    found = {
        f"p{share * 100:g}_us": quantile(nanoseconds, share) / 1e3
        for share in (0.5, 0.99, 0.999)
    }
    found["count"] = len(nanoseconds)
    found["avg_us"] = round(float(nanoseconds.mean()) / 1e3, 3)
    found["max_us"] = float(nanoseconds.max()) / 1e3
    return found


def _row(result: FileResult) -> Json:
    """For the JSON file: the times as their statistics."""
    row = asdict(result)
    row["masks"] = _masks(row.pop("mask_ns"))
    return row


def _shown(run: Json) -> Json:
    summary = run["summary"]
    masks = [summary["masks"].get(f"{name}_us") for name in ("avg", "p99", "p99.9")]
    firsts = summary["first_mask_ms"].values()
    own = {"mask_times": _times(masks), "first_times": _times(firsts)}
    return {"backend": run["backend"], **summary, **own}


def _times(values: Any) -> str:
    """Three digits are more than these figures repeat to."""
    known = [value for value in values if value is not None]
    return "/".join(f"{value:.3g}" for value in known) or "-"


if __name__ == "__main__":
    sys.exit(main())
