"""What the package relies on in vLLM: every private name, its parameters, its attributes. One table.

`broken` looks at the names of a part in the vLLM of this process, `differences` in any other.
vLLM's version decides nothing. What needs a broken part is refused by the name of what is missing.
Imports vLLM lazily. docs/vllm-versions.md says how versions are tested.
"""

from __future__ import annotations

import logging
from functools import cache

from guided_plugin.errors import RequestError
from guided_plugin.hosts.vllm.parts import Name, Part
from guided_plugin.hosts.vllm.shapes import Installed, Reader
from guided_plugin.hosts.vllm.versions import version_text

_log = logging.getLogger(__name__)

BEAM_REQUESTS = (
    ("vllm.entrypoints.openai.chat_completion.protocol", "ChatCompletionRequest"),
    ("vllm.entrypoints.openai.completion.protocol", "CompletionRequest"),
    ("vllm.entrypoints.speech_to_text.transcription.protocol", "TranscriptionRequest"),
    ("vllm.entrypoints.speech_to_text.translation.protocol", "TranslationRequest"),
)
"""What makes `BeamSearchParams` of an HTTP request: modules and their classes."""

CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
CONSTRAINT_FORM = (
    *CONSTRAINTS,
    *("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern"),
)
"""What `StructuredOutputsParams` asks for."""

REQUEST_LIMITS = ("min_tokens", "bad_words", "allowed_token_ids", "logit_bias")
"""Options of a request by which vLLM forbids tokens."""

_CONFIGS = (
    *("model_config", "parallel_config", "scheduler_config"),
    *("speculative_config", "structured_outputs_config"),
)
_ADD = ("params",)
_RPC_BEGINS = ("self", "method")
_CONFIG = "vllm.config"
_ENGINE = "vllm.v1.engine"
_V2 = "vllm.v1.worker.gpu"

FRONTEND = (
    Name(f"{_ENGINE}.input_processor:InputProcessor", Part.FRONTEND, has=("vllm_config",)),
    Name(f"{_ENGINE}.input_processor:InputProcessor.__init__", Part.FRONTEND, takes=("vllm_config",)),
    Name(f"{_ENGINE}.input_processor:InputProcessor.process_inputs", Part.FRONTEND, takes=_ADD),
    Name(f"{_ENGINE}.llm_engine:LLMEngine", Part.FRONTEND, has=("input_processor",)),
    Name(f"{_ENGINE}.llm_engine:LLMEngine.add_request", Part.FRONTEND, takes=("prompt", *_ADD)),
    Name(
        f"{_ENGINE}.llm_engine:LLMEngine.collective_rpc", Part.FRONTEND, begins=_RPC_BEGINS, takes=("args",)
    ),
    Name(f"{_ENGINE}.async_llm:AsyncLLM", Part.FRONTEND, has=("input_processor",)),
    Name(
        f"{_ENGINE}.async_llm:AsyncLLM.add_request",
        Part.FRONTEND,
        takes=("prompt", *_ADD, "reasoning_ended", "reasoning_parser_kwargs"),
    ),
    Name(f"{_ENGINE}.async_llm:AsyncLLM.collective_rpc", Part.FRONTEND, begins=_RPC_BEGINS, takes=("args",)),
    Name(
        f"{_ENGINE}:EngineCoreRequest",
        Part.FRONTEND,
        has=("request_id", "sampling_params", "prompt_token_ids"),
    ),
    Name(f"{_ENGINE}.exceptions:EngineDeadError", Part.FRONTEND),
    Name("vllm.exceptions:VLLMValidationError", Part.FRONTEND),
    Name("vllm.exceptions:GracefulHTTPError", Part.FRONTEND),
    Name(
        "vllm.sampling_params:SamplingParams",
        Part.FRONTEND,
        has=("extra_args", "structured_outputs", "all_stop_token_ids", *REQUEST_LIMITS),
    ),
    Name(
        "vllm.sampling_params:StructuredOutputsParams",
        Part.FRONTEND,
        has=CONSTRAINT_FORM,
    ),
    Name("vllm.sampling_params:BeamSearchParams", Part.FRONTEND),
    Name(f"{_CONFIG}:VllmConfig", Part.FRONTEND, has=("additional_config", "use_v2_model_runner", *_CONFIGS)),
    Name(
        f"{_CONFIG}:ModelConfig",
        Part.FRONTEND,
        has=("skip_tokenizer_init", "try_get_generation_config", "get_vocab_size"),
    ),
    Name(f"{_CONFIG}:ParallelConfig", Part.FRONTEND, has=("tensor_parallel_size", "pipeline_parallel_size")),
    Name(f"{_CONFIG}:SchedulerConfig", Part.FRONTEND, has=("get_scheduler_cls", "max_num_seqs")),
    Name(
        f"{_CONFIG}:SpeculativeConfig",
        Part.FRONTEND,
        has=("num_speculative_tokens", "rejection_sample_method"),
    ),
    Name(
        f"{_CONFIG}:StructuredOutputsConfig", Part.FRONTEND, has=("enable_in_reasoning", "reasoning_parser")
    ),
    Name("vllm.tokenizers:cached_tokenizer_from_config", Part.FRONTEND, takes=("model_config",)),
    Name(
        "vllm.entrypoints.generate.beam_search.online:BeamSearchOnlineMixin.beam_search",
        Part.FRONTEND,
        takes=_ADD,
        endpoint=True,
    ),
    Name(
        "vllm.entrypoints.generate.beam_search.offline:BeamSearchOfflineMixin.beam_search",
        Part.FRONTEND,
        takes=_ADD,
        endpoint=True,
    ),
    *(
        Name(f"{module}:{owner}.to_beam_search_params", Part.FRONTEND, begins=("self",), endpoint=True)
        for module, owner in BEAM_REQUESTS
    ),
    *(
        Name(
            f"{module}:{owner}",
            Part.FRONTEND,
            has=("vllm_xargs", "extract_structured_outputs"),
            endpoint=True,
        )
        for module, owner in BEAM_REQUESTS[:2]
    ),
)

