"""Tiny random models, and the check that every test of the transformers host ends
with."""

import functools

import torch
from compilers import compiler_of

import guided_plugin as gp

PROMPTS = ["Person as JSON: ", "x", "A much longer prompt than the others: "]

SPECS = [
    gp.OutputSpec.json_schema(
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 6},
                "kind": {"enum": ["person", "robot"]},
                "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
            },
            "required": ["name", "kind", "tags"],
        }
    ),
    gp.OutputSpec.regex("[a-f]{3,9}-[0-9]{2,4}"),
    gp.OutputSpec.choice(["yes", "no", "maybe"]),
]


def random_model(vocab_size, *, kind="llama", seed=0, **options):
    """Two layers of random weights, on the CPU. Shared by tests that leave it as it
    is."""
    import transformers

    torch.manual_seed(seed)
    # Each kind has names of its own for the same sizes.
    layers = ("num_hidden_layers", "num_layers", "encoder_layers", "decoder_layers")
    heads = (
        "num_attention_heads",
        "num_heads",
        "encoder_attention_heads",
        "decoder_attention_heads",
    )
    sizes = {
        **dict.fromkeys(("hidden_size", "d_model"), 32),
        **dict.fromkeys(
            ("intermediate_size", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim"), 64
        ),
        **dict.fromkeys((*layers, *heads), 2),
        "num_key_value_heads": 1,
        "d_kv": 16,
        "max_position_embeddings": 512,
        "decoder_start_token_id": 0,
        "vocab_size": vocab_size,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        **options,
    }
    name, head = {
        "llama": ("Llama", "ForCausalLM"),
        "t5": ("T5", "ForConditionalGeneration"),
        "bart": ("Bart", "ForConditionalGeneration"),
    }[kind]
    config = getattr(transformers, f"{name}Config")(**sizes)
    model = getattr(transformers, f"{name}{head}")(config)
    return model.eval().requires_grad_(False)


def encoded(tokenizer, prompts, pad=2):
    """Prompts padded on the left."""
    ids = [tokenizer.encode(prompt) for prompt in prompts]
    width = max(map(len, ids))
    return {
        "input_ids": torch.tensor([[pad] * (width - len(one)) + one for one in ids]),
        "attention_mask": torch.tensor(
            [[0] * (width - len(one)) + [1] * len(one) for one in ids]
        ),
    }


_fresh_compiler = functools.cache(compiler_of)
"""One that no guide has anything to do with."""


def recheck(
    vocabulary,
    specs,
    rows,
    *,
    pads=(2,),
    after=0,
):
    """Assert that a fresh matcher takes every guided row, first token to last; which
    rows have ended.

    `rows`: [rows, n] generated tokens. `after`: tokens before the guided part, as a
    forced first one.
    """
    compiler = _fresh_compiler(vocabulary)
    ended = []
    for spec, tokens in zip(specs, rows.tolist(), strict=True):
        if spec is None:
            ended.append(False)
            continue
        stops = spec.stop_token_ids or vocabulary.stop_token_ids
        grammar = compiler.compile(spec)
        matcher = compiler.backend(grammar.backend).start(grammar, stops)
        done = False
        for place, token in enumerate(tokens[after:]):
            if done:
                # What a host writes into a row that has ended.
                assert token in (*pads, *stops), (spec.summary(), tokens, place)
                continue
            assert matcher.accept(token), (spec.summary(), tokens, place)
            done = token in stops
        ended.append(done)
    return ended


def same_until_stop(left, right, stops=(1,)):
    """Whether two rows hold the same tokens up to the stop token, or as far as both
    go."""
    one = left.tolist()
    other = right.tolist()
    for a, b in zip(one, other, strict=False):
        if a != b:
            return False
        if a in stops:
            return True
    return True
