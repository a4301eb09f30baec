"""What a server has made when it says that it is ready, and what its first guided
requests start."""

import importlib
import json
import os
import pathlib
import signal
import sys
import threading
import time
from concurrent.futures import Future
from types import ModuleType, SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from vllm.v1.worker.worker_base import WorkerBase
from vllm_support import config, params_of, runner_config, runner_params, told

import guided_plugin as gp
from guided_plugin.compiling import background
from guided_plugin.hosts.vllm import admission, health
from guided_plugin.hosts.vllm import engine as vllm_engine
from guided_plugin.hosts.vllm.admission import Gate
from guided_plugin.hosts.vllm.common import GUIDED
from guided_plugin.hosts.vllm.names import Name
from guided_plugin.hosts.vllm.patches import patch_in
from guided_plugin.hosts.vllm.v1 import V1Runner

FORMS = json.loads(pathlib.Path(__file__).with_name("forms.json").read_text())["ours"]
HELPED = {"json_schema": {"allOf": [{"type": "object"}, {"required": ["name"]}]}}


def test_a_gate_that_is_ready_has_made_all_but_the_helper_that_a_spec_needs(
    byte_tokenizer, monkeypatch
):
    gate = Gate(config({"compile_processes": 1, "threads": 2, "take_over": True}))
    gate._warm()
    calls = []
    monkeypatch.setattr(admission, "in_background", lambda *args: calls.append(args))
    for form in FORMS:
        assert gate.admit(params_of(form)).extra_args[GUIDED].admission.backend
    assert gate.specs.compiler.template.pid is not None
    assert not gate.specs.compiler._pool.processes()
    assert gate.admit(params_of(HELPED)).extra_args[GUIDED].made
    assert len(gate.specs.compiler._pool.processes()) == 1
    assert calls == []
    gate.specs.compiler.close()


@pytest.mark.usefixtures("byte_tokenizer")
def test_an_engine_guides_nothing_before_its_worker_is_there_and_waits_for_nothing_then(
    monkeypatch, caplog
):
    caplog.set_level("INFO")
    runner = V1Runner(runner_config("process", take_over=True), torch.device("cpu"))
    engine = runner.engine
    try:
        held = threading.Event()
        monkeypatch.setattr(engine, "_ready", held)
        assert "guided decoding is still starting" in engine.health()[0]
        with monkeypatch.context() as patch:
            patch.setattr(vllm_engine, "_SECONDS", 0.05)
            engine.wait_ready()
        assert "guided decoding is not ready after 0.05 s: guided" in caplog.text
        assert not engine._started
        monkeypatch.setattr(engine, "_ready", engine.pipeline.runtime.ready)
        engine.wait_ready()
        assert engine.health() == ("", 0.0)
        assert engine._started
        assert "guided decoding is ready after" in caplog.text
        add = Mock(side_effect=engine.pipeline.add_request)
        monkeypatch.setattr(engine.pipeline, "add_request", add)
        guided = engine.begin(
            runner_params(gp.OutputSpec.choice(["a", "b"]), "one"), ()
        )
        assert [call.kwargs["wait"] for call in add.call_args_list] == [False]
        engine.end(guided)
    finally:
        engine.close()
    # nothing waits for a worker that will not come
    assert engine.pipeline.runtime.ready.is_set()


@pytest.mark.usefixtures("byte_tokenizer")
def test_an_inline_engine_makes_its_backends_before_it_is_ready():
    engine = V1Runner(
        runner_config("inline", take_over=True), torch.device("cpu")
    ).engine
    engine.wait_ready()
    assert engine.health() == ("", 0.0)
    assert set(engine.pipeline.compiler.chooser._backends) == {"llguidance"}
    engine.close()


@pytest.mark.usefixtures("byte_tokenizer")
def test_a_worker_answers_for_its_own_engine_alone():
    """Another may live in its process, or is no longer used and not collected yet."""
    engines = [
        V1Runner(runner_config("inline"), torch.device("cpu")).engine for _ in range(2)
    ]
    workers = [SimpleNamespace(vllm_config=engine.config) for engine in engines]
    engines[0].begin(runner_params(gp.OutputSpec.choice(["a", "b"]), "one"), ())
    assert [WorkerBase.guided_metrics(worker)[0]["added"] for worker in workers] == [
        1,
        0,
    ]
    spec = told(gp.OutputSpec.choice(["a", "b"]), "held")["guided"]
    for engine in engines:
        engine.failed.tells = engine.serves = engine is engines[1]
        engine.get_ready([spec])
    engines[1].prepare(spec, (ready := Future()).set_result)
    ready.result(60)
    assert [bool(engine.failed) for engine in engines] == [False, True]
    assert [len(WorkerBase.guided_metrics(worker)) for worker in workers] == [0, 1]
    for engine in engines:
        engine.close()


def test_work_in_the_background_that_fails_ends_the_wait(caplog):
    def fail():
        raise ValueError("no luck")

    assert background.in_background(fail, "guided-test").wait(10)
    assert "guided-test failed" in caplog.text
    assert "no luck" in caplog.text


def test_a_process_that_is_forked_meanwhile_waits_for_no_module(tmp_path, monkeypatch):
    (tmp_path / "slow_module.py").write_text("import time; time.sleep(1)")
    monkeypatch.syspath_prepend(str(tmp_path))
    over = background.in_background(
        lambda: importlib.import_module("slow_module"), "guided-test"
    )
    while "slow_module" not in sys.modules:
        time.sleep(0.001)
    if (child := os.fork()) == 0:
        signal.alarm(20)
        importlib.import_module("slow_module")
        background.in_background(lambda: None, "guided-test").wait()
        os._exit(0)
    assert (over.is_set(), os.waitpid(child, 0)[1]) == (True, 0)


@pytest.mark.parametrize("fails", [False, True])
def test_workers_wait_at_the_end_of_an_engines_start(monkeypatch, caplog, fails):
    """Those of an engine without the plugin keep it from nothing."""
    told = []
    waits = SimpleNamespace(
        wait_ready=lambda: told.append("worker waits"),
        health=lambda: ("", 0.0),
    )
    monkeypatch.setattr(health, "engine_of", lambda worker: waits)

    class Core:
        def __init__(self, name):
            told.append(name)

        def collective_rpc(self, method, timeout=None, args=(), kwargs=None):
            if fails:
                raise AttributeError(method)
            return [getattr(WorkerBase, method)(None, *args) for _ in range(2)]

    health.wait_ready(Core.__new__(Core), "core", original=Core.__init__)
    assert told == ["core", *["worker waits"] * (2 - 2 * fails)]
    assert ("workers do not wait: guided_health" in caplog.text) is fails
    assert WorkerBase.guided_health(None) == ("", 0.0)
    assert len(told) == 3 - 2 * fails


def test_what_a_module_imported_before_is_wrapped_there_too(monkeypatch):
    source = SimpleNamespace(init_speculator=lambda: None)
    other = ModuleType("vllm.other")
    other.init_speculator = source.init_speculator
    monkeypatch.setitem(sys.modules, "vllm.other", other)
    patch_in(source, Name("vllm:init_speculator", wrapper="jump:init_speculator"))
    assert other.init_speculator is source.init_speculator
    assert hasattr(other.init_speculator, "_guided_plugin")
