"""Rows of logits that need more than a mask: closed requests, and options of vLLM that leave nothing. Torch.

A closed row allows one stop token. Where `allowed_token_ids`, `bad_words`, `min_tokens` or `logit_bias` and
the grammar together leave no token, a stop token is put there: a row of -inf would break the whole batch. If
the grammar allows the stop token there, the output is finished; else the request has failed: its output ends
with a stop token that its mask forbids. That is looked at on the device, and nothing waits for it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from guided_plugin.hosts.vllm.requests import GuidedRequest
from guided_plugin.step import UNGUIDED


class Fragile(NamedTuple):
    """A request whose options may leave a row nothing."""

    row: int
    """Of the logits; with drafts the request's index in the runner."""
    place: int
    """Its row among the masks; with drafts in each block of them."""
    stop: int


class ForcedRows:
    """The rows of one batch that need more than a mask. Not changed once it is used: their numbers go to the
    device once."""

    def __init__(self) -> None:
        self.closed: list[tuple[int, int]] = []
        """Where closed requests are, with their stop tokens."""
        self.fragile: list[Fragile] = []
        self.limited: list[GuidedRequest] = []
        """Their requests."""
        self._closed_columns: tuple[Tensor, ...] = ()
        self._fragile_columns: tuple[Tensor, ...] = ()

    def add(self, row: int, place: int, request: GuidedRequest) -> None:
        """A request of the batch: its row of the logits, and its row among the masks if it has one."""
        if request.slot == UNGUIDED:
            self.closed.append((row, request.stop))
        elif request.limits:
            self.fragile.append(Fragile(row, place, request.stop))
            self.limited.append(request)

    def closed_on(self, device: torch.device) -> tuple[Tensor, ...]:
        """Rows and stop tokens of closed requests, on the device."""
        self._closed_columns = self._closed_columns or _columns(self.closed, device)
        return self._closed_columns

    def fragile_on(self, device: torch.device) -> tuple[Tensor, ...]:
        """Rows, places and stop tokens of fragile ones, on the device."""
        self._fragile_columns = self._fragile_columns or _columns(self.fragile, device)
        return self._fragile_columns


def close_rows(logits: Tensor, forced: ForcedRows) -> None:
    """Leave the rows of closed requests a stop token and nothing else."""
    index, stops = forced.closed_on(logits.device)
    logits.index_fill_(0, index, -torch.inf)
    logits[index, stops] = 0.0


def spare_rows(logits: Tensor, forced: ForcedRows) -> None:
    """Put a stop token into masked rows that have nothing left."""
    index, _, stops = forced.fragile_on(logits.device)
    dead = logits.index_select(0, index).amax(1) == -torch.inf
    logits[index, stops] = torch.where(dead, 0.0, logits[index, stops])


def refused_stops(mask: Tensor, forced: ForcedRows, drafts: int = 0) -> Tensor:
    """Where masks forbid the stop token that `spare_rows` would put there: [drafts + 1, fragile] bool, on the
    device. The masks are so many blocks."""
    _, places, stops = forced.fragile_on(mask.device)
    words = mask.view(drafts + 1, -1, mask.shape[1])[:, places, stops // 32]
    return (words >> (stops % 32) & 1) == 0


def close_indexed(logits: Tensor, indices: Tensor, forced: ForcedRows) -> None:
    """`close_rows` where a request has several rows, found on the device by its index: indices[row]."""
    index, stops = forced.closed_on(logits.device)
    own = indices.unsqueeze(1) == index
    hit, stop = own.any(1, keepdim=True), (own * stops).sum(1, keepdim=True)
    logits.masked_fill_(hit, -torch.inf)
    logits.scatter_(1, stop, torch.where(hit, 0.0, logits.gather(1, stop)))


def spare_indexed(logits: Tensor, indices: Tensor, forced: ForcedRows) -> None:
    """`spare_rows` for those."""
    index, _, stops = forced.fragile_on(logits.device)
    own = indices.unsqueeze(1) == index
    hit, stop = own.any(1), (own * stops).sum(1)
    dead = hit & (logits.amax(1) == -torch.inf)
    column = stop.unsqueeze(1)
    logits.scatter_(1, column, torch.where(dead.unsqueeze(1), 0.0, logits.gather(1, column)))


def upload(host: Tensor, device: torch.device) -> Tensor:
    """A small tensor of the host on the device; nothing waits for the copy."""
    return (host.pin_memory() if device.type == "cuda" else host).to(device, non_blocking=True)


def _columns(rows: list[tuple[int, int]] | list[Fragile], device: torch.device) -> tuple[Tensor, ...]:
    return tuple(upload(torch.tensor(rows, dtype=torch.int64).T.contiguous(), device))
