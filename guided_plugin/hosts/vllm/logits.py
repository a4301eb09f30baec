"""Rows of logits, and where vLLM's V2 runner shows them. Imports torch, and vLLM
lazily.

A closed row allows one stop token. Where `allowed_token_ids`, `bad_words`, `min_tokens`
or `logit_bias` and the grammar together leave no token, a stop token is put there: a
row of -inf would break the whole batch. If the grammar allows the stop token there, the
output is finished; else the request has failed: its output ends with a stop token that
its mask forbids. That is looked at on the device, and nothing waits for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from guided_plugin.errors import GuidedError
from guided_plugin.hosts.vllm.patches import by_name
from guided_plugin.kernels.uploads import Uploads
from guided_plugin.plugins import Plugins
from guided_plugin.step import NO_TOKEN, UNGUIDED, DecodeStep

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class GuidedRequest:
    """A guided request in the batch."""

    request_id: str
    """vLLM's own, where its scheduler says it."""
    slot: int
    """UNGUIDED where it is closed, and after its end."""
    stop: int
    """A token that ends it."""
    limits: str = ""
    """Options by which vLLM itself forbids tokens of it: what is left of a row may then
    be nothing."""


class ForcedRows:
    """The rows of one batch that need more than a mask, found on the device by the
    index of their request: of [rows, width] logits, indices[row] says whose row it
    is."""

    def __init__(
        self, requests: Iterable[tuple[int, GuidedRequest]], upload: Uploads
    ) -> None:
        """`requests`: with their indices."""
        closed = []
        limited = []
        self._requests = []
        for index, request in requests:
            if request.slot == UNGUIDED:
                closed.append((index, request.stop))
            elif request.limits:
                limited.append((index, request.stop))
                self._requests.append(request)
        self._closed = _columns(closed, upload)
        self._limited = _columns(limited, upload)
        self._ends: Tensor | None = None
        """[rows, 1], of the rows that are being sampled: whether the stop token of a
        limited one is in its mask."""

    def __bool__(self) -> bool:
        return self._closed is not None or self._limited is not None

    def close(self, logits: Tensor, indices: Tensor) -> None:
        """Leave the rows of closed requests a stop token and nothing else."""
        if self._closed is not None:
            hit, stop = _find(indices, self._closed)
            closed = hit.any(1, keepdim=True)
            logits.masked_fill_(closed, -torch.inf)
            logits.scatter_(1, stop, torch.where(closed, 0.0, logits.gather(1, stop)))

    def masked(self, logits: Tensor, indices: Tensor) -> None:
        """After the masks: `close`, and see which of them allow a stop token."""
        self.close(logits, indices)
        if self._limited is not None:
            _, stop = _find(indices, self._limited)
            self._ends = logits.gather(1, stop) > -torch.inf

    def spare(
        self,
        logits: Tensor,
        indices: Tensor,
        positions: Tensor,
        count: int,
        tell: Callable[[list[GuidedRequest], Tensor], None],
    ) -> None:
        """After what vLLM itself forbids: `close`, and a stop token in masked rows that
        have nothing left. Tells the requests that may be given one, and where their
        masks forbid it, [count, requests] on the device. `positions`: of each row,
        below `count`."""
        self.close(logits, indices)
        if self._limited is None or self._ends is None:
            return
        hit, stop = _find(indices, self._limited)
        dead = logits.amax(1, keepdim=True) == -torch.inf
        dead &= hit.any(1, keepdim=True)
        logits.scatter_(1, stop, torch.where(dead, 0.0, logits.gather(1, stop)))
        flags = torch.zeros(count, hit.shape[1], dtype=torch.int64, device=hit.device)
        flags.index_add_(0, positions, (hit & dead & ~self._ends).to(torch.int64))
        tell(self._requests, flags)


def _columns(rows: list[tuple[int, int]], upload: Uploads) -> Tensor | None:
    """Indices and stop tokens on the device; None without rows."""
    return upload(np.array(rows).T.ravel()).view(2, -1) if rows else None


