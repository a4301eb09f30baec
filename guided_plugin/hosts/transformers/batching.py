"""Guided requests in a continuous batching manager of transformers. Depends on the
pipeline.

The manager supports processors with an argument per request. Before each forward pass
it calls `prepare_tensor_args` with the requests that will get a token, in the order of
their rows. Their states hold every token sampled so far, so that call ends the last
step and plans the next one. Then the manager calls the processor with the logits. It
does not report that a request has ended: the state of the request tells.
"""

from __future__ import annotations

import itertools
import json
import logging
import threading
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.errors import ConfigError, GuidedError, PipelineError, printable
from guided_plugin.pipeline.pipeline import StepPipeline
from guided_plugin.plugins import SafeStepHooks
from guided_plugin.spec import OutputSpec, check_room
from guided_plugin.step import NO_TOKEN, UNGUIDED, DecodeStep

try:
    # Older versions have these names too, with another contract.
    if tuple(int(part) for part in transformers.__version__.split(".")[:2]) < (5, 13):
        raise ImportError(f"transformers is {transformers.__version__}")
    from transformers.generation.continuous_batching.cb_logits_processors import (
        ContinuousBatchingLogitsProcessor,
    )
    from transformers.generation.continuous_batching.requests import RequestStatus
except ImportError as missing:
    raise ConfigError(
        f"continuous batching can't be guided with this version of transformers: {missing}",
        where="transformers",
        hint="install 5.13 or newer",
    ) from missing

_log = logging.getLogger(__name__)

ARGUMENT = "guided"
"""The keyword of `manager.add_request` that carries a spec, as JSON text."""

_KEPT_ENDS = 1024
_MOST_REQUESTS = 256


@dataclass(slots=True)
class _BatchedRequest:
    """A guided request of the manager, in the pipeline."""

    name: str
    """Its id in the pipeline: a request that is replayed gets a new one."""
    slot: int
    state: Any
    counted: int
    """How many of its tokens the grammar has."""


