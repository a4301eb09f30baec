"""Files and tokenizers for the commands, with one-line errors. Imports torch only where
needed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from guided_plugin.demo import MODEL_DIR
from guided_plugin.errors import (
    GrammarError,
    GuidedError,
    RequestError,
    SpecError,
    printable,
    shown,
)

if TYPE_CHECKING:
    from guided_plugin.grammar.vocabulary import Vocabulary
    from guided_plugin.spec import OutputSpec

GRAMMARS = {".ebnf": "ebnf", ".gbnf": "ebnf", ".lark": "lark"}
STANDARD_INPUT = Path("-")

_ASKING = ("response_format", "structured_outputs")
"""Fields of a request's body that say what its output must be."""


class InputError(GuidedError):
    """The command's input can't be used."""


def show_error(error: GuidedError) -> int:
    """Write the line of an error. Returns the exit code: 1 for what a spec or a request
    gets wrong, 2 for what can't be used at all."""
    sys.stderr.write("error: " + " ".join(str(error).split()) + "\n")
    return 1 if isinstance(error, GrammarError | RequestError | SpecError) else 2


def name_of(path: Path) -> str:
    """Return the name of a file in messages. `-` is the standard input; a file of that
    name is `./-`."""
    return "standard input" if path == STANDARD_INPUT else str(path)


def read_text(path: Path) -> str:
    """A text file, or the standard input."""
    try:
        if path == STANDARD_INPUT:
            text = sys.stdin.buffer.read().decode("utf-8-sig")
            return text.replace("\r\n", "\n")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"is not UTF-8 text (byte {error.start})", where=name_of(path)
        ) from None
    except OSError as error:
        raise InputError(
            f"can't be read: {error.strerror}", where=name_of(path)
        ) from None


class Place(NamedTuple):
    """The place of a spec: the file, and in it the JSON pointer and the tool."""

    file: Path
    at: str = ""
    tool: str = ""

    def __str__(self) -> str:
        return name_of(self.file) + (f": tool {shown(self.tool)}" if self.tool else "")


Loaded = tuple[Place, "OutputSpec | GuidedError"]


def load_specs(path: Path) -> list[Loaded]:
    """The specs of a file: one of a JSON Schema, of any form `OutputSpec.parse` takes,
    of a request's body and of a grammar (.ebnf, .gbnf, .lark); one of each tool of a
    list or a body. Each error of what is malformed comes with its place."""
    from guided_plugin.diagnose.refusals import refusals
    from guided_plugin.diagnose.tools import Tool, tools_of
    from guided_plugin.spec import OutputSpec
    from guided_plugin.spec.forms import from_text, read

    found: list[Loaded] = []
    place = Place(path)
    syntax: Any = GRAMMARS.get(path.suffix.lower())
    try:
        if syntax is not None:
            return [(place, OutputSpec.grammar(read_text(path), syntax))]
        document = from_text(read_text(path), "")
        tools = tools_of(document)
        field = _asking(document)
        if field:
            document = document[field]
        if field or (tools is None and _is_form(document)):
            keys = (form.place if (form := read(document)) else "").split(".")
            place = Place(path, "".join(f"/{key}" for key in (field, *keys) if key))
            spec = OutputSpec.parse(document)
            if spec is not None:
                found.append((place, spec))
            elif not tools:
                raise SpecError("asks for plain text: there is nothing to enforce")
    except InputError as error:
        return [(place, error)]
    except SpecError as error:
        return [(place, error.under(str(place)))]
    for name, at, schema in tools or ([] if found else [Tool("", "", document)]):
        made, errors = refusals(schema, OutputSpec.json_schema)
        place = Place(path, at, name)
        found += [(place, error.under(str(place))) for error in errors]
        if made is not None and not errors:
            found.append((place, made))
    return found


def _asking(document: Any) -> str:
    """The field of a request's body that asks for its output; empty if it has none."""
    found = document if isinstance(document, dict) else {}
    return next((key for key in _ASKING if isinstance(found.get(key), dict)), "")


def _is_form(document: Any) -> bool:
    """True if a document that is no list of tools asks for an output in some form of
    requests."""
    from guided_plugin.spec.forms import NAMED, RESPONSE_TYPES

    return isinstance(document, dict) and (
        not NAMED.keys().isdisjoint(document) or document.get("type") in RESPONSE_TYPES
    )


def load_spec(path: Path) -> OutputSpec:
    """The one spec of a file, as `load_specs` reads it."""
    (_, spec), *others = load_specs(path)
    if isinstance(spec, GuidedError):
        raise spec
    if others:
        raise InputError(
            f"has {1 + len(others)} tools, and one spec is needed",
            where=name_of(path),
            hint="`guided-plugin check` takes them all",
        )
    return spec


def load_tokenizer(directory: Path) -> Any:
    """A transformers tokenizer from a local folder, without log lines."""
    if not directory.is_dir():
        what = "is not a folder"
        hint = "give the folder with tokenizer.json"
        raise InputError(what, where=str(directory), hint=hint)
    from transformers import AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    try:
        return AutoTokenizer.from_pretrained(directory, local_files_only=True)
    except Exception as error:
        what = (
            f"contains no tokenizer that transformers can load: {printable(error, 200)}"
        )
        raise InputError(what, where=str(directory)) from error


def load_vocabulary(directory: Path) -> Vocabulary:
    """The vocabulary of a tokenizer's folder. That of the demo needs no
    transformers."""
    from guided_plugin.grammar.vocabulary import Vocabulary

    shipped = directory.resolve() == MODEL_DIR
    return Vocabulary.from_tokenizer(
        _shipped() if shipped else load_tokenizer(directory)
    )


def _shipped() -> Any:
    """The parts of the demo's tokenizer that a vocabulary is read from."""
    file = MODEL_DIR / "tokenizer.json"
    text = file.read_bytes().decode()
    document = json.loads(text)
    special = {one["content"]: one["id"] for one in document["added_tokens"]}

    def encode(text: str, **options: Any) -> list[int]:
        from tokenizers import Tokenizer

        return list(Tokenizer.from_file(str(file)).encode(text, **options).ids)

    return SimpleNamespace(
        backend_tokenizer=SimpleNamespace(to_str=lambda: text),
        all_special_ids=special.values(),
        eos_token_id=special["<|eos|>"],
        get_vocab=lambda: document["model"]["vocab"] | special,
        encode=encode,
    )
