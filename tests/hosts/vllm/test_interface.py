"""What the package relies on in vLLM, one by one: a version that changes any of it fails here by name."""

import dataclasses
import inspect
import pathlib
from typing import get_args

import pytest

pytest.importorskip("vllm")

from vllm import SamplingParams
from vllm.config import ModelConfig, ParallelConfig, SpeculativeConfig, StructuredOutputsConfig, VllmConfig
from vllm.config.speculative import RejectionSampleMethod
from vllm.entrypoints.generate.beam_search.offline import BeamSearchOfflineMixin
from vllm.entrypoints.generate.beam_search.online import BeamSearchOnlineMixin
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.exceptions import VLLMClientError, VLLMValidationError
from vllm.reasoning import ReasoningParser, ReasoningParserManager
from vllm.sampling_params import BeamSearchParams, StructuredOutputsParams
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessors, MoveDirectionality
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler
from vllm.v1.worker.gpu.buffer_utils import StagedWriteTensor, UvaBackedTensor
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcessor, LogitsProcRequestState
from vllm.v1.worker.worker_base import WorkerBase

from guided_plugin.hosts.vllm import admission as vllm_admission
from guided_plugin.hosts.vllm import beams as vllm_beams
from guided_plugin.hosts.vllm import common as vllm_common


def arguments(function):
    return list(inspect.signature(function).parameters)


def fields(owner):
    return {field.name for field in dataclasses.fields(owner)}


def test_the_installed_version_is_supported():
    first, end = vllm_common.SUPPORTED
    assert first <= vllm_common.vllm_version() < end


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (InputProcessor.__init__, ["vllm_config"]),
        (InputProcessor.process_inputs, ["params"]),
        (LLMEngine.add_request, ["params"]),
        (LLMEngine.collective_rpc, ["method", "args"]),
        (AsyncLLM.add_request, ["params", "reasoning_ended", "reasoning_parser_kwargs"]),
        (AsyncLLM.collective_rpc, ["method", "args"]),
        (BeamSearchOnlineMixin.beam_search, ["self", "params"]),
        (BeamSearchOfflineMixin.beam_search, ["self", "params"]),
        (ChatCompletionRequest.to_beam_search_params, ["self"]),
        (CompletionRequest.to_beam_search_params, ["self"]),
        (ChatCompletionRequest.extract_structured_outputs, ["self"]),
        (CompletionRequest.extract_structured_outputs, ["self"]),
        (cached_tokenizer_from_config, ["model_config"]),
        (ReasoningParser.is_reasoning_end, ["input_ids"]),
        (ReasoningParserManager.get_reasoning_parser, ["name"]),
        (LogitsProcessor.__init__, ["self", "vllm_config", "req_states"]),
        (LogitsProcessor.validate_params, ["sampling_params"]),
        (LogitsProcessor.add_request, ["self", "req_idx", "sampling_params"]),
        (LogitsProcessor.apply_staged_writes, ["self"]),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_functions_have_the_arguments_that_are_used(function, names):
    assert set(names) <= set(arguments(function))


def test_processors_and_the_sampler_are_called_as_they_are_here():
    assert arguments(LogitsProcessor.apply)[:2] == ["self", "logits"]
    assert len(arguments(LogitsProcessor.apply)) == 3
    assert arguments(Sampler.forward)[:3] == ["self", "logits", "sampling_metadata"]
    assert "logitsprocs" in fields(SamplingMetadata)
    assert "non_argmax_invariant" in inspect.getsource(LogitsProcessors.__init__)


def test_what_the_runners_show():
    assert {
        "device",
        "max_num_reqs",
        "vocab_size",
        "all_token_ids",
        "prompt_len",
        "prefill_len",
        "total_len",
    } <= fields(LogitsProcRequestState)
    assert {
        "expanded_idx_mapping",
        "idx_mapping_np",
        "expanded_local_pos",
        "input_ids",
    } <= fields(LogitsContext)
    assert {"removed", "added", "moved"} <= fields(BatchUpdate)
    assert {"SWAP", "UNIDIRECTIONAL"} == set(MoveDirectionality.__members__)
    assert "self.gpu" in inspect.getsource(StagedWriteTensor)
    assert "self.np" in inspect.getsource(UvaBackedTensor)


def test_what_requests_and_configurations_have():
    params = SamplingParams()
    for name in ("extra_args", "structured_outputs", "all_stop_token_ids"):
        assert hasattr(params, name), name
    assert set(vllm_admission._FORM) <= set(inspect.signature(StructuredOutputsParams).parameters)
    assert {"enable_in_reasoning", "reasoning_parser"} <= fields(StructuredOutputsConfig)
    assert {"tensor_parallel_size", "pipeline_parallel_size"} <= fields(ParallelConfig)
    assert {"num_speculative_tokens", "rejection_sample_method"} <= fields(SpeculativeConfig)
    assert {"skip_tokenizer_init"} <= fields(ModelConfig)
    for owner, name in (
        (ModelConfig, "try_get_generation_config"),
        (ModelConfig, "get_vocab_size"),
        (VllmConfig, "use_v2_model_runner"),
        (ReasoningParser, "reasoning_end_str"),
        (WorkerBase, "execute_model"),
    ):
        assert hasattr(owner, name), name
    assert {"additional_config", "structured_outputs_config", "speculative_config"} <= fields(VllmConfig)
    assert issubclass(VLLMValidationError, VLLMClientError)


def test_ways_to_judge_drafts_are_those_that_were_looked_at():
    """Every one but `synthetic` takes a draft only where the masked logits leave it a probability."""
    assert set(get_args(RejectionSampleMethod)) <= {"standard", "block", "synthetic", "fly"}


def test_what_makes_beam_searches_is_what_was_looked_at():
    """Another maker of `BeamSearchParams` would drop a constraint that nothing looks at."""
    vllm = pathlib.Path(inspect.getfile(SamplingParams)).parent
    makers = [path for path in vllm.rglob("*.py") if "def to_beam_search_params(" in path.read_text()]
    wrapped = [name.split(".")[1:] for name, _ in vllm_beams._PROTOCOLS]
    assert sorted(vllm.joinpath(*name).with_suffix(".py") for name in wrapped) == sorted(makers)
    BeamSearchParams(beam_width=1, max_tokens=1).anything = 1  # a note can be left on them
    assert "vllm_xargs" in ChatCompletionRequest.model_fields
    assert "vllm_xargs" in CompletionRequest.model_fields
