"""Parts that vLLM's frontend and its engine both need: options, vocabulary, specs.
Imports vLLM lazily.

Ranks: under tensor parallelism every rank has all logits (they are all-gathered) and
samples by itself, in both model runners; rank 0's tokens are published. So every rank
needs the same masks in the same step. The grammars work at the first rank of each
machine (`--nnodes`), and the others there mask with its memory (`worker/ranks`), which
they hear of at the start, over vLLM's own CPU group. With drafts every rank proposes
and judges the same ones. Under pipeline parallelism, which the V2 runner alone serves,
the ranks of the last stage sample, and the others have no part in this. Data
parallelism needs nothing: each engine has ranks of its own.

A request carries its spec in `SamplingParams.extra_args["guided"]`: in a form of
clients in the frontend, as the gate wrote it in the engine. Everything else follows
from vLLM's own configuration.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from guided_plugin.compiling.limits import check_size
from guided_plugin.config import GuidedConfig, SpecLimits
from guided_plugin.errors import (
    CompileLimitError,
    GuidedError,
    RequestError,
    SpecError,
    VocabularyError,
)
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.hosts.vllm.names import CONSTRAINT_FORM, CONSTRAINTS, Part
from guided_plugin.hosts.vllm.patches import broken
from guided_plugin.spec import OutputSpec, unpacked
from guided_plugin.worker.ranks.group import RankGroup, TorchRanks

_SCHEDULER = "vllm.v1.core.sched.scheduler.Scheduler"

EXTRA = "extra_args"

GUIDED = "guided"
"""The key of `extra_args` (and of `vllm_xargs`) that holds a request's spec; in the
engine as an `EngineSpec`."""

MARK = "guided_left"
"""Set by the gate on each request that is left to vLLM's own manager: no other with its
constraint may reach the engine."""

HEALTH = "guided_health"
"""The method of vLLM's workers that tells why nothing can be guided now, an empty text
if all is well, and in how many seconds something may be guided again."""

METRICS = "guided_metrics"
"""The method of vLLM's workers that tells the figures of their pipelines."""

RUST_FRONTEND = "VLLM_USE_RUST_FRONTEND"
"""The environment variable by which vLLM serves with a frontend that runs no Python."""


def settings_of(vllm_config: Any) -> tuple[GuidedConfig, dict[str, str]]:
    """The options of an engine, and where each is from: GUIDED_PLUGIN and
    `--additional-config`."""
    return GuidedConfig.read(getattr(vllm_config, "additional_config", None))


def unsupported_reason(vllm_config: Any, options: GuidedConfig) -> GuidedError | None:
    """Why this engine can't guide any request, if it can't."""
    speculative = vllm_config.speculative_config
    parallel = vllm_config.parallel_config
    stages = parallel.pipeline_parallel_size
    ranks = parallel.tensor_parallel_size
    backend = parallel.distributed_executor_backend
    device = vllm_config.device_config.device_type
    kind = vllm_config.scheduler_config.get_scheduler_cls()
    # by name: it may not be there
    bases = [f"{one.__module__}.{one.__qualname__}" for one in kind.__mro__]
    several = "docs/operations.md#several-gpus has what is supported"
    facts = (
        (
            not options.enabled,
            "the plugin is switched off",
            "unset GUIDED_PLUGIN=0, or set enabled",
        ),
        (
            rust_frontend(),
            "vLLM's Rust frontend sends requests past the plugin, which is part of the Python frontend",
            f"unset {RUST_FRONTEND}",
        ),
        (
            speculative is not None and not _uses_v2(vllm_config),
            "guided requests can't be served under speculative decoding by vLLM's V1 model runner",
            "VLLM_USE_V2_MODEL_RUNNER=1 takes the V2 runner; or start without a speculative config",
        ),
        (
            getattr(speculative, "rejection_sample_method", None) == "synthetic",
            "synthetic acceptance accepts drafts without a check",
            "use another rejection_sample_method",
        ),
        (
            vllm_config.model_config.skip_tokenizer_init,
            "a grammar needs the tokenizer",
            "start without skip_tokenizer_init",
        ),
        (
            getattr(parallel, "prefill_context_parallel_size", 1) > 1,
            "prefill context parallelism is not supported for guided requests",
            f"use tensor parallelism alone; {several}",
        ),
        (
            getattr(parallel, "enable_batch_sharded_sampling", False),
            "batch-sharded sampling is not supported for guided requests: each rank samples a part of the batch",
            f"start without enable_batch_sharded_sampling; {several}",
        ),
        (
            stages > 1 and not _uses_v2(vllm_config),
            "guided requests under pipeline parallelism are not supported with vLLM's V1 model runner",
            f"VLLM_USE_V2_MODEL_RUNNER=1 takes the V2 runner; or use tensor parallelism alone; {several}",
        ),
        (
            # one of Ray's calls a worker's runner past what takes the place of its methods
            backend == "ray" or (stages * ranks > 1 and backend != "mp"),
            f"guided requests are served with the executor 'mp' (one rank: 'uni' too), not with {backend!r}",
            f"--distributed-executor-backend mp; {several}",
        ),
        (
            ranks > 1 and device not in ("cpu", "cuda"),
            f"guided requests under tensor parallelism are supported on CUDA and on the CPU, not on {device!r}",
            f"use data parallelism; {several}",
        ),
        (
            _SCHEDULER not in bases,
            f"the scheduler {kind!r} is not one of vLLM's: failed requests could not end as errors",
            f"leave scheduler_cls out, or derive it from {_SCHEDULER}",
        ),
    )
    for unsupported, what, hint in facts:
        if unsupported:
            return RequestError(what, hint=hint)
    return broken(Part.SCHEDULER)


