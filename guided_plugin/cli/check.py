"""`guided-plugin check`: does a spec compile, and which instances does it take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table

from guided_plugin.check.coverage import Coverage
from guided_plugin.check.report import CheckReport, check_spec
from guided_plugin.cli.loading import load_spec, load_tokenizer, print_json, read_text, working
from guided_plugin.demo import MODEL_DIR

__all__ = ["check"]


def check(
    spec_file: Annotated[
        Path,
        typer.Argument(help="JSON Schema, a spec in any form requests take, or a .ebnf/.gbnf/.lark file."),
    ],
    tokenizer: Annotated[
        Path, typer.Option(help="Folder of a transformers tokenizer.", show_default="the demo's")
    ] = MODEL_DIR,
    instance: Annotated[
        list[Path] | None, typer.Option(metavar="<path>", help="File to match; may be given often.")
    ] = None,
    flexible: Annotated[bool, typer.Option("--flexible", help="Allow whitespace in JSON.")] = False,
    open_objects: Annotated[
        bool, typer.Option("--open", help="Objects are open unless the schema closes them.")
    ] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Match instances to the letter, not as the spec would write them.")
    ] = False,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON document instead of text.")] = False,
) -> None:
    """Compile a spec; tell backend, warnings, each keyword's fate, and whether it takes each instance."""
    options: dict[str, Any] = {"whitespace": "flexible"} if flexible else {}
    if open_objects:
        options["strict"] = False
    spec = load_spec(spec_file, **options)
    instances = [(str(path), read_text(path)) for path in instance or []]
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
        console.print(f"[red]refused[/red]: {_escape(str(report.error))}")
    else:
        console.print(
            f"[green]compiles[/green] with {report.backend} in {report.compile_seconds * 1e3:.1f} ms, "
            f"{report.memory_bytes / 1024:.1f} KiB"
        )
        if report.reason:
            console.print(f"chosen: {_escape(report.reason)}")
    for warning in report.warnings:
        console.print(f"[yellow]warning[/yellow]: {_escape(warning)}")
    if report.coverage is not None and report.coverage.keywords:
        console.print(_coverage_table(report.coverage))
    if report.instances:
        table = Table("instance", "verdict")
        for found in report.instances:
            colour = "green" if found.accepted else "red"
            table.add_row(_escape(found.name), f"[{colour}]{_escape(found.reason)}[/{colour}]")
        console.print(table)


_COLOURS = {
    "refused": "red",
    "undecided": "red",
    "enforced": "green",
    "annotation": "yellow",
    "structure": "dim",
}


def _coverage_table(found: Coverage) -> Table:
    table = Table("keyword", "count", "status", Column("first at", overflow="fold"), "note")
    for group in found.groups():
        colour = _COLOURS[group.status]
        table.add_row(
            _escape(group.keyword),
            str(group.count),
            f"[{colour}]{group.status}[/{colour}]",
            _escape(group.first.where),
            _escape(group.first.note),
        )
    return table


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)
