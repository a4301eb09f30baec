"""Real-world schemas for benchmarks: those of a MaskBench sample that are served."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from guided_plugin.bench.maskbench import open_sample
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import GuidedConfig
from guided_plugin.errors import GuidedError
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.spec import OutputSpec


def served_schemas(
    sample: Path, most: int, make: Callable[[Any], Any] = lambda schema: schema
) -> list[dict[str, Any]]:
    """At most so many, in an order that looks random and is always the same. `make` is what is done to a
    schema before it is tried. A spec that guides nothing does not count."""
    vocabulary = Vocabulary.from_tokens([*(bytes([byte]) for byte in range(256)), b"</s>"], [256])
    compiler = GrammarCompiler(vocabulary, config=GuidedConfig(isolate_compiles=False))
    found: list[dict[str, Any]] = []
    with open_sample(sample) as files:
        names = sorted(files)
        random.Random(1).shuffle(names)
        for name in names:
            schema = make(json.loads(files[name].read_text())["schema"])
            with contextlib.suppress(GuidedError):
                compiler.compile(OutputSpec.json_schema(schema))
                found.append(schema)
            if len(found) == most:
                break
    return found
