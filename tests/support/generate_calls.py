"""Calls of `generate` that several tests make."""

from generating import SPECS
from transformers import set_seed

STOP = 1
PAD = 2
MIXED = [SPECS[0], None, SPECS[1]]


def generate(model, inputs, *, seed=0, **options):
    """The generated part."""
    set_seed(seed)
    out = model.generate(**inputs, **{"max_new_tokens": 80, **options})
    return (
        out
        if model.config.is_encoder_decoder
        else out[:, inputs["input_ids"].shape[1] :]
    )