class GuidedBatching(ContinuousBatchingLogitsProcessor):
    """Guides what is added through `add_request`. Make it after the manager and before
    it starts."""

    supported_kwargs = {ARGUMENT: str}  # noqa: RUF012  (the base class declares it so)
    ignored_kwargs: tuple[str, ...] = ()

    def __init__(self, compiler: GrammarCompiler, manager: Any) -> None:
        _refuse(manager)
        self._manager = manager
        self._compiler = compiler
        self._device = torch.device(manager.model.device)
        config = manager.continuous_batching_config
        # Twice as many as fit into a batch: requests that wait for room keep their
        # slot.
        self._slots = 2 * (
            getattr(config, "max_requests_per_batch", None) or _MOST_REQUESTS
        )
        self.pipeline = StepPipeline(
            compiler, max_slots=self._slots, device=self._device
        )
        self._lock = threading.RLock()  # plugins that hear a step may ask for errors
        self._numbers = itertools.count()
        self._entries: dict[str, _BatchedRequest] = {}
        self._rows: list[_BatchedRequest | None] = []
        """Of the step that is masked, and not over yet."""
        self._planned_rows = self._rows
        """Those of the newest plan: a forward pass that fails is never masked."""
        self._step_numbers = itertools.count()
        self._hooks = SafeStepHooks(self._compiler.plugins)
        self._step: DecodeStep | None = None
        """The same step, if plugins listen to it."""
        self._ends: dict[str, tuple[GuidedError | None, str]] = {}
        """For requests of which there is something to tell, what `error` and `closed`
        return."""
        chain = manager.logit_processor
        # First: a processor that keeps the k likeliest must choose among what the
        # grammar allows.
        chain.logits_processor.insert(0, self)
        chain.tensors_required += 1
        chain._retrieve_processors_kwargs()
        chain.do_processing = True

    # For users

    def add_request(
        self, input_ids: list[int], spec: Any, **options: Any
    ) -> str | None:
        """`manager.add_request` with a spec, which is compiled first; raises its
        error."""
        parsed = OutputSpec.parse(spec)
        if parsed is not None:
            limit = options.get("max_new_tokens")
            limit = (
                self._manager.generation_config.max_new_tokens
                if limit is None
                else limit
            )
            check_room(
                self.pipeline.prepare(parsed).result().least, limit, "max_new_tokens"
            )
            if options.get("eos_token_id") is None:
                stops = (
                    parsed.stop_token_ids or self._compiler.vocabulary.stop_token_ids
                )
                options["eos_token_id"] = list(stops)
            options[ARGUMENT] = json.dumps(parsed.to_dict())
        return self._manager.add_request(input_ids, **options)  # type: ignore[no-any-return]

    def error(self, request_id: str) -> GuidedError | None:
        """Why a request failed, as of the last step; None if it didn't. Keeps the
        newest thousand errors."""
        return self._end(request_id)[0]

    def closed(self, request_id: str) -> str:
        """With `close_before_length`: `led`, if it was led to its end before its token
        limit, or `unprotected: ...`, why it could be cut there. Kept as errors are."""
        return self._end(request_id)[1]

    def close(self) -> None:
        """End the last step and the pipeline, once the manager has stopped."""
        if self._manager.is_running():
            raise PipelineError(
                "the manager is still running", hint="call manager.stop() first"
            )
        try:
            with self._lock:
                self._end_step()
        finally:
            self.pipeline.close()

    # What the manager calls

    def fill_defaults(self, int32_tensor: Tensor) -> None:
        """Rows without a request."""
        int32_tensor.fill_(UNGUIDED)

    def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> Tensor:
        """End the last step, then plan and fill the next: its rows are these
        requests."""
        states = [request.state for request in requests_with_new_token]
        with self._lock:
            self._end_step()
            self._forget({state.request_id for state in states})
            rows = [self._row(state) for state in states]
            slots = [UNGUIDED if entry is None else entry.slot for entry in rows]
            index = next(self._step_numbers)
            if self._compiler.plugins.listens_to_steps:
                self._step = DecodeStep(index, slots)
                for row, state in enumerate(states):
                    # Plugins hear the tokens of unguided rows too.
                    rows[row] = rows[row] or _BatchedRequest(
                        "", UNGUIDED, state, _length(state)
                    )
            self._planned_rows = rows
            self.pipeline.plan(slots)
            self.pipeline.fill_mask()
        return torch.tensor(slots, dtype=torch.int32)

    def __call__(self, scores: Tensor, tensor_arg: Tensor) -> Tensor:
        """Mask the guided rows of [rows, width] scores; rows behind those that were
        planned are padding."""
        with self._lock:
            self.pipeline.apply_mask(scores)
            self._rows = self._planned_rows
        return scores

    # Inside

    def _end_step(self) -> None:
        """Give the grammars the tokens of the last step, and tell the plugins that
        listen."""
        rows = self._rows
        step = self._step
        self._rows = []
        self._step = None
        if not any(rows):
            return
        sampled = [NO_TOKEN] * len(rows)
        for row, entry in enumerate(rows):
            # A cancelled request, or one whose token was dropped, stays where it is.
            if entry is not None and entry.counted < _length(entry.state):
                sampled[row] = _tokens(entry.state)[entry.counted]
                entry.counted += 1
        tokens = torch.tensor(sampled, device=self._device)
        self.pipeline.schedule_update(tokens)
        if step is not None:
            step.tokens = tokens
            self._hooks.post_sampling(step)
        self.pipeline.finish_update()
        if step is not None:
            self._hooks.after_stop_criteria(step)

    def _forget(self, coming: set[str]) -> None:
        """Remove requests that have ended. If the slots run out, also those that wait:
        they are replayed."""
        full = len(coming | self._entries.keys()) > self._slots
        for request_id, entry in list(self._entries.items()):
            ended = entry.state.status >= RequestStatus.FINISHED
            if request_id not in coming and (ended or full):
                self._remove(request_id)

    def _row(self, state: Any) -> _BatchedRequest | None:
        text = state.logit_processor_kwargs.get(ARGUMENT)
        if text is None:
            return None
        entry = self._entries.get(state.request_id)
        if entry is not None and entry.counted == _length(state):
            # A request that made room and came back has a new state.
            entry.state = state
            return entry
        if entry is not None:
            self._remove(state.request_id)
        name = f"batching-{next(self._numbers)}-{state.request_id}"
        tokens = _tokens(state)
        try:
            spec = OutputSpec.parse(text)
            if spec is None:
                return None
            slot = self.pipeline.add_request(
                name, spec.within(_room(state)), tokens=tokens
            )
        except GuidedError as error:  # its row may stop, and nothing else
            slot = self.pipeline.add_failed(name, OutputSpec.json_object(), error)
        self._entries[state.request_id] = _BatchedRequest(
            name, slot, state, len(tokens)
        )
        return self._entries[state.request_id]

    def _remove(self, request_id: str) -> None:
        entry = self._entries.pop(request_id)
        self._note_end(request_id, entry)
        self.pipeline.remove_request(entry.name)

    def _end(self, request_id: str) -> tuple[GuidedError | None, str]:
        with self._lock:
            entry = self._entries.get(request_id)
            if entry is not None:
                self._note_end(request_id, entry)
            return self._ends.get(request_id, (None, ""))

    def _note_end(self, request_id: str, entry: _BatchedRequest) -> None:
        request = self.pipeline.request(entry.name)
        error = request.error
        if error is None and not request.closed:
            return
        if error is not None and request_id not in self._ends:
            _log.error("request %s: %s", printable(request_id), error.reason)
        self._ends[request_id] = error, request.closed
        while len(self._ends) > _KEPT_ENDS:
            del self._ends[next(iter(self._ends))]