def _uses_v2(vllm_config: Any) -> bool:
    """True if the engine runs vLLM's V2 model runner."""
    return getattr(vllm_config, "use_v2_model_runner", False)


def refused_unseen(vllm_config: Any, options: GuidedConfig) -> GuidedError | None:
    """Why no guided request may go to an engine of this configuration, as a frontend
    knows it: what it relies on itself, and what the model runner behind it does."""
    runner = Part.V2 if _uses_v2(vllm_config) else Part.V1
    return unsupported_reason(vllm_config, options) or broken(Part.FRONTEND, runner)


def rust_frontend() -> bool:
    """True if vLLM serves with its Rust frontend."""
    return os.environ.get(RUST_FRONTEND, "0").strip() not in ("", "0")


def drafts_of(vllm_config: Any) -> int:
    """Return the most tokens that may be proposed for a request in a step."""
    speculative = vllm_config.speculative_config
    return 0 if speculative is None else int(speculative.num_speculative_tokens)


def tokenizer_of(vllm_config: Any) -> Any:
    """An engine's tokenizer."""
    from vllm.tokenizers import cached_tokenizer_from_config

    return cached_tokenizer_from_config(model_config=vllm_config.model_config)


def vocabulary_of(vllm_config: Any) -> Vocabulary:
    """The vocabulary of an engine's tokenizer; it ends where the model's own
    configuration says."""
    tokenizer = tokenizer_of(vllm_config)
    declared = vllm_config.model_config.try_get_generation_config().get("eos_token_id")
    named = declared if isinstance(declared, list) else [declared]
    stops = {getattr(tokenizer, "eos_token_id", None), *named} - {None}
    if not stops:
        raise VocabularyError(
            "the model names no token that ends its output",
            hint="set eos_token_id in its generation config",
        )
    return Vocabulary.from_tokenizer(tokenizer, stop_token_ids=sorted(stops))


def stop_tokens(params: Any, vocabulary: Vocabulary) -> tuple[int, ...]:
    """The tokens at which vLLM ends a request: those that its grammar must allow at its
    end. A stop token that is also text (`stop_token_ids` of a client) may come
    anywhere, and ends no grammar."""
    tokens = vocabulary.special_ids & params.all_stop_token_ids
    return tuple(sorted(tokens)) or vocabulary.stop_token_ids


class EngineSpec(NamedTuple):
    """The message to an engine about a guided request: the gate writes it in place of
    the client's form, which is never a list."""

    packed: str
    room: int | None
    salt: str | None
    made: Sequence[Any] | None = None
    """All that the frontend made of the spec (`Prepared.sent`). It goes no further than the
    scheduler."""
    quick: bool = False
    """True if the engine loads it within a forward pass."""
    request_id: str = ""
    """The scheduler's, by which failures are told."""

    def read(self) -> OutputSpec:
        """The spec. Raises SpecError."""
        try:
            return unpacked(self.packed, self.room, self.salt)
        except (AttributeError, TypeError, ValueError) as error:
            raise SpecError(
                f"is not what the gate writes: {error}", where=GUIDED
            ) from None


def engine_spec(params: Any) -> EngineSpec | None:
    """Return the message to an engine about a request; None where nothing guides it,
    and an empty one where no gate wrote it."""
    value = (getattr(params, "extra_args", None) or {}).get(GUIDED)
    if value is None:
        return None
    fields = value if isinstance(value, list | tuple) else ()
    # in `vllm_xargs`, of a client whose frontend has no gate, truths become numbers
    written = len(fields) == len(EngineSpec._fields) and isinstance(fields[4], bool)
    return EngineSpec(*fields) if written else EngineSpec("", None, None)


def constraint(params: Any) -> dict[str, Any] | None:
    """vLLM's own constraint of a request, as a form that `OutputSpec.parse` reads."""
    outputs = getattr(params, "structured_outputs", None)
    if outputs is None or all(getattr(outputs, name) is None for name in CONSTRAINTS):
        return None
    return {
        name: value
        for name in CONSTRAINT_FORM
        if (value := getattr(outputs, name)) is not None
    }


def is_within(form: Any, limits: SpecLimits) -> bool:
    """True if something that a client wrote is small; looks at no more of it than
    that."""
    try:
        check_size(form, limits)
    except CompileLimitError:
        return False
    return True


def ranks_of(vllm_config: Any) -> RankGroup | None:
    """The ranks that sample the same tokens as this process; None if there is no
    other."""
    if vllm_config.parallel_config.tensor_parallel_size == 1:
        return None
    from vllm.distributed.parallel_state import get_tp_group

    return TorchRanks(get_tp_group().cpu_group)


def samples(vllm_config: Any) -> bool:
    """True if this process samples: its pipeline stage is the last one."""
    if vllm_config.parallel_config.pipeline_parallel_size == 1:
        return True
    from vllm.distributed.parallel_state import get_pp_group

    return bool(get_pp_group().is_last_rank)
