"""The pages' blocks that need vLLM: each page against one server that all of them share."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("vllm")

import prometheus_client
import vllm
from doc_blocks import DATA, PAGES, blocks
from doc_session import Session
from doc_setup import SETUP
from script_files import ROOT

from guided_plugin import GuidedConfig

# Of the engines that blocks make: what a machine without a GPU needs.
SMALL = {"max_model_len": 256, "max_num_seqs": 4, "enforce_eager": True, "num_gpu_blocks_override": 20}
ALL = {page.relative_to(ROOT).as_posix(): blocks(page) for page in PAGES}
THERE = [name for name, found in ALL.items() if any(block.needs_vllm for block in found)]


@pytest.fixture(scope="module")
def engine():
    """In place of `vllm.LLM`: a process can have one engine, the first that a block makes."""
    make, made = vllm.LLM, []

    def once(*arguments, **options):
        if not made:
            made.append(make(*arguments, **options, **SMALL))
        return made[0]

    return once


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
            or (block.language == "text" and session.ran is not None and session.ran.needs_vllm)
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
    GuidedConfig.from_mapping(options.get("guided_plugin", {}))
    assert json.dumps(options)
