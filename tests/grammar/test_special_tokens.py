"""Stop tokens end an output where it is complete and nowhere else; other special tokens
only where named.

Every construct that is lowered to a grammar is walked, with special tokens of awkward
names.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from schema_families import FAMILIES, Case
from stopping import Walk, Walker, special_vocabulary

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import GuidedConfig
from guided_plugin.errors import GrammarError
from guided_plugin.plugins import Plugins
from guided_plugin.spec import OutputSpec

# The families of `schema_families` hold the keywords; these are patterns that are
# searched for, and what else needs a token that can never come.
SEARCHED: dict[str, Case] = {
    "searched": Case({"type": "string", "pattern": "a+"}, ("xxaayy", "b")),
    "searched twice": Case({"type": "string", "allOf": [{"pattern": "a"}, {"pattern": "b"}]}, ("xbxa", "a")),
    "end only": Case({"type": "string", "pattern": "ab$"}, ("xab", "abx")),
    "beginning only": Case({"type": "string", "pattern": "^ab"}, ("abx", "xab")),
    "not a pattern": Case({"type": "string", "not": {"pattern": "a"}}, ("xyz", "xay")),
    "with a length": Case({"type": "string", "pattern": "[0-9]", "maxLength": 5}, ("a1", "1", "a")),
    "of names": Case({"type": "object", "patternProperties": {"a": {"type": "null"}}}, ({"xax": None},)),
    "a quote": Case({"type": "string", "pattern": '"'}, ('x"y',)),
    "brackets": Case({"type": "string", "pattern": "\\[1"}, ("x[1]",)),
}  # fmt: skip
FORMATS = {
    name: Case({"type": "string", "format": name, "not": {"const": "x"}})
    for name in (
        "date-time",
        "date",
        "time",
        "duration",
        "email",
        "hostname",
        "ipv4",
        "ipv6",
        "uuid",
        "uri",
    )
}
CASES = {
    f"{family}: {name}": case
    for family, cases in {
        **FAMILIES,
        "searched patterns": SEARCHED,
        "formats": FORMATS,
    }.items()
    for name, case in cases.items()
}


@pytest.fixture(scope="module", params=["padded", "whole words", "specials first"])
def compiler(request: pytest.FixtureRequest) -> GrammarCompiler:
    vocabulary = special_vocabulary(
        padded=request.param == "padded",
        specials_first=request.param == "specials first",
    )
    config = GuidedConfig(threads=1, isolate_compiles=False, backend="llguidance")
    return GrammarCompiler(
        vocabulary, config=config, plugins=Plugins(entry_points=False)
    )


def assert_clean(walk: Walk) -> None:
    assert walk.early == []
    assert walk.leaks == []


def walk_case(compiler: GrammarCompiler, case: Case, name: str, **options: Any) -> bool:
    """Walk the instances of a case, and texts at random; False where its schema is
    refused."""
    try:
        grammar = compiler.compile(OutputSpec.json_schema(case.schema, **options))
    except GrammarError:
        return False
    walker = Walker(compiler)
    for seed in case.seeds:
        text = json.dumps(seed, ensure_ascii=False, separators=(",", ":"))
        assert_clean(walker.walk(grammar, text))
    for number in range(3):
        assert_clean(walker.wander(grammar, Random(f"{name} {number}"), 25))
    return True


@pytest.mark.parametrize("family", sorted({name.partition(":")[0] for name in CASES}))
def test_constructs(compiler, family):
    cases = {
        name: case for name, case in CASES.items() if name.startswith(f"{family}:")
    }
    walked = [
        walk_case(compiler, case, name, strict=False) for name, case in cases.items()
    ]
    assert sum(walked) > len(walked) / 2


def test_with_whitespace_and_closed_objects(compiler):
    for name, case in list(CASES.items())[::7]:
        walk_case(compiler, case, name, whitespace="flexible")
        walk_case(compiler, case, name)


def special(compiler: GrammarCompiler, name: bytes) -> int:
    return next(
        i
        for i in compiler.vocabulary.special_ids
        if compiler.vocabulary.tokens[i] == name
    )


def test_special_tokens_that_a_grammar_names_come_there_only(compiler):
    opening = special(compiler, b"<tool_call>")
    closing = special(compiler, b"</tool_call>")
    source = "start: <tool_call> /[^<]+/ </tool_call>"
    grammar = compiler.compile(OutputSpec.grammar(source, "lark"))
    walker = Walker(compiler)
    text = list(b"[1 [INST] </s")
    first = compiler.vocabulary.tokens.index(b"\x00")
    tokens = [opening, *(first + byte for byte in text if byte != ord("<")), closing]

    def whole(output: bytes) -> bool:
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
