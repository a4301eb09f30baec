"""One server on the CPU for all clients: vLLM from its own venv, the shipped model.

The clients' venv has neither torch nor this package. `VLLM_PYTHON` names the interpreter of the server; by
default it is the one that `make vllm-test` uses.
"""

import importlib.util
import os
import pathlib

import pytest

from benchmarks.server.launch import Launch, started

if importlib.util.find_spec("instructor") is None:  # make clients-test installs the clients
    collect_ignore_glob = ["test_*.py"]
else:
    from client_wire import Wire

    WIRE = Wire()

ROOT = pathlib.Path(__file__).parents[3]
PYTHON = pathlib.Path(os.environ.get("VLLM_PYTHON", ROOT / ".venv-vllm" / "bin" / "python"))
# That tools are held is the default: instructor sends none as `strict`, and refuses other calls. The tiny
# model would fill its answers with whitespace.
OPTIONS = {"whitespace": "compact", "worker_step_ms": 60_000, "worker_grammar_ms": 60_000}


@pytest.fixture(scope="session")
def base_url(tmp_path_factory):
    """The address of a server that is ready, and still runs when all tests are over."""
    assert PYTHON.exists(), f"{PYTHON} is missing: make clients-test makes it, or set VLLM_PYTHON"
    log = tmp_path_factory.mktemp("server") / "log"
    try:
        with started(Launch(python=str(PYTHON), sequences=8, plugin=OPTIONS), log) as server:
            yield f"{server.url}/v1"
            assert server.alive(), log.read_text()[-4000:]
            assert "output cut off" not in log.read_text()
    finally:
        print(log.read_text()[-3000:])


@pytest.fixture(scope="session")
def wire():
    """The HTTP clients of all tests."""
    return WIRE


@pytest.fixture(scope="session")
def whole():
    """Calls until an answer is whole, a bounded number of times; the end of the run tells how many."""
    return WIRE.whole


def pytest_terminal_summary(terminalreporter):
    if "WIRE" in globals():
        told = f"{WIRE.finished} answers were finished, {WIRE.cut} cut off at their limit and asked for again"
        terminalreporter.write_line(f"clients: {told}")
