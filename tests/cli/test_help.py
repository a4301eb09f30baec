"""--help of every command, and docs/cli.md, which is generated from the same texts."""

import ast
import inspect
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
        ("generate",),
        ("check",),
        ("explain",),
        ("bench",),
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
    assert run("--version") == Result(0, f"guided-plugin {guided_plugin.__version__}\n", "")


def test_errors_name_no_option_that_their_command_lacks():
    """Options that a command's own code and the shared functions that it calls name in their texts."""
    shared = {**_named_options("loading"), **_named_options("results")}
    checked = 0
    for path in filter(None, _commands()):
        command = _command(path)
        if hasattr(command, "commands"):
            continue
        module = inspect.getmodule(inspect.unwrap(command.callback)).__name__.rpartition(".")[2]
        functions = {**shared, **_named_options(module)}
        own = {option for param in command.params for option in param.opts + param.secondary_opts}
        named, pending, seen = set(), [inspect.unwrap(command.callback).__name__], set()
        while pending:
            name = pending.pop()
            if name in functions and name not in seen:
                seen.add(name)
                named |= functions[name][0]
                pending += functions[name][1]
        checked += len(named)
        assert named <= own | {"--help"}, f"{path} names {named - own}"
    assert checked > 15


def _named_options(module):
    """Of each function of a module of the package: options that it names, functions that it calls."""
    tree = ast.parse((ROOT / f"guided_plugin/cli/{module}.py").read_text())
    found = {}
    for function in filter(lambda node: isinstance(node, ast.FunctionDef), tree.body):
        nodes = [node for statement in function.body for node in ast.walk(statement)]
        texts = [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        options = {option for text in texts for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)}
        calls = {node.id for node in nodes if isinstance(node, ast.Name)}
        found[function.name] = options, calls
    return found


def test_docs_are_up_to_date():
    written = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
    assert written == load_script("scripts/make_cli_docs.py").render(), (
        "run: .venv/bin/python scripts/make_cli_docs.py"
    )
