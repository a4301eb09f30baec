"""Compilers for tests, and what their grammars take and show."""

import numpy as np

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import UNBOUNDED, GuidedConfig
from guided_plugin.grammar.base import Grammar
from guided_plugin.plugins import Plugins
from guided_plugin.spec import OutputSpec


def compiler_of(vocabulary, **options):
    """A compiler that works in this process, without installed plugins."""
    config = GuidedConfig(**{"threads": 1, "isolate_compiles": False, **options})
    return GrammarCompiler(
        vocabulary, config=config, plugins=Plugins(entry_points=False)
    )


def unbounded(vocabulary, **options):
    """The same, of grammars without bounds of the operator."""
    return compiler_of(vocabulary, **{**vars(UNBOUNDED), **options})


def start(compiler, spec):
    """A matcher at the beginning of a spec's grammar, or of a grammar."""
    grammar = compiler.compile(spec) if isinstance(spec, OutputSpec) else spec
    backend = compiler.backend(grammar.backend)
    return backend.start(grammar, compiler.vocabulary.stop_token_ids)


def takes(compiler, spec, text):
    """Whether a text is a whole output of a spec, of a grammar, or from a matcher on."""
    if isinstance(spec, OutputSpec | Grammar):
        matcher = start(compiler, spec)
    else:
        matcher = spec.fork()
    return matcher.accept_text(text.encode()) and matcher.complete


def taken_of(compiler, spec, texts):
    """Those of some texts that are taken."""
    matcher = start(compiler, spec)
    return [text for text in texts if takes(compiler, matcher, text)]


def tokens_of(masks):
    """The tokens that each row of masks allows."""
    bits = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little")
    return [np.flatnonzero(row).tolist() for row in bits]


def shown(table, *slots):
    """The tokens that the masks of some requests show."""
    masks = np.zeros((len(slots), table._vocabulary.words), np.int32)
    table.fill(slots, masks)
    return tokens_of(masks)


def allowed(matcher):
    """The tokens that the mask of a matcher shows."""
    return tokens_of(matcher.row()[None])[0]
