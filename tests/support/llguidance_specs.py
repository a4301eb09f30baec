"""A vocabulary, and questions to the llguidance backend, which its tests share."""

from functools import cache, lru_cache

import llguidance
import numpy as np
from compilers import tokens_of

from guided_plugin import Vocabulary
from guided_plugin.grammar.llguidance.lark.writer import expression_text

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
    source = f'%llguidance {{"no_forcing": true}}\nstart: TEXT\nTEXT: {expression_text(terminal)}'
    return llguidance.LLMatcher(_bytes_tokenizer(), source, log_level=0)


def terminal_takes(terminal, text):
    """Whether a terminal of a grammar matches a text; False also for the terminal that
    matches none."""
    matcher = _at_start(terminal).deep_copy()
    if matcher.is_error():
        assert "nsatisfiable" in matcher.get_error(), matcher.get_error()
        return False
    data = list(text.encode())
    taken = not data or matcher.try_consume_tokens(data) == len(data)
    return taken and matcher.is_accepting()


def allowed(backend, matchers):
    masks = np.zeros((len(matchers), VOCABULARY.words), np.int32)
    backend.batch(matchers).fill(masks, list(range(len(matchers))))
    return [set(tokens) for tokens in tokens_of(masks)]


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
}
