"""Every code block of every page is run, read by the program that it is for, or says
why not."""

import ast
import subprocess
import tomllib
from collections import Counter

import pytest
import typer
from doc_blocks import DATA, PAGES, blocks
from doc_session import Session
from doc_setup import AFTER, SETUP
from packaging.requirements import Requirement
from script_files import ROOT

from guided_plugin.cli import app

ALL = {page.relative_to(ROOT).as_posix(): blocks(page) for page in PAGES}
HERE = [
    name
    for name, found in ALL.items()
    if any(block.language and not block.needs_vllm for block in found)
]
SLOW = ("docs/transformers.md",)
"""Pages whose blocks take more than ten seconds."""


def test_every_block_is_run_or_says_why_not():
    kinds = Counter(_kind(block) for found in ALL.values() for block in found)
    assert kinds["python"] > 15
    assert kinds["sh"] > 9


def _kind(block):
    assert block.language in ("python", "sh", "text", "drawing", *DATA), (
        f"{block.place}: {block.language!r}: see tests/support/doc_blocks.py"
    )
    return f"{block.language}, vLLM" if block.needs_vllm else block.language


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in HERE],
)
def test_blocks_run(name, tmp_path, quiet_transformers):
    with Session(
        tmp_path, setup=SETUP.get(name, ""), after=AFTER.get(name, "")
    ) as session:
        for block in ALL[name]:
            if block.needs_vllm:
                session.ran = block
            elif (
                block.language != "text"
                or session.ran is None
                or not session.ran.needs_vllm
            ):
                session.run(block)
    for command, arguments in session.noted:
        _can_be_read(command, arguments)


def _can_be_read(command, arguments):
    if command == "make":
        dry = subprocess.run(
            ["make", "-n", *arguments], cwd=ROOT, capture_output=True, text=True
        )
        assert dry.returncode == 0, dry.stderr
    elif command == "pip":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        assert arguments[0] == "install"
        for word in arguments[1:]:
            if not word.startswith("-") and not word.startswith("."):
                wanted = Requirement(word)
                assert wanted.name != "guided-plugin" or wanted.extras <= set(
                    project["optional-dependencies"]
                )
    else:
        assert command == "guided-plugin"
        _parsed(arguments)


def _parsed(arguments):
    """As the command line reads it, without running the command."""
    command = typer.main.get_command(app)
    while hasattr(command, "commands"):
        command, *arguments = command.commands[arguments[0]], *arguments[1:]
    command.make_context("guided-plugin", arguments)


def test_names_of_the_setup_are_pages():
    assert {*SETUP, *AFTER} <= set(ALL)
    for text in (*SETUP.values(), *AFTER.values()):
        ast.parse(text)
