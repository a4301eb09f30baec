"""Files, tokenizers and models for the commands, with one-line errors. Imports torch only when asked."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from guided_plugin.errors import GuidedError, SpecError
from guided_plugin.spec import OutputSpec
from guided_plugin.spec.forms import KINDS

if TYPE_CHECKING:
    from guided_plugin.grammar.vocabulary import Vocabulary

__all__ = [
    "InputError",
    "check_device",
    "load_grammar",
    "load_model",
    "load_spec",
    "load_tokenizer",
    "model_vocabulary",
    "print_json",
    "read_text",
    "working",
]

_TOKENIZER_FILES = ("tokenizer*", "vocab*", "*.model", "*.tiktoken")
_GRAMMARS = {".ebnf": "ebnf", ".gbnf": "ebnf", ".lark": "lark"}


class InputError(GuidedError):
    """What the command was given can't be used."""


@contextlib.contextmanager
def working(what: str) -> Iterator[None]:
    """A spinner on stderr while something slow runs."""
    with Console(stderr=True).status(what):
        yield


def print_json(document: Any) -> None:
    """Machine-readable output: one JSON document on stdout."""
    print(json.dumps(document, indent=2, ensure_ascii=False))


def read_text(path: Path) -> str:
    """A text file."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"is not UTF-8 text (byte {error.start})", where=str(path)) from None
    except OSError as error:
        raise InputError(f"can't be read: {error.strerror}", where=str(path)) from None


def read_json(path: Path) -> Any:
    """A JSON file."""
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        where = f"{path}, line {error.lineno}, column {error.colno}"
        raise InputError(f"is not JSON: {error.msg}", where=where) from None
    except (RecursionError, ValueError) as error:
        raise InputError(f"can't be read as JSON: {error}", where=str(path)) from None


def load_spec(path: Path, **options: Any) -> OutputSpec:
    """A spec file: a JSON Schema, any form `OutputSpec.parse` takes, or a grammar (.ebnf, .gbnf, .lark)."""
    try:
        return _spec(path, options)
    except SpecError as error:
        where = f"{path}: {error.where}" if error.where else str(path)
        raise SpecError(error.what, where=where, hint=error.hint) from None


def load_grammar(path: Path) -> OutputSpec:
    """A grammar file; its name says what it is written in."""
    if path.suffix.lower() not in _GRAMMARS:
        hint = "name it " + ", ".join(_GRAMMARS)
        raise InputError("can't tell what this grammar is written in", where=str(path), hint=hint)
    return load_spec(path)


def _spec(path: Path, options: dict[str, Any]) -> OutputSpec:
    syntax = _GRAMMARS.get(path.suffix.lower())
    if syntax is not None:
        return OutputSpec.grammar(read_text(path), syntax, **options)  # type: ignore[arg-type]
    document = read_json(path)
    wire = isinstance(document, dict) and (
        {*KINDS, "json"} & document.keys()
        or document.get("type") in ("json_schema", "json_object", "regex_schema", "structural_tag", "text")
    )
    if not wire:
        return OutputSpec.json_schema(document, **options)
    spec = OutputSpec.parse({**document, **options})
    if spec is None:
        raise SpecError("asks for plain text: there is nothing to enforce")
    return spec


def load_tokenizer(directory: Path) -> Any:
    """A transformers tokenizer from a local folder."""
    _quiet()
    if not directory.is_dir():
        raise InputError("is no folder", where=str(directory), hint="give the folder with tokenizer.json")
    if not any(path for pattern in _TOKENIZER_FILES for path in directory.glob(pattern)):
        raise InputError("holds no tokenizer", where=str(directory), hint="no tokenizer.json in it")
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(directory, local_files_only=True)
    except Exception as error:
        raise InputError(
            f"holds no tokenizer that transformers can load: {_brief(error)}", where=str(directory)
        ) from error


def check_device(device: str) -> None:
    """Refuse a device that PyTorch can't use here."""
    import torch

    try:
        torch.device(device)
    except RuntimeError:
        raise InputError(f"{device!r} is no device", where="--device", hint="cpu or cuda") from None
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(f"{device!r} can't be used: {_brief(error)}", where="--device") from None


def load_model(directory: Path, device: str = "cpu") -> Any:
    """A transformers causal LM from a local folder, for inference."""
    _quiet()
    if not directory.is_dir():
        raise InputError(
            "is no folder", where=str(directory), hint="give a folder with a model's config.json"
        )
    if not (directory / "config.json").is_file():
        raise InputError("holds no model", where=str(directory), hint="no config.json in it")
    import torch
    from transformers import AutoModelForCausalLM

    check_device(device)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(directory, local_files_only=True, dtype=dtype)
    except Exception as error:
        raise InputError(
            f"holds no model that transformers can load: {_brief(error)}", where=str(directory)
        ) from error
    return model.to(device).eval()


def model_vocabulary(tokenizer: Any, model: Any) -> Vocabulary:
    """The vocabulary of a tokenizer, with the stop tokens of the model it is used with."""
    from guided_plugin.grammar.vocabulary import Vocabulary

    stops = getattr(model.generation_config, "eos_token_id", None)
    vocabulary = Vocabulary.from_tokenizer(tokenizer, stop_token_ids=stops)
    vocabulary.check_width(model.get_output_embeddings().weight.shape[0])
    return vocabulary


def _brief(error: Exception) -> str:
    """The first sentence of an error that somebody else wrote, on one line."""
    lines = str(error).strip().splitlines()
    return re.split(r"(?<=[a-z])[.:](?= |$)", lines[0])[0][:200] if lines else type(error).__name__


def _quiet() -> None:
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
