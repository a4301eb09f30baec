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
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from guided_plugin.errors import GuidedError
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
    index of their request: of [rows, width] logits, indices[row] says whose row it is.
    Not changed once it is used: their numbers go to the device once."""

    def __init__(self) -> None:
        self.closed: list[tuple[int, int]] = []
        """The indices of closed requests, with their stop tokens."""
        self.fragile: list[tuple[int, int, int]] = []
        """Those of requests whose options may leave a row nothing, with stop tokens and
        places: their rows among the masks, with drafts in each block of them."""
        self.limited: list[GuidedRequest] = []
        """Their requests."""
        self._closed_columns: tuple[Tensor, ...] = ()
        self._fragile_columns: tuple[Tensor, ...] = ()

    def add(self, index: int, place: int, request: GuidedRequest) -> None:
        """A request of the batch: its index, and its row among the masks if it has
        one."""
        if request.slot == UNGUIDED:
            self.closed.append((index, request.stop))
        elif request.limits:
            self.fragile.append((index, request.stop, place))
            self.limited.append(request)

    def close(self, logits: Tensor, indices: Tensor) -> None:
        """Leave the rows of closed requests a stop token and nothing else."""
        if self.closed:
            self._closed_columns = self._closed_columns or _columns(
                self.closed, logits.device
            )
            hit, stop = _find(indices, *self._closed_columns)
            logits.masked_fill_(hit, -torch.inf)
            logits.scatter_(1, stop, torch.where(hit, 0.0, logits.gather(1, stop)))

    def spare(self, logits: Tensor, indices: Tensor) -> None:
        """Put a stop token into masked rows that have nothing left."""
        if self.fragile:
            index, stops, _ = self._fragile_on(logits.device)
            hit, stop = _find(indices, index, stops)
            dead = hit & (logits.amax(1, keepdim=True) == -torch.inf)
            logits.scatter_(1, stop, torch.where(dead, 0.0, logits.gather(1, stop)))

    def refused_stops(self, mask: Tensor, drafts: int = 0) -> Tensor:
        """Where masks forbid the stop token that `spare` would put there: [drafts + 1,
        fragile] bool, on the device. The masks are so many blocks."""
        _, stops, places = self._fragile_on(mask.device)
        words = mask.view(drafts + 1, -1, mask.shape[1])[:, places, stops // 32]
        return (words >> (stops % 32) & 1) == 0

    def _fragile_on(self, device: torch.device) -> tuple[Tensor, ...]:
        self._fragile_columns = self._fragile_columns or _columns(self.fragile, device)
        return self._fragile_columns


def _find(indices: Tensor, index: Tensor, stops: Tensor) -> tuple[Tensor, Tensor]:
    """Which rows these requests have, [rows, 1], and the stop token of each."""
    own = indices.unsqueeze(1) == index
    return own.any(1, keepdim=True), (own * stops).sum(1, keepdim=True)


def upload(host: Tensor, device: torch.device) -> Tensor:
    """A small tensor of the host on the device; nothing waits for the copy."""
    return (host.pin_memory() if device.type == "cuda" else host).to(
        device, non_blocking=True
    )


class Uploads:
    """Small lists of integers for the device, through pinned memory that is used in
    turn: to pin a new tensor for each takes as long as a few launches."""

    def __init__(self, longest: int, device: torch.device) -> None:
        self._device = device
        # [uploads, longest] int64. A host is two steps ahead of its device; a step has
        # six of them at most.
        self._host = torch.zeros(
            32, longest, dtype=torch.int64, pin_memory=device.type == "cuda"
        )
        self._rows = self._host.numpy()
        self._turn = 0

    def __call__(self, values: Sequence[int] | NDArray[np.int64]) -> Tensor:
        """On the device; nothing waits for the copy."""
        self._turn = (self._turn + 1) % len(self._rows)
        self._rows[self._turn, : len(values)] = values
        return self._host[self._turn, : len(values)].to(
            self._device, non_blocking=True, copy=True
        )


def _columns(rows: list[Any], device: torch.device) -> tuple[Tensor, ...]:
    return tuple(upload(torch.tensor(rows, dtype=torch.int64).T.contiguous(), device))


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


def apply_sampling_params(original: Any) -> Any:
    """V2's `Sampler.apply_sampling_params`: shows our runners the logits before vLLM
    copies them.

    A batch in which a request needs a logits processor gets a float32 copy of its
    logits first: three times the bytes to move, twice the bytes to mask and to sample
    from. Masks need no copy, as those of vLLM's own structured output don't. So they go
    on the original, and guided requests ask for no processing. Raw logprobs are taken
    from the original: they are those of masked logits too.
    """

    def replaced(
        self: Any,
        logits: Any,
        expanded_idx_mapping: Any,
        idx_mapping: Any,
        idx_mapping_np: Any,
        pos: Any,
        input_ids: Any,
        expanded_local_pos: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        context = SimpleNamespace(
            expanded_idx_mapping=expanded_idx_mapping,
            idx_mapping_np=idx_mapping_np,
            input_ids=input_ids,
            expanded_local_pos=expanded_local_pos,
        )
        runners, others = _behind(self)
        for runner in runners:
            runner.mask_early(logits, context, again=others)
        given = (
            expanded_idx_mapping,
            idx_mapping,
            idx_mapping_np,
            pos,
            input_ids,
            expanded_local_pos,
        )
        return original(self, logits, *given, *args, **kwargs)

    return replaced


def reject_cut(original: Any) -> Any:
    """V2's `RejectionSampler`: drafts that a worker cut are invalid, as vLLM's own
    without a mask are."""

    def replaced(
        self: Any,
        logits: Any,
        input_batch: Any,
        draft_logits: Any = None,
        invalid_drafts: Any = None,
        *more: Any,
    ) -> Any:
        for runner in _behind(self.sampler)[0]:
            invalid_drafts = runner.invalid_drafts(input_batch, invalid_drafts)
        return original(self, logits, input_batch, draft_logits, invalid_drafts, *more)

    return replaced


def sample(original: Any) -> Any:
    """V2's `GPUModelRunner.sample`: tells hooks what was sampled."""

    def replaced(self: Any, *args: Any, **kwargs: Any) -> Any:
        batch = kwargs["input_batch"] if "input_batch" in kwargs else args[1]
        result = original(self, *args, **kwargs)
        for runner in _behind(self.sampler)[0]:
            if runner.engine.hooks is not None:
                runner.engine.hooks.sampled(
                    runner.slots_of(batch), _tokens(*result[:2])
                )
        return result

    return replaced


def _behind(sampler: Any) -> tuple[list[Any], bool]:
    """The runners of this package behind a sampler, and whether there are processors of
    third parties, which may write what the masks forbid. The sampler keeps it: this is
    asked in each step."""
    kept = vars(sampler).get("_guided_runners")
    if kept is None or kept[0] is not sampler.logits_processors:
        ones = sampler.logits_processors
        runners = [
            one.runner
            for one in ones
            if hasattr(getattr(one, "runner", None), "mask_early")
        ]
        others = any(
            not type(one).__module__.startswith(("vllm.", "guided_plugin."))
            for one in ones
        )
        kept = vars(sampler)["_guided_runners"] = ones, runners, others
    return kept[1], kept[2]


def _tokens(output: Any, counts: Tensor) -> Tensor:
    """What counts of the sampled tokens. NO_TOKEN for rejected drafts and in the middle
    of a prompt."""
    sampled: Tensor = output.sampled_token_ids
    position = torch.arange(sampled.shape[1], device=sampled.device)
    tokens = torch.where(position < counts.unsqueeze(1), sampled, NO_TOKEN)
    return tokens.view(-1) if tokens.shape[1] == 1 else tokens
