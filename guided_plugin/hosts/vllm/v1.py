"""vLLM's V1 model runner. Imports vLLM.

V1 has no hook after sampling, and what it shows of sampled tokens may be placeholders.
So `Sampler.forward` is wrapped for its result. Which rows of it count shows at the next
`update_state`: the output of a request has grown by one entry, placeholder or not; in
the middle of a prompt it has not.

Raw logprobs are taken before any processor runs. Where a request asks for them, masks
are applied before that too, and again in their turn: another processor may have lifted
them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from guided_plugin.errors import RequestError
from guided_plugin.hosts.vllm.common import engine_spec
from guided_plugin.hosts.vllm.engine import Engine
from guided_plugin.hosts.vllm.logits import ForcedRows, GuidedRequest, upload
from guided_plugin.hosts.vllm.names import Part, When
from guided_plugin.hosts.vllm.patches import patch
from guided_plugin.kernels import mask_rows
from guided_plugin.step import NO_TOKEN, UNGUIDED


@dataclass(slots=True, eq=False)
class _Row:
    """A guided request at its place in the batch."""

    guided: GuidedRequest
    params: Any
    output: list[int]
    """vLLM's own list; its length is right at every step, its values may not be."""
    length: int = 0
    """What it was when the request left the batch."""


class V1Runner:
    """The processor behind `GuidedLogitsProcessor` in a V1 runner."""

    def __init__(self, vllm_config: Any, device: torch.device) -> None:
        self.engine = Engine(
            vllm_config, device, vllm_config.scheduler_config.max_num_seqs, Part.V1
        )
        self._rows: dict[int, _Row] = {}
        """By row of the batch."""
        self._away: dict[str, _Row] = {}
        """Requests that skip steps, by id. They keep their slots."""
        self._slots: tuple[int, ...] = ()
        """What is planned."""
        self._planned: list[_Row] = []
        self._outputs: list[list[int]] = []
        """Of the planned rows."""
        self._lengths = _lengths([])
        """Theirs when the last tokens were taken."""
        self._forced = ForcedRows((), device)
        self._device = device
        self._sampled: Tensor | None = None
        self._raw = False
        """Whether this step's logits were masked before any processor ran."""
        self._spent = 0.0
        """Seconds of the host's thread in this step so far."""
        if self.engine.unsupported_reason is None:
            patch(When.V1)
            if device.type == "cuda":
                self._warm_up(vllm_config.model_config.get_vocab_size(), device)

    def update_state(self, update: Any) -> None:
        """Before a forward pass: the last step's tokens, changes of the batch, plan,
        fill_mask."""
        ended = self._away.keys() & self.engine.left
        if update is None and not self._rows and not ended:
            return
        start = time.perf_counter()
        if self._outputs:
            self._finish()
        for name in ended:
            self.engine.end(self._away.pop(name).guided)
        if update is not None:
            self._change(update)
        if self._outputs:
            self.engine.pipeline.plan(self._slots)
            self.engine.pipeline.fill_mask()
        self._raw = False
        self._spent = time.perf_counter() - start

    def apply(self, logits: Tensor) -> Tensor:
        """In the sampler: mask the guided rows."""
        if not self._rows:
            return logits
        start = time.perf_counter()
        if self._outputs:
            self.engine.pipeline.apply_mask(logits, again=self._raw)
        if self._forced:
            masks = self.engine.pipeline.mask if self._outputs else None
            rows = torch.arange(logits.shape[0], device=logits.device)
            found = self._forced.spare(logits, rows, masks)
            if found is not None:
                self.engine.failed.limited(*found)
        self.engine.seconds.add(self._spent + time.perf_counter() - start)
        return logits

    def mask_raw(self, logits: Tensor) -> None:
        """Mask the logits of which vLLM takes raw logprobs."""
        if self._outputs:
            self.engine.pipeline.apply_mask(logits)
            self._raw = True

    def sampled(self, tokens: Tensor) -> None:
        """What was sampled, [rows, 1] on the device."""
        if self._outputs:
            self._sampled = tokens.view(-1)
        if self.engine.hooks is not None:
            self.engine.hooks.sampled(self._slots, tokens.view(-1))

    def _finish(self) -> None:
        """Hand on the tokens of the last step, if it had any."""
        tokens = self._sampled
        self._sampled = None
        lengths = _lengths(self._outputs)
        grown = lengths - self._lengths
        self._lengths = lengths
        if tokens is not None:
            self.engine.pipeline.schedule_update(self._counting(tokens, grown == 1))
            self.engine.pipeline.finish_update()
        taken_back = (grown < 0) | (grown > (tokens is not None))
        if taken_back.any():
            # A transfer of vLLM's cache has failed: begin again after the rest.
            for place in np.flatnonzero(taken_back):
                row = self._planned[place]
                self.engine.end(row.guided)
                row.guided = self._begin(row.params, row.output) or row.guided
            self._rebuild()

    def _counting(self, tokens: Tensor, counts: NDArray[np.bool_]) -> Tensor:
        """The tokens of the planned rows that count; NO_TOKEN in the other rows."""
        if counts.all():
            return tokens
        rows = torch.zeros(tokens.shape[0], dtype=torch.bool)
        rows[np.flatnonzero(np.array(self._slots) != UNGUIDED)[counts]] = True
        return torch.where(upload(rows, tokens.device), tokens, NO_TOKEN)

    def _begin(self, params: Any, output: list[int]) -> GuidedRequest | None:
        error = _lost() if any(token < 0 for token in output) else None
        return self.engine.begin(params, output, error=error)

    def _change(self, update: Any) -> None:
        from vllm.v1.sample.logits_processor import MoveDirectionality

        rows = self._rows
        # vLLM does not list a request that has left as removed where another takes its
        # place.
        taken = {
            target
            for _, target, direction in update.moved
            if direction is MoveDirectionality.UNIDIRECTIONAL
        }
        for at in taken.union(update.removed, (at for at, *_ in update.added)):
            row = rows.pop(at, None)
            if row is None:
                continue
            name = row.guided.request_id
            if name in self.engine.left:
                self.engine.end(row.guided)
            else:
                row.length = len(row.output)
                self._away[name] = row
        for at, params, _, output in update.added:
            row = self._enter(params, output)
            if row is not None:
                rows[at] = row
        for source, target, _ in update.moved:
            moved = rows.pop(source, None)
            other = rows.pop(target, None)
            if moved is not None:
                rows[target] = moved
            if other is not None:
                rows[source] = other
        self._rebuild()

    def _enter(self, params: Any, output: list[int]) -> _Row | None:
        """A request that is new after this output, or back; None if nothing guides
        it."""
        told = engine_spec(params)
        row = None if told is None else self._away.pop(told.request_id, None)
        if row is not None and row.length == len(output):
            row.output = output
            return row
        if row is not None:  # vLLM has taken some of its output back
            self.engine.end(row.guided)
        guided = self._begin(params, output)
        return None if guided is None else _Row(guided, params, output)

    def _warm_up(self, width: int, device: torch.device) -> None:
        """Load the kernel now: the first time takes a tenth of a second and waits for
        the device."""
        vocabulary = self.engine.pipeline.compiler.vocabulary
        mask = torch.zeros(1, vocabulary.words, dtype=torch.int32, device=device)
        row = torch.zeros(1, dtype=torch.int32, device=device)
        mask_rows(torch.zeros(1, width, device=device), mask, row, vocabulary.size)

    def _rebuild(self) -> None:
        """What follows from which request is where."""
        slots = [UNGUIDED] * (max(self._rows, default=-1) + 1)
        self._planned = []
        forced = []
        for at, row in sorted(self._rows.items()):  # the order of the mask rows
            slots[at] = row.guided.slot
            forced.append((at, len(self._planned), row.guided))
            if row.guided.slot != UNGUIDED:
                self._planned.append(row)
        self._forced = ForcedRows(forced, self._device)
        self._slots = tuple(slots)
        self._outputs = [row.output for row in self._planned]
        self._lengths = _lengths(self._outputs)


def _lost() -> RequestError:
    return RequestError(
        "the request was resumed without its output, so its grammar cannot go on",
        hint="send it again",
    )


def _lengths(outputs: list[list[int]]) -> NDArray[np.int64]:
    return np.fromiter(map(len, outputs), np.int64, len(outputs))


def forward(original: Any) -> Any:
    """`Sampler.forward`: shows the guided processors of its call what it takes raw
    logprobs of, and what it sampled."""

    def replaced(
        self: Any, logits: Any, sampling_metadata: Any, *args: Any, **kwargs: Any
    ) -> Any:
        processors = sampling_metadata.logitsprocs.non_argmax_invariant
        runners = [
            one.runner
            for one in processors
            if isinstance(getattr(one, "runner", None), V1Runner)
        ]
        tokens = getattr(sampling_metadata, "logprob_token_ids", None)
        if sampling_metadata.max_num_logprobs is not None or tokens:
            for runner in runners:
                runner.mask_raw(logits)
        output = original(self, logits, sampling_metadata, *args, **kwargs)
        for runner in runners:
            runner.sampled(output.sampled_token_ids)
        return output

    return replaced
