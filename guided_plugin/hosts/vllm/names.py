"""Every name of vLLM that this package relies on or wraps: one table.

    [PART]                                   what relies on the names below it
    module (endpoint)                        endpoint: it may lack a package, nothing calls what is in it then
      Class.method begins a b takes c d      parameters at their places, and parameters by name
      Class has e f                          attributes
        -> WHEN file:function: why  what wraps it, in this folder

`patches` looks at the names and wraps them; `guided-plugin doctor` and
docs/vllm-versions.md read them too. Imports nothing of vLLM.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum


class Part(Enum):
    """What relies on a name. A broken part stops what its text says, and nothing
    else."""

    FRONTEND = "every guided request"
    REASONING = "guided requests under a reasoning parser"
    SCHEDULER = "every guided request, by its engine"
    WORKER = "every guided request, by its worker"
    V1 = "guided requests of the V1 model runner"
    V2 = "guided requests of the V2 model runner"
    DRAFTS = "guided requests under speculative decoding"
    JUMP = "the option jump_forward, and masks before the sampler under speculative decoding"
    ANSWERS = "statuses of refused streams, and reasons of failed requests, on servers"
    RETRY = "the header Retry-After of answers with status 503"
    TOGETHER = "compiling the specs of several prompts of one `LLM` at the same time"
    READY = "waiting at a server's start until guided requests can be served"
    HOOKS = "the step hooks of plugins on the V2 model runner"
    SAMPLER = "logprobs of the masked distribution, and masks without a copy of the logits, on the V2 model runner"
    TOOLS = "the option tools_strict"
    RANKS = "guided requests under tensor parallelism"
    STAGES = "guided requests under pipeline parallelism"
    ENGINES = "guided requests behind a data-parallel front"


class When(Enum):
    """When a name is wrapped, and in which processes."""

    START = "vLLM loads its general plugins: every process"
    WORKERS = "the same, and when a logits processor is made. Of every class of workers that is loaded"
    SERVING = "an input processor is made: frontends"
    LOADED = "the same, where the module is loaded: servers, or programs with an `LLM`"
    TOOLS = "the same, with `tools_strict`"
    ENGINE = "the logits processor is made: workers"
    OUTPUT = (
        "the first output of a guided batch: workers. Of the class that the runner uses"
    )
    V1 = "the logits processor is made by a V1 runner that can guide"
    V2 = "the logits processor is made by a V2 runner that can guide"
    SAMPLE = "the same, if a plugin implements a step hook"


@dataclass(frozen=True, slots=True)
class Name:
    """One name of vLLM's that is relied on."""

    path: str
    """`module:Class.method`."""
    part: Part
    begins: tuple[str, ...] = ()
    """Parameters that stand first, in this order: they are passed, or read, by their
    place."""
    takes: tuple[str, ...] = ()
    """Parameters that are there, at any place: they are passed, or read, by their
    name."""
    has: tuple[str, ...] = ()
    """Attributes of the class, or of what is made of it."""
    endpoint: bool = False
    """Whether the module may lack a package that it imports: nothing calls its endpoint
    then."""
    by: str = ""
    """What makes its wrapper of the original: `file:function` in this folder; empty
    where nothing does."""
    when: When = When.START
    why: str = ""
    """What it is wrapped for."""


