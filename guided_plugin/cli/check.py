"""`guided-plugin check`: do specs compile, and which instances do they take."""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from guided_plugin import __version__
from guided_plugin.cli import loading, results
from guided_plugin.cli.loading import (
    InputError,
    load_spec,
    load_vocabulary,
    name_of,
    read_once,
    read_text,
)
from guided_plugin.cli.results import (
    JsonOutput,
    Layout,
    Open,
    Tokenizer,
    print_json,
    working,
)
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
            help="JSON Schemas, specs in any form of requests, .ebnf/.gbnf/.lark files, globs; -: stdin.",
            show_default=False,
        ),
    ],
    tokenizer: Tokenizer = MODEL_DIR,
    instance: Annotated[
        list[Path] | None,
        typer.Option(metavar="<path>", help="File to match; repeatable; -: stdin."),
    ] = None,
    whitespace: Layout = None,
    open_objects: Open = False,
    close: Annotated[
        bool,
        typer.Option(
            "--close", help="With close_before_length; warn if it can't work."
        ),
    ] = False,
    raw: Annotated[
        bool,
        typer.Option(
            "--raw",
            help="Match instances exactly (except a final newline), not as the spec would write them.",
        ),
    ] = False,
    json_output: JsonOutput = False,
    sarif: Annotated[
        Path | None,
        typer.Option(
            help="File for the problems, as SARIF 2.1.0; -: stdout, with nothing else."
        ),
    ] = None,
) -> None:
    """Compile specs; show the backend, warnings, how each keyword is treated, and which
    instances match.

    Each of several files gets one line, and one for each warning. The exit code is 1 if
    a spec is bad or refused, or an instance does not match, and 2 if a file can't be
    read.
    """
    files = _expanded(spec_files)
    read_once([*files, *(instance or [])])
    results.check_out(sarif if sarif != Path("-") else None, "--sarif")
    if instance and len(files) > 1:
        raise InputError(
            "needs exactly one spec",
            where="--instance",
            hint="check the specs one by one",
        )
    specs: dict[Path, OutputSpec | GuidedError] = {}
    for file in files:
        try:
            spec = load_spec(file, whitespace=whitespace, open_objects=open_objects)
            specs[file] = replace(spec, close_before_length=True) if close else spec
        except GuidedError as error:
            specs[file] = error
    instances = [(name_of(path), read_text(path)) for path in instance or []]
    with working("compiling"):
        from guided_plugin.compiling.compiler import GrammarCompiler
        from guided_plugin.diagnose.check import check_spec

        compiler = GrammarCompiler(load_vocabulary(tokenizer))
        compiler.tells = False  # the reports have the warnings
        reports = {
            file: spec
            if isinstance(spec, GuidedError)
            else check_spec(compiler, spec, instances, raw=raw)
            for file, spec in specs.items()
        }
    if sarif == Path("-"):
        print_json(_sarif(reports))
        raise typer.Exit(max(map(_code, reports.values())))
    if sarif is not None:
        results.write_json(_sarif(reports), sarif)
    report = reports[files[0]]
    if len(files) > 1:
        raise typer.Exit(_summarise(reports, json_output))
    if isinstance(report, GuidedError):
        raise report
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


def _code(report: CheckReport | GuidedError) -> int:
    """The exit code for a spec."""
    return (
        int(not report.ok)
        if not isinstance(report, GuidedError)
        else 1 + isinstance(report, InputError)
    )


def _summarise(
    reports: dict[Path, CheckReport | GuidedError], json_output: bool
) -> int:
    """A line for each file and each warning, and what all come to: the exit code."""
    lines = []
    code = max(map(_code, reports.values()))
    documents: list[dict[str, Any]] = []
    for file, report in reports.items():
        name = name_of(file)
        if isinstance(report, GuidedError):  # it names the file
            lines.append(f"refused  {report}")
            documents.append({"file": name, "ok": False, "error": report.to_dict()})
            continue
        made = report.grammar
        lines.append(
            f"ok       {name}: {made.backend}"
            if made
            else f"refused  {name}: {report.error}"
        )
        lines += [f"warning  {name}: {warning}" for warning in report.warnings]
        documents.append({"file": name, **report.to_dict()})
    good = sum(bool(document["ok"]) for document in documents)
    if json_output:
        print_json({"ok": code == 0, "specs": documents})
    else:
        print(*(printable(line, 1_000) for line in lines), sep="\n")
        print(f"{good} of {len(reports)} specs compile")
    return code


