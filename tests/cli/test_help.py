"""--help of every command, and docs/cli.md, which is generated from the same texts."""

import re

import pytest
import typer
from command_line import Result
from script_files import ROOT, load_script

import guided_plugin
from guided_plugin.cli import app


def _commands():
    found = []

    def visit(command, path):
        found.append(path)
        for name, child in getattr(command, "commands", {}).items():
            visit(child, (*path, name))

    visit(typer.main.get_command(app), ())
    return found


def _command(path):
    command = typer.main.get_command(app)
    for name in path:
        command = command.commands[name]
    return command


def test_the_commands():
    assert _commands() == [
        (),
        ("demo",),
        ("doctor",),
        ("check",),
        ("explain",),
    ]


@pytest.mark.parametrize("path", _commands(), ids=lambda path: " ".join(path) or "root")
def test_help_tells_every_option_and_command(run, path):
    result = run(*path, "--help")
    assert (result.code, result.err) == (0, "")
    command = _command(path)
    shown = " ".join(result.out.split())
    assert " ".join(command.help.split()) in shown
    for param in command.params:
        assert param.help, f"{param.name} has no help text"
        for name in param.opts:
            assert name in shown
        assert " ".join(param.help.split()) in shown
    for name, child in getattr(command, "commands", {}).items():
        assert re.search(rf"^  {name} +\S", result.out, re.M)
        assert child.get_short_help_str(200).rstrip(".") in shown  # not cut off
    assert "..." not in re.sub(r"(?:\[ARGS\]|\{?spec_files\}?)\.\.\.", "", result.out)
    assert str(ROOT) not in result.out  # no path of this machine


@pytest.mark.parametrize("path", [(), ("check",)])
def test_help_has_a_short_name(run, path):
    assert run(*path, "-h") == run(*path, "--help")


def test_version(run):
    assert run("--version") == Result(
        0, f"guided-plugin {guided_plugin.__version__}\n", ""
    )


def test_docs_are_up_to_date():
    written = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
    assert written == load_script("scripts/make_cli_docs.py").render(), (
        "run: .venv/bin/python scripts/make_cli_docs.py"
    )
