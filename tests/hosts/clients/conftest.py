"""Servers on the CPU for all clients: vLLM from its own venv, with the shipped model,
then with a real one.

The clients' venv has neither torch nor this package. `VLLM_PYTHON` names the
interpreter of the servers; by default it is the one that `make vllm-test` uses. Tests
with the mark `real_model` run against both servers.
"""

import importlib.util
import os
import pathlib

import pytest

from benchmarks.answers.models import model_folder
from benchmarks.server.launch import MODEL, Launch, started

# make clients-test installs the clients
if importlib.util.find_spec("instructor") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    from client_wire import Wire

    WIRE = Wire()

ROOT = pathlib.Path(__file__).parents[3]
PYTHON = pathlib.Path(
    os.environ.get("VLLM_PYTHON", ROOT / ".venv-vllm" / "bin" / "python")
)
# That tools are held is the default: instructor sends none as `strict`, and refuses
# other calls. The tiny model would fill its answers with whitespace.
OPTIONS = {
    "whitespace": "compact",
    "worker_step_ms": 60_000,
    "worker_grammar_ms": 60_000,
}
REAL_MODEL = os.environ.get("CLIENTS_MODEL", "smollm2-135m")
"""Empty: only the shipped one."""


def pytest_generate_tests(metafunc):
    """Give a test its servers. Those of one server run together, so that one server
    runs at a time."""
    if "base_url" in metafunc.fixturenames:
        real = metafunc.definition.get_closest_marker("real_model")
        models = [MODEL, REAL_MODEL] if real and REAL_MODEL else [MODEL]
        metafunc.parametrize("base_url", models, indirect=True, scope="session")


def launch_of(model):
    """What the server of a model is started with."""
    if model == MODEL:
        return Launch(python=str(PYTHON), sequences=8, plugin=OPTIONS)
    # As README's command starts it: `take_over`, all else by default, and the model's
    # own chat template.
    folder = model_folder(model)
    template = f"--chat-template {folder / 'chat_template.jinja'}"
    return Launch(
        model=str(folder),
        sequences=8,
        length=2048,
        plugin={"mode": "auto"},
        arguments=template,
        python=str(PYTHON),
    )


@pytest.fixture(scope="session")
def base_url(request, tmp_path_factory):
    """The address of a server that is ready, and still runs when all tests are over."""
    assert PYTHON.exists(), (
        f"{PYTHON} is missing: make clients-test makes it, or set VLLM_PYTHON"
    )
    launch = launch_of(request.param)
    log = tmp_path_factory.mktemp("server") / "log"
    try:
        with started(launch, log) as server:
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
    """Calls until an answer is whole, a bounded number of times; the end of the run
    tells how many."""
    return WIRE.whole


def pytest_terminal_summary(terminalreporter):
    if "WIRE" in globals():
        told = f"{WIRE.finished} answers were finished, {WIRE.cut} cut off at their limit and asked for again"
        terminalreporter.write_line(f"clients: {told}")
