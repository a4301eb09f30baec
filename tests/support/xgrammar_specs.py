"""Questions to the xgrammar backend, which its tests share."""

from __future__ import annotations

import numpy as np

from guided_plugin.grammar.base import Matcher
from guided_plugin.grammar.xgrammar.backend import XGrammarBackend
from guided_plugin.spec import OutputSpec

__all__ = ["accepts", "allowed", "stops_of"]


def accepts(backend: XGrammarBackend, spec: OutputSpec, text: str | bytes) -> bool:
    """Whether a text is a whole output."""
    matcher = backend.start(backend.compile(spec), stops_of(backend))
    return (
        matcher.accept_text(text.encode() if isinstance(text, str) else text)
        and matcher.complete
    )


def stops_of(backend: XGrammarBackend) -> tuple[int, ...]:
    return backend._vocabulary.stop_token_ids


def allowed(backend: XGrammarBackend, matcher: Matcher) -> set[int]:
    mask = np.zeros((1, backend._vocabulary.words), np.int32)
    backend.batch([matcher]).fill(mask, [0])
    return set(
        np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
    )
