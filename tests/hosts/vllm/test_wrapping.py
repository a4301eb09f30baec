"""Everything that is changed in vLLM stands in docs/hosts.md."""

import ast
import importlib
import inspect
import pathlib
import re
import sys

import pytest

pytest.importorskip("vllm")

import torch
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.outputs import AsyncModelRunnerOutput
from vllm.v1.worker.cpu_worker import CPUWorker
from vllm.v1.worker.worker_base import WorkerBase
from vllm_support import runner_config

import guided_plugin
from guided_plugin.hosts.vllm import answers as vllm_answers
from guided_plugin.hosts.vllm import beams as vllm_beams
from guided_plugin.hosts.vllm import failures as vllm_failures
from guided_plugin.hosts.vllm import gate as vllm_gate
from guided_plugin.hosts.vllm import ready as vllm_ready
from guided_plugin.hosts.vllm import retry as vllm_retry
from guided_plugin.hosts.vllm import together as vllm_together
from guided_plugin.hosts.vllm import tools as vllm_tools
from guided_plugin.hosts.vllm import v1 as vllm_v1
from guided_plugin.hosts.vllm import v2 as vllm_v2
from guided_plugin.hosts.vllm import v2_sample as vllm_v2_sample
from guided_plugin.hosts.vllm import v2_sampler as vllm_v2_sampler
from guided_plugin.hosts.vllm import wrapping as vllm_wrapping
from guided_plugin.hosts.vllm.contract import BEAM_REQUESTS

PACKAGE = pathlib.Path(guided_plugin.__file__).parent
PAGE = (PACKAGE.parent / "docs" / "hosts.md").read_text()


class Output(AsyncModelRunnerOutput):
    """As that of a model runner: its `get_output` is wrapped when the first one passes."""

    def get_output(self):
        raise NotImplementedError

    def get_kv_connector_output(self):
        raise NotImplementedError


def is_wrapper(value):
    return hasattr(value, "_guided_plugin")


@pytest.mark.usefixtures("byte_tokenizer")
def test_every_method_that_is_wrapped_or_added_is_in_the_table():
    vllm_gate.install()
    vllm_beams.install_beams()
    vllm_tools.hold_tools()
    vllm_answers.install()
    vllm_v1.V1Runner(runner_config(), torch.device("cpu"))
    vllm_v2_sample.wrap_v2_sample(vllm_v2.V2Runner, for_hooks=True)
    vllm_v2_sampler.wrap_v2_sampler(vllm_v2.V2Runner)
    vllm_failures.attach(Output(), lambda output: {})
    vllm_ready.wrap_workers(WorkerBase, lambda worker: None)
    assert issubclass(CPUWorker, WorkerBase)  # loaded, so wrapped
    for module, _ in BEAM_REQUESTS:
        importlib.import_module(module)
    importlib.import_module(vllm_retry._APP)
    vllm_retry.install()
    importlib.import_module(vllm_together._LLM)
    vllm_together.install_together()
    values = [
        value
        for name, module in list(sys.modules.items())
        if name.split(".")[0] == "vllm" and module is not None
        for value in list(vars(module).values())
    ]
    classes = {Output} | {
        value for value in values if isinstance(value, type) and value.__module__.split(".")[0] == "vllm"
    }
    changed = {value.__name__ for value in values if inspect.isfunction(value) and is_wrapper(value)} | {
        f"{(AsyncModelRunnerOutput if issubclass(owner, AsyncModelRunnerOutput) else owner).__name__}.{name}"
        for owner in classes
        for name, value in list(vars(owner).items())
        if is_wrapper(value) or name.startswith("guided_")
    }
    section = PAGE[PAGE.index("### What is changed in vLLM") :].split("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    named = {name for cell in cells for name in re.findall(r"`([\w.]+)`", cell)}
    if "error" in EngineCoreOutput.__struct_fields__:  # since 0.33 vLLM tells reasons by itself
        named.remove("OutputProcessor.process_outputs")
    assert changed == named


def test_every_name_that_is_left_on_an_object_of_vllm_is_in_the_page():
    names = {
        node.value
        for path in [*(PACKAGE / "hosts" / "vllm").glob("*.py"), PACKAGE / "vllm.py"]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if re.fullmatch(r"_?guided_\w+", node.value)
    }
    assert {"guided_failed", "_guided_gate", "guided_prepare"} <= names
    assert [name for name in sorted(names) if not re.search(rf"\b{name}\b", PAGE)] == []


def test_arguments_are_found_wherever_they_stand():
    def method(self, request_id, params, priority=0):
        raise NotImplementedError

    call = vllm_wrapping.Call(method)
    assert call.get("params", ("r", "p"), {}) == call.get("params", ("r",), {"params": "p"}) == "p"
    assert call.get("priority", ("r", "p"), {}) is call.get("unheard", ("r", "p"), {}) is None
    assert call.having("q", ("r", "p", 3), {}) == (("r", "q", 3), {})
    assert call.having("q", ("r",), {"params": "p"}) == (("r",), {"params": "q"})


def test_wrapped_twice_it_works_once():
    from vllm.v1.engine.input_processor import InputProcessor

    once = InputProcessor.process_inputs
    vllm_gate.install()
    assert InputProcessor.process_inputs is once
    assert once.__name__ == "process_inputs"
