"""Every name of vLLM that this package relies on or wraps: one table, `NAMES`.

`patches` looks at the names and wraps them; `guided-plugin doctor` and
docs/vllm-versions.md read them too. Under another vLLM, `guided-plugin doctor` lists
the entries that do not hold there. Imports nothing of vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class Part(Enum):
    """The part that relies on a name. A broken part stops what its text says, and
    nothing else."""

    FRONTEND = "every guided request"
    SCHEDULER = "every guided request, by its engine"
    WORKER = "every guided request, by its worker"
    V1 = "guided requests of the V1 model runner"
    V2 = "guided requests of the V2 model runner"
    JUMP = "the option jump_forward, and masks before the sampler under speculative decoding"
    SERVER = (
        "statuses of refused streams, reasons of failed requests, headers, metrics of engines, "
        "the option tools_strict, and compiling the specs of one `LLM` at the same time"
    )
    HOOKS = "the step hooks of plugins on the V2 model runner"


class When(Enum):
    """When a name is wrapped, and in which processes."""

    START = "vLLM loads its general plugins: every process"
    SERVING = "an input processor is made: frontends"
    TOOLS = "the same, with `tools_strict`"
    ENGINE = "the logits processor is made: workers"
    V1 = "the logits processor is made by a V1 runner that can guide"
    V2 = "the logits processor is made by a V2 runner that can guide"
    SAMPLE = "the same, if a plugin implements a step hook"


@dataclass(frozen=True, slots=True)
class Name:
    """One name of vLLM's that is relied on."""

    path: str
    """`module:Class.method`."""
    begins: tuple[str, ...] = ()
    """Parameters that stand first, behind `self`, in this order: they are passed, or
    read, by their place."""
    takes: tuple[str, ...] = ()
    """Parameters that are there, at any place: they are passed, or read, by their
    name."""
    has: tuple[str, ...] = ()
    """Attributes of the class, or of what is made of it."""
    wrapper: str = ""
    """The function called in its place, with the same arguments and `original`:
    `file:function` in this folder; empty where none is."""
    when: When = When.START
    why: str = ""
    """The reason why it is wrapped."""


CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")

CONSTRAINT_FORM = (
    *CONSTRAINTS,
    "disable_any_whitespace",
    "disable_additional_properties",
    "whitespace_pattern",
)
"""The fields read of `StructuredOutputsParams`: constraints, and options of them."""

REQUEST_LIMITS = ("min_tokens", "bad_words", "allowed_token_ids", "logit_bias")
"""Options of a request by which vLLM forbids tokens."""