REASONING = (
    Name("vllm.reasoning:ReasoningParser", Part.REASONING, has=("reasoning_end_str",)),
    Name("vllm.reasoning:ReasoningParser.is_reasoning_end", Part.REASONING, begins=("self", "input_ids")),
    Name(
        "vllm.reasoning:ReasoningParser.is_reasoning_end_streaming",
        Part.REASONING,
        begins=("self", "input_ids", "delta_ids"),
    ),
    Name(
        "vllm.reasoning:ReasoningParserManager.get_reasoning_parser", Part.REASONING, begins=("cls", "name")
    ),
)

_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"

SCHEDULER = (
    Name(_SCHEDULER, Part.SCHEDULER, has=("requests", "grammar_compile_error_reqs")),
    Name(f"{_SCHEDULER}.add_request", Part.SCHEDULER, begins=("self", "request")),
    Name(
        f"{_SCHEDULER}.update_from_output",
        Part.SCHEDULER,
        begins=("self", "scheduler_output", "model_runner_output"),
    ),
    Name("vllm.v1.request:Request", Part.SCHEDULER, has=("request_id", "sampling_params", "is_finished")),
    Name(f"{_ENGINE}:FinishReason", Part.SCHEDULER, has=("ERROR",)),
    Name(f"{_ENGINE}:EngineCoreOutput", Part.SCHEDULER, has=("request_id", "finish_reason", "stop_reason")),
    Name(f"{_ENGINE}:EngineCoreOutputs", Part.SCHEDULER, has=("outputs",)),
    Name(f"{_ENGINE}.core:EngineCore", Part.SCHEDULER, has=("vllm_config",)),
    Name(f"{_ENGINE}.core:EngineCore.preprocess_add_request", Part.SCHEDULER, begins=("self", "request")),
)

WORKER = (
    Name("vllm.v1.worker.worker_base:WorkerBase", Part.WORKER, has=("vllm_config",)),
    Name("vllm.v1.worker.gpu_worker:Worker.sample_tokens", Part.WORKER, begins=("self",)),
    Name("vllm.v1.outputs:ModelRunnerOutput", Part.WORKER, has=("req_id_to_index", "sampled_token_ids")),
    Name("vllm.v1.outputs:AsyncModelRunnerOutput.get_output", Part.WORKER, begins=("self",)),
)

_V1_LOGITS = "vllm.v1.sample.logits_processor"

V1 = (
    Name(f"{_V1_LOGITS}:LogitsProcessor", Part.V1, has=("is_argmax_invariant", "validate_params")),
    Name(f"{_V1_LOGITS}:LogitsProcessor.__init__", Part.V1, begins=("self", "vllm_config", "device")),
    Name(f"{_V1_LOGITS}:LogitsProcessor.apply", Part.V1, begins=("self", "logits")),
    Name(f"{_V1_LOGITS}:LogitsProcessor.update_state", Part.V1, begins=("self", "batch_update")),
    Name(f"{_V1_LOGITS}:BatchUpdate", Part.V1, has=("removed", "added", "moved")),
    Name(f"{_V1_LOGITS}:MoveDirectionality", Part.V1, has=("SWAP", "UNIDIRECTIONAL")),
    Name(f"{_V1_LOGITS}:LogitsProcessors", Part.V1, has=("non_argmax_invariant",)),
    Name("vllm.v1.sample.metadata:SamplingMetadata", Part.V1, has=("logitsprocs", "max_num_logprobs")),
    Name("vllm.v1.outputs:SamplerOutput", Part.V1, has=("sampled_token_ids",)),
    Name(
        "vllm.v1.sample.sampler:Sampler.forward",
        Part.V1,
        begins=("self", "logits", "sampling_metadata"),
    ),
)

