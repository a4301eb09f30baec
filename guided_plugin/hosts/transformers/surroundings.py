"""The view of a logits processor on the `generate` call that it is in. Depends on
errors.

`generate` passes token ids and scores, and nothing else. The rest is read from the
stack frame of the decoding method, once a call.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

from torch import Tensor

from guided_plugin.errors import ConfigError

DECODERS = {"_beam_search": "beam search", "_assisted_decoding": "assisted generation"}
"""Methods of `GenerationMixin` that call processors out of turn, or on rows that
move."""

ONE_BY_ONE = (
    "sample or decode greedily: num_beams=1, and no assistant_model, prompt_lookup_num_tokens, "
    "forced_bos_token_id or forced_eos_token_id"
)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The plan of a `generate` call."""

    sequences: int
    """Rows of a prompt."""
    pads: frozenset[int]
    """The tokens that it writes into rows that ended."""
    max_length: int
    """Columns of the token ids at most."""
    keeps_logits: bool
    """The logits are returned as they were before the processors: they must not be
    masked in place."""
    first: bool
    """No processor has changed the logits before."""


def surroundings(processor: object) -> Surroundings:
    """Read them from the frame of the decoding method that is calling a processor.
    Raises ConfigError for a way of decoding that can't be guided."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        names = frame.f_code.co_varnames
        if "generation_config" in names and "logits_processor" in names:
            local = frame.f_locals
            try:
                return _read(frame.f_code.co_name, local, processor)
            finally:
                # Up to Python 3.12 the frame keeps this copy, and with it the prompt's
                # logits.
                if isinstance(local, dict):
                    local.clear()
        frame = frame.f_back
    raise ConfigError(
        "no decoding method of transformers calls this",
        where="generate",
        hint="guide model.generate; loops of your own have StepPipeline",
    )


def _read(decoder: str, local: Mapping[str, Any], processor: object) -> Surroundings:
    config = local["generation_config"]
    unguidable = DECODERS.get(decoder, "")
    if (getattr(config, "num_beams", None) or 1) > 1:
        unguidable = "beam search"
    if getattr(config, "is_assistant", False):
        unguidable = "assisted generation"
    for name in ("forced_bos_token_id", "forced_eos_token_id"):
        if getattr(config, name, None) is not None:
            unguidable = f"a token forced by {name}"
    if unguidable:
        raise ConfigError(
            f"{unguidable} can't be guided", where="generate", hint=ONE_BY_ONE
        )
    chain = list(local["logits_processor"] or ())
    pads: Tensor | None = getattr(config, "_pad_token_tensor", None)
    return Surroundings(
        sequences=getattr(config, "num_return_sequences", None) or 1,
        pads=frozenset() if pads is None else frozenset(pads.reshape(-1).tolist()),
        max_length=config.max_length,
        keeps_logits=bool(getattr(config, "output_logits", True)),
        first=bool(chain) and chain[0] is processor,
    )