def _sarif(reports: Mapping[Path, CheckReport | GuidedError]) -> dict[str, Any]:
    """A result for each error, refused keyword, warning and refused instance, as a log
    of SARIF 2.1.0."""
    findings = [
        finding
        for file, report in reports.items()
        for finding in _findings(file, report)
    ]
    found: list[dict[str, Any]] = []
    for rule, file, where, text in findings:
        place: dict[str, Any] = {
            "physicalLocation": {"artifactLocation": {"uri": quote(file.as_posix())}}
        }
        if region := _region(file, where):
            place["physicalLocation"]["region"] = region
        if where.startswith("#"):
            place["logicalLocations"] = [{"fullyQualifiedName": where}]
        level = "warning" if rule == "Warning" else "error"
        message = {"text": printable(text)}
        found.append(
            {"ruleId": rule, "level": level, "message": message, "locations": [place]}
        )
    rules = [{"id": rule} for rule in sorted({finding[0] for finding in findings})]
    tool = {"driver": {"name": "guided-plugin", "version": __version__, "rules": rules}}
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return {
        "$schema": schema,
        "version": "2.1.0",
        "runs": [{"tool": tool, "results": found}],
    }


def _findings(
    file: Path, report: CheckReport | GuidedError
) -> Iterator[tuple[str, Path, str, str]]:
    """What is wrong with a spec: the rule, the file, the place in it, and a message."""
    error = report if isinstance(report, GuidedError) else report.error
    at = ""
    if error is not None:
        at = error.where.removeprefix(name_of(file)).removeprefix(": ")
        yield (
            type(error).__name__,
            file,
            at,
            error.reason.removeprefix(f"{name_of(file)}: "),
        )
    if isinstance(report, GuidedError):
        return
    for use in report.keywords or ():
        if use.status in ("refused", "undecided") and use.where != at:
            what = f"{use.where}: {use.note or use.status}"
            yield f"{use.status.title()}Keyword", file, use.where, what
    for warning in report.warnings:
        yield "Warning", file, warning.partition(": ")[0], warning
    for one in report.instances:
        if not one.accepted:
            yield "RefusedInstance", Path(one.name), "", one.reason


def _region(file: Path, where: str) -> dict[str, int]:
    """The line and the column of a place in a spec file; nothing where they are not
    known."""
    from guided_plugin.spec.forms import read
    from guided_plugin.spec.references import pointer_steps

    named = re.search(r"line (\d+), column (\d+)", where)
    if named and (where.startswith("line") or file.suffix.lower() in loading.GRAMMARS):
        return {"startLine": int(named[1]), "startColumn": int(named[2])}
    with suppress(OSError, ValueError, LookupError, RecursionError):
        text = file.read_text(encoding="utf-8-sig") if where.startswith("#") else ""
        document = json.loads(text)
        inside = ""
        with suppress(GuidedError):  # a JSON Schema is no form
            inside = getattr(read(document), "place", "")
        pointer = "".join(f"/{key}" for key in inside.split(".") if key) + where[1:]
        path = tuple(step for step, _ in pointer_steps(document, pointer))
        while isinstance(path[-1], int):
            path = path[:-1]
        same = [one for one in _members(document) if one[-1] == path[-1]]
        spelt = re.finditer(
            re.escape(json.dumps(path[-1], ensure_ascii=False)) + r"\s*:", text
        )
        at = dict(zip(same, (match.start() for match in spelt), strict=True))[path]
        return {
            "startLine": text.count("\n", 0, at) + 1,
            "startColumn": at - text.rfind("\n", 0, at),
        }
    return {}


def _members(
    node: Any, path: tuple[str | int, ...] = ()
) -> Iterator[tuple[str | int, ...]]:
    """The paths of all that is in a JSON document, in its order."""
    inside = (
        node.items()
        if isinstance(node, dict)
        else enumerate(node if isinstance(node, list) else ())
    )
    for key, value in inside:
        yield (*path, key)
        yield from _members(value, (*path, key))


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
        console.print("bounds:", results.listed(bounds))
    if report.note:
        console.print(f"note: {report.note}")
    for warning in report.warnings:
        console.print(f"[yellow]warning[/yellow]: {escape(warning)}")
    groups: dict[tuple[str, str], list[KeywordUse]] = {}
    for use in report.keywords or ():
        groups.setdefault((use.status, use.keyword), []).append(use)
    for kind, colour in _COLOURS.items():
        for (status, keyword), uses in groups.items():
            if status == kind:
                line = f"{status:10} {keyword:22} {len(uses):>3}"
                place = uses[0].where
                fits = len(line) + 2 + len(place) <= console.width
                console.print(
                    f"{line}  {place}" if fits else line, style=colour, markup=False
                )
                for text in (
                    "" if fits else place,
                    uses[0].note if status != "enforced" else "",
                ):
                    if text:
                        console.print(f"           {text}", markup=False)
    for found in report.instances:
        colour = "green" if found.accepted else "red"
        console.print(f"{found.name}: {found.reason}", style=colour, markup=False)
