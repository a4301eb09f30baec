"""Everything that is changed in vLLM stands in the table of names, and so in docs/vllm-versions.md."""

import ast
import importlib
import inspect
import pathlib
import re
import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

from vllm.v1.outputs import AsyncModelRunnerOutput
from vllm.v1.worker.cpu_worker import CPUWorker
from vllm.v1.worker.worker_base import WorkerBase

import guided_plugin
from guided_plugin.hosts.vllm import failures, gate, patches
from guided_plugin.hosts.vllm.names import NAMES, When
from guided_plugin.hosts.vllm.patches import Call, patch

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


def test_every_method_that_is_wrapped_is_in_the_table():
    for module in {name.path.partition(":")[0] for name in NAMES if name.when is When.LOADED}:
        importlib.import_module(module)
    gate.install()
    for when in When:
        patch(when)
    failures.attach(Output(), lambda output: {})
    assert issubclass(CPUWorker, WorkerBase)  # loaded, so wrapped
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
        if is_wrapper(value)
    }
    wanted = {name.path.partition(":")[2] for name in NAMES if name.by} | {
        "CPUWorker.compile_or_warm_up_model"
    }
    assert changed == wanted
    added = {name for name in vars(WorkerBase) if name.startswith("guided_")}
    assert added == {name for name in re.findall(r"`(guided_\w+)` \(", PAGE) if name in vars(WorkerBase)}
    assert len(added) == 4


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

    call = Call(method)
    assert call.get("params", ("r", "p"), {}) == call.get("params", ("r",), {"params": "p"}) == "p"
    assert call.get("priority", ("r", "p"), {}) is call.get("unheard", ("r", "p"), {}) is None
    assert call.having("q", ("r", "p", 3), {}) == (("r", "q", 3), {})
    assert call.having("q", ("r",), {"params": "p"}) == (("r",), {"params": "q"})


def test_wrapped_twice_it_works_once():
    from vllm.v1.engine.input_processor import InputProcessor

    once = InputProcessor.process_inputs
    gate.install()
    assert InputProcessor.process_inputs is once
    assert once.__name__ == "process_inputs"


def test_a_name_of_a_broken_part_is_left_as_it_is(monkeypatch):
    class Other:
        def _render_and_add_requests(self, prompts):
            raise NotImplementedError

    before = Other._render_and_add_requests
    monkeypatch.setitem(sys.modules, "vllm.entrypoints.llm", SimpleNamespace(LLM=Other))
    patches._broken.cache_clear()
    patch(When.LOADED)
    patches._broken.cache_clear()
    assert Other._render_and_add_requests is before
