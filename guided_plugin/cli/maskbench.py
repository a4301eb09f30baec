"""`guided-plugin maskbench`: coverage, soundness and speed on real-world schemas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from guided_plugin.cli.loading import InputError, read_json

__all__ = ["maskbench"]


def maskbench(
    source: Annotated[
        Path, typer.Argument(help="Folder or tar archive of JSON files with `schema` and `tests`.")
    ],
    tokenizer: Annotated[Path, typer.Option(help="Folder of a transformers tokenizer.")],
    backend: Annotated[
        str, typer.Option(help="auto, xgrammar or llguidance; several, separated by commas.")
    ] = "auto",
    jobs: Annotated[int, typer.Option(min=1, help="Files at a time; 1 for figures of speed.")] = 1,
    limit: Annotated[float, typer.Option(min=1.0, help="Seconds a file; then it counts as died.")] = 60.0,
    only: Annotated[int, typer.Option(min=0, help="So many files, spread over all; 0: all.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--json", metavar="<path>", help="Write every result to this file.")
    ] = None,
    compare: Annotated[
        Path | None, typer.Option(metavar="<path>", help="Tell what changed since an earlier --json.")
    ] = None,
) -> None:
    """Judge a backend on schemas with valid and invalid instances, and time its masks."""
    from guided_plugin.bench.environment import environment
    from guided_plugin.bench.maskbench import compared, files_of, run_maskbench, summary

    if not source.exists():
        raise InputError(f"no such folder or archive: {source}", where="SOURCE")
    if not tokenizer.is_dir():
        raise InputError(f"no such folder: {tokenizer}", where="--tokenizer")
    old = read_json(compare) if compare is not None else None
    names = backend.split(",")
    document: dict[str, Any] = {"benchmark": "maskbench", "environment": environment(), "jobs": jobs}
    document["runs"] = {}
    with files_of(source) as files:
        chosen = files[:: max(1, len(files) // only)][:only] if only else files
        if not chosen:
            raise InputError(f"no JSON files in {source}", where="SOURCE")
        for name in names:
            document["runs"][name] = _run(run_maskbench, chosen, tokenizer, name, jobs, limit)
    for run in document["runs"].values():
        run["summary"] = summary(run["files"])
    _show(document)
    if old is not None:
        for name, run in document["runs"].items():
            before = old.get("runs", {}).get(name, {}).get("files", {})
            for line in compared(before, run["files"]):
                Console(soft_wrap=True, highlight=False).print(f"{name}: {line}", markup=False)
    if out is not None:
        try:
            out.write_text(json.dumps(document) + "\n")
        except OSError as error:
            raise InputError(f"can't write {out}: {error.strerror}", where="--json") from None


def _run(run: Any, files: list[Path], tokenizer: Path, name: str, jobs: int, limit: float) -> dict[str, Any]:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(name, total=len(files))
        results = run(
            files,
            tokenizer,
            backend=name,
            jobs=jobs,
            limit=limit,
            progress=lambda: progress.advance(task),
        )
    return {"files": results}


def _show(document: dict[str, Any]) -> None:
    table = Table("backend", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in (
        *("passing", "wrong accepts", "wrong refusals", "refused", "died"),
        *("mask avg / p99 / p99.9 us", "first mask p50 / p90 / p99 ms"),
    ):
        table.add_column(heading, justify="right")
    for name, run in document["runs"].items():
        found = run["summary"]
        masks, first = found["mask_us"], found["first_mask_ms"]
        table.add_row(
            name,
            f"{found['pass']}/{found['files']} ({found['passing']:.1%})",
            *(str(found[key]) for key in ("wrong_accept", "wrong_refuse", "refused", "died")),
            " / ".join(_figure(masks[key]) for key in ("avg", "p99", "p99.9")),
            " / ".join(_figure(first[key]) for key in ("p50", "p90", "p99")),
        )
    Console().print(table)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"
