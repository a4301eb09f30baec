"""Stop tokens end an output where it is complete and nowhere else; other special tokens
only where named.

Every construct that is lowered to a grammar is walked, with special tokens of awkward
names.
"""

from __future__ import annotations

from random import Random

import pytest
from compilers import compiler_of
from instances import text_of
from schema_families import CASES
from stopping import Walker, special_vocabulary

from guided_plugin.spec import OutputSpec


@pytest.fixture(scope="module", params=["padded", "whole words", "specials first"])
def compiler(request):
    vocabulary = special_vocabulary(
        padded=request.param == "padded",
        specials_first=request.param == "specials first",
    )
    return compiler_of(vocabulary, backend="llguidance")


def assert_clean(walk):
    assert walk.early == []
    assert walk.leaks == []


@pytest.mark.parametrize("family", dict.fromkeys(family for family, _ in CASES))
def test_constructs(compiler, family):
    walker = Walker(compiler)
    cases = {name: case for (of, name), case in CASES.items() if of == family}
    for number, (name, case) in enumerate(cases.items()):
        # Every second as a request has it that asks for nothing else.
        options = {"strict": False} if number % 2 else {"whitespace": "flexible"}
        grammar = compiler.compile(OutputSpec.json_schema(case.schema, **options))
        for seed in case.seeds:
            assert_clean(walker.walk(grammar, text_of(seed)))
        for walk in range(3):
            assert_clean(walker.wander(grammar, Random(f"{name} {walk}"), 25))


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
    assert_clean(walk)
    assert walk.accepted
    # Only where they are named: neither of them in the place of the other, nor twice.
    for wrong in (
        [closing],
        [opening, closing],
        [*tokens[:3], opening],
        [*tokens, closing],
    ):
        assert not walker.walk(grammar, wrong, whole, {opening, closing}).accepted
