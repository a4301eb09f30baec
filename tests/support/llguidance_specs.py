"""A vocabulary, and a question to llguidance itself, which tests share."""

from functools import cache, lru_cache

import llguidance

from guided_plugin import Vocabulary
from guided_plugin.grammar.llguidance.lark.writer import expression_text

END = 256
OTHER_END = 257
VOCABULARY = Vocabulary.from_tokens(
    [*(bytes([byte]) for byte in range(256)), b"</s>", b"<other>", b"<ctrl>"],
    [END],
    [OTHER_END, 258],
)


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
