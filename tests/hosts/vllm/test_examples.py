"""The examples that start a vLLM of their own, run as programs."""

import re

import pytest
from example_runs import people, run_example

pytest.importorskip("vllm")


def test_offline(tmp_path):
    printed = run_example("vllm_offline", cwd=tmp_path)
    people(printed, "guided")
    assert re.search(r"^guided: ORD-[0-9]{5}$", printed, re.M)
    assert re.search(r"^guided: (yes|no)$", printed, re.M)
    assert re.search(r"^free: ", printed, re.M)


def test_a_client_that_starts_its_server(tmp_path):
    printed = run_example("vllm_server_client", cwd=tmp_path)
    people(printed, "person")
    assert re.search(r"^regex: ORD-[0-9]{5}$", printed, re.M)
