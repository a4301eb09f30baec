"""A decode loop that shows the hooks in their order; tests and the demo run on it. Imports torch.

    logits -> logits processors (mask) -> sample -> post_sampling -> append -> stop criteria
           -> after_stop_criteria

Short enough to be read as documentation for hosts of your own: `DecodeLoop.step` is the whole of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import Mode
from guided_plugin.errors import ConfigError, GuidedError
from guided_plugin.pipeline.pipeline import StepPipeline
from guided_plugin.spec import OutputSpec
from guided_plugin.step import UNGUIDED, DecodeStep

__all__ = ["DecodeLoop", "Output", "Sampling"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. Temperature 0 takes the likeliest."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.temperature >= 0.0:
            raise ConfigError(f"must be at least 0, not {self.temperature}", where="temperature")
        if self.top_k < 0:
            raise ConfigError(f"must be at least 0, not {self.top_k}", where="top_k", hint="0 turns it off")
        if not 0.0 < self.top_p <= 1.0:
            raise ConfigError(f"must be above 0 and at most 1, not {self.top_p}", where="top_p")


@dataclass(frozen=True, slots=True)
class Output:
    """What one prompt produced. With an `error`, nothing in `tokens` may be taken for guided output."""

    tokens: tuple[int, ...]
    """Generated tokens, the stop token left out."""
    stopped: bool
    """Whether a stop token ended it; otherwise it ran into max_new_tokens."""
    error: GuidedError | None = None


class DecodeLoop:
    """Decodes batches of prompts with a transformers causal LM, each row with its own spec or none."""

    def __init__(
        self,
        model: Any,
        compiler: GrammarCompiler,
        *,
        max_rows: int = 64,
        processors: Sequence[str] = ("guided",),
        mode: Mode = "auto",
    ) -> None:
        self._model = model
        self._plugins = compiler.plugins
        self.pipeline = StepPipeline(compiler, max_slots=max_rows, device=model.device, mode=mode)
        compiler.vocabulary.check_width(model.get_output_embeddings().weight.shape[0])
        factories = [self._plugins.logits_processor(name) for name in processors]
        self._processors = [factory(self.pipeline) for factory in factories]
        self._request_ids = itertools.count()

    def run(
        self,
        prompts: Sequence[Sequence[int]],
        specs: Sequence[OutputSpec | None],
        *,
        max_new_tokens: int = 256,
        sampling: Sampling | None = None,
        ignore_stop: bool = False,
    ) -> list[Output]:
        """Decode until every row stopped. A row whose spec can't be used has an `error` and no tokens.

        `ignore_stop` goes on to `max_new_tokens` whatever the rows do, as benchmarks want it.
        """
        outputs: dict[int, Output] = {}
        requests: dict[int, str | None] = {}
        for row, (prompt, spec) in enumerate(zip(prompts, specs, strict=True)):
            request_id = f"row-{next(self._request_ids)}" if spec is not None else None
            try:
                if not prompt:
                    raise ConfigError("is empty", where=f"prompt {row}", hint="give at least one token")
                if spec is not None and request_id is not None:
                    self.pipeline.add_request(request_id, spec)
                requests[row] = request_id
            except GuidedError as error:
                outputs[row] = Output((), False, error)
        for processor in self._processors:
            self._plugins.register(processor)
        try:
            rows = list(requests)
            if rows:
                batch = self._batch([prompts[r] for r in rows], [specs[r] for r in rows], requests, sampling)
                for index in range(max_new_tokens):
                    self.step(batch, index)
                    if batch.all_stopped() and not ignore_stop:
                        break
                errors = [self._error(requests[row]) for row in rows]
                outputs.update(zip(rows, batch.outputs(errors), strict=True))
        finally:
            for processor in self._processors:
                self._plugins.unregister(processor)
            for request_id in requests.values():
                if request_id is not None:
                    self.pipeline.remove_request(request_id)
        return [outputs[row] for row in range(len(prompts))]

    @torch.inference_mode()
    def step(self, batch: _Batch, index: int) -> None:
        """One decode step."""
        step = DecodeStep(index, batch.slots)
        logits = batch.forward()
        for process in self._processors:
            logits = process(logits, step)
        step.tokens = batch.sample(logits)
        self._plugins.post_sampling(step)
        batch.append(step.tokens)
        batch.check_stop()
        self._plugins.after_stop_criteria(step)

    def _batch(
        self,
        prompts: list[Sequence[int]],
        specs: list[OutputSpec | None],
        requests: dict[int, str | None],
        sampling: Sampling | None,
    ) -> _Batch:
        default = self.pipeline.compiler.vocabulary.stop_token_ids
        stops = [(spec.stop_token_ids if spec else None) or default for spec in specs]
        slots = [UNGUIDED if r is None else self.pipeline.request(r).slot for r in requests.values()]
        return _Batch(self._model, prompts, slots, stops, sampling or Sampling())

    def _error(self, request_id: str | None) -> GuidedError | None:
        return None if request_id is None else self.pipeline.request(request_id).error


class _Batch:
    """The tensors of a running batch: prompts, cache, what was generated, who stopped."""

    def __init__(
        self,
        model: Any,
        prompts: list[Sequence[int]],
        slots: list[int],
        stops: list[tuple[int, ...]],
        sampling: Sampling,
    ) -> None:
        self.slots = slots
        self._model = model
        self._sampling = sampling
        self._stop_ids = stops
        device = model.device
        self._generator = torch.Generator(device).manual_seed(sampling.seed)
        width = max(map(len, prompts))
        # [rows, width], padded on the left so that the last column is every row's newest token
        ids = [[0] * (width - len(prompt)) + list(prompt) for prompt in prompts]
        seen = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        self._input = torch.tensor(ids, device=device)
        self._attention = torch.tensor(seen, device=device)
        self._positions = (self._attention.cumsum(1) - 1).clamp_(min=0)
        most = max(map(len, stops))
        # [rows, most stop tokens of a row], filled up with -1
        self._stops = torch.tensor([[*ids, *[-1] * (most - len(ids))] for ids in stops], device=device)
        self._cache: Any = None
        self._generated: list[Tensor] = []
        self._stopped = torch.zeros(len(prompts), dtype=torch.bool, device=device)
        self._flags = _LateFlag(device)

    def forward(self) -> Tensor:
        """Run the model over the newest tokens; the logits that follow them, [rows, width]."""
        out = self._model(
            input_ids=self._input,
            attention_mask=self._attention,
            position_ids=self._positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self._cache = out.past_key_values
        return out.logits[:, -1].float()  # type: ignore[no-any-return]

    def sample(self, logits: Tensor) -> Tensor:
        """Draw one token a row, [rows]."""
        how = self._sampling
        if how.temperature == 0.0:
            return logits.argmax(-1)
        logits = logits / how.temperature
        if how.top_k:
            kth = logits.topk(min(how.top_k, logits.shape[-1]), dim=-1).values[:, -1:]
            logits = logits.masked_fill(logits < kth, -torch.inf)
        if how.top_p < 1.0:
            ordered, order = logits.sort(-1, descending=True)
            mass = ordered.softmax(-1).cumsum(-1)
            cut = mass - ordered.softmax(-1) > how.top_p
            logits = logits.masked_fill(cut.scatter(-1, order, cut), -torch.inf)
        # The exponential race: as multinomial, with a draw for every logit, so that what one row may
        # sample never changes the random numbers of another.
        noise = torch.empty_like(logits).exponential_(generator=self._generator)
        return (logits.softmax(-1) / noise).argmax(-1)

    def append(self, tokens: Tensor) -> None:
        """Make the tokens the next input; rows that stopped get padding."""
        self._generated.append(tokens)
        tokens = tokens.masked_fill(self._stopped, 0)
        self._input = tokens[:, None]
        self._attention = torch.cat([self._attention, self._attention.new_ones(len(tokens), 1)], 1)
        self._positions = self._positions[:, -1:] + 1

    def check_stop(self) -> None:
        """Mark the rows whose newest token is a stop token of theirs."""
        self._stopped |= (self._generated[-1][:, None] == self._stops).any(1)
        self._flags.push(self._stopped.all())

    def all_stopped(self) -> bool:
        """Whether every row has stopped; on CUDA, as of one step ago, so that nothing waits."""
        return self._flags.pop()

    def outputs(self, errors: list[GuidedError | None]) -> list[Output]:
        """What each row generated, up to its stop token."""
        rows = torch.stack(self._generated, 1).tolist() if self._generated else [[] for _ in self.slots]
        found = []
        for tokens, stops, error in zip(rows, self._stop_ids, errors, strict=True):
            end = next((i for i, token in enumerate(tokens) if token in stops), None)
            found.append(Output(tuple(tokens[:end]), end is not None, error))
        return found


class _LateFlag:
    """A device flag read by the host: at once on the CPU, one step late on CUDA."""

    def __init__(self, device: torch.device) -> None:
        self._late = device.type == "cuda"
        self._now: tuple[Tensor, Any] | None = None
        self._before: tuple[Tensor, Any] | None = None

    def push(self, flag: Tensor) -> None:
        """The flag of this step."""
        self._before = self._now
        if self._late:
            host = torch.empty((), dtype=torch.bool, pin_memory=True)
            host.copy_(flag, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            self._now = host, event
        else:
            self._now = flag, None

    def pop(self) -> bool:
        """The newest flag that is there without waiting for this step."""
        if not self._late:
            return self._now is not None and bool(self._now[0])
        if self._before is None:
            return False
        self._before[1].synchronize()
        return bool(self._before[0])