def _find(indices: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Which rows each request has, [rows, requests], and the stop token of a row,
    [rows, 1]."""
    index, stops = columns
    own = indices.unsqueeze(1) == index
    return own, (own * stops).sum(1, keepdim=True)


class StepHooks:
    """Tells the plugins of one engine about its steps: `post_sampling` when the sampler
    of a model runner returns, `after_stop_criteria` when `Worker.sample_tokens` does.
    The runner has appended the tokens by then, and what ends a request is checked from
    there on. A plugin that fails must not end the engine: it is named once, and none is
    called again."""

    def __init__(self, plugins: Plugins) -> None:
        self._plugins = plugins
        self._failed = False
        self._index = 0
        self._step: DecodeStep | None = None
        """Sampled, and not appended yet."""

    def sampled(self, slots: Sequence[int], tokens: Tensor) -> None:
        """The step's tokens are sampled: [rows], or [rows, drafts + 1] under
        speculative decoding."""
        missing = tokens.shape[0] - len(slots)
        self._step = DecodeStep(self._index, [*slots, *[UNGUIDED] * missing], tokens)
        self._index += 1
        self._call("post_sampling")

    def appended(self) -> None:
        """They are appended. Does nothing for a step that sampled none."""
        if self._step is not None:
            self._call("after_stop_criteria")
        self._step = None

    def _call(self, hook: str) -> None:
        if self._failed:
            return
        try:
            getattr(self._plugins, hook)(self._step)
        except GuidedError as error:
            self._failed = True
            _log.error("step hooks are no longer called: %s", error)


def apply_sampling_params(
    self: Any, logits: Any, *args: Any, original: Any, **kwargs: Any
) -> Any:
    """V2's `Sampler.apply_sampling_params`: shows our runners the logits before vLLM
    copies them.

    A batch in which a request needs a logits processor gets a float32 copy of its
    logits first: three times the bytes to move, twice the bytes to mask and to sample
    from. Masks need no copy, as those of vLLM's own structured output don't. So they go
    on the original, and guided requests ask for no processing. Raw logprobs are taken
    from the original: they are those of masked logits too.
    """
    context = SimpleNamespace(**by_name(original, logits, *args, **kwargs))
    for runner in _behind(self):
        runner.mask(logits, context)
    return original(self, logits, *args, **kwargs)


def reject_cut(
    self: Any,
    logits: Any,
    input_batch: Any,
    draft_logits: Any = None,
    invalid_drafts: Any = None,
    *more: Any,
    original: Any,
) -> Any:
    """V2's `RejectionSampler`: drafts that a worker cut are invalid, as vLLM's own
    without a mask are."""
    for runner in _behind(self.sampler):
        invalid_drafts = runner.invalid_drafts(input_batch, invalid_drafts)
    return original(self, logits, input_batch, draft_logits, invalid_drafts, *more)


def sample(self: Any, *args: Any, original: Any, **kwargs: Any) -> Any:
    """V2's `GPUModelRunner.sample`: tells hooks what was sampled."""
    batch = by_name(original, *args, **kwargs)["input_batch"]
    result = original(self, *args, **kwargs)
    for runner in _behind(self.sampler):
        if runner.engine.hooks is not None:
            slots = runner.requests.slots[batch.idx_mapping_np].tolist()
            runner.engine.hooks.sampled(slots, _tokens(*result[:2]))
    return result


def _behind(sampler: Any) -> list[Any]:
    """The runners of this package behind a sampler, which keeps them: this is asked in
    each step."""
    found: list[Any] | None = vars(sampler).get("_guided_runners")
    if found is None:
        runners = [getattr(one, "runner", None) for one in sampler.logits_processors]
        # others may have a runner too
        found = [one for one in runners if type(one).__module__.startswith(__package__)]
        sampler._guided_runners = found
    return found


def _tokens(output: Any, counts: Tensor) -> Tensor:
    """Return the sampled tokens that count. NO_TOKEN for rejected drafts and in the
    middle of a prompt."""
    sampled: Tensor = output.sampled_token_ids
    position = torch.arange(sampled.shape[1], device=sampled.device)
    tokens = torch.where(position < counts.unsqueeze(1), sampled, NO_TOKEN)
    return tokens.view(-1) if tokens.shape[1] == 1 else tokens
