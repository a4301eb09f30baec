"""Which documents `benchmarks.replay` replays.

    tools   valid instances of function-call schemas: those of BFCL, Glaive and MCP in MaskBench, as they are
    real    valid instances of the schemas of all sources

Instances are written with their own order of keys, in one of `FORMS`, and ended with a
stop token. Left out are those that a fresh matcher refuses, and those that are too
long.
"""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from benchmarks.harness import Json
from benchmarks.samples import TextTokens, open_sample, refused_at
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import GuidedConfig
from guided_plugin.errors import GuidedError
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.spec import OutputSpec

KINDS = ("tools", "real")
FORMS: dict[str, tuple[str, Json]] = {
    "compact": ("compact", {"separators": (",", ":")}),
    "spaced": ("spaced", {}),
    "indented": ("flexible", {"indent": 4}),
}
"""By name: the whitespace that a spec asks for, and how `json.dumps` writes its
documents."""
_FUNCTION_CALLS = ("BFCL", "Glaiveai", "MCP")
"""How the names of files of function-calling sources begin."""


class Documents:
    """Chosen from a sample, the same for the same vocabulary. Each has a name, the spec
    that its request sends, and its tokens with a stop token at the end."""

    def __init__(self, sample: Path, vocabulary: Vocabulary, longest: int) -> None:
        self._longest = longest
        self._stop = vocabulary.stop_token_ids[0]
        self._text = TextTokens(vocabulary)
        self._compiler = GrammarCompiler(
            vocabulary, config=GuidedConfig(isolate_compiles=False, threads=1)
        )
        with open_sample(sample) as files:
            self._files = [
                (PurePosixPath(name).name, json.loads(path.read_bytes()))
                for name, path in files.items()
            ]
        random.Random(1).shuffle(self._files)
        self.left_out: Counter[str] = Counter()
        """How many documents of each kind and form were tried and not taken."""

    def choose(self, kind: str, form: str, count: int) -> list[Json]:
        """At most so many of a kind. Raises GuidedError where there are none."""
        found: list[Json] = []
        for name, schema, data in self._instances(kind):
            document = self._document(name, schema, data, form)
            if document is None:
                self.left_out[f"{kind} {form}"] += 1
                continue
            found.append(document)
            if len(found) == count:
                break
        if not found:
            what = f"no document of kind {kind!r}"
            raise GuidedError(what, where="--sample", hint="docs/performance.md")
        return found

    def _instances(self, kind: str) -> Iterator[tuple[str, Any, Any]]:
        """The first valid instance of every schema before the second of any."""
        waiting = [
            [
                (name, file["schema"], test["data"])
                for test in file["tests"]
                if test["valid"]
            ]
            for name, file in self._files
            if kind == "real" or name.startswith(_FUNCTION_CALLS)
        ]
        for together in itertools.zip_longest(*waiting):
            yield from filter(None, together)

    def _document(self, name: str, schema: Any, data: Any, form: str) -> Json | None:
        whitespace, written = FORMS[form]
        tokens = self._text(json.dumps(data, ensure_ascii=False, **written))
        if len(tokens) >= self._longest or not isinstance(schema, dict):
            return None
        tokens = [*tokens, self._stop]
        options: Json = {"whitespace": whitespace, "strict": True}
        try:
            spec = OutputSpec.json_schema(schema, **options)
            refused = refused_at(self._compiler, spec, tokens)
        except GuidedError:
            return None  # a schema that is not served
        if refused is not None:
            return None
        asked = {"json_schema": schema, **options}
        return {"name": name, "spec": asked, "tokens": tokens}