NAMES: Mapping[Part, tuple[Name, ...]] = {
    Part.FRONTEND: (
        Name("vllm.v1.engine.input_processor:InputProcessor", has=("vllm_config",)),
        Name(
            "vllm.v1.engine.input_processor:InputProcessor.__init__",
            wrapper="gate:made",
            why=(
                "a frontend reads the vocabulary before the first request, and wraps "
                "what only frontends have"
            ),
        ),
        Name(
            "vllm.v1.engine.input_processor:InputProcessor.process_inputs",
            takes=("params",),
            wrapper="gate:process_inputs",
            why=(
                "admission: the spec is compiled, and written into the engine's own "
                "params"
            ),
        ),
        Name(
            "vllm.v1.engine.llm_engine:LLMEngine",
            has=("input_processor", "collective_rpc"),
        ),
        Name(
            "vllm.v1.engine.llm_engine:LLMEngine.add_request",
            takes=("prompt", "params"),
            wrapper="gate:add_request",
            why="admission; asks whether the engine can guide",
        ),
        Name(
            "vllm.v1.engine.async_llm:AsyncLLM",
            has=("input_processor", "collective_rpc"),
        ),
        Name(
            "vllm.v1.engine.async_llm:AsyncLLM.add_request",
            takes=("prompt", "params", "reasoning_ended", "reasoning_parser_kwargs"),
            wrapper="gate:add_request_async",
            why="the same, without blocking the event loop",
        ),
        Name(
            "vllm.v1.engine:EngineCoreRequest",
            has=(
                "request_id",
                "sampling_params",
                "prompt_token_ids",
                "prompt_embeds",
                "cache_salt",
            ),
        ),
        Name("vllm.exceptions:VLLMValidationError"),
        Name("vllm.exceptions:GracefulHTTPError"),
        Name(
            "vllm.sampling_params:SamplingParams",
            has=(
                "extra_args",
                "structured_outputs",
                "all_stop_token_ids",
                "stop_token_ids",
                *REQUEST_LIMITS,
                "repetition_penalty",
                "max_tokens",
            ),
        ),
        Name("vllm.sampling_params:StructuredOutputsParams", has=CONSTRAINT_FORM),
        Name(
            "vllm.config:VllmConfig",
            has=(
                "additional_config",
                "use_v2_model_runner",
                "device_config",
                "model_config",
                "parallel_config",
                "scheduler_config",
                "speculative_config",
                "structured_outputs_config",
            ),
        ),
        Name(
            "vllm.config:ModelConfig",
            has=(
                "skip_tokenizer_init",
                "dtype",
                "try_get_generation_config",
                "get_vocab_size",
                "max_model_len",
            ),
        ),
        Name(
            "vllm.config:ParallelConfig",
            has=(
                "tensor_parallel_size",
                "pipeline_parallel_size",
                "distributed_executor_backend",
            ),
        ),
        Name("vllm.config:SchedulerConfig", has=("get_scheduler_cls", "max_num_seqs")),
        Name(
            "vllm.config:SpeculativeConfig",
            has=("num_speculative_tokens", "rejection_sample_method"),
        ),
        Name(
            "vllm.config:StructuredOutputsConfig",
            has=("enable_in_reasoning", "reasoning_parser"),
        ),
        Name("vllm.tokenizers:cached_tokenizer_from_config", takes=("model_config",)),
        Name(
            "vllm.entrypoints.generate.beam_search.offline:BeamSearchOfflineMixin.beam_search",
            takes=("params",),
            wrapper="gate:beam_search",
            when=When.SERVING,
            why="refuses beam searches with a constraint",
        ),
        Name(
            "vllm.entrypoints.generate.base.serving:GenerateBaseServing._with_kv_transfer_rejection_cleanup",
            begins=("awaitable", "request", "raw_request"),
            wrapper="gate:cleanup",
            when=When.SERVING,
            why=(
                "a refused chat, completion or response gets its status before a "
                "stream begins; beam searches with a constraint are refused"
            ),
        ),
        Name(
            "vllm.entrypoints.openai.chat_completion.protocol:ChatCompletionRequest",
            has=("vllm_xargs", "extract_structured_outputs"),
        ),
        Name(
            "vllm.entrypoints.openai.completion.protocol:CompletionRequest",
            has=("vllm_xargs", "extract_structured_outputs"),
        ),
        Name(
            "vllm.reasoning:ReasoningParser",
            has=("reasoning_end_str", "is_reasoning_end", "is_reasoning_end_streaming"),
        ),
        Name(
            "vllm.reasoning:ReasoningParserManager.get_reasoning_parser",
            begins=("name",),
        ),
        Name("vllm.v1.engine.core_client:AsyncMPClient", has=("core_engines",)),
        Name(
            "vllm.v1.engine.core_client:AsyncMPClient._call_utility_async",
            takes=("engine",),
        ),
        Name(
            "vllm.v1.engine.core:EngineCore.collective_rpc",
            begins=("method", "timeout", "args", "kwargs"),
        ),
    ),
    Part.SCHEDULER: (
        Name(
            "vllm.v1.core.sched.scheduler:Scheduler",
            has=(
                "requests",
                "grammar_compile_error_reqs",
                "running",
                "current_step",
            ),
        ),
        Name(
            "vllm.v1.core.sched.scheduler:Scheduler.add_request",
            begins=("request",),
            wrapper="failures:add_request",
            why=(
                "a guided request's params get its id, by which its failure is reported"
            ),
        ),
        Name(
            "vllm.v1.core.sched.scheduler:Scheduler.schedule",
            wrapper="hold:schedule",
            why=(
                "leaves requests out whose masks take too long; the step brings new specs "
                "to workers of other processes"
            ),
        ),
        Name(
            "vllm.v1.core.sched.scheduler:Scheduler.update_from_output",
            begins=("scheduler_output", "model_runner_output"),
            wrapper="failures:update_from_output",
            why="ends failed requests as errors",
        ),
        Name(
            "vllm.v1.request:Request",
            has=(
                "request_id",
                "sampling_params",
                "is_finished",
                "status",
                "structured_output_request",
                "next_decode_eligible_step",
                "num_output_placeholders",
            ),
        ),
        Name(
            "vllm.v1.request:RequestStatus",
            has=("WAITING", "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR"),
        ),
        Name("vllm.v1.engine:FinishReason", has=("ERROR", "STOP")),
        Name(
            "vllm.v1.engine:EngineCoreOutput",
            has=("request_id", "finish_reason", "stop_reason"),
        ),
        Name("vllm.v1.engine:EngineCoreOutputs", has=("outputs",)),
        Name("vllm.v1.engine.core:EngineCore", has=("vllm_config",)),
        Name(
            "vllm.v1.engine.core:EngineCore.__init__",
            wrapper="health:wait_ready",
            why="waits at its end for the grammar worker, a minute at most",
        ),
        Name(
            "vllm.v1.engine.core:EngineCore.preprocess_add_request",
            begins=("request",),
            wrapper="hold:preprocess_add_request",
            why=(
                "refuses a request with a constraint that bypassed the admission; "
                "holds others until their grammar is there"
            ),
        ),
    ),
    Part.WORKER: (
        Name("vllm.v1.worker.worker_base:WorkerBase", has=("vllm_config",)),
        Name(
            "vllm.v1.worker.gpu_worker:Worker.sample_tokens",
            wrapper="engine:sample_tokens",
            when=When.ENGINE,
            why="attaches the failures of a step to its output",
        ),
        Name(
            "vllm.v1.worker.gpu_worker:Worker.execute_model",
            begins=("scheduler_output",),
            wrapper="engine:execute_model",
            when=When.ENGINE,
            why=(
                "gets the specs ready that a step brings, and tells which are there also "
                "where nothing is sampled; sees which requests are in the step"
            ),
        ),
        Name(
            "vllm.v1.core.sched.output:SchedulerOutput",
            has=("num_scheduled_tokens", "finished_req_ids", "preempted_req_ids"),
        ),
        Name(
            "vllm.v1.outputs:ModelRunnerOutput",
            has=("req_id_to_index", "sampled_token_ids"),
        ),
        Name(
            "vllm.v1.outputs:AsyncModelRunnerOutput.get_output",
        ),
        Name("vllm.distributed.parallel_state:get_tp_group"),
        Name("vllm.distributed.parallel_state:get_pp_group"),
        Name(
            "vllm.distributed.parallel_state:GroupCoordinator",
            has=("cpu_group", "is_last_rank"),
        ),
    ),
    Part.V1: (
        Name(
            "vllm.v1.sample.logits_processor:LogitsProcessor",
            has=("is_argmax_invariant",),
        ),
        Name(
            "vllm.v1.sample.logits_processor:LogitsProcessor.__init__",
            begins=("vllm_config", "device"),
        ),
        Name(
            "vllm.v1.sample.logits_processor:LogitsProcessor.apply",
            begins=("logits",),
        ),
        Name(
            "vllm.v1.sample.logits_processor:LogitsProcessor.update_state",
            begins=("batch_update",),
        ),
        Name(
            "vllm.v1.sample.logits_processor:process_dict_updates",
            begins=("req_entries", "batch_update", "new_state"),
        ),
        Name(
            "vllm.v1.sample.logits_processor:LogitsProcessors",
            has=("non_argmax_invariant",),
        ),
        Name(
            "vllm.v1.sample.metadata:SamplingMetadata",
            has=("logitsprocs",),
        ),
        Name("vllm.v1.outputs:SamplerOutput", has=("sampled_token_ids",)),
        Name(
            "vllm.v1.sample.sampler:Sampler.forward",
            begins=("logits", "sampling_metadata"),
            wrapper="v1:forward",
            when=When.V1,
            why="masks before raw logprobs are taken; the sampled tokens, on the device",
        ),
    ),
    Part.V2: (
        Name(
            "vllm.v1.worker.gpu.sample.logits_processor:LogitsProcessor.__init__",
            begins=("vllm_config", "req_states"),
        ),
        Name(
            "vllm.v1.worker.gpu.sample.logits_processor:LogitsProcessor.add_request",
            begins=("req_idx", "sampling_params"),
        ),
        Name(
            "vllm.v1.worker.gpu.sample.logits_processor:LogitsProcessor.apply_staged_writes",
        ),
        Name(
            "vllm.v1.worker.gpu.sample.logits_processor:LogitsProcessor.apply",
            begins=("logits", "ctx"),
        ),
        Name(
            "vllm.v1.worker.gpu.sample.logits_processor:LogitsProcRequestState",
            has=(
                "device",
                "max_num_reqs",
                "vocab_size",
                "all_token_ids",
                "prompt_len",
                "prefill_len",
                "total_len",
            ),
        ),
        Name(
            "vllm.v1.worker.gpu.sample.logits_processor:LogitsContext",
            has=(
                "expanded_idx_mapping",
                "expanded_local_pos",
                "idx_mapping_np",
                "input_ids",
            ),
        ),
        Name(
            "vllm.v1.worker.gpu.sample.sampler:Sampler.apply_sampling_params",
            begins=("logits",),
            takes=(
                "expanded_idx_mapping",
                "idx_mapping_np",
                "input_ids",
                "expanded_local_pos",
            ),
            wrapper="logits:apply_sampling_params",
            when=When.V2,
            why=(
                "masks on vLLM's own logits: no copy for them, and raw logprobs of "
                "masked logits"
            ),
        ),
        Name("vllm.v1.worker.gpu.sample.sampler:Sampler", has=("logits_processors",)),
        Name("vllm.v1.worker.gpu.buffer_utils:StagedWriteTensor", has=("gpu",)),
        Name("vllm.v1.worker.gpu.buffer_utils:UvaBackedTensor", has=("np",)),
    ),
    Part.JUMP: (
        Name(
            "vllm.engine.arg_utils:EngineArgs",
            has=("speculative_config", "additional_config"),
        ),
        Name(
            "vllm.engine.arg_utils:EngineArgs.create_engine_config",
            wrapper="jump:create_engine_config",
            why="with `jump_forward`, a speculative config where there is none",
        ),
        Name(
            "vllm.config:SpeculativeConfig",
            has=("num_speculative_tokens_per_batch_size",),
        ),
        Name(
            "vllm.v1.worker.gpu.spec_decode:init_speculator",
            begins=("vllm_config", "device", "req_states"),
            wrapper="jump:init_speculator",
            why="drafts go to the grammars when they are proposed, not in the sampler",
        ),
        Name(
            "vllm.v1.worker.gpu.input_batch:InputBatch",
            has=(
                "idx_mapping",
                "idx_mapping_np",
                "num_reqs",
                "expanded_idx_mapping",
                "expanded_local_pos",
            ),
        ),
        Name(
            "vllm.v1.worker.gpu.spec_decode.rejection_sampler:RejectionSampler.__call__",
            begins=("logits", "input_batch", "draft_logits", "invalid_drafts"),
            wrapper="logits:reject_cut",
            when=When.V2,
            why="drafts that the worker cut are not taken",
        ),
        Name(
            "vllm.v1.worker.gpu.spec_decode.rejection_sampler:RejectionSampler",
            has=("sampler",),
        ),
        Name(
            "vllm.v1.worker.gpu.states:RequestState",
            has=(
                "all_token_ids",
                "device",
                "max_num_reqs",
                "num_computed_tokens_np",
                "prefill_len",
                "req_id_to_index",
            ),
        ),
        Name(
            "vllm.v1.core.sched.scheduler:Scheduler",
            has=("vllm_config", "dynamic_sd_lookup"),
        ),
        Name(
            "vllm.v1.worker.gpu.spec_decode.adaptive_verification:AdaptiveVerificationManager.add_request",
            begins=("req_idx",),
        ),
        Name(
            "vllm.v1.worker.gpu.spec_decode.adaptive_verification:AdaptiveVerificationManager.record_confidences",
            begins=("confidence_probs", "input_batch"),
        ),
        Name(
            "vllm.v1.worker.gpu.spec_decode.adaptive_verification:AdaptiveVerificationManager.get_num_tokens",
            begins=("num_tokens_per_req", "draft_tokens"),
        ),
        Name(
            "vllm.v1.worker.gpu.spec_decode.adaptive_verification:AdaptiveVerificationManager.reallocate_drafts",
            begins=("req_ids", "idx_mapping"),
        ),
        Name(
            "vllm.v1.worker.gpu.spec_decode.adaptive_verification:AdaptiveVerificationManager",
            has=(
                "num_bonus_tokens",
                "query_start_loc",
                "cost_tables",
                "req_states",
                "_batch_budget",
                "_confidence_probs",
                "_copy_events",
                "_cu_num_logits",
                "_max_total_logits",
                "_stale_confidences",
                "_stale_idx",
            ),
        ),
        Name(
            "vllm.v1.worker.gpu.spec_decode.adaptive_verification:maybe_create_adaptive_verification_manager",
            takes=("req_states", "vllm_config"),
            wrapper="jump:maybe_create_adaptive_verification_manager",
            why="one kernel places the drafts of a step",
        ),
    ),
    Part.SERVER: (
        *(
            Name(
                f"vllm.entrypoints.speech_to_text.{path}.to_beam_search_params",
                wrapper="gate:to_beam_search_params",
                when=When.SERVING,
                why="refuses beam searches of speech with a spec",
            )
            for path in (
                "transcription.protocol:TranscriptionRequest",
                "translation.protocol:TranslationRequest",
            )
        ),
        Name(
            "vllm.entrypoints.scale_out.token_in_token_out.serving:ServingTokens.serve_tokens",
            begins=("request",),
            wrapper="gate:serve_tokens",
            when=When.SERVING,
            why="the same for tokens in, tokens out",
        ),
        Name(
            "vllm.v1.engine.async_llm:AsyncLLM.generate",
            takes=(
                "prompt",
                "sampling_params",
                "request_id",
                "reasoning_ended",
                "reasoning_parser_kwargs",
            ),
            wrapper="gate:generate",
            when=When.SERVING,
            why=(
                "the token limit of a stream, its prompt and what ends its reasoning "
                "are known before it begins"
            ),
        ),
        Name(
            "vllm.entrypoints.openai.responses.serving:OpenAIServingResponses._generate_with_builtin_tools",
            takes=(
                "engine_input",
                "sampling_params",
                "request_id",
                "reasoning_parser_kwargs",
            ),
            wrapper="gate:generate",
            when=When.SERVING,
            why="the same of responses, which call it once they are read",
        ),
        Name(
            "vllm.v1.engine.output_processor:OutputProcessor.process_outputs",
            begins=("engine_core_outputs",),
            wrapper="gate:process_outputs",
            when=When.SERVING,
            why=(
                "counts requests that fail while they run, after which the engine's "
                "health is asked for again; before 0.33 raises their reasons"
            ),
        ),
        Name(
            "vllm.v1.engine.output_processor:OutputProcessor", has=("request_states",)
        ),
        Name(
            "vllm.v1.engine.output_processor:RequestOutputCollector.put",
            begins=("output",),
        ),
        Name(
            "vllm.entrypoints.launchers.app:init_entrypoints_middleware",
            begins=("args", "app"),
            wrapper="gate:init_entrypoints_middleware",
            when=When.SERVING,
            why="a middleware writes the plugin's headers, and asks engines for what `/metrics` says",
        ),
        Name(
            "vllm.entrypoints.llm:LLM._render_and_add_requests",
            begins=("prompts", "params"),
            wrapper="gate:render_and_add_requests",
            when=When.SERVING,
            why="the specs of the next prompts compile while the first are added",
        ),
        Name(
            "vllm.parser.parser_manager:ParserManager.get_parser",
            takes=("tool_strict_level",),
            wrapper="gate:get_parser",
            when=When.TOOLS,
            why="every tool is held to its schema",
        ),
        Name(
            "vllm.tool_parsers.structural_tag_registry:resolve_tool_strictness",
            wrapper="gate:resolve_tool_strictness",
            when=When.TOOLS,
            why=(
                "a tool without `parameters` takes an empty object, where vLLM takes "
                "any JSON"
            ),
        ),
    ),
    Part.HOOKS: (
        Name("vllm.v1.worker.gpu.model_runner:GPUModelRunner", has=("sampler",)),
        Name(
            "vllm.v1.worker.gpu.model_runner:GPUModelRunner.sample",
            begins=("hidden_states", "input_batch"),
            wrapper="logits:sample",
            when=When.SAMPLE,
            why="calls `post_sampling`",
        ),
        Name("vllm.v1.worker.gpu.input_batch:InputBatch", has=("idx_mapping_np",)),
        Name(
            "vllm.v1.worker.gpu.sample.output:SamplerOutput", has=("sampled_token_ids",)
        ),
    ),
}
"""By what relies on them, in the order of docs/vllm-versions.md."""

ALL_NAMES = tuple(name for names in NAMES.values() for name in names)
