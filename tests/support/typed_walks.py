"""Random outputs of a spec: bytes that its grammar allows, and after some of them those that end it."""

from __future__ import annotations

from random import Random

import numpy as np

from guided_plugin import GrammarCompiler, OutputSpec

__all__ = ["random_output"]

_WILD = 25
_MOST = 4_000
_CLOSERS = b'"}],:0123456789-'


def random_output(compiler: GrammarCompiler, spec: OutputSpec, chance: Random) -> str:
    """A complete output of a spec, in the vocabulary of bytes."""
    vocabulary = compiler.vocabulary
    grammar = compiler.compile(spec)
    backend = compiler.backend(grammar.backend)
    matcher = backend.start(grammar, vocabulary.stop_token_ids)
    batch = backend.batch([matcher])
    mask = np.zeros((1, vocabulary.words), np.int32)
    written = bytearray()
    while len(written) < _MOST:
        batch.fill(mask, [0])
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
        allowed = [int(token) for token in np.flatnonzero(bits[:256])]
        if matcher.complete and (not allowed or len(written) > _WILD or chance.random() < 0.3):
            return written.decode()
        closers = [token for token in allowed if token in _CLOSERS]
        late = closers and (len(written) > _WILD or chance.random() < 0.5)
        # Closing brackets and quotes first: a number or a list may go on for ever.
        ending = [token for token in closers if token in b'"}]'] if len(written) > 2 * _WILD else []
        token = chance.choice(ending or (closers if late else allowed))
        if not batch.accept([token])[0]:
            raise RuntimeError(f"{bytes(written)!r} allowed {token}, and refuses it")
        written.append(token)
    raise RuntimeError(f"no end after {bytes(written[:200])!r}")
