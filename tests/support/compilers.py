"""Compilers for tests, and what their grammars take and show."""

from __future__ import annotations

from typing import Any

import numpy as np

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import UNBOUNDED, GuidedConfig
from guided_plugin.grammar.base import Grammar, MaskArray, Matcher
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.plugins import Plugins
from guided_plugin.spec import OutputSpec

__all__ = ["compiler_of", "start", "takes", "tokens_of", "unbounded"]


def compiler_of(vocabulary: Vocabulary, **options: Any) -> GrammarCompiler:
    """A compiler that works in this process, without installed plugins."""
    config = GuidedConfig(**{"threads": 1, "isolate_compiles": False, **options})
    return GrammarCompiler(
        vocabulary, config=config, plugins=Plugins(entry_points=False)
    )


def unbounded(vocabulary: Vocabulary, **options: Any) -> GrammarCompiler:
    """The same, of grammars without bounds of the operator."""
    return compiler_of(vocabulary, **{**vars(UNBOUNDED), **options})


def start(compiler: GrammarCompiler, spec: OutputSpec | Grammar) -> Matcher:
    """A matcher at the beginning of a spec's grammar, or of a grammar."""
    grammar = compiler.compile(spec) if isinstance(spec, OutputSpec) else spec
    backend = compiler.backend(grammar.backend)
    return backend.start(grammar, compiler.vocabulary.stop_token_ids)


def takes(
    compiler: GrammarCompiler, spec: OutputSpec | Grammar | Matcher, text: str
) -> bool:
    """Whether a text is a whole output of a spec, of a grammar, or from a matcher on."""
    if isinstance(spec, OutputSpec | Grammar):
        matcher = start(compiler, spec)
    else:
        matcher = spec.fork()
    return matcher.accept_text(text.encode()) and matcher.complete


def tokens_of(masks: MaskArray) -> list[list[int]]:
    """The tokens that each row of masks allows."""
    bits = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little")
    return [np.flatnonzero(row).tolist() for row in bits]