_V2_LOGITS = f"{_V2}.sample.logits_processor"

V2 = (
    Name(f"{_V2_LOGITS}:LogitsProcessor.__init__", Part.V2, begins=("self", "vllm_config", "req_states")),
    Name(f"{_V2_LOGITS}:LogitsProcessor.validate_params", Part.V2, begins=("cls", "sampling_params")),
    Name(f"{_V2_LOGITS}:LogitsProcessor.add_request", Part.V2, begins=("self", "req_idx", "sampling_params")),
    Name(f"{_V2_LOGITS}:LogitsProcessor.apply_staged_writes", Part.V2, begins=("self",)),
    Name(f"{_V2_LOGITS}:LogitsProcessor.apply", Part.V2, begins=("self", "logits", "ctx")),
    Name(
        f"{_V2_LOGITS}:LogitsProcRequestState",
        Part.V2,
        has=(
            *("device", "max_num_reqs", "vocab_size", "all_token_ids"),
            *("prompt_len", "prefill_len", "total_len"),
        ),
    ),
    Name(f"{_V2_LOGITS}:LogitsContext", Part.V2, has=("expanded_idx_mapping", "idx_mapping_np")),
    Name(f"{_V2}.buffer_utils:StagedWriteTensor", Part.V2, has=("gpu",)),
    Name(f"{_V2}.buffer_utils:UvaBackedTensor", Part.V2, has=("np",)),
)

ENGINES = (
    Name(f"{_ENGINE}.core_client:AsyncMPClient", Part.ENGINES, has=("core_engines",)),
    Name(f"{_ENGINE}.core_client:AsyncMPClient._call_utility_async", Part.ENGINES, takes=("engine",)),
    Name(
        f"{_ENGINE}.core:EngineCore.collective_rpc",
        Part.ENGINES,
        begins=("self", "method", "timeout", "args", "kwargs"),
    ),
)

DRAFTS = (Name(f"{_V2_LOGITS}:LogitsContext", Part.DRAFTS, has=("expanded_local_pos", "input_ids")),)

READY = (
    Name(f"{_ENGINE}.llm_engine:LLMEngine.__init__", Part.READY, begins=("self",)),
    Name(f"{_ENGINE}.async_llm:AsyncLLM.__init__", Part.READY, begins=("self",)),
    Name("vllm.v1.worker.gpu_worker:Worker.compile_or_warm_up_model", Part.READY, begins=("self",)),
)

TOGETHER = (
    Name(
        "vllm.entrypoints.llm:LLM._render_and_add_requests",
        Part.TOGETHER,
        begins=("self", "prompts", "params"),
        endpoint=True,
    ),
)

HOOKS = (
    Name(f"{_V2}.model_runner:GPUModelRunner", Part.HOOKS, has=("sampler",)),
    Name(
        f"{_V2}.model_runner:GPUModelRunner.sample",
        Part.HOOKS,
        begins=("self", "hidden_states", "input_batch"),
    ),
    Name(f"{_V2}.input_batch:InputBatch", Part.HOOKS, has=("idx_mapping_np",)),
    Name(f"{_V2}.sample.sampler:Sampler", Part.HOOKS, has=("logits_processors",)),
    Name(f"{_V2}.sample.output:SamplerOutput", Part.HOOKS, has=("sampled_token_ids",)),
)

_V2_CONTEXT = (
    *("expanded_idx_mapping", "idx_mapping", "idx_mapping_np"),
    *("pos", "input_ids", "expanded_local_pos"),
)
SAMPLER = (
    Name(
        f"{_V2}.sample.sampler:Sampler.apply_sampling_params",
        Part.SAMPLER,
        begins=("self", "logits", *_V2_CONTEXT),
    ),
    Name(f"{_V2}.sample.sampler:Sampler", Part.SAMPLER, has=("logits_processors",)),
)

TOOLS = (
    Name("vllm.parser.parser_manager:ParserManager.get_parser", Part.TOOLS, takes=("tool_strict_level",)),
    Name("vllm.tool_parsers.structural_tag_registry:resolve_tool_strictness", Part.TOOLS),
)