_TABLE = """\
[FRONTEND]
vllm.v1.engine.input_processor
  InputProcessor has vllm_config
  InputProcessor.__init__ takes vllm_config
    -> START gate:made: a frontend reads the vocabulary before the first request, and wraps what only \
       frontends have
  InputProcessor.process_inputs takes params
    -> START gate:process_inputs: admission: the spec is compiled, and written into the engine's own \
       params
vllm.v1.engine.llm_engine
  LLMEngine has input_processor
  LLMEngine.add_request takes prompt params
    -> START gate:add_request: admission; asks whether the engine can guide
  LLMEngine.collective_rpc begins self method takes args
vllm.v1.engine.async_llm
  AsyncLLM has input_processor
  AsyncLLM.add_request takes prompt params reasoning_ended reasoning_parser_kwargs
    -> START gate:add_request_async: the same, without blocking the event loop
  AsyncLLM.collective_rpc begins self method takes args
vllm.v1.engine
  EngineCoreRequest has request_id sampling_params prompt_token_ids prompt_embeds cache_salt
vllm.v1.engine.exceptions
  EngineDeadError
vllm.exceptions
  VLLMValidationError
  GracefulHTTPError
vllm.sampling_params
  SamplingParams has extra_args structured_outputs all_stop_token_ids min_tokens bad_words \
    allowed_token_ids logit_bias repetition_penalty max_tokens
  StructuredOutputsParams has json regex choice grammar json_object structural_tag disable_any_whitespace \
    disable_additional_properties whitespace_pattern
  BeamSearchParams
vllm.config
  VllmConfig has additional_config use_v2_model_runner model_config parallel_config scheduler_config \
    speculative_config structured_outputs_config
  ModelConfig has skip_tokenizer_init try_get_generation_config get_vocab_size max_model_len
  ParallelConfig has tensor_parallel_size pipeline_parallel_size
  SchedulerConfig has get_scheduler_cls max_num_seqs
  SpeculativeConfig has num_speculative_tokens rejection_sample_method
  StructuredOutputsConfig has enable_in_reasoning reasoning_parser
vllm.tokenizers
  cached_tokenizer_from_config takes model_config
vllm.entrypoints.generate.beam_search.online (endpoint)
  BeamSearchOnlineMixin.beam_search takes params
    -> SERVING gate:beam_search: refuses beam searches with a constraint
vllm.entrypoints.generate.beam_search.offline (endpoint)
  BeamSearchOfflineMixin.beam_search takes params
    -> SERVING gate:beam_search: the same
vllm.entrypoints.openai.chat_completion.protocol (endpoint)
  ChatCompletionRequest.to_beam_search_params begins self
    -> SERVING gate:to_beam_search_params: vLLM drops the constraint there: a note keeps it
  ChatCompletionRequest has vllm_xargs extract_structured_outputs
vllm.entrypoints.openai.completion.protocol (endpoint)
  CompletionRequest.to_beam_search_params begins self
    -> SERVING gate:to_beam_search_params: vLLM drops the constraint there: a note keeps it
  CompletionRequest has vllm_xargs extract_structured_outputs
vllm.entrypoints.speech_to_text.transcription.protocol (endpoint)
  TranscriptionRequest.to_beam_search_params begins self
    -> SERVING gate:to_beam_search_params: vLLM drops the constraint there: a note keeps it
vllm.entrypoints.speech_to_text.translation.protocol (endpoint)
  TranslationRequest.to_beam_search_params begins self
    -> SERVING gate:to_beam_search_params: vLLM drops the constraint there: a note keeps it
[REASONING]
vllm.reasoning
  ReasoningParser has reasoning_end_str
  ReasoningParser.is_reasoning_end begins self input_ids
  ReasoningParser.is_reasoning_end_streaming begins self input_ids delta_ids
  ReasoningParserManager.get_reasoning_parser begins cls name
[SCHEDULER]
vllm.v1.core.sched.scheduler
  Scheduler has requests grammar_compile_error_reqs
  Scheduler.add_request begins self request
    -> START failures:add_request: a guided request's params get its id, by which its failure is reported
  Scheduler.update_from_output begins self scheduler_output model_runner_output
    -> START failures:update_from_output: ends failed requests as errors
vllm.v1.request
  Request has request_id sampling_params is_finished status structured_output_request
  RequestStatus has WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
vllm.v1.engine
  FinishReason has ERROR STOP
  EngineCoreOutput has request_id finish_reason stop_reason
  EngineCoreOutputs has outputs
vllm.v1.engine.core
  EngineCore has vllm_config model_executor
  EngineCore.preprocess_add_request begins self request
    -> START hold:preprocess_add_request: refuses a request with a constraint that bypassed the \
       admission; holds others until their grammar is there
  EngineCore.add_request begins self request
    -> START hold:add_request: asks workers of other processes for the grammar
vllm.v1.executor.abstract
  Executor.collective_rpc begins self method takes args non_block
[WORKER]
vllm.v1.worker.worker_base
  WorkerBase has vllm_config
vllm.v1.worker.gpu_worker
  Worker.sample_tokens begins self
    -> ENGINE engine:sample_tokens: attaches the failures of a step to its output
  Worker.execute_model begins self scheduler_output
    -> ENGINE engine:execute_model: tells which grammars are there also where nothing is sampled
vllm.v1.outputs
  ModelRunnerOutput has req_id_to_index sampled_token_ids
  AsyncModelRunnerOutput.get_output begins self
    -> OUTPUT failures:get_output: the same, once the tokens are on the host
[V1]
vllm.v1.sample.logits_processor
  LogitsProcessor has is_argmax_invariant
  LogitsProcessor.__init__ begins self vllm_config device
  LogitsProcessor.apply begins self logits
  LogitsProcessor.update_state begins self batch_update
  BatchUpdate has removed added moved
  MoveDirectionality has SWAP UNIDIRECTIONAL
  LogitsProcessors has non_argmax_invariant
vllm.v1.sample.metadata
  SamplingMetadata has logitsprocs max_num_logprobs
vllm.v1.outputs
  SamplerOutput has sampled_token_ids
vllm.v1.sample.sampler
  Sampler.forward begins self logits sampling_metadata
    -> V1 v1:forward: the sampled tokens, on the device; raw logprobs of masked logits
[V2]
vllm.v1.worker.gpu.sample.logits_processor
  LogitsProcessor.__init__ begins self vllm_config req_states
  LogitsProcessor.add_request begins self req_idx sampling_params
  LogitsProcessor.apply_staged_writes begins self
  LogitsProcessor.apply begins self logits ctx
  LogitsProcRequestState has device max_num_reqs vocab_size all_token_ids prompt_len prefill_len \
    total_len
  LogitsContext has expanded_idx_mapping idx_mapping_np
vllm.v1.worker.gpu.buffer_utils
  StagedWriteTensor has gpu
  UvaBackedTensor has np
[DRAFTS]
vllm.v1.worker.gpu.sample.logits_processor
  LogitsContext has expanded_local_pos input_ids
[JUMP]
vllm.engine.arg_utils
  EngineArgs has speculative_config additional_config
  EngineArgs.create_engine_config begins self
    -> START jump:create_engine_config: with `jump_forward`, a speculative config where there is none
vllm.config
  SpeculativeConfig has num_speculative_tokens_per_batch_size
vllm.v1.worker.gpu.spec_decode
  init_speculator begins vllm_config device req_states
    -> START jump:init_speculator: drafts go to the grammars when they are proposed, not in the sampler
vllm.v1.worker.gpu.input_batch
  InputBatch has idx_mapping idx_mapping_np num_reqs expanded_idx_mapping expanded_local_pos
vllm.v1.worker.gpu.spec_decode.rejection_sampler
  RejectionSampler.__call__ begins self logits input_batch draft_logits invalid_drafts
    -> V2 logits:reject_cut: drafts that the worker cut are not taken
  RejectionSampler has sampler
vllm.v1.worker.gpu.states
  RequestState has device max_num_reqs num_computed_tokens_np prefill_len req_id_to_index
vllm.v1.core.sched.scheduler
  Scheduler has vllm_config dynamic_sd_lookup
vllm.v1.worker.gpu.spec_decode.adaptive_verification
  AdaptiveVerificationManager.add_request begins self req_idx
  AdaptiveVerificationManager.record_confidences begins self confidence_probs input_batch
  AdaptiveVerificationManager.get_num_tokens begins self num_tokens_per_req draft_tokens
  AdaptiveVerificationManager.reallocate_drafts begins self req_ids idx_mapping
  AdaptiveVerificationManager has num_bonus_tokens query_start_loc cost_tables req_states _batch_budget \
    _confidence_probs _copy_events _cu_num_logits _max_total_logits _stale_confidences _stale_idx
  maybe_create_adaptive_verification_manager takes req_states vllm_config
    -> START jump:maybe_create_adaptive_verification_manager: one kernel places the drafts of a step
[ANSWERS]
vllm.entrypoints.generate.base.serving (endpoint)
  GenerateBaseServing._with_kv_transfer_rejection_cleanup begins self awaitable request raw_request
    -> SERVING gate:cleanup: a refused chat, completion or response gets its status before a stream \
       begins
vllm.entrypoints.scale_out.token_in_token_out.serving (endpoint)
  ServingTokens.serve_tokens begins self request
    -> SERVING gate:serve_tokens: the same for tokens in, tokens out
vllm.entrypoints.openai.chat_completion.protocol (endpoint)
  ChatCompletionRequest.to_sampling_params begins self
    -> SERVING gate:to_sampling_params: the token limit of a stream, by its prompt, is known before it begins
vllm.entrypoints.openai.completion.protocol (endpoint)
  CompletionRequest.to_sampling_params begins self
    -> SERVING gate:to_sampling_params: the same
vllm.entrypoints.openai.responses.protocol (endpoint)
  ResponsesRequest.to_sampling_params begins self
    -> SERVING gate:to_sampling_params: the same
vllm.v1.engine.output_processor
  OutputProcessor.process_outputs begins self engine_core_outputs
    -> SERVING gate:process_outputs: counts requests that fail while they run, after which the engine's \
       health is asked for again; before 0.33 raises their reasons
  OutputProcessor has request_states
  RequestOutputCollector.put begins self output
vllm.v1.metrics.loggers
  AggregateStatLoggerBase.__init__ takes vllm_config
[RETRY]
vllm.entrypoints.launchers.app (endpoint)
  init_entrypoints_middleware begins args app
    -> LOADED gate:init_entrypoints_middleware: a middleware writes the plugin's headers
[TOGETHER]
vllm.entrypoints.llm (endpoint)
  LLM._render_and_add_requests begins self prompts params
    -> LOADED gate:render_and_add_requests: the specs of the next prompts compile while the first are \
       added
[READY]
vllm.v1.engine.llm_engine
  LLMEngine.__init__ begins self
    -> START gate:wait_ready: waits at its end until guided requests can run, a minute at most
vllm.v1.engine.async_llm
  AsyncLLM.__init__ begins self
    -> START gate:wait_ready: the same
vllm.v1.worker.gpu_worker
  Worker.compile_or_warm_up_model begins self
    -> WORKERS questions:wait_ready: waits at its end for the grammar worker, a minute at most
[HOOKS]
vllm.v1.worker.gpu.model_runner
  GPUModelRunner has sampler
  GPUModelRunner.sample begins self hidden_states input_batch
    -> SAMPLE logits:sample: calls `post_sampling`
vllm.v1.worker.gpu.input_batch
  InputBatch has idx_mapping_np
vllm.v1.worker.gpu.sample.sampler
  Sampler has logits_processors
vllm.v1.worker.gpu.sample.output
  SamplerOutput has sampled_token_ids
[SAMPLER]
vllm.v1.worker.gpu.sample.sampler
  Sampler.apply_sampling_params begins self logits expanded_idx_mapping idx_mapping idx_mapping_np pos \
    input_ids expanded_local_pos
    -> V2 logits:apply_sampling_params: masks on vLLM's own logits: no copy for them, and raw logprobs of \
       masked logits
  Sampler has logits_processors
[TOOLS]
vllm.parser.parser_manager
  ParserManager.get_parser takes tool_strict_level
    -> TOOLS gate:get_parser: every tool is held to its schema
vllm.tool_parsers.structural_tag_registry
  resolve_tool_strictness
    -> TOOLS gate:resolve_tool_strictness: a tool without `parameters` takes an empty object, where \
       vLLM takes any JSON
[RANKS]
vllm.distributed.parallel_state
  get_tp_group
  GroupCoordinator has cpu_group
vllm.config
  ParallelConfig has distributed_executor_backend prefill_context_parallel_size
  VllmConfig has device_config
[STAGES]
vllm.distributed.parallel_state
  get_pp_group
  GroupCoordinator has is_last_rank
vllm.config
  ParallelConfig has distributed_executor_backend prefill_context_parallel_size
[ENGINES]
vllm.v1.engine.core_client
  AsyncMPClient has core_engines
  AsyncMPClient._call_utility_async takes engine
vllm.v1.engine.core
  EngineCore.collective_rpc begins self method timeout args kwargs
"""


