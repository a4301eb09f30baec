"""What is compared: this package, and both libraries by themselves.

The libraries get schemas as they are written, with no check, limit or rewrite of this
package in between. An engine has what `Walker` asks of a compiler.
"""

from __future__ import annotations

import json
from typing import Any

from benchmarks.harness import Json
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import UNBOUNDED, GuidedConfig
from guided_plugin.grammar.base import Backend, Grammar
from guided_plugin.grammar.llguidance.backend import LLGuidanceBackend
from guided_plugin.grammar.llguidance.lark import HEADER
from guided_plugin.grammar.llguidance.lark.rules import LarkGrammar
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.grammar.xgrammar.backend import XGrammarBackend
from guided_plugin.plugins import Plugins
from guided_plugin.spec import OutputSpec

ENGINES = ("auto", "raw-llguidance", "raw-xgrammar")


class _RawXGrammar(XGrammarBackend):
    """xgrammar's own reading of a schema."""

    name = "raw-xgrammar"

    def _compile(self, spec: OutputSpec) -> Any:
        return self._compiler.compile_json_schema(
            spec.text, strict_mode=bool(spec.strict), any_whitespace=True
        )

    def _check_satisfiable(self, grammar: Grammar) -> None:
        """The library has no such check."""


class _RawLLGuidance(LLGuidanceBackend):
    """llguidance's own reading of a schema, in any tokenization: it would force the
    tokenizer's own."""

    name = "raw-llguidance"

    def _lark(self, spec: OutputSpec) -> LarkGrammar:
        return LarkGrammar(f"{HEADER}start: json\njson: %json {spec.text}\n")


class Engine:
    """One of `ENGINES` for one vocabulary."""

    def __init__(self, name: str, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        config = GuidedConfig(
            threads=1, cache_bytes=0, isolate_compiles=False, **vars(UNBOUNDED)
        )
        self._compiler: GrammarCompiler | None = None
        if name == "auto":
            plugins = Plugins(entry_points=False)
            self._compiler = GrammarCompiler(vocabulary, config=config, plugins=plugins)
        else:
            raw = _RawXGrammar if name == "raw-xgrammar" else _RawLLGuidance
            self._raw = raw(vocabulary, config)

    def compile(self, schema: Json) -> Grammar:
        """A grammar, or a GuidedError. xgrammar by itself is asked as vLLM asks it:
        strictly."""
        if self._compiler is None:
            spec = OutputSpec("json_schema", json.dumps(schema), strict=True)
            return self._raw.compile(spec)
        return self._compiler.compile(OutputSpec.json_schema(schema, strict=False))

    def backend(self, name: str) -> Backend:
        """The backend that compiled a grammar."""
        return self._raw if self._compiler is None else self._compiler.backend(name)