_PARALLEL = ("distributed_executor_backend", "prefill_context_parallel_size")
RANKS = (
    Name("vllm.distributed.parallel_state:get_tp_group", Part.RANKS),
    Name("vllm.distributed.parallel_state:GroupCoordinator", Part.RANKS, has=("cpu_group",)),
    Name(f"{_CONFIG}:ParallelConfig", Part.RANKS, has=_PARALLEL),
    Name(f"{_CONFIG}:VllmConfig", Part.RANKS, has=("device_config",)),
)

STAGES = (
    Name("vllm.distributed.parallel_state:get_pp_group", Part.STAGES),
    Name("vllm.distributed.parallel_state:GroupCoordinator", Part.STAGES, has=("is_last_rank",)),
    Name(f"{_CONFIG}:ParallelConfig", Part.STAGES, has=_PARALLEL),
    Name("vllm.v1.worker.gpu_worker:Worker", Part.STAGES, has=("model_runner",)),
    Name("vllm.v1.worker.gpu_model_runner:GPUModelRunner", Part.STAGES, has=("requests",)),
)

SHARDS = (
    Name(f"{_CONFIG}:ParallelConfig", Part.SHARDS, has=("enable_batch_sharded_sampling",)),
    Name(f"{_V2}.model_runner:GPUModelRunner", Part.SHARDS, has=("sampler", "batch_sharder")),
    Name(
        f"{_V2}.model_runner:GPUModelRunner.sample",
        Part.SHARDS,
        begins=("self", "hidden_states", "input_batch"),
    ),
    Name(
        f"{_V2}.input_batch:InputBatch",
        Part.SHARDS,
        has=(
            *("idx_mapping_np", "expanded_idx_mapping", "expanded_local_pos"),
            *("input_ids", "logits_indices"),
        ),
    ),
    Name(f"{_V2}.sample.sampler:Sampler", Part.SHARDS, has=("logits_processors",)),
)

_SERVING = "vllm.entrypoints.generate.base.serving:GenerateBaseServing"
_TOKENS = "vllm.entrypoints.scale_out.token_in_token_out.serving:ServingTokens.serve_tokens"
_RESPONSES = ("vllm.entrypoints.openai.responses.protocol", "ResponsesRequest")

ANSWERS = (
    Name(
        f"{_SERVING}._with_kv_transfer_rejection_cleanup",
        Part.ANSWERS,
        begins=("self", "awaitable", "request", "raw_request"),
        endpoint=True,
    ),
    Name(_TOKENS, Part.ANSWERS, begins=("self", "request"), endpoint=True),
    *(
        Name(f"{module}:{owner}.to_sampling_params", Part.ANSWERS, begins=("self",), endpoint=True)
        for module, owner in (*BEAM_REQUESTS[:2], _RESPONSES)
    ),
    Name(
        f"{_ENGINE}.output_processor:OutputProcessor.process_outputs",
        Part.ANSWERS,
        begins=("self", "engine_core_outputs"),
    ),
    Name(f"{_ENGINE}.output_processor:OutputProcessor", Part.ANSWERS, has=("request_states",)),
    Name(f"{_ENGINE}.output_processor:RequestOutputCollector.put", Part.ANSWERS, begins=("self", "output")),
    Name("vllm.v1.metrics.loggers:AggregateStatLoggerBase.__init__", Part.ANSWERS, takes=("vllm_config",)),
)

_APP = "vllm.entrypoints.launchers.app"

RETRY = (Name(f"{_APP}:init_entrypoints_middleware", Part.RETRY, begins=("args", "app"), endpoint=True),)

CONTRACT = (
    *(*ANSWERS, *FRONTEND, *READY, *REASONING, *RETRY, *SCHEDULER, *WORKER),
    *(*V1, *V2, *DRAFTS, *HOOKS, *SAMPLER, *TOGETHER, *TOOLS, *RANKS, *STAGES, *SHARDS, *ENGINES),
)


def differences(reader: Reader, part: Part) -> list[str]:
    """Everything of a part that is not as expected."""
    found = (name.differs(reader) for name in CONTRACT if name.part is part)
    return [difference for difference in found if difference is not None]


def broken(*parts: Part) -> RequestError | None:
    """Why these parts can't be used with the vLLM of this process, if they can't."""
    for part in parts:
        error = _broken(part)
        if error is not None:
            return error
    return None


@cache
def _broken(part: Part) -> RequestError | None:
    found = differences(Installed(), part)
    if not found:
        return None
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    error = RequestError(
        f"vLLM {version_text()} is not supported: {found[0]}{more}; refused: {part.value}",
        hint="guided-plugin vllm-contract lists all; docs/vllm-versions.md has the versions that are tested",
    )
    _log.warning("%s", error)
    return error
