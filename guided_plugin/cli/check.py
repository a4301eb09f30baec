"""`guided-plugin check`: do specs compile, and which instances do they take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Union

import typer

from guided_plugin.cli.findings import Finding, sarif_of
from guided_plugin.cli.loading import (
    STANDARD_INPUT,
    InputError,
    Place,
    load_specs,
    load_vocabulary,
    name_of,
    read_text,
)
from guided_plugin.cli.terminal import (
    JsonOutput,
    Tokenizer,
    counted,
    listed,
    print_json,
    working,
)
from guided_plugin.demo import MODEL_DIR
from guided_plugin.errors import GuidedError, printable

if TYPE_CHECKING:
    from guided_plugin.diagnose.check import CheckReport
    from guided_plugin.spec.uses import KeywordUse

_COLOURS = {
    "refused": "red",
    "undecided": "red",
    "enforced": "green",
    "annotation": "yellow",
    "structure": "bright_black",
}
"""The colour of each thing that a keyword may become, the worst first."""

Report = Union["CheckReport", GuidedError]


def check(
    spec_files: Annotated[
        list[Path],
        typer.Argument(
            help="JSON Schemas, lists of tools, forms of requests, .ebnf/.gbnf/.lark files; -: stdin.",
            show_default=False,
        ),
    ],
    tokenizer: Tokenizer = MODEL_DIR,
    instance: Annotated[
        list[Path] | None,
        typer.Option(metavar="<path>", help="File to match; repeatable; -: stdin."),
    ] = None,
    close: Annotated[
        bool,
        typer.Option(
            "--close", help="With close_before_length; warn if it can't work."
        ),
    ] = False,
    json_output: JsonOutput = False,
    sarif: Annotated[
        bool, typer.Option("--sarif", help="Print the problems as SARIF 2.1.0.")
    ] = False,
) -> None:
    """Compile specs; show the backend, warnings, how each keyword is treated, and which
    instances match.

    With several specs, such as a list of tools, it shows only what is wrong, a line each
    (docs/specs.md#which-of-my-50-tools-breaks-the-server).
    The exit code is 1 if a spec is bad or refused, or an instance does not match, and 2
    if a file can't be read.
    """
    if [*{*spec_files}, *(instance or [])].count(STANDARD_INPUT) > 1:
        what = "is given twice, and can be read once"
        raise InputError(what, where=name_of(STANDARD_INPUT))
    instances = [(name_of(path), read_text(path)) for path in instance or []]
    loaded = [one for file in dict.fromkeys(spec_files) for one in load_specs(file)]
    if instances and len(loaded) > 1:
        raise InputError(
            "needs exactly one spec",
            where="--instance",
            hint="check the specs one by one",
        )
    with working("loading"):
        from guided_plugin.compiling.compiler import GrammarCompiler
        from guided_plugin.diagnose.check import check_spec
        from guided_plugin.diagnose.tools import left_behind

        compiler = GrammarCompiler(load_vocabulary(tokenizer))
        compiler.tells = False  # the reports have the warnings
    reports: list[tuple[Place, Report]] = []
    for place, spec in counted(loaded, "compiling"):
        if isinstance(spec, GuidedError):
            reports.append((place, spec))
            continue
        asked = replace(spec, close_before_length=True) if close else spec
        warnings = left_behind(spec.document()) if place.tool else ()
        found = check_spec(compiler, asked, instances, warnings=warnings)
        reports.append((place, found))
    findings = [finding for one in reports for finding in _findings(*one)]
    code = max((finding.code for finding in findings), default=0)
    if sarif:
        print_json(sarif_of(findings))
        raise typer.Exit(code)
    told = [finding.to_dict() for finding in findings]
    if len(reports) == 1:
        _, report = reports[0]
        if isinstance(report, GuidedError):
            raise report
        if json_output:
            print_json({**report.to_dict(), "findings": told})
        else:
            _show(report)
    elif json_output:
        specs = [_document(*one) for one in reports]
        print_json({"ok": code == 0, "findings": told, "specs": specs})
    else:
        for finding in findings:
            line = f"{finding.place}: {finding.error.reason}"
            print(f"{finding.level:8} {printable(line)}")
        count = len({place for place, _ in reports})
        bad = {finding.place for finding in findings if finding.code}
        kind = "tools" if all(place.tool for place, _ in reports) else "specs"
        print(f"{count - len(bad)} of {count} {kind} compile")
    raise typer.Exit(code)


def _findings(place: Place, report: Report) -> Iterator[Finding]:
    """Yield what is wrong with a spec."""
    error = report if isinstance(report, GuidedError) else report.error
    at = ""
    if error is not None:
        at = error.where.removeprefix(str(place)).removeprefix(": ")
        kind = type(error)
        code = 1 + issubclass(kind, InputError)
        error = kind(error.what, where=at, hint=error.hint)
        yield Finding(kind.__name__, place, error, code)
    if isinstance(report, GuidedError):
        return
    for use in report.keywords or ():
        if use.status == "refused" and use.where != at:
            error = GuidedError(use.note, where=use.where, hint=use.hint)
            yield Finding("RefusedKeyword", place, error)
    for warning in report.warnings:
        where, _, what = warning.partition(": ")
        yield Finding("Warning", place, GuidedError(what, where=where), code=0)
    for one in report.instances:
        if not one.accepted:
            yield Finding(
                "RefusedInstance", Place(Path(one.name)), GuidedError(one.reason)
            )


def _document(place: Place, report: Report) -> dict[str, Any]:
    """Return the document that `--json` prints for one of several specs."""
    told = (
        {"ok": False, "error": report.to_dict()}
        if isinstance(report, GuidedError)
        else report.to_dict()
    )
    return {"file": name_of(place.file), "tool": place.tool, **told}


def _show(report: CheckReport) -> None:
    from guided_plugin.diagnose.position import bounds_of

    print(" ".join(report.spec.summary().split()))
    made = report.grammar
    if made is None:
        typer.secho(f"refused: {report.error}", fg="red")
    else:
        size = f"{made.size_bytes / 1024:.1f} KiB"
        line = f"compiles with {made.backend} in {made.seconds * 1e3:.1f} ms, {size}"
        typer.secho(line, fg="green")
        if made.reason:
            print(f"chosen: {made.reason}")
    if bounds := bounds_of(made):
        print("bounds:", listed(bounds))
    for warning in report.warnings:
        typer.secho(printable(f"warning: {warning}"), fg="yellow")
    groups: dict[tuple[str, str], list[KeywordUse]] = {}
    for use in report.keywords or ():
        groups.setdefault((use.status, use.keyword), []).append(use)
    for kind, colour in _COLOURS.items():
        for (status, keyword), uses in groups.items():
            if status == kind:
                line = f"{status:10} {keyword:22} {len(uses):>3}  {uses[0].where}"
                typer.secho(printable(line), fg=colour)
                if uses[0].note and status != "enforced":
                    print(f"           {printable(uses[0].note)}")
    for found in report.instances:
        colour = "green" if found.accepted else "red"
        typer.secho(printable(f"{found.name}: {found.reason}"), fg=colour)
