"""vLLM's V1 model runner. Imports vLLM.

V1 has no hook after sampling, and what it shows of sampled tokens may be placeholders.
So `Sampler.forward` is wrapped for its result. Which rows of it count shows at the next
`update_state`: the output of a request has grown by one entry, placeholder or not; in
the middle of a prompt it has not.

Masks go on the logits that `Sampler.forward` is given, as raw logprobs are taken before
any processor runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from guided_plugin.hosts.vllm.common import engine_spec
from guided_plugin.hosts.vllm.engine import Engine, timed
from guided_plugin.hosts.vllm.logits import ForcedRows, GuidedRequest
from guided_plugin.hosts.vllm.names import Part, When
from guided_plugin.hosts.vllm.patches import patch
from guided_plugin.kernels.loading import load_kernels
from guided_plugin.kernels.uploads import Uploads
from guided_plugin.step import NO_TOKEN, UNGUIDED


@dataclass(slots=True, eq=False)
class _Row:
    """A guided request, in the batch or not."""

    guided: GuidedRequest
    params: Any
    output: list[int]
    """vLLM's own list; its length is right at every step, its values may not be."""
    length: int = 0
    """Its length when the batch changed last."""


class V1Runner:
    """The processor behind `GuidedLogitsProcessor` in a V1 runner. In a step vLLM calls

    update_state            schedule_update, finish_update, plan, fill_mask
       forward
    mask                    apply_mask
    apply                   of rows that need more than a mask
       sample
    sampled
       append
    """

    def __init__(self, vllm_config: Any, device: torch.device) -> None:
        most = vllm_config.scheduler_config.max_num_seqs
        self.engine = Engine(vllm_config, device, most, Part.V1)
        self._upload = Uploads(2 * most, device)
        self._rows: dict[int, _Row] = {}
        """By row of the batch."""
        self._known: dict[str, _Row] = {}
        """By id, also those that skip steps, which keep their slots."""
        self._slots: tuple[int, ...] = ()
        """The slots that are planned."""
        self._planned: list[_Row] = []
        self._outputs: list[list[int]] = []
        """The tokens of each planned row."""
        self._lengths = _lengths([])
        """Theirs when the last tokens were taken."""
        self._forced = ForcedRows((), self._upload)
        self._sampled: Tensor | None = None
        if self.engine.unsupported_reason is None:
            patch(When.V1)
            model = vllm_config.model_config
            size = self.engine.pipeline.vocabulary_size
            load_kernels(device, [model.dtype], model.get_vocab_size(), size)

    @timed
    def update_state(self, update: Any) -> None:
        """Before a forward pass: the last step's tokens, changes of the batch, plan,
        fill_mask."""
        # on all ranks in the same order
        told = self.engine.left
        left = [name for name in self._known if name in told] if told else []
        if update is None and not self._rows and not left:
            return
        if self._outputs:
            self._finish()
        for name in left:
            self.engine.end(self._known.pop(name).guided)
        if update is not None:
            from vllm.v1.sample.logits_processor import process_dict_updates

            for row in self._rows.values():
                row.length = len(row.output)
            process_dict_updates(self._rows, update, self._enter)
            self._rebuild()
        if self._outputs:
            self.engine.pipeline.plan(self._slots)
            self.engine.pipeline.fill_mask()

    @timed
    def mask(self, logits: Tensor) -> None:
        """In the sampler, before anything else: mask the guided rows."""
        if not self._rows:
            return
        if self._outputs:
            self.engine.pipeline.apply_mask(logits)
        if self._forced:
            rows = torch.arange(logits.shape[0], device=logits.device)
            self._forced.masked(logits, rows)

    @timed
    def apply(self, logits: Tensor) -> Tensor:
        """Rows that need more than a mask, after what vLLM itself forbids."""
        if self._forced:
            rows = torch.arange(logits.shape[0], device=logits.device)
            first = torch.zeros_like(rows)
            self._forced.spare(logits, rows, first, 1, self.engine.failed.limited)
        return logits

    def sampled(self, tokens: Tensor) -> None:
        """Take the sampled tokens, [rows, 1] on the device."""
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
                row.guided = self.engine.begin(row.params, row.output)
            self._rebuild()

    def _counting(self, tokens: Tensor, counts: NDArray[np.bool_]) -> Tensor:
        """The tokens of the planned rows that count; NO_TOKEN in the other rows."""
        if counts.all():
            return tokens
        rows = np.zeros(tokens.shape[0], np.int64)
        rows[np.flatnonzero(np.array(self._slots) != UNGUIDED)[counts]] = 1
        return torch.where(self._upload(rows) > 0, tokens, NO_TOKEN)

    def _enter(self, params: Any, prompt: object, output: list[int]) -> _Row | None:
        """A request that is new after this output, or back; None if nothing guides
        it."""
        told = engine_spec(params)
        if told is None:
            return None
        row = self._known.get(told.request_id)
        if row is None or row.params is not params or row.length != len(output):
            # vLLM may have taken some of its output back; the next part of an input
            # that is streamed may ask for something else
            guided = self.engine.begin(params, output)
            row = self._known[guided.request_id] = _Row(guided, params, output)
        row.output = output
        return row

    def _rebuild(self) -> None:
        """Rebuild what follows from which request is where."""
        slots = [UNGUIDED] * (max(self._rows, default=-1) + 1)
        for at, row in self._rows.items():
            slots[at] = row.guided.slot
        self._slots = tuple(slots)
        self._planned = [
            self._rows[at] for at, slot in enumerate(slots) if slot != UNGUIDED
        ]
        self._outputs = [row.output for row in self._planned]
        self._lengths = _lengths(self._outputs)
        requests = ((at, row.guided) for at, row in self._rows.items())
        self._forced = ForcedRows(requests, self._upload)


def _lengths(outputs: list[list[int]]) -> NDArray[np.int64]:
    return np.fromiter(map(len, outputs), np.int64, len(outputs))


def forward(
    self: Any,
    logits: Any,
    sampling_metadata: Any,
    *args: Any,
    original: Any,
    **kwargs: Any,
) -> Any:
    """`Sampler.forward`: shows the guided processor of its call the logits, and what it
    sampled."""
    runners = [
        one.runner
        for one in sampling_metadata.logitsprocs.non_argmax_invariant
        if isinstance(getattr(one, "runner", None), V1Runner)
    ]
    for runner in runners:
        runner.mask(logits)
    output = original(self, logits, sampling_metadata, *args, **kwargs)
    for runner in runners:
        runner.sampled(output.sampled_token_ids)
    return output
