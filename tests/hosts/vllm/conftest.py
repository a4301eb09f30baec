"""Fixtures of the tests with vLLM: one engine in this process and one server, for all
of them."""

import asyncio
import contextlib
import os
import pathlib
from importlib.util import find_spec

import pytest

HERE = pathlib.Path(__file__).parent
if find_spec("vllm") is None:
    collect_ignore = [
        path.name
        for path in HERE.glob("test_*.py")
        if path.stem not in ("test_contract", "test_shapes")
    ]

# Before vLLM is imported: engines of this process, quiet. A server that a test starts
# says what it needs.
os.environ.update(
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_LOGGING_LEVEL="ERROR",
)


@pytest.fixture(scope="session")
def owners():
    """Compilers of the byte vocabulary, by their options, whose templates engines
    share: each takes seconds to start. What a compiler remembers is not shared."""
    owners = {}
    yield owners
    for owner in owners.values():
        owner.close()


@pytest.fixture
def byte_tokenizer(monkeypatch, owners):
    """Engines and frontends without a model: the vocabulary of `vllm_support` in place of
    a tokenizer's."""
    from vllm_support import VOCABULARY

    from guided_plugin.compiling.chooser import Chooser
    from guided_plugin.compiling.compiler import GrammarCompiler

    def compiler(vocabulary, *, config, plugins, serves):
        options = {"config": config, "plugins": plugins}
        if serves:
            if config not in owners:
                owners[config] = GrammarCompiler(vocabulary, **options, serves=True)
            template = owners[config].template
            options["built"] = Chooser(vocabulary, config, plugins), template
        return GrammarCompiler(vocabulary, **options)

    engine = "guided_plugin.hosts.vllm.engine"
    monkeypatch.setattr(f"{engine}.GrammarCompiler", compiler)
    monkeypatch.delenv("GUIDED_PLUGIN", raising=False)
    for part in ("engine", "specs"):
        monkeypatch.setattr(
            f"guided_plugin.hosts.vllm.{part}.vocabulary_of", lambda config: VOCABULARY
        )


@pytest.fixture
def play():
    """Makes what plays a model runner, with requests by their names; ends its
    engine."""
    from vllm_support import runner_params

    with contextlib.ExitStack() as ends:

        def play(kind, vllm_config, **requests):
            params = [
                runner_params(name=name, **asked) for name, asked in requests.items()
            ]
            played = kind(vllm_config, [*requests], params)
            ends.callback(played.engine.close)
            return played

        yield play


@pytest.fixture(scope="session")
def started():
    """An engine in this process with everything switched on, and what its first guided
    request started: the methods of its workers that were called, and the processes that
    compile.

    Small cache blocks force preemption, a small batch limit splits prompts. In float32
    the best token leads by more than the shape of a batch can change, so that outputs
    can be compared. It makes no step after test_several_ranks: the end of another engine
    of this process ends its groups.
    """
    from vllm import LLM, envs
    from vllm_support import PATIENT, params_of, runner

    from guided_plugin.demo import MODEL_DIR
    from guided_plugin.hosts.vllm.admission import gate_of
    from guided_plugin.vllm import GuidedLogitsProcessor

    llm = LLM(
        str(MODEL_DIR),
        dtype="float32",
        max_model_len=512,
        max_num_seqs=6,
        enforce_eager=True,
        async_scheduling=True,
        enable_chunked_prefill=True,
        max_num_batched_tokens=32,
        num_gpu_blocks_override=7,
        disable_log_stats=False,
        structured_outputs_config={
            "backend": "xgrammar",
            "disable_any_whitespace": True,
        },
        # installed and passed at once: one of them works
        logits_processors=[GuidedLogitsProcessor],
        additional_config={
            "guided_plugin": {"take_over": True, "mode": "process", **PATIENT}
        },
    )
    envs.disable_envs_cache()  # another engine of this process may want other variables
    called = []
    original = type(llm.llm_engine).collective_rpc

    def spy(self, method, *args, **kwargs):
        called.append(method)
        return original(self, method, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(llm.llm_engine), "collective_rpc", spy)
        llm.generate(["x"], params_of({"choice": ["yes", "no"]}), use_tqdm=False)
    yield llm, called, gate_of(llm.llm_engine).specs.compiler._pool.processes()
    runner(llm).engine.close()


@pytest.fixture(scope="session")
def llm(started):
    return started[0]


@pytest.fixture
def reconfigured(llm, monkeypatch):
    """Changes options of the engine's frontend, for one test."""
    from guided_plugin.hosts.vllm.admission import Gate

    def change(**options):
        config = llm.llm_engine.vllm_config
        options = {**config.additional_config["guided_plugin"], **options}
        monkeypatch.setitem(config.additional_config, "guided_plugin", options)
        monkeypatch.setattr(
            llm.llm_engine.input_processor, "_guided_gate", Gate(config)
        )

    return change


@pytest.fixture(scope="session")
def async_llm():
    """An AsyncLLM with grammars inline and its core in another process, and what runs
    coroutines with it."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm_support import PATIENT

    from guided_plugin.demo import MODEL_DIR

    arguments = AsyncEngineArgs(
        str(MODEL_DIR),
        dtype="float32",
        max_model_len=512,
        max_num_seqs=6,
        enforce_eager=True,
        max_num_batched_tokens=32,
        enable_lora=True,
        max_lora_rank=1,
        # On the CPU, vLLM gives rows without an adapter that of the last slot if any
        # row of a step has one. With a single slot the adapter would change them too;
        # with two, the last one is empty.
        max_loras=2,
        additional_config={
            "guided_plugin": {
                "take_over": True,
                "mode": "inline",
                "threads": 1,
                **PATIENT,
            }
        },
    )

    async def make():
        return AsyncLLM.from_engine_args(arguments)

    with asyncio.Runner() as runner:
        engine = runner.run(make())
        yield engine, runner.run
        engine.shutdown()


@pytest.fixture(scope="session")
def expected(llm):
    """What one rank makes of the requests that several ranks get. Two at a time: no
    prompt with a seed may come in parts, as vLLM cannot wind back its generator on the
    CPU."""
    from vllm_ranks import requests

    prompts, params = requests()
    batches = [
        llm.generate(prompts[at : at + 2], params[at : at + 2], use_tqdm=False)
        for at in (0, 2, 4, 6)
    ]
    return [output.outputs[0].token_ids for batch in batches for output in batch]


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """A server of two frontends, for all tests that speak HTTP."""
    from vllm_server import serving

    options = {
        "unenforced_keywords": ["dependentSchemas", "maxContains"],
        "worker_step_ms": 60_000,
        "worker_grammar_ms": 60_000,
        "compile_seconds": 60.0,
    }
    arguments = "--dtype float32 --enable-log-requests --enable-scale-out --served-model-name demo path/to/model"
    with serving(
        tmp_path_factory.mktemp("server"),
        options,
        *arguments.split(),
    ) as running:
        yield running


@pytest.fixture(scope="session")
def client(server):
    import openai

    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300
    ) as made:
        yield made