def _length(state: Any) -> int:
    """How many tokens a request has produced."""
    return _moved(state) + len(state.generated_tokens)


def _moved(state: Any) -> int:
    """How many of them are in its prompt, as it made room and came back."""
    return (
        len(state.initial_tokens) - state._true_initial_tokens
        if state._true_initial_tokens
        else 0
    )


def _room(state: Any) -> int | None:
    """How many tokens a request may produce in all; None where nothing limits them."""
    return (
        None if state.max_new_tokens is None else state.max_new_tokens + _moved(state)
    )


def _tokens(state: Any) -> list[int]:
    """What a request has produced; after it made room and came back, a part of that is
    in its prompt."""
    moved = (
        state.initial_tokens[state._true_initial_tokens :]
        if state._true_initial_tokens
        else []
    )
    return [*moved, *state.generated_tokens]


def _refuse(manager: Any) -> None:
    """Refuse what can't be guided through the manager's interface."""
    where = "continuous batching"
    if manager.batch_processor is not None or manager.is_running():
        raise PipelineError(
            "the manager has started",
            where=where,
            hint="make the guided batching before start and warmup",
        )
    config = manager.continuous_batching_config
    if config.use_async_batching:
        raise ConfigError(
            "asynchronous batching gives a processor no point at which the last token is known",
            where=where,
            hint="ContinuousBatchingConfig(use_async_batching=False)",
        )
    wanted = config.use_cuda_graph  # None: transformers decides later
    graphs = any(wanted) if isinstance(wanted, tuple) else wanted is not False
    if manager.model.device.type == "cuda" and graphs:
        raise ConfigError(
            "a CUDA graph would replay the masks of one step in every step",
            where=where,
            hint="ContinuousBatchingConfig(use_cuda_graph=False)",
        )
    if getattr(config, "varlen_compile_config", None) or getattr(
        config, "decode_compile_config", None
    ):
        raise ConfigError(
            "a compiled step would include the processor",
            where=where,
            hint="leave the compile configs out",
        )
    if getattr(getattr(manager, "distributed_helper", None), "tp_size", 1) > 1:
        raise ConfigError(
            "tensor parallel models are not supported",
            where=where,
            hint="use a single GPU",
        )
