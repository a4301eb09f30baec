"""What is compared: this package with `auto` and with each backend alone, and both
libraries by themselves.

The libraries get schemas as they are written, with no check, limit or rewrite of this
package in between. An engine has what `Walker` asks of a compiler.
"""

from __future__ import annotations

import json
from typing import Any

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import UNBOUNDED, GuidedConfig
from guided_plugin.errors import GuidedError
from guided_plugin.grammar.base import Backend, Grammar
from guided_plugin.grammar.llguidance.backend import LLGuidanceBackend
from guided_plugin.grammar.llguidance.lark import HEADER
from guided_plugin.grammar.llguidance.lark.rules import LarkGrammar
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.grammar.xgrammar.backend import XGrammarBackend
from guided_plugin.plugins import Plugins
from guided_plugin.spec import OutputSpec

__all__ = ["BEGIN", "END", "ENGINES", "OURS", "Engine", "Json"]

Json = dict[str, Any]
BEGIN = "<f>"
END = "</f>"
OURS = ("auto", "llguidance")
ENGINES = (*OURS, "raw-llguidance", "raw-xgrammar")


def tag_of(schema: Any) -> Json:
    """A structural tag around a schema."""
    content = {"type": "json_schema", "json_schema": schema}
    part = {"type": "tag", "begin": BEGIN, "content": content, "end": END}
    return {"type": "structural_tag", "format": part}


class _RawXGrammar(XGrammarBackend):
    """xgrammar's own reading of a schema."""

    name = "raw-xgrammar"

    def _compile(self, spec: OutputSpec) -> Any:
        if spec.kind == "structural_tag":
            return self._compiler.compile_structural_tag(spec.text)
        return self._compiler.compile_json_schema(
            spec.text, strict_mode=spec.closed, any_whitespace=True
        )

    def _check_satisfiable(self, grammar: Grammar) -> None:
        """The library has no such check."""


class _RawLLGuidance(LLGuidanceBackend):
    """llguidance's own reading of a schema, in any tokenization: it would force the
    tokenizer's own."""

    name = "raw-llguidance"

    def _lark(self, spec: OutputSpec) -> LarkGrammar:
        begin = end = ""
        schema = spec.text
        if spec.kind == "structural_tag":
            schema = json.dumps(spec.document()["format"]["content"]["json_schema"])
            begin = json.dumps(BEGIN)
            end = json.dumps(END)
        return LarkGrammar(f"{HEADER}start: {begin} json {end}\njson: %json {schema}\n")


class Engine:
    """One of `ENGINES` for one vocabulary."""

    def __init__(self, name: str, vocabulary: Vocabulary) -> None:
        self.name = name
        self.vocabulary = vocabulary
        config = GuidedConfig(
            threads=1, cache_bytes=0, isolate_compiles=False, **vars(UNBOUNDED)
        )
        self._compiler: GrammarCompiler | None = None
        if name in OURS:
            plugins = Plugins(entry_points=False)
            self._compiler = GrammarCompiler(vocabulary, config=config, plugins=plugins)
        else:
            self._raw = (_RawXGrammar if name == "raw-xgrammar" else _RawLLGuidance)(
                vocabulary, config
            )

    def compile(self, schema: Any, *, tag: bool) -> Grammar:
        """A grammar, or a GuidedError. xgrammar by itself is asked as vLLM asks it:
        strictly."""
        if self._compiler is None:
            kind = "structural_tag" if tag else "json_schema"
            text = json.dumps(tag_of(schema) if tag else schema)
            return self._raw.compile(OutputSpec(kind, text, strict=True))
        options: Json = {"strict": False, "backend": self.name}
        if tag:
            return self._compiler.compile(
                OutputSpec.structural_tag(tag_of(schema), **options)
            )
        return self._compiler.compile(OutputSpec.json_schema(schema, **options))

    def backend(self, name: str) -> Backend:
        """The backend that compiled a grammar."""
        return self._raw if self._compiler is None else self._compiler.backend(name)

    def text(self, instance: str, *, tag: bool) -> str:
        """The whole output that holds an instance."""
        return f"{BEGIN}{instance}{END}" if tag else instance


def refusal(engine: Engine, schema: Any, *, tag: bool) -> tuple[Grammar | None, str]:
    """The grammar, or why there is none."""
    try:
        return engine.compile(schema, tag=tag), ""
    except GuidedError as error:
        where = f" ({error.where})" if error.where else ""
        return None, f"{error.what}{where}".splitlines()[0][:160]
