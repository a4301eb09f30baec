"""Specs, and questions to the xgrammar backend, which its tests share."""

from __future__ import annotations

from typing import Any

import numpy as np

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.grammar.base import Matcher
from guided_plugin.grammar.xgrammar.backend import XGrammarBackend
from guided_plugin.spec import OutputSpec

__all__ = ["CALL", "LEGACY_CALL", "PERSON", "accepts", "allowed", "stops_of"]
__all__ += ["accepted", "content", "on_xgrammar", "tag", "tag_on_xgrammar"]


def accepts(backend: XGrammarBackend, spec: OutputSpec, text: str | bytes) -> bool:
    """Whether a text is a whole output."""
    matcher = backend.start(backend.compile(spec), stops_of(backend))
    return matcher.accept_text(text.encode() if isinstance(text, str) else text) and matcher.complete


def stops_of(backend: XGrammarBackend) -> tuple[int, ...]:
    return backend._vocabulary.stop_token_ids


def allowed(backend: XGrammarBackend, matcher: Matcher) -> set[int]:
    mask = np.zeros((1, backend._vocabulary.words), np.int32)
    backend.batch([matcher]).fill(mask, [0])
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name"],
}


CALL = {
    "type": "triggered_tags",
    "triggers": ["<call>"],
    "tags": [
        {"begin": "<call>", "content": {"type": "json_schema", "json_schema": PERSON}, "end": "</call>"}
    ],
}


LEGACY_CALL = {
    "structures": [{"begin": "<call>", "schema": PERSON, "end": "</call>"}],
    "triggers": ["<call"],
}


def _config() -> Any:
    from guided_plugin.config import GuidedConfig

    return GuidedConfig(threads=1)


def accepted(compiler: GrammarCompiler, spec: OutputSpec, texts: list[str]) -> list[str]:
    """The texts that are whole outputs."""
    grammar = compiler.compile(spec)
    backend = compiler.backend(grammar.backend)
    found = []
    for text in texts:
        matcher = backend.start(grammar, compiler.vocabulary.stop_token_ids)
        if matcher.accept_text(text.encode()) and matcher.complete:
            found.append(text)
    return found


def tag_on_xgrammar(tag: Any) -> OutputSpec:
    return OutputSpec.structural_tag(tag, backend="xgrammar")


def on_xgrammar(schema: Any, **options: Any) -> OutputSpec:
    return OutputSpec.json_schema(schema, backend="xgrammar", **options)


def content(schema: Any, **options: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": schema, **options}


def tag(inner: Any) -> dict[str, Any]:
    return {"type": "tag", "begin": "<f>", "content": inner, "end": "</f>"}
