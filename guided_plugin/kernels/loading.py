"""Loads a host's kernels at its start: the first launch of each takes a tenth of a
second, and waits for the device. Imports torch."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor

from guided_plugin.kernels import indexed_kernels, mask_rows
from guided_plugin.step import TokenSink


def load_kernels(
    device: torch.device,
    kinds: Iterable[torch.dtype],
    width: int,
    vocabulary_size: int,
    histories: tuple[Tensor, Tensor, Tensor] | None = None,
    drafts: int = 0,
) -> None:
    """Load what masks rows of these types and width; on the CPU there is nothing to
    load.

    `histories` of a host that uses `IndexedKernels`: its lengths, totals and tokens, of
    which nothing is changed. `drafts`: so many are proposed for a request in a step.
    All other arguments are of the types that vLLM's own have: Triton compiles a kernel
    for each.
    """
    if device.type != "cuda":
        return
    zeros = partial(torch.zeros, device=device)
    mask = zeros(1, (vocabulary_size + 31) // 32, dtype=torch.int32)
    first = zeros(1, dtype=torch.int32)
    none = zeros(1, dtype=torch.int64)
    table = first - 1  # no request has a mask
    kernels = indexed_kernels(device)
    places = (first, 1) if drafts else ()
    for kind in kinds:
        logits = zeros(1, width, dtype=kind)
        if histories is None:
            mask_rows(logits, mask, first, vocabulary_size)
        else:
            kernels.mask_rows(logits, mask, none, table, vocabulary_size, *places)
    if histories is None:
        return
    if not drafts:
        ring = zeros(1, dtype=torch.int64)
        word = zeros(1, dtype=torch.int64)
        kernels.take_tokens(
            none, *histories, TokenSink(ring.data_ptr(), word.data_ptr(), 0)
        )
        return
    cut = zeros(1, drafts + 1, dtype=torch.int8)
    proposed = zeros(1, drafts, dtype=torch.int64)
    given = none, *histories, table, none
    kernels.gather_drafts(*given, first, first, drafts)
    tokens = kernels.gather_drafts(*given, None, proposed, drafts)
    for sure in (None, zeros(1, drafts, dtype=torch.float32)):
        kernels.take_offers(tokens.data_ptr(), table, none, proposed, sure, cut, 1)
    kernels.cut_drafts(cut, none, first)
