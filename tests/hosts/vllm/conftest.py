"""Fixtures of the tests with vLLM."""

import gc
import os

import pytest

# Before vLLM is imported: engines of this process, quiet. A server that a test starts says what it needs.
os.environ.update(
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_LOGGING_LEVEL="ERROR",
)


@pytest.fixture(scope="module", autouse=True)
def earlier_engines_are_over():
    """An engine that a module leaves behind ends when it is collected, and takes vLLM's process groups along:
    not while the next engine starts. vLLM freezes what it makes at its start: that is never collected."""
    gc.unfreeze()
    gc.collect()


@pytest.fixture
def byte_tokenizer(monkeypatch):
    """Engines without a model: the vocabulary of `vllm_support` in place of a tokenizer's."""
    from vllm_support import VOCABULARY

    monkeypatch.setattr("guided_plugin.hosts.vllm.engine.vocabulary_of", lambda config: VOCABULARY)


@pytest.fixture(scope="session")
def loaded_server(tmp_path_factory):
    """A server for load and attacks. On a busy machine nothing may be lost to a time limit."""
    from benchmarks.server.launch import Launch, can_mount, started

    launch = Launch(
        sequences=16,
        kv_tokens=1024,
        plugin={"worker_step_ms": 60_000, "worker_grammar_ms": 60_000},
        private_shm="1g" if can_mount() else "",
    )
    log = tmp_path_factory.mktemp("loaded") / "log"
    with started(launch, log) as server:
        yield server
    print(log.read_text()[-3000:])


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """A server with the options that tests need which neither kill it nor count what it was asked."""
    from vllm_server import serving

    options = {
        "take_over": True,
        "tools_strict": True,
        "unenforced_keywords": ["uniqueItems", "contains"],
        "mode": "process",
        "worker_step_ms": 60_000,
        "worker_grammar_ms": 60_000,
        "compile_seconds": 60.0,
    }
    arguments = "--served-model-name", "demo", "path/to/model"
    with serving(tmp_path_factory.mktemp("server"), options, *arguments) as running:
        yield running


@pytest.fixture(scope="session")
def client(server):
    import openai

    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300) as made:
        yield made
