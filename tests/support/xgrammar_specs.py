"""Questions to the xgrammar backend, which its tests share."""

import numpy as np
from compilers import tokens_of


def accepts(backend, spec, text):
    """Whether a text is a whole output."""
    matcher = backend.start(backend.compile(spec), stops_of(backend))
    return (
        matcher.accept_text(text.encode() if isinstance(text, str) else text)
        and matcher.complete
    )


def stops_of(backend):
    return backend._vocabulary.stop_token_ids


def allowed(backend, matcher):
    mask = np.zeros((1, backend._vocabulary.words), np.int32)
    backend.batch([matcher]).fill(mask, [0])
    return set(tokens_of(mask)[0])
