"""The pages' blocks and the example that need vLLM, with the engine and the server of
all tests."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import prometheus_client
import pytest
import vllm
from doc_blocks import DATA, PAGES, blocks
from doc_session import Session
from doc_setup import SETUP
from example_runs import EXAMPLES, people
from script_files import ROOT
from vllm.engine.arg_utils import EngineArgs

from guided_plugin import GuidedConfig

ALL = {page.relative_to(ROOT).as_posix(): blocks(page) for page in PAGES}
THERE = [
    name for name, found in ALL.items() if any(block.needs_vllm for block in found)
]


@pytest.fixture
def engine(llm):
    """In place of `vllm.LLM`: reads the options that it is given, and gives the engine
    of all tests."""

    def made(model, **options):
        EngineArgs(model, **options)
        return llm

    return made


@pytest.mark.parametrize("name", THERE)
def test_blocks_run(name, server, engine, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(vllm, "LLM", engine)
    monkeypatch.setattr(
        prometheus_client, "REGISTRY", prometheus_client.CollectorRegistry()
    )  # others' is full
    session = Session(tmp_path, setup=SETUP.get(name, ""), server=server.url)
    for block in ALL[name]:
        # `text` is compared where the block that prints it runs.
        if (
            block.needs_vllm
            or block.language in DATA
            or (
                block.language == "text"
                and session.ran is not None
                and session.ran.needs_vllm
            )
        ):
            session.run(block)
        elif block.language in ("python", "sh"):
            session.ran = block
    for command, arguments in session.noted:
        assert command == "vllm"
        can_be_served(arguments)


def can_be_served(arguments):
    """vLLM's own parser takes the command line, and the plugin the options in it."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    assert arguments[0] == "serve"
    known = make_arg_parser(FlexibleArgumentParser()).parse_args(arguments[1:])
    options = known.additional_config or {}
    assert set(options) <= {"guided_plugin"}
    GuidedConfig.read(options, {})
    assert json.dumps(options)


def test_the_example_without_a_server(engine, monkeypatch, capsys):
    monkeypatch.setattr(vllm, "LLM", engine)
    runpy.run_path(str(EXAMPLES / "vllm_offline.py"), run_name="__main__")
    printed = capsys.readouterr().out
    people(printed, "guided")
    for line in (r"guided: ORD-[0-9]{5}$", "guided: (yes|no)$", "free: "):
        assert re.search(f"^{line}", printed, re.M)
