"""Failures in one vLLM engine that are not reported yet. Imports torch.

A request that fails gets masks with stop tokens only. That alone looks like a finished output, so its failure
goes to the scheduler together with the output of the first step that is closed for it, and not before: what
was sampled earlier is still good, and may have ended the request as it should.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, NamedTuple

import torch
from torch import Tensor

AT_ONCE = -1
"""In place of a step: the request was closed before its first one."""

_REMEMBERED = 8192


class Ledger:
    """Failed requests by vLLM's id. Thread-safe: outputs may be fetched in another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.pending: dict[str, tuple[int, str]] = {}
        self._reported: OrderedDict[str, None] = OrderedDict()
        """Ids of the newest requests that were reported: one failure may be noticed in several places."""

    def add(self, request_id: str, step: int, reason: str) -> None:
        """A request is closed from a step on. The first reason stays."""
        with self._lock:
            if request_id not in self._reported:
                self.pending.setdefault(request_id, (step, reason))

    def due(self, step: int) -> dict[str, str]:
        """The reasons of requests that are closed in a step, by id. Each is returned once."""
        if not self.pending:
            return {}
        with self._lock:
            due = {one: reason for one, (first, reason) in self.pending.items() if first <= step}
            for one in due:
                del self.pending[one]
                self._reported[one] = None
            while len(self._reported) > _REMEMBERED:
                self._reported.popitem(last=False)
        return due


class DeadRows(NamedTuple):
    """Requests whose own options may have left a row without a token that the grammar allows: a stop token
    was put there."""

    reasons: dict[str, str]
    """By vLLM's id, in the order of the columns of `flags`."""
    stops: list[int]
    """Which token that is, in the same order."""
    flags: Tensor
    """[positions, requests] bool, host: whether the grammar forbids it there."""

    def cut(self, output: Any) -> list[tuple[str, str]]:
        """Ids and reasons of those that ended with such a stop token. `output` is the step's
        ModelRunnerOutput."""
        found = []
        rows = self.flags.tolist()
        for column, (request_id, reason) in enumerate(self.reasons.items()):
            row = output.req_id_to_index.get(request_id)
            tokens = [] if row is None or not output.sampled_token_ids else output.sampled_token_ids[row]
            # An accepted draft may be that token, too.
            stop = self.stops[column]
            if any(token == stop and at[column] for token, at in zip(tokens, rows, strict=False)):
                found.append((request_id, reason))
        return found


def to_host(flags: Tensor) -> Tensor:
    """Start copying flags to the host on the current stream. vLLM waits for that stream before it reads the
    tokens of the step; the copy is complete then."""
    if flags.device.type != "cuda":
        return flags
    host = torch.empty(flags.shape, dtype=flags.dtype, pin_memory=True)
    return host.copy_(flags, non_blocking=True)
