"""`guided-plugin maskbench`: what a backend gets right of a sample of schemas, and how fast."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from guided_plugin.cli.bench import check_out
from guided_plugin.cli.loading import InputError, load_tokenizer, read_json

if TYPE_CHECKING:
    from guided_plugin.bench.maskbench_result import FileResult, Flip

__all__ = ["maskbench"]

# Fits in 80 columns.
_HEADINGS = (
    "backend",
    "pass",
    "wrong\naccepts",
    "wrong\nrefuses",
    "early\nstops",
    "refused",
    "died",
    "mask us\navg/p99/p99.9",
    "first ms\np50/p90/p99",
)


def maskbench(
    source: Annotated[Path, typer.Argument(help="Folder or tar archive of MaskBench files.")],
    tokenizer: Annotated[Path, typer.Option(help="Folder of a transformers tokenizer.")],
    backend: Annotated[str, typer.Option(help="Backends, separated by commas: a row each.")] = "auto",
    jobs: Annotated[int, typer.Option(min=1, help="Files measured side by side.")] = 1,
    limit: Annotated[float, typer.Option(min=0.1, help="Seconds a file may take.")] = 60.0,
    every: Annotated[int, typer.Option(min=1, help="Take every Nth file only.")] = 1,
    json_output: Annotated[
        Path | None, typer.Option("--json", metavar="OUT", help="Write every file's result to this file.")
    ] = None,
    compare_with: Annotated[
        Path | None,
        typer.Option("--compare", metavar="OLD", help="Tell what changed since this --json file."),
    ] = None,
) -> None:
    """Match the instances of many schemas: which get the right answer, and how long masks take.

    Early stops are schemas with a position where a stop token is allowed before the output is complete, or
    missing when it is, or where another special token is allowed.

    With --compare, the exit code is 1 when a file that passed doesn't any more.
    """
    from guided_plugin.bench.maskbench import open_sample, run_maskbench
    from guided_plugin.bench.maskbench_result import compare

    backends = _backends(backend)
    older = None if compare_with is None else _older(compare_with)
    if json_output is not None:
        check_out(json_output, "--json")
    loaded = load_tokenizer(tokenizer)
    with open_sample(source) as files, _progress() as progress:
        chosen = dict(list(files.items())[::every])
        tasks = {name: progress.add_task(name, total=len(chosen), died=0) for name in backends}
        died = dict.fromkeys(backends, 0)

        def advance(name: str, row: FileResult) -> None:
            died[name] += row.status == "died"
            progress.update(tasks[name], advance=1, died=died[name])

        result = run_maskbench(chosen, loaded, backends, jobs=jobs, limit=limit, progress=advance)
    result["tokenizer"] = tokenizer.resolve().name
    flips = [] if older is None else compare(older, result)
    if older is not None:
        result["compared"] = {"with": older["environment"], "flips": [flip.to_dict() for flip in flips]}
    _show(result)
    if older is not None:
        _show_flips(flips, older, result)
    if json_output is not None:
        json_output.write_text(json.dumps(result, indent=1) + "\n")
    if result["interrupted"]:
        raise typer.Exit(130 if result["interrupted"] == "by the user" else 2)
    if any(flip.worse for flip in flips):
        raise typer.Exit(1)


def _backends(text: str) -> list[str]:
    from guided_plugin.plugins import Plugins

    names = list(dict.fromkeys(text.split(",")))
    plugins = Plugins()
    for name in names:
        if name != "auto":
            plugins.backend(name)
    return names


def _older(path: Path) -> dict[str, Any]:
    """The result of an earlier run; found wanting before anything is measured."""
    from guided_plugin.bench.maskbench_result import compare

    document = read_json(path)
    try:
        if document["benchmark"] != "maskbench":
            raise ValueError(document["benchmark"])
        compare(document, document)
        return {**document, "environment": document["environment"]}
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InputError(
            "is no result of maskbench", where=f"--compare: {path}", hint="give what --json wrote"
        ) from None


def _progress() -> Progress:
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[died]} died"),
    )
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _show(result: dict[str, Any]) -> None:
    console = Console(highlight=False)
    table = Table(box=SIMPLE_HEAD, padding=0, show_edge=False)
    for heading in _HEADINGS:
        table.add_column(heading, justify="left" if heading == "backend" else "right")
    for run in result["runs"]:
        summary = run["summary"]
        counts = ("passing", "wrong_accepts", "wrong_refusals", "early_stops", "refused", "died")
        table.add_row(
            run["backend"],
            *(str(summary[count]) for count in counts),
            _times(summary["masks"], ("avg_us", "p99_us", "p99.9_us")),
            _times(summary["first_mask_ms"], ("p50", "p90", "p99")),
        )
    console.print(table)
    for run in result["runs"]:
        for line in _remarks(run["summary"], result["files"]):
            console.print(f"{run['backend']}: {line}", markup=False)
    if result["interrupted"]:
        console.print(f"interrupted: {_printable(result['interrupted'])}", markup=False)


def _times(figures: dict[str, float], names: Sequence[str]) -> str:
    """Three digits are more than these figures repeat to."""
    if not set(names) <= figures.keys():
        return "-"
    return "/".join(f"{value:.0f}" if (value := figures[name]) >= 100 else f"{value:.3g}" for name in names)


def _remarks(summary: dict[str, Any], files: int) -> list[str]:
    """What the table has no column for, where there is any."""
    remarks = []
    if summary["files"] < files:
        remarks.append(f"files measured: {summary['files']} of {files}")
    if summary["unreadable"]:
        remarks.append(f"files that can't be read: {summary['unreadable']}")
    if summary["faults"]:
        remarks.append(f"instances where a matcher contradicted itself or got stuck: {summary['faults']}")
    return remarks


def _show_flips(flips: list[Flip], older: dict[str, Any], result: dict[str, Any]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for setting in ("tokenizer", "limit_seconds", "jobs"):
        if older.get(setting) != result[setting]:
            console.print(f"{setting}: {older.get(setting)} then, {result[setting]} now", markup=False)
    worse = sum(flip.worse for flip in flips)
    console.print(f"files that flipped: {len(flips)}; of them, passed before: {worse}")
    for flip in flips:
        error = f" ({flip.error})" if flip.error else ""
        line = f"{flip.backend} {flip.name}: {flip.before} -> {flip.after}{error}"
        console.print(_printable(line), markup=False)


def _printable(text: str) -> str:
    """On one line, and in UTF-8: file names and errors may hold anything."""
    return " ".join(text.encode(errors="backslashreplace").decode().split())
