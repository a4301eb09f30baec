"""One server on the CPU for all clients: vLLM from its own venv, the shipped model, `take_over`.

The clients' venv has neither torch nor this package. `VLLM_PYTHON` names the interpreter of the server; by
default it is the one that `make vllm-test` uses.
"""

import importlib.util
import json
import os
import pathlib

import pytest

from benchmarks.server.launch import free_port, running

if importlib.util.find_spec("instructor") is None:  # make clients-test installs the clients
    collect_ignore_glob = ["test_*.py"]

ROOT = pathlib.Path(__file__).parents[3]
TEMPLATE = "{% for message in messages %}{{ message.content }} {% endfor %}"


@pytest.fixture(scope="session")
def base_url(tmp_path_factory):
    """The address of a server that is ready, and still runs when all tests are over."""
    python = pathlib.Path(os.environ.get("VLLM_PYTHON", ROOT / ".venv-vllm" / "bin" / "python"))
    assert python.exists(), f"{python} is missing: make clients-test makes it, or set VLLM_PYTHON"
    port = free_port()
    folder = tmp_path_factory.mktemp("server")
    template, log = folder / "template.jinja", folder / "log"
    template.write_text(TEMPLATE)
    arguments = (
        f"--model {ROOT / 'guided_plugin' / 'demo' / 'model'} --served-model-name demo --port {port} "
        "--host 127.0.0.1 --max-model-len 512 --max-num-seqs 8 --enforce-eager "
        f"--chat-template {template} --enable-auto-tool-choice --tool-call-parser hermes "
        "--disable-uvicorn-access-log --logits-processors guided_plugin.vllm:GuidedLogitsProcessor"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        # vLLM's worker spins while it waits: bound to one processor it would keep the grammar worker from it.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "GUIDED_PLUGIN": json.dumps(
            {"take_over": True, "mode": "process", "worker_step_ms": 60_000, "worker_grammar_ms": 60_000}
        ),
    }
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", *arguments.split()]
    try:
        with running(command, environment, log, f"http://127.0.0.1:{port}") as process:
            yield f"http://127.0.0.1:{port}/v1"
            assert process.poll() is None, log.read_text()[-4000:]
            assert "output cut off" not in log.read_text()
    finally:
        print(log.read_text()[-3000:])


@pytest.fixture
def whole():
    """Calls until an answer is whole: a small model may reach its limit of tokens first. Each client tells
    that in a way of its own; whatever else it raises, such as an invalid answer, fails the test."""

    def ask(call, *cut):
        """`cut`: what the client raises for an answer that was cut off. `call` returns None for one, too."""
        for _ in range(8):
            try:
                answer = call()
            except cut:
                continue
            if answer is not None:
                return answer
        raise AssertionError("eight answers were cut off")

    return ask
