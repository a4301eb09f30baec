"""What the package relies on in vLLM beyond names, which `test_contract.py` looks at: what they do."""

import inspect
import pathlib
import re
from typing import get_args

import pytest

pytest.importorskip("vllm")

from vllm import SamplingParams
from vllm.config.speculative import RejectionSampleMethod
from vllm.exceptions import VLLMClientError, VLLMValidationError
from vllm.sampling_params import BeamSearchParams, StructuredOutputsParams
from vllm.v1.engine import async_llm, core_client, input_processor, llm_engine
from vllm.v1.sample.logits_processor import MoveDirectionality
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor

from guided_plugin.hosts.vllm import patches
from guided_plugin.hosts.vllm.names import CONSTRAINT_FORM, NAMES

VLLM = pathlib.Path(inspect.getfile(SamplingParams)).parent


def test_the_installed_version_is_tested():
    assert patches.is_tested(patches.version_text())


def test_processors_are_called_as_they_are_here():
    assert list(inspect.signature(LogitsProcessor.apply).parameters) == ["self", "logits", "ctx"]
    assert set(MoveDirectionality.__members__) == {"SWAP", "UNIDIRECTIONAL"}
    assert issubclass(VLLMValidationError, VLLMClientError)


def test_constraints_are_those_that_are_read():
    """Another one would pass the gate as no constraint."""
    theirs = {
        name for name in inspect.signature(StructuredOutputsParams).parameters if not name.startswith("_")
    }
    assert theirs == set(CONSTRAINT_FORM)


def test_ways_to_judge_drafts_are_those_that_were_looked_at():
    """Every one but `synthetic` takes a draft only where the masked logits leave it a probability."""
    assert set(get_args(RejectionSampleMethod)) <= {"standard", "block", "synthetic", "fly"}


def test_what_makes_beam_searches_is_what_was_looked_at():
    """Another maker of `BeamSearchParams` would drop a constraint that nothing looks at."""
    makers = [path for path in VLLM.rglob("*.py") if "def to_beam_search_params(" in path.read_text()]
    asked = [one.path.partition(":")[0] for one in NAMES if one.by == "gate:to_beam_search_params"]
    wrapped = [module.split(".")[1:] for module in asked]
    assert sorted(VLLM.joinpath(*name).with_suffix(".py") for name in wrapped) == sorted(makers)
    BeamSearchParams(beam_width=1, max_tokens=1).anything = 1  # a note can be left on them


def test_requests_reach_an_engine_in_the_ways_that_were_looked_at():
    """All make them in `process_inputs`, which has the gate, or abort them at once; and all pass
    `preprocess_add_request`, where what came another way is refused."""
    makers = {
        path.relative_to(VLLM).as_posix(): len(MADE.findall(path.read_text())) for path in VLLM.rglob("*.py")
    }
    assert {name: count for name, count in makers.items() if count} == {
        "v1/engine/async_llm.py": 1,
        "v1/engine/input_processor.py": 1,
    }
    assert "abort_immediately=True" in MADE.split(inspect.getsource(async_llm))[1][:900]
    assert "def process_inputs(" in inspect.getsource(input_processor).split("return EngineCoreRequest(")[0]
    assert "process_inputs_async = make_async(\n            self.process_inputs," in inspect.getsource(
        input_processor
    )
    senders = [path.relative_to(VLLM).as_posix() for path in VLLM.rglob("*.py") if sends(path.read_text())]
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
