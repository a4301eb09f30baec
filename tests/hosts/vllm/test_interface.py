"""What the package relies on in vLLM beyond names, which `test_contract.py` looks at:
what they do. What is changed in vLLM stands in the table of names, and so in
docs/vllm-versions.md."""

import ast
import inspect
import pathlib
import re
import sys
from types import SimpleNamespace
from typing import get_args

from vllm import SamplingParams
from vllm.config.speculative import RejectionSampleMethod
from vllm.entrypoints.generate.base import serving
from vllm.exceptions import VLLMClientError, VLLMValidationError
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.engine import async_llm, core_client, input_processor, llm_engine
from vllm.v1.sample.logits_processor import MoveDirectionality
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor
from vllm.v1.worker.worker_base import WorkerBase

import guided_plugin
from guided_plugin.hosts.vllm import gate, patches
from guided_plugin.hosts.vllm.names import CONSTRAINT_FORM, NAMES, When
from guided_plugin.hosts.vllm.patches import broken, patch

VLLM = pathlib.Path(inspect.getfile(SamplingParams)).parent
PACKAGE = pathlib.Path(guided_plugin.__file__).parent
PAGE = (PACKAGE.parent / "docs" / "vllm-versions.md").read_text()


def test_the_installed_version_is_tested():
    assert patches.is_tested(patches.version_text())


def test_processors_are_called_as_they_are_here():
    assert list(inspect.signature(LogitsProcessor.apply).parameters) == [
        "self",
        "logits",
        "ctx",
    ]
    assert set(MoveDirectionality.__members__) == {"SWAP", "UNIDIRECTIONAL"}
    assert issubclass(VLLMValidationError, VLLMClientError)


def test_constraints_are_those_that_are_read():
    """Another one would pass the gate as no constraint."""
    theirs = {
        name
        for name in inspect.signature(StructuredOutputsParams).parameters
        if not name.startswith("_")
    }
    assert theirs == set(CONSTRAINT_FORM)


def test_ways_to_judge_drafts_are_those_that_were_looked_at():
    """Every one but `synthetic` takes a draft only where the masked logits leave it a
    probability."""
    assert set(get_args(RejectionSampleMethod)) <= {
        "standard",
        "block",
        "synthetic",
        "fly",
    }


def test_requests_reach_an_engine_in_the_ways_that_were_looked_at():
    """All make them in `process_inputs`, which has the gate, or abort them at once; and
    all pass `preprocess_add_request`, where what came another way is refused."""
    makers = {
        path.relative_to(VLLM).as_posix(): len(MADE.findall(path.read_text()))
        for path in VLLM.rglob("*.py")
    }
    assert {name: count for name, count in makers.items() if count} == {
        "v1/engine/async_llm.py": 1,
        "v1/engine/input_processor.py": 1,
    }
    assert "abort_immediately=True" in MADE.split(inspect.getsource(async_llm))[1][:900]
    assert (
        "def process_inputs("
        in inspect.getsource(input_processor).split("return EngineCoreRequest(")[0]
    )
    assert (
        "process_inputs_async = make_async(\n            self.process_inputs,"
        in inspect.getsource(input_processor)
    )
    senders = [
        path.relative_to(VLLM).as_posix()
        for path in VLLM.rglob("*.py")
        if sends(path.read_text())
    ]
    assert sorted(senders) == [
        "v1/engine/async_llm.py",
        "v1/engine/core_client.py",
        "v1/engine/llm_engine.py",
    ]
    core = (VLLM / "v1/engine/core.py").read_text()
    assert core.count("self.preprocess_add_request(req)") == 1
    assert inspect.getsource(core_client).count("preprocess_add_request(request)") == 1
    assert "self.input_processor.process_inputs(" in inspect.getsource(llm_engine)


MADE = re.compile(r"(?:= |return )EngineCoreRequest\(")


def sends(source):
    return "engine_core.add_request" in source or "EngineCoreRequestType.ADD," in source


def is_wrapper(value):
    return hasattr(value, "_guided_plugin")


def test_every_method_that_is_wrapped_is_in_the_table():
    gate.install()
    for when in When:
        patch(when)
    values = [
        value
        for name, module in list(sys.modules.items())
        if name.split(".")[0] == "vllm" and module is not None
        for value in list(vars(module).values())
    ]
    classes = {
        value
        for value in values
        if isinstance(value, type) and value.__module__.split(".")[0] == "vllm"
    }
    changed = {
        value.__name__
        for value in values
        if inspect.isfunction(value) and is_wrapper(value)
    } | {
        f"{owner.__name__}.{name}"
        for owner in classes
        for name, value in list(vars(owner).items())
        if is_wrapper(value)
    }
    wanted = {
        name.path.partition(":")[2]
        for part, names in NAMES.items()
        for name in names
        if name.wrapper and broken(part) is None
    }
    assert changed == wanted
    added = {name for name in vars(WorkerBase) if name.startswith("guided_")}
    assert added == {
        name
        for name in re.findall(r"`(guided_\w+)` \(", PAGE)
        if name in vars(WorkerBase)
    }
    assert len(added) == 2


def test_every_name_that_is_left_on_an_object_of_vllm_is_in_the_page():
    names = {
        node.value
        for path in [*(PACKAGE / "hosts" / "vllm").glob("*.py"), PACKAGE / "vllm.py"]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant)
        if re.fullmatch(r"_?guided_\w+", str(node.value))
    }
    assert {"guided_failed", "_guided_gate", "guided_needed"} <= names
    assert [name for name in sorted(names) if not re.search(rf"\b{name}\b", PAGE)] == []


def test_a_name_of_a_broken_part_is_left_as_it_is(monkeypatch):
    """But where beam searches with a constraint are refused."""

    class Other:
        _render_and_add_requests = print  # has other parameters
        _with_kv_transfer_rejection_cleanup = print

    monkeypatch.setitem(sys.modules, "vllm.entrypoints.llm", SimpleNamespace(LLM=Other))
    monkeypatch.setattr(serving, "GenerateBaseServing", Other)
    patches._broken.cache_clear()
    patch(When.SERVING)
    patches._broken.cache_clear()
    assert Other._render_and_add_requests is print
    assert is_wrapper(Other._with_kv_transfer_rejection_cleanup)
