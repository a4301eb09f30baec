"""A vocabulary, and questions to the llguidance backend, which its tests share."""

from functools import cache, lru_cache

import llguidance
import numpy as np

from guided_plugin import Vocabulary

__all__ = [
    "CONTROL",
    "END",
    "OTHER_END",
    "PERSON",
    "VOCABULARY",
    "allowed",
    "takes",
    "terminal_takes",
]

END = 256
OTHER_END = 257
CONTROL = 258
VOCABULARY = Vocabulary.from_tokens(
    [*(bytes([byte]) for byte in range(256)), b"</s>", b"<other>", b"<ctrl>"],
    [END],
    [OTHER_END, CONTROL],
)


def takes(backend, spec, text):
    matcher = backend.start(backend.compile(spec), VOCABULARY.stop_token_ids)
    return matcher.accept_text(text.encode()) and matcher.complete


@cache
def _bytes_tokenizer():
    return llguidance.LLTokenizer("byte")


@lru_cache(maxsize=8)
def _at_start(terminal):
    return llguidance.LLMatcher(
        _bytes_tokenizer(),
        f'%llguidance {{"no_forcing": true}}\nstart: TEXT\nTEXT: {terminal}',
        log_level=0,
    )


def terminal_takes(terminal, text):
    """Whether a terminal of a grammar matches a text; False also for the terminal that
    matches none."""
    matcher = _at_start(terminal).deep_copy()
    data = list(text.encode())
    if matcher.is_error():
        assert "nsatisfiable" in matcher.get_error(), matcher.get_error()
        return False
    return (
        not data or matcher.try_consume_tokens(data) == len(data)
    ) and matcher.is_accepting()


def allowed(backend, matchers):
    mask = np.zeros((len(matchers), VOCABULARY.words), np.int32)
    backend.batch(matchers).fill(mask, list(range(len(matchers))))
    bits = np.unpackbits(mask.view(np.uint8), axis=1, bitorder="little")
    return [set(np.flatnonzero(row).tolist()) for row in bits]


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
}
