"""Stop tokens end an output where it is complete and nowhere else; other special tokens
only where named.

Every construct that is lowered to a grammar is walked in
`llguidance/test_language_equality.py`.
"""

import pytest
from compilers import compiler_of
from stopping import Walker, special_vocabulary

from guided_plugin.spec import OutputSpec


@pytest.fixture(scope="module", params=["padded", "whole words", "specials first"])
def compiler(request):
    vocabulary = special_vocabulary(
        padded=request.param == "padded",
        specials_first=request.param == "specials first",
    )
    return compiler_of(vocabulary, backend="llguidance")


def special(compiler, name):
    tokens = compiler.vocabulary.tokens
    return next(i for i in compiler.vocabulary.special_ids if tokens[i] == name)


def test_special_tokens_that_a_grammar_names_come_there_only(compiler):
    opening = special(compiler, b"<tool_call>")
    closing = special(compiler, b"</tool_call>")
    source = "start: <tool_call> /[^<]+/ </tool_call>"
    grammar = compiler.compile(OutputSpec.grammar(source, "lark"))
    walker = Walker(compiler)
    first = compiler.vocabulary.tokens.index(b"\x00")
    tokens = [opening, *(first + byte for byte in b"[1 [INST] /s"), closing]

    def whole(output):
        return output.endswith(b"</tool_call>")

    walk = walker.walk(grammar, tokens, whole, {opening, closing})
    assert (walk.accepted, walk.early, walk.leaks) == (True, [], [])
    # Only where they are named: neither of them in the place of the other, nor twice.
    for wrong in (
        [closing],
        [opening, closing],
        [*tokens[:3], opening],
        [*tokens, closing],
    ):
        assert not walker.walk(grammar, wrong, whole, {opening, closing}).accepted
