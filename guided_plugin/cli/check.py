"""`guided-plugin check`: do specs compile, and which instances do they take."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from guided_plugin.cli.loading import InputError, load_spec, load_vocabulary, name_of, read_once, read_text
from guided_plugin.cli.results import JsonOutput, Layout, Open, Tokenizer, print_json, working
from guided_plugin.demo import MODEL_DIR
from guided_plugin.errors import GuidedError, printable

if TYPE_CHECKING:
    from guided_plugin.diagnose.check import CheckReport
    from guided_plugin.spec import OutputSpec
    from guided_plugin.spec.uses import KeywordUse

_COLOURS = {
    "refused": "red",
    "undecided": "red",
    "enforced": "green",
    "annotation": "yellow",
    "structure": "dim",
}
"""Of what may become of a keyword, the worst first."""


def check(
    spec_files: Annotated[
        list[Path],
        typer.Argument(
            help="JSON Schemas, specs in any form requests take, .ebnf/.gbnf/.lark files, globs; -: stdin.",
            show_default=False,
        ),
    ],
    tokenizer: Tokenizer = MODEL_DIR,
    instance: Annotated[
        list[Path] | None, typer.Option(metavar="<path>", help="File to match; may be given often; -: stdin.")
    ] = None,
    whitespace: Layout = None,
    open_objects: Open = False,
    raw: Annotated[
        bool,
        typer.Option(
            "--raw",
            help="Match instances to the letter (but for a last line end), not as the spec would write them.",
        ),
    ] = False,
    json_output: JsonOutput = False,
) -> None:
    """Compile specs; show the backend, warnings, what becomes of each keyword, and which instances match.

    Several files get a line each, and one for each warning. The exit code is 1 if a spec is bad or refused,
    or an instance does not match, and 2 if a file can't be read.
    """
    files = _expanded(spec_files)
    read_once([*files, *(instance or [])])
    if instance and len(files) > 1:
        raise InputError("is matched with one spec", where="--instance", hint="check the specs one by one")
    specs: dict[Path, OutputSpec | GuidedError] = {}
    for file in files:
        try:
            specs[file] = load_spec(file, whitespace=whitespace, open_objects=open_objects)
        except GuidedError as error:
            if len(files) == 1:
                raise
            specs[file] = error
    instances = [(name_of(path), read_text(path)) for path in instance or []]
    with working("compiling"):
        from guided_plugin.compiling.compiler import GrammarCompiler
        from guided_plugin.diagnose.check import check_spec

        compiler = GrammarCompiler(load_vocabulary(tokenizer))
        compiler.tells = False  # the reports have the warnings
        reports = {
            file: spec if isinstance(spec, GuidedError) else check_spec(compiler, spec, instances, raw=raw)
            for file, spec in specs.items()
        }
    report = reports[files[0]]
    if len(files) > 1 or isinstance(report, GuidedError):
        raise typer.Exit(_summarise(reports, json_output))
    if json_output:
        print_json(report.to_dict())
    else:
        _show(report)
    if not report.ok:
        raise typer.Exit(1)


def _expanded(paths: list[Path]) -> list[Path]:
    """Files, with patterns that the shell has left as they are."""
    found: dict[Path, None] = {}
    for path in paths:
        if path.exists() or not glob.has_magic(str(path)):
            found[path] = None
            continue
        matching = sorted(glob.glob(str(path), recursive=True))
        if not matching:
            raise InputError("matches no file", where=str(path))
        found.update(dict.fromkeys(map(Path, matching)))
    return list(found)


def _summarise(reports: dict[Path, CheckReport | GuidedError], json_output: bool) -> int:
    """A line for each file and each warning, and what all come to: the exit code."""
    lines, code = [], 0
    documents: list[dict[str, Any]] = []
    for file, report in reports.items():
        name = name_of(file)
        if isinstance(report, GuidedError):  # it names the file
            lines.append(f"refused  {report}")
            documents.append({"file": name, "ok": False, "error": report.to_dict()})
            code = max(code, 2 if isinstance(report, InputError) else 1)
            continue
        made = report.grammar
        lines.append(f"ok       {name}: {made.backend}" if made else f"refused  {name}: {report.error}")
        lines += [f"warning  {name}: {warning}" for warning in report.warnings]
        documents.append({"file": name, **report.to_dict()})
        code = max(code, int(not report.ok))
    good = sum(bool(document["ok"]) for document in documents)
    if json_output:
        print_json({"ok": code == 0, "specs": documents})
    else:
        print(*(printable(line, 1_000) for line in lines), sep="\n")
        print(f"{good} of {len(reports)} specs compile")
    return code


def _show(report: CheckReport) -> None:
    from rich.console import Console
    from rich.markup import escape

    from guided_plugin.diagnose.position import bounds_of

    console = Console(highlight=False, soft_wrap=True)
    console.print(" ".join(report.spec.summary().split()), markup=False)
    made = report.grammar
    if made is None:
        console.print(f"[red]refused[/red]: {escape(str(report.error))}")
    else:
        console.print(
            f"[green]compiles[/green] with {made.backend} in {made.seconds * 1e3:.1f} ms, "
            f"{made.size_bytes / 1024:.1f} KiB"
        )
        if made.reason:
            console.print(f"chosen: {escape(made.reason)}")
    if bounds := bounds_of(made):
        console.print("bounds:", ", ".join(f"{name} {most}" for name, most in bounds.items()))
    for warning in report.warnings:
        console.print(f"[yellow]warning[/yellow]: {escape(warning)}")
    groups: dict[tuple[str, str], list[KeywordUse]] = {}
    for use in report.keywords or ():
        groups.setdefault((use.status, use.keyword), []).append(use)
    for kind, colour in _COLOURS.items():
        for (status, keyword), uses in groups.items():
            if status == kind:
                line, place = f"{status:10} {keyword:22} {len(uses):>3}", uses[0].where
                fits = len(line) + 2 + len(place) <= console.width
                console.print(f"{line}  {place}" if fits else line, style=colour, markup=False)
                for text in ("" if fits else place, uses[0].note if status != "enforced" else ""):
                    if text:
                        console.print(f"           {text}", markup=False)
    for found in report.instances:
        colour = "green" if found.accepted else "red"
        console.print(f"{found.name}: {found.reason}", style=colour, markup=False)
