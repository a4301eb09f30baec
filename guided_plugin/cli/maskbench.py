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

from guided_plugin.cli.loading import InputError, load_tokenizer, read_json
from guided_plugin.errors import GuidedError

if TYPE_CHECKING:
    from guided_plugin.bench.maskbench_result import FileResult, Flip

__all__ = ["maskbench"]

_HEADINGS = (
    "backend",
    "passing",
    "wrong accepts",
    "wrong refusals",
    "refused",
    "died",
    "mask us avg / p99 / p99.9",
    "first ms p50 / p90 / p99",
)


def maskbench(
    source: Annotated[
        Path, typer.Argument(metavar="DIR_OR_TAR", help="Folder or tar archive of MaskBench files.")
    ],
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

    With --compare, the exit code is 1 when a file that passed doesn't any more.
    """
    from guided_plugin.bench.maskbench import open_sample, run_maskbench
    from guided_plugin.bench.maskbench_result import compare

    backends = _backends(backend)
    older = None if compare_with is None else _older(compare_with)
    if json_output is not None:
        _check_out(json_output)
    load_tokenizer(tokenizer)  # for its errors: the children load their own
    with open_sample(source) as files, _progress() as progress:
        chosen = dict(list(files.items())[::every])
        tasks = {name: progress.add_task(name, total=len(chosen), died=0) for name in backends}
        died = dict.fromkeys(backends, 0)

        def advance(name: str, row: FileResult) -> None:
            died[name] += row.status == "died"
            progress.update(tasks[name], advance=1, died=died[name])

        result = run_maskbench(chosen, tokenizer, backends, jobs=jobs, limit=limit, progress=advance)
    flips = [] if older is None else compare(older, result)
    if older is not None:
        result["compared"] = {"with": older["environment"], "flips": [flip.to_dict() for flip in flips]}
    if json_output is not None:
        json_output.write_text(json.dumps(result, indent=1) + "\n")
    _show(result)
    if older is not None:
        _show_flips(flips, older, result)
    if result["interrupted"]:
        raise typer.Exit(130 if result["interrupted"] == "by the user" else 2)
    if any(flip.worse for flip in flips):
        raise typer.Exit(1)
