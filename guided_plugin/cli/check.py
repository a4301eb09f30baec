"""`guided-plugin check`: does a spec compile, and which instances does it take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from guided_plugin.check.report import CheckReport, check_spec
from guided_plugin.cli import options
from guided_plugin.cli.loading import load_spec, load_tokenizer, name_of, read_once, read_text
from guided_plugin.cli.results import print_json, working
from guided_plugin.demo import MODEL_DIR

_COLOURS = {
    "refused": "red",
    "undecided": "red",
    "enforced": "green",
    "annotation": "yellow",
    "structure": "dim",
}


def check(
    spec_file: Annotated[
        Path,
        typer.Argument(
            help="JSON Schema, a spec in any form requests take, or a .ebnf/.gbnf/.lark file; -: stdin."
        ),
    ],
    tokenizer: Annotated[
        Path, typer.Option(help="Folder of a transformers tokenizer.", show_default="the demo's")
    ] = MODEL_DIR,
    instance: Annotated[
        list[Path] | None, typer.Option(metavar="<path>", help="File to match; may be given often; -: stdin.")
    ] = None,
    flexible: options.Flexible = False,
    open_objects: options.Open = False,
    raw: Annotated[
        bool,
        typer.Option(
            "--raw",
            help="Match instances to the letter (but for a last line end), not as the spec would write them.",
        ),
    ] = False,
    json_output: options.JsonOutput = False,
) -> None:
    """Compile a spec; show the backend, warnings, what becomes of each keyword, and which instances match."""
    given: dict[str, Any] = {"whitespace": "flexible"} if flexible else {}
    if open_objects:
        given["strict"] = False
    read_once([spec_file, *(instance or [])])
    spec = load_spec(spec_file, **given)
    instances = [(name_of(path), read_text(path)) for path in instance or []]
    with working("compiling"):
        from guided_plugin.compiling.compiler import GrammarCompiler
        from guided_plugin.grammar.vocabulary import Vocabulary

        compiler = GrammarCompiler(Vocabulary.from_tokenizer(load_tokenizer(tokenizer)))
        report = check_spec(compiler, spec, instances, raw=raw)
    if json_output:
        print_json(report.to_dict())
    else:
        _show(report)
    if not report.ok:
        raise typer.Exit(1)


def _show(report: CheckReport) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(" ".join(report.spec.summary().split()), markup=False)
    if report.error is not None:
        console.print(f"[red]refused[/red]: {escape(str(report.error))}")
    else:
        console.print(
            f"[green]compiles[/green] with {report.backend} in {report.compile_seconds * 1e3:.1f} ms, "
            f"{report.memory_bytes / 1024:.1f} KiB"
        )
        if report.reason:
            console.print(f"chosen: {escape(report.reason)}")
    for warning in report.warnings:
        console.print(f"[yellow]warning[/yellow]: {escape(warning)}")
    if report.coverage is not None and report.coverage.keywords:
        table = Table("keyword", "count", "status", Column("first at", overflow="fold"), "note")
        for group in report.coverage.groups():
            status = f"[{_COLOURS[group.status]}]{group.status}[/]"
            place, note = escape(group.first.where), escape(group.first.note)
            table.add_row(escape(group.keyword), str(group.count), status, place, note)
        console.print(table)
    if report.instances:
        table = Table("instance", "verdict")
        for found in report.instances:
            colour = "green" if found.accepted else "red"
            table.add_row(escape(found.name), f"[{colour}]{escape(found.reason)}[/{colour}]")
        console.print(table)
