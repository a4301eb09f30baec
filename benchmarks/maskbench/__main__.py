"""MaskBench: which schemas of a sample get the right answers, and how long their masks
take.

    python -m benchmarks.maskbench SAMPLE --tokenizer DIR [--backend auto,llguidance] [--json OUT]

SAMPLE is a folder or a tar archive of JSON files with `schema` and `tests`. Files are
measured in child processes: a schema that makes a backend hang or crash costs its own
row. Early stops are schemas with a position where a stop token is allowed before the
output is complete, or missing when it is, or where another special token is allowed.
The exit code is 1 when with --compare a file that passed before no longer passes, and 2
for input that can't be used.
"""

from __future__ import annotations

import argparse
import contextlib
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.maskbench.child import Settings
from benchmarks.maskbench.pool import Pool
from benchmarks.maskbench.result import FileResult, Flip, compare, summarise
from benchmarks.samples import open_sample
from guided_plugin.bench import environment
from guided_plugin.cli.loading import load_tokenizer, read_json
from guided_plugin.cli.results import check_out, progress, show_table, write_json
from guided_plugin.errors import GuidedError
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.plugins import Plugins

# Fits in 80 columns.
_COLUMNS = (
    ("backend", "{backend}"),
    ("pass", "{summary[passing]}"),
    ("wrong\naccepts", "{summary[wrong_accepts]}"),
    ("wrong\nrefuses", "{summary[wrong_refusals]}"),
    ("early\nstops", "{summary[early_stops]}"),
    ("refused", "{summary[refused]}"),
    ("died", "{summary[died]}"),
    ("mask us\navg/p99/p99.9", "{mask_times}"),
    ("first ms\np50/p90/p99", "{first_times}"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Prints one line on stderr for input that can't be used."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "source", type=Path, help="folder or tar archive of MaskBench files"
    )
    parser.add_argument(
        "--tokenizer",
        type=Path,
        required=True,
        help="folder of a transformers tokenizer",
    )
    parser.add_argument(
        "--backend", default="auto", help="backends, separated by commas: a row each"
    )
    parser.add_argument(
        "--jobs", type=int, default=1, help="files measured side by side"
    )
    parser.add_argument(
        "--limit", type=float, default=60.0, help="seconds a file may take"
    )
    parser.add_argument("--every", type=int, default=1, help="take every Nth file only")
    parser.add_argument("--json", type=Path, help="write every file's result here")
    parser.add_argument(
        "--compare", type=Path, help="show what changed since this --json file"
    )
    try:
        return _measure(parser.parse_args(arguments))
    except GuidedError as error:
        print("error: " + " ".join(str(error).split()), file=sys.stderr)
        return 2


def _measure(options: argparse.Namespace) -> int:
    backends = list(dict.fromkeys(options.backend.split(",")))
    for name in backends:
        if name != "auto":
            Plugins().backend(name)
    older = None if options.compare is None else read_json(options.compare)
    check_out(options.json, "--json")
    loaded = load_tokenizer(options.tokenizer)
    with open_sample(options.source) as files:
        chosen = dict(list(files.items())[:: options.every])
        died = 0
        with progress("measuring", len(chosen) * len(backends)) as advance:

            def note(name: str, row: FileResult) -> None:
                nonlocal died
                died += row.status == "died"
                advance(f"{name}, {died} died")

            result = run_maskbench(
                chosen, loaded, backends, options.jobs, options.limit, note
            )
    result["tokenizer"] = options.tokenizer.resolve().name
    flips = [] if older is None else compare(older, result)
    if older is not None:
        result["compared"] = {
            "with": older["environment"],
            "flips": [asdict(flip) for flip in flips],
        }
    _show(result)
    if older is not None:
        _show_flips(flips, older, result)
    write_json(result, options.json)
    return int(any(flip.worse for flip in flips))


def run_maskbench(
    files: dict[str, Path],
    tokenizer: Any,
    backends: Sequence[str],
    jobs: int,
    limit: float,
    progress: Callable[[str, FileResult], None],
) -> dict[str, Any]:
    """Measure all files with each backend, for a transformers tokenizer; the result is
    JSON.

    `progress` is called after each file, with the backend's name as given.
    """
    vocabulary = replace(Vocabulary.from_tokenizer(tokenizer), encode=None)
    encoder = getattr(tokenizer, "backend_tokenizer", None)
    result: dict[str, Any] = {
        "benchmark": "maskbench",
        "environment": environment(),
        "machine": _machine(),
        "vocabulary": vocabulary.size,
        "tokens": "longest that fit" if encoder is None else "the tokenizer's",
        "files": len(files),
        "jobs": jobs,
        "limit_seconds": limit,
        "runs": [],
    }
    for backend in backends:
        pool = Pool(Settings(vocabulary, encoder, backend, limit), jobs)
        done: list[FileResult] = []
        with contextlib.closing(pool.run(files)) as rows:
            for row in rows:
                done.append(row)
                progress(backend, row)
        done.sort(key=lambda row: row.name)
        result["runs"].append(
            {
                "backend": backend,
                "empty_call_us": None
                if pool.ready is None
                else pool.ready.empty_call_us,
                "summary": summarise(done),
                "files": [row.to_dict() for row in done],
            }
        )
    return result


def _machine() -> dict[str, Any]:
    """The processor, on which times of single masks depend."""
    model = ""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(
            (
                line.partition(":")[2].strip()
                for line in lines
                if line.startswith("model name")
            ),
            "",
        )
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "processor": model,
    }


def _show(result: dict[str, Any]) -> None:
    """The table, and below it what it has no column for."""
    figures = [
        {
            **run,
            "mask_times": _times(
                run["summary"]["masks"], ("avg_us", "p99_us", "p99.9_us")
            ),
            "first_times": _times(
                run["summary"]["first_mask_ms"], ("p50", "p90", "p99")
            ),
        }
        for run in result["runs"]
    ]
    show_table(figures, _COLUMNS, padding=0)
    console = Console(highlight=False)
    for run in result["runs"]:
        summary = run["summary"]
        name = run["backend"]
        if summary["faults"]:
            what = "instances where a matcher contradicted itself or got stuck"
            console.print(f"{name}: {what}: {summary['faults']}", markup=False)


def _times(figures: dict[str, float], names: Sequence[str]) -> str:
    """Three digits are more than these figures repeat to."""
    if not set(names) <= figures.keys():
        return "-"
    return "/".join(
        f"{value:.0f}" if (value := figures[name]) >= 100 else f"{value:.3g}"
        for name in names
    )


def _show_flips(
    flips: list[Flip], older: dict[str, Any], result: dict[str, Any]
) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for setting in ("tokenizer", "limit_seconds", "jobs"):
        if older.get(setting) != result[setting]:
            console.print(
                f"{setting}: {older.get(setting)} then, {result[setting]} now",
                markup=False,
            )
    worse = sum(flip.worse for flip in flips)
    console.print(f"files that flipped: {len(flips)}; of them, passed before: {worse}")
    for flip in flips:
        error = f" ({flip.error})" if flip.error else ""
        line = f"{flip.backend} {flip.name}: {flip.before} -> {flip.after}{error}"
        console.print(_printable(line), markup=False)


def _printable(text: str) -> str:
    """On one line, and in UTF-8: file names and errors may hold anything."""
    return " ".join(text.encode(errors="backslashreplace").decode().split())


if __name__ == "__main__":
    sys.exit(main())
