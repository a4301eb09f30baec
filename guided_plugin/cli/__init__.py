"""The command line: `guided-plugin`. One command a file; errors and exit codes here.

Exit codes: 0 it worked; 1 it ran, and the answer is no, as of any bad spec; 2 the input
can't be used.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from guided_plugin import __version__
from guided_plugin.cli import check, demo, doctor, explain
from guided_plugin.cli.loading import show_error
from guided_plugin.cli.terminal import print_json
from guided_plugin.errors import GuidedError, MissingPackageError

app = typer.Typer(
    name="guided-plugin",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
for command, summary in (
    (demo.demo, "Decode three prompts with the demo model, unguided and guided."),
    (doctor.doctor, "Check that everything guiding needs works on this machine."),
    (check.check, "Find out whether specs compile, and which texts they accept."),
    (
        explain.explain,
        "Show what may come next in an output, and why a text is refused.",
    ),
):
    app.command(short_help=summary)(command)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"guided-plugin {__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Show the version and exit.",
        ),
    ] = False,
) -> None:
    """Make the output of a model match a schema: try it, check specs, find what is wrong."""


def _run() -> None:
    try:
        app(prog_name="guided-plugin")
    except ModuleNotFoundError as error:
        raise MissingPackageError.of(error, "the command") from error


def main() -> None:
    """The console script."""
    try:
        _run()
    except GuidedError as error:
        code = show_error(error)
        if "--json" in sys.argv:
            print_json({"ok": False, "error": error.to_dict()})
        sys.exit(code)
    except KeyboardInterrupt:
        sys.exit(130)
