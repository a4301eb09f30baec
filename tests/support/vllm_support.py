"""What tests with vLLM share: configurations and requests without an engine, and looks
into a real one."""

import itertools
from types import SimpleNamespace

import numpy as np
import torch
from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.worker.gpu.sample.logits_processor import (
    LogitsContext,
    LogitsProcRequestState,
)

import guided_plugin as gp
from guided_plugin.hosts.vllm.common import EngineSpec
from guided_plugin.spec import packed
from guided_plugin.vllm import GuidedLogitsProcessor

SMALL = {"isolate_compiles": False, "threads": 1}
TAKES_OVER = {**SMALL, "take_over": True}
PATIENT = {
    "worker_step_ms": 60_000,
    "worker_grammar_ms": 60_000,
    "compile_seconds": 120,
}
"""On a busy machine nothing may be lost to a time limit."""

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "maximum": 120},
    },
    "required": ["name", "age"],
}

END = 256
WIDTH = 264
"""Logits of a row: some more than the vocabulary has tokens, as padded models have."""
VOCABULARY = gp.Vocabulary.from_tokens(
    [*(bytes([byte]) for byte in range(256)), b"</s>"], [END]
)


class ParserTokenizer:
    """As far as parsers look at one."""

    def get_vocab(self):
        return {"<tool_call>": 1, "</tool_call>": 2}

    def encode(self, text, **options):
        return [1]


def parallel(**changes):
    """vLLM's configuration of an engine's ranks."""
    return SimpleNamespace(
        **{
            "tensor_parallel_size": 1,
            "pipeline_parallel_size": 1,
            "distributed_executor_backend": "mp",
            **changes,
        }
    )


def config(options=None, *, reasoning="", **parts):
    """vLLM's configuration of an engine, as far as the plugin reads it."""
    return SimpleNamespace(
        **{
            "additional_config": {} if options is None else {"guided_plugin": options},
            "scheduler_config": SimpleNamespace(
                max_num_seqs=8, get_scheduler_cls=lambda: Scheduler
            ),
            "parallel_config": parallel(),
            "device_config": SimpleNamespace(device_type="cpu"),
            "speculative_config": None,
            "model_config": SimpleNamespace(
                dtype=None,
                skip_tokenizer_init=False,
                get_vocab_size=lambda: WIDTH,
                max_model_len=200,
            ),
            "structured_outputs_config": SimpleNamespace(
                enable_in_reasoning=False, reasoning_parser=reasoning
            ),
            **parts,
        }
    )


def engine_request(params, prompt, embeds=None):
    """What a frontend makes of a request, as far as the gate looks at it."""
    return SimpleNamespace(
        request_id="one",
        sampling_params=params,
        prompt_token_ids=prompt,
        prompt_embeds=embeds,
        cache_salt=None,
    )


def runner_config(mode="inline", **options):
    """The same for tests that play a model runner."""
    patient = {"worker_step_ms": 20_000, "worker_grammar_ms": 60_000}
    return config(
        {"mode": mode, "threads": 2, "isolate_compiles": False, **patient, **options}
    )


_numbers = itertools.count()


def told(spec, name=""):
    """The extra arguments by which an engine is told of a spec."""
    return {"guided": EngineSpec(*packed(spec), request_id=name)}


def runner_params(spec, name=None, **options):
    """The params of a request as a model runner gets them; `name` is the id that the
    scheduler gives it."""
    name = name or f"request {next(_numbers)}"
    extra = None if spec is None else told(spec, name)
    params = SamplingParams(extra_args=extra, **options)
    params._all_stop_token_ids = {END}
    return params


def v2_states(tokens, prompt_len, prefill_len, total_len):
    """The tables of vLLM's V2 runner, for 8 requests."""
    return LogitsProcRequestState(
        device=tokens.device,
        max_num_reqs=8,
        vocab_size=WIDTH,
        all_token_ids=SimpleNamespace(gpu=tokens),
        prompt_len=SimpleNamespace(np=prompt_len),
        prefill_len=SimpleNamespace(np=prefill_len),
        total_len=SimpleNamespace(gpu=total_len),
    )


def v2_context(indices, rows=(), fed=None):
    """What a V2 runner shows of a batch. `rows`: an index and a position each, where
    requests have drafts, which are `fed`."""
    rows = rows or [(index, 0) for index in indices]
    return LogitsContext(
        expanded_idx_mapping=torch.tensor([one for one, _ in rows], dtype=torch.int32),
        idx_mapping=torch.tensor(indices, dtype=torch.int32),
        idx_mapping_np=np.array(indices, np.int32),
        expanded_local_pos=torch.tensor([one for _, one in rows], dtype=torch.int32),
        input_ids=None if fed is None else torch.tensor(fed, dtype=torch.int32),
        pos=None,
        seq_lens_upper_bound_np=None,
    )


def processors(llm):
    worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
    found = worker.model_runner.input_batch.logitsprocs.non_argmax_invariant
    return [one for one in found if isinstance(one, GuidedLogitsProcessor)]


def runner(llm):
    return next(one.runner for one in processors(llm) if one.runner is not None)


def stepped(engine, meanwhile=lambda step: None):
    """For each request: the step of its first token, and its completion."""
    first = {}
    done = {}
    for step in range(10_000):
        if not engine.has_unfinished_requests():
            return first, done
        for output in engine.step():
            if output.outputs[0].token_ids:
                first.setdefault(output.request_id, step)
            if output.finished:
                done[output.request_id] = output.outputs[0]
        meanwhile(step)
    raise AssertionError("it does not end")


def params_of(form, *, theirs=False, **options):
    options = {"temperature": 1.0, "max_tokens": 70, **options}
    if theirs:
        return SamplingParams(
            structured_outputs=StructuredOutputsParams(**form), **options
        )
    return SamplingParams(
        extra_args=None if form is None else {"guided": form}, **options
    )
