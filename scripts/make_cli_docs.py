"""Write docs/cli.md from the program itself. A test fails when the two differ.

python scripts/make_cli_docs.py
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from guided_plugin.cli import app

TARGET = Path(__file__).resolve().parent.parent / "docs" / "cli.md"

HEADER = """\
# Command line

Made by `python scripts/make_cli_docs.py` from the program; `guided-plugin COMMAND --help` says the same.

| exit code | meaning |
|---|---|
| 0 | it worked |
| 1 | it ran, and the answer is no: a spec or an instance is refused, or an output is incomplete |
| 2 | it can't run with what it was given |

Errors are one line on stderr; results go to stdout.
"""


def render() -> str:
    """The whole page."""
    root: Any = typer.main.get_command(app)
    sections = [_section(command, context) for command, context in _leaves(root, None, "guided-plugin")]
    return "\n".join([HEADER, *sections])


def _leaves(command: Any, parent: Any, name: str) -> Iterator[tuple[Any, Any]]:
    """Every command that does something, in the order in which --help lists them."""
    # Without arguments to read and without running anything.
    context = command.make_context(name, [], parent=parent, resilient_parsing=True, terminal_width=1000)
    if not hasattr(command, "commands"):
        yield command, context
        return
    for child in command.list_commands(context):
        yield from _leaves(command.get_command(context, child), context, child)


def _section(command: Any, context: Any) -> str:
    usage = " ".join(command.get_usage(context).removeprefix("Usage:").split())
    lines = [f"## {context.command_path}", "", "```", usage, "```", "", " ".join(command.help.split())]
    for title, kind in (("argument", "argument"), ("option", "option")):
        records = [
            param.get_help_record(context)
            for param in command.get_params(context)
            if param.param_type_name == kind
        ]
        if records:
            lines += ["", f"| {title} | |", "|---|---|"]
            lines += [f"| `{_cell(names)}` | {_cell(help_text)} |" for names, help_text in records]
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def main() -> None:
    """Write the page."""
    TARGET.write_text(render(), encoding="utf-8")
    sys.stdout.write(f"wrote {TARGET}\n")


if __name__ == "__main__":
    main()
