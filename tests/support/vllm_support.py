"""What several tests with vLLM share: a configuration without an engine, and requests to an engine."""

from types import SimpleNamespace

from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams

from guided_plugin.vllm import GuidedLogitsProcessor

__all__ = ["SMALL", "TAKES_OVER", "config", "params_of", "processors", "runner"]

SMALL = {"isolate_compiles": False, "threads": 1}
TAKES_OVER = {**SMALL, "take_over": True}


def config(options=None, *, reasoning="", **parts):
    return SimpleNamespace(
        **{
            "additional_config": {} if options is None else {"guided_plugin": options},
            "parallel_config": SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1),
            "speculative_config": None,
            "model_config": SimpleNamespace(skip_tokenizer_init=False),
            "structured_outputs_config": SimpleNamespace(
                enable_in_reasoning=False, reasoning_parser=reasoning
            ),
            **parts,
        }
    )


def processors(llm):
    worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
    found = worker.model_runner.input_batch.logitsprocs.non_argmax_invariant
    return [one for one in found if isinstance(one, GuidedLogitsProcessor)]


def runner(llm):
    return next(one.runner for one in processors(llm) if one.runner is not None)


def params_of(form, *, theirs=False, **options):
    options = {"temperature": 1.0, "max_tokens": 70, **options}
    if theirs:
        return SamplingParams(structured_outputs=StructuredOutputsParams(**form), **options)
    return SamplingParams(extra_args=None if form is None else {"guided": form}, **options)
