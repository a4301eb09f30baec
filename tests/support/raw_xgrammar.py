"""xgrammar's own reading of specs: what ours is compared with, and a second backend for
tables of grammars."""

import dataclasses
import json

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import GuidedConfig
from guided_plugin.grammar.xgrammar.backend import XGrammarBackend
from guided_plugin.hookspecs import hookimpl
from guided_plugin.plugins import Plugins
from guided_plugin.spec import OutputSpec

RAW = "raw-xgrammar"


class RawXGrammar(XGrammarBackend):
    """The backend with regexes, choices and schemas as xgrammar reads them."""

    languages = frozenset({"ebnf", "regex", "choice", "json_schema", "structural_tag"})

    def _compile(self, spec):
        match spec.kind:
            case "regex":
                return self._compiler.compile_regex(spec.text)
            case "choice":
                texts = " | ".join(map(json.dumps, spec.document()))
                return super()._compile(OutputSpec.grammar(f"root ::= {texts}"))
            case "json_schema":
                return self._compiler.compile_json_schema(
                    spec.text, any_whitespace=False, separators=(",", ":")
                )
        return super()._compile(spec)


class _RawTags(RawXGrammar):
    name = RAW

    def __init__(self, vocabulary, config):
        # It reads control tokens as text.
        super().__init__(
            dataclasses.replace(vocabulary, special_ids=frozenset()), config
        )

    def _compile(self, spec):
        document = spec.document()
        if "structures" in document:
            tags = [
                {
                    "begin": tag["begin"],
                    "content": _json(tag["schema"]),
                    "end": tag["end"],
                }
                for tag in document["structures"]
            ]
            form = {
                "type": "triggered_tags",
                "triggers": document["triggers"],
                "tags": tags,
            }
            document = {"type": "structural_tag", "format": form}
        return self._compiler.compile_structural_tag(json.dumps(document))


def _json(schema):
    return {"type": "json_schema", "json_schema": schema}


class _Plugin:
    @hookimpl
    def register_backends(self, register):
        register(RAW, _RawTags)


def compiler_with_raw(vocabulary):
    """A compiler that has it under the name `RAW`."""
    plugins = Plugins(entry_points=False)
    plugins.register(_Plugin(), RAW)
    return GrammarCompiler(
        vocabulary,
        config=GuidedConfig(threads=1, isolate_compiles=False),
        plugins=plugins,
    )
