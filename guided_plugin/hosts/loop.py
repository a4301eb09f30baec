"""A decode loop over a transformers model; the demo and the benchmarks run on it. Depends on the pipeline.

    logits -> logits processors (mask) -> sample -> post_sampling -> append -> stop criteria
           -> after_stop_criteria

`DecodeLoop.step` shows the hooks and the five verbs in their order. A loop without a model: `hosts/fake.py`.
"""

from __future__ import annotations

import itertools
from collections import deque
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
from guided_plugin.worker.ranks.group import RankGroup

__all__ = ["DecodeLoop", "Output", "Sampling"]

_GUIDED = "guided"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. Temperature 0 takes the most likely one."""

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
    """What one prompt produced. With an `error`, `tokens` is not guided output."""

    tokens: tuple[int, ...]
    """Generated tokens, the stop token left out."""
    stopped: bool
    """Whether a stop token ended it; otherwise it ran into max_new_tokens."""
    error: GuidedError | None = None
    unenforced: tuple[str, ...] = ()
    """Keywords of its spec that nothing enforced, as `unenforced_keywords` allows: check it by them."""


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
        ranks: RankGroup | None = None,
    ) -> None:
        """`processors`: in their order, by the names that plugins gave them; `guided` is the pipeline.

        `ranks`: of a model that runs on several. Each has a loop and makes the same calls; the outputs of
        rank 0 have the errors."""
        self._model = model
        self._plugins = compiler.plugins
        self.pipeline = StepPipeline(
            compiler, max_slots=max_rows, device=model.device, mode=mode, ranks=ranks
        )
        compiler.vocabulary.check_width(model.get_output_embeddings().weight.shape[0])
        self._processors = [
            self._mask if name == _GUIDED else self._plugins.logits_processor(name, _GUIDED)(self.pipeline)
            for name in processors
        ]
        self._ahead: tuple[int, ...] | None = None
        """The slots that the next step was planned with."""
        self._request_ids = itertools.count()

    def run(
        self,
        prompts: Sequence[Sequence[int]],
        specs: Sequence[Any],
        *,
        max_new_tokens: int = 256,
        sampling: Sampling | None = None,
        ignore_stop: bool = False,
    ) -> list[Output]:
        """Decode until every row stopped. A row whose spec can't be used has an `error` and no tokens.

        `specs`: one for each prompt, anything that `OutputSpec.parse` takes; None where nothing guides.

        `ignore_stop` goes on to `max_new_tokens` whatever the rows do, as benchmarks want it.
        """
        outputs: dict[int, Output] = {}
        requests: dict[int, str | None] = {}
        for row, (prompt, spec) in enumerate(zip(prompts, specs, strict=True)):
            try:
                if not prompt:
                    raise ConfigError("is empty", where=f"prompt {row}", hint="give at least one token")
                requests[row] = self._begin(OutputSpec.parse(spec))
            except GuidedError as error:
                outputs[row] = Output((), False, error)
        try:
            if requests:
                chosen = [prompts[row] for row in requests]
                batch = self._batch(chosen, list(requests.values()), sampling or Sampling())
                for index in range(max_new_tokens):
                    self.step(batch, index)
                    if batch.all_stopped() and not ignore_stop:
                        break
                for (row, name), (tokens, stopped) in zip(requests.items(), batch.outputs(), strict=True):
                    request = self.pipeline.request(name) if name else None
                    told = (request.error, request.unenforced) if request else ()
                    outputs[row] = Output(tokens, stopped, *told)
        finally:
            for name in filter(None, requests.values()):
                self.pipeline.remove_request(name)
        return [outputs[row] for row in range(len(prompts))]

    def _begin(self, spec: OutputSpec | None) -> str | None:
        if spec is None:
            return None
        name = f"row-{next(self._request_ids)}"
        self.pipeline.add_request(name, spec)
        return name

    @torch.inference_mode()
    def step(self, batch: _Batch, index: int) -> None:
        """One decode step."""
        step = DecodeStep(index, batch.slots)
        logits = batch.forward()
        for process in self._processors:
            logits = process(logits, step)
        step.tokens = batch.sample(logits)
        self.pipeline.schedule_update(step.tokens)
        self._plugins.post_sampling(step)
        batch.append(step.tokens)
        batch.check_stop()
        self.pipeline.finish_update()
        self._plan_ahead(batch.slots)
        self._plugins.after_stop_criteria(step)

    def _mask(self, logits: Tensor, step: DecodeStep) -> Tensor:
        slots, ahead = tuple(step.slots), self._ahead
        self._ahead = None
        if not ahead == slots == self.pipeline.planned:
            self.pipeline.plan(slots)
            self.pipeline.fill_mask()
        return self.pipeline.apply_mask(logits)

    def _plan_ahead(self, slots: Sequence[int]) -> None:
        """Ask a worker for the masks of the next step: a forward pass that keeps the host busy then hides
        them. If other rows come after all, they are asked for again."""
        if self.pipeline.mode == "process" and self.pipeline.planned == tuple(slots):
            self._ahead = self.pipeline.planned
            self.pipeline.plan(self._ahead)
            self.pipeline.fill_mask()

    def _batch(self, prompts: list[Sequence[int]], requests: list[str | None], sampling: Sampling) -> _Batch:
        infos = [name and self.pipeline.request(name) for name in requests]
        slots = [info.slot if info else UNGUIDED for info in infos]
        default = self.pipeline.compiler.vocabulary.stop_token_ids
        stops = [(info and info.spec.stop_token_ids) or default for info in infos]
        return _Batch(self._model, prompts, slots, stops, sampling)


class _Batch:
    """The tensors of a running batch: prompts, cache, generated tokens, stopped rows."""

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
        # Whether all rows have stopped, and the event after which the host may read that. On CUDA it reads
        # the flag of the step before, so that it never waits for the newest one.
        self._all_stopped: deque[tuple[Tensor, Any]] = deque(maxlen=2 if device.type == "cuda" else 1)

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
        # The exponential race: like multinomial, with a draw for every logit, so that what one row may
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
        flag, event = self._stopped.all(), None
        if flag.is_cuda:
            flag = torch.empty((), dtype=torch.bool, pin_memory=True).copy_(flag, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        self._all_stopped.append((flag, event))

    def all_stopped(self) -> bool:
        """Whether every row has stopped; on CUDA, as of one step ago."""
        if len(self._all_stopped) < (self._all_stopped.maxlen or 1):
            return False
        flag, event = self._all_stopped[0]
        if event is not None:
            event.synchronize()
        return bool(flag)

    def outputs(self) -> list[tuple[tuple[int, ...], bool]]:
        """What each row generated, up to its stop token, and whether there was one."""
        rows = torch.stack(self._generated, 1).tolist() if self._generated else [[] for _ in self.slots]
        found = []
        for tokens, stops in zip(rows, self._stop_ids, strict=True):
            end = next((i for i, token in enumerate(tokens) if token in stops), None)
            found.append((tuple(tokens[:end]), end is not None))
        return found
