"""`take_over` next to vLLM's own structured output: every difference is in the table of
docs/vllm.md.

A part of the requests, to both servers; `make compare` sends all of them
(GUIDED_COMPARE=all).
"""

import json
import os
import pathlib
import re

import pytest
from compare import KNOWN, compared, explained
from compare_requests import ASKS, SUBSET, Ask

from benchmarks.server.launch import Launch, started

DOCS = pathlib.Path(__file__).parents[3] / "docs" / "vllm.md"


def test_the_table_in_the_docs_has_every_known_difference():
    page = DOCS.read_text()
    section = page[page.index("## Next to vLLM's own") :].split("\n## ")[0]
    assert re.findall(r"^\| `([\w-]+)` \|", section, re.MULTILINE) == list(KNOWN)


def test_requests_have_names_of_their_own():
    assert len({ask.name for ask in ASKS}) == len(ASKS) >= 200
    assert len(SUBSET) >= 50


@pytest.mark.parametrize(
    ("ours", "theirs", "fields"),
    json.loads(pathlib.Path(__file__).with_name("comparison.json").read_text()),
)
def test_an_ordinary_request_may_not_differ(ours, theirs, fields):
    ask = Ask("ordinary", "/v1/completions", {}, pattern="a")
    assert explained(ask, ours, theirs, fields) is None


@pytest.mark.timeout(1800)
def test_every_difference_is_in_the_table(server, tmp_path):
    # As the plugin of the other server does by default (`tools_strict`).
    arguments = "--dtype float32 --tool-strict-level parameter"
    launch = Launch(sequences=16, plugin={"enabled": False}, arguments=arguments)
    asks = ASKS if os.environ.get("GUIDED_COMPARE") == "all" else SUBSET
    with started(launch, tmp_path / "log") as theirs:
        found = list(compared([server.url, theirs.url], asks))
    for ask, ours, theirs, fields in found:
        if fields:
            print(
                f"{explained(ask, ours, theirs, fields)}: {ask.name}: {', '.join(sorted(fields))}"
            )
    unexplained = [
        (
            ask.name,
            {name: (ours.get(name), theirs.get(name)) for name in fields},
            ours.get("message"),
        )
        for ask, ours, theirs, fields in found
        if fields and explained(ask, ours, theirs, fields) is None
    ]
    assert unexplained == []
    assert sum(ours["status"] == 200 for _, ours, *_ in found) > 30
    assert not any(ours.get("valid") for _, ours, *_ in found)
