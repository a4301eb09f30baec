"""`guided-plugin doctor`: whether everything that guiding needs works here."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from guided_plugin.cli.terminal import JsonOutput, print_json, working

if TYPE_CHECKING:
    from guided_plugin.diagnose.machine import Finding

_COLOURS = {
    "ok": "green",
    "note": "yellow",
    "unknown": "bright_black",
    "problem": "red",
}


def doctor(
    server: Annotated[
        str,
        typer.Option(
            metavar="URL", help="Ask this vLLM server instead whether its plugin is on."
        ),
    ] = "",
    json_output: JsonOutput = False,
) -> None:
    """Check versions, entry points, vLLM, processors and CUDA, then
    compile and decode.

    Each problem comes with its remedy. The exit code is 1 if there is a problem; a
    check that cannot run is not one. With --server, only that server is asked: 0 means
    that its plugin is on.
    """
    from guided_plugin.diagnose.doctor import examine

    if server:
        from guided_plugin.diagnose.server import ask

        found = {"server": [ask(server)]}
    else:
        with working("checking"):
            found = examine()
    problems = sum(
        each.status == "problem" for findings in found.values() for each in findings
    )
    if json_output:
        sections = {
            name: [asdict(each) for each in findings]
            for name, findings in found.items()
        }
        print_json({"ok": not problems, "sections": sections})
    else:
        _show(found)
        print(f"{problems} problems" if problems != 1 else "1 problem")
    if problems:
        raise typer.Exit(1)


def _show(found: dict[str, list[Finding]]) -> None:
    for name, findings in found.items():
        typer.secho(name, bold=True)
        for finding in findings:
            line = f"  {finding.status:8} {finding.what}"
            typer.secho(line, fg=_COLOURS[finding.status])
            if finding.remedy:
                print(f"  {'':8} -> {finding.remedy}")