def _parsed(table: str) -> tuple[Name, ...]:
    found: list[Name] = []
    part = Part.FRONTEND
    module = ""
    endpoint = False
    for line in table.splitlines():
        if line.startswith("["):
            part = Part[line.strip("[]")]
        elif not line.startswith(" "):
            module, _, endpoint = *line.partition(" ")[:2], line.endswith("(endpoint)")
        elif (wrapped := _WRAPPED.fullmatch(line)) is not None:
            when, by, why = wrapped.groups()
            found[-1] = replace(
                found[-1], by=by, when=When[when], why=" ".join(why.split())
            )
        else:
            name, *words = line.split()
            listed: dict[str, list[str]] = {"begins": [], "takes": [], "has": []}
            for word in words:
                if word in listed:
                    kind = word
                else:
                    listed[kind].append(word)
            begins, takes, has = map(tuple, listed.values())
            found.append(Name(f"{module}:{name}", part, begins, takes, has, endpoint))
    return tuple(found)


_WRAPPED = re.compile(r" +-> (\w+) (\w+:\w+): (.*)")

NAMES = _parsed(_TABLE)

CONSTRAINT_FORM = next(
    name.has for name in NAMES if name.path.endswith(":StructuredOutputsParams")
)
"""What `StructuredOutputsParams` asks for: constraints, and options of them."""

CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")

REQUEST_LIMITS = ("min_tokens", "bad_words", "allowed_token_ids", "logit_bias")
"""Options of a request by which vLLM forbids tokens."""
