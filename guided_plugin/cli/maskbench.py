"""`guided-plugin maskbench`: what a backend gets right of a sample of schemas, and how fast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from guided_plugin.cli.loading import InputError, load_tokenizer, read_json
from guided_plugin.cli.results import check_out, check_png, progress, show_table, write_json

if TYPE_CHECKING:
    from guided_plugin.bench.maskbench_result import FileResult, Flip

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
        typer.Option("--compare", metavar="OLD", help="Show what changed since this --json file."),
    ] = None,
    png: Annotated[
        Path | None, typer.Option(help="Also draw the times of masks into this PNG (extra `plot`).")
    ] = None,
) -> None:
    """Match the instances of many schemas: which get the right answer, and how long masks take.

    Early stops are schemas with a position where a stop token is allowed before the output is complete, or
    missing when it is, or where another special token is allowed.

    With --compare, the exit code is 1 when a file that passed before no longer passes.
    """
    from guided_plugin.bench.maskbench import open_sample, run_maskbench
    from guided_plugin.bench.maskbench_result import compare

    backends = _backends(backend)
    older = None if compare_with is None else _older(compare_with)
    check_out(json_output, "--json")
    check_png(png)
    loaded = load_tokenizer(tokenizer)
    with open_sample(source) as files:
        chosen = dict(list(files.items())[::every])
        died = 0
        with progress("measuring", len(chosen) * len(backends)) as advance:

            def note(name: str, row: FileResult) -> None:
                nonlocal died
                died += row.status == "died"
                advance(f"{name}, {died} died")

            result = run_maskbench(chosen, loaded, backends, jobs=jobs, limit=limit, progress=note)
    result["tokenizer"] = tokenizer.resolve().name
    flips = [] if older is None else compare(older, result)
    if older is not None:
        result["compared"] = {"with": older["environment"], "flips": [asdict(flip) for flip in flips]}
    _show(result)
    if older is not None:
        _show_flips(flips, older, result)
    write_json(result, json_output)
    if png is not None:
        from guided_plugin.bench.figures_plot import plot_masks

        plot_masks(result, png)
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
    """The result of an earlier run, checked before anything is measured."""
    from guided_plugin.bench.maskbench_result import compare

    document = read_json(path)
    try:
        if document["benchmark"] != "maskbench":
            raise ValueError(document["benchmark"])
        compare(document, document)
        return {**document, "environment": document["environment"]}
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InputError(
            "is not a result of maskbench", where=f"--compare: {path}", hint="give what --json wrote"
        ) from None


def _show(result: dict[str, Any]) -> None:
    """The table, and below it what it has no column for."""
    figures = [
        {
            **run,
            "mask_times": _times(run["summary"]["masks"], ("avg_us", "p99_us", "p99.9_us")),
            "first_times": _times(run["summary"]["first_mask_ms"], ("p50", "p90", "p99")),
        }
        for run in result["runs"]
    ]
    show_table(figures, _COLUMNS, padding=0)
    console = Console(highlight=False)
    for run in result["runs"]:
        summary, name = run["summary"], run["backend"]
        if summary["files"] < result["files"]:
            console.print(f"{name}: files measured: {summary['files']} of {result['files']}", markup=False)
        if summary["unreadable"]:
            console.print(f"{name}: files that can't be read: {summary['unreadable']}", markup=False)
        if summary["faults"]:
            what = "instances where a matcher contradicted itself or got stuck"
            console.print(f"{name}: {what}: {summary['faults']}", markup=False)
    if result["interrupted"]:
        console.print(f"interrupted: {_printable(result['interrupted'])}", markup=False)


def _times(figures: dict[str, float], names: Sequence[str]) -> str:
    """Three digits are more than these figures repeat to."""
    if not set(names) <= figures.keys():
        return "-"
    return "/".join(f"{value:.0f}" if (value := figures[name]) >= 100 else f"{value:.3g}" for name in names)


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
