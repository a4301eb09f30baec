"""Lark of clients: schemas inside, switches and stop tokens are refused with their
line."""

import dataclasses
import json

import pytest
from compilers import compiler_of, taken_of

from guided_plugin.errors import (
    CompileLimitError,
    GuidedError,
    RequestError,
)
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.pipeline.pipeline import StepPipeline
from guided_plugin.spec import OutputSpec

END = 256
TURN = 257
THINK = 258
THOUGHT = 259
NAMES = [b"<|im_end|>", b"<|eot|>", b"<think>", b"</think>"]
TOKENS = (*(bytes([byte]) for byte in range(256)), *NAMES)
VOCABULARY = Vocabulary(TOKENS, (END, TURN), frozenset({THINK, THOUGHT}))
"""Single bytes, two stop tokens and two other control tokens."""
COMPILER = compiler_of(VOCABULARY, max_nodes=100_000)


def lark(source):
    return OutputSpec.grammar(source, "lark")


TAKEN = [
    (
        'start: "<|im_end|>" /<[a-z]>/ // <|eot|>\n# <|eot|>\n',
        ["<|im_end|><b>"],
        ["<|im_end|><b>\n"],
    ),
    ('start: "a" "a"\n// %json {}\n', ["aa"], ["a"]),
    ('start: "%json" /%lark/', ["%json%lark"], ["%json"]),
]


@pytest.mark.parametrize(("source", "good", "bad"), TAKEN)
def test_what_is_taken(source, good, bad):
    assert taken_of(COMPILER, lark(source), good + bad) == good


IN_THE_MIDDLE = "a stop token in the middle"
REFUSED = [
    ('start: "a"\n  | %json {"type": "null"}', "2, column 5", "%json"),
    ("\nstart: x", "2, column 8", "unknown name"),
    ('%llguidance {"no_forcing": true}\nstart: "a"', "1, column ", "%llguidance"),
    ('start: "a" <|im_end|> "b"', "1, column 12", IN_THE_MIDDLE),
    ('start: "a" x\nx: "c" | <|eot|> "b"', "2, column 10", IN_THE_MIDDLE),
    ('start: "a" <[257]> "b"', "1, column 12", IN_THE_MIDDLE),
    ('start: "a" <[3,256]> "b"', "1, column 12", IN_THE_MIDDLE),
    ('start: "a" <[^1-3]> "b"', "1, column 12", IN_THE_MIDDLE),
    ("start: <[*]>+", "1, column 8", IN_THE_MIDDLE),
    ('start: "a" <|im_end|>', "1, column 12", IN_THE_MIDDLE),
    ('start: a "b"\na[stop=""]: /a/', "2, column ", "`stop=`"),
    ('start: a "b"\na[capture, stop = "c"]: /a*/', "2, column ", "`stop =`"),
    ("start: a\na[temperature=0.5]: /a/", "2, column ", "`temperature=`"),
    ('start: "a"\n  | %lark {\nstart: <|im_end|>\n}', "2, column ", "%lark"),
    ('start: "a" <[200-300]> "b"', "", ""),  # there is no token 300
]


@pytest.mark.parametrize(("source", "place", "says"), REFUSED)
def test_what_is_refused_with_its_line(source, place, says):
    with pytest.raises(GuidedError) as caught:
        COMPILER.compile(lark(source))
    if place:
        assert caught.value.where.startswith(f"grammar, line {place}")
    assert says in caught.value.what


TAG = json.loads("""{"type": "tag", "begin": "<think>", "end": "x",
    "content": {"type": "regex", "pattern": "a"}}""")


@pytest.mark.parametrize(
    "spec",
    [
        lark("start: <think> /[a-z]*/ </think>"),
        lark("start: <[258-259]> /[a-z]*/"),
        OutputSpec.structural_tag({"format": TAG}),
    ],
)
def test_stop_tokens_of_a_request_are_refused_where_the_grammar_names_them(spec):
    assert THINK in COMPILER.compile(spec).named
    own = dataclasses.replace(spec, stop_token_ids=(THINK,))
    with StepPipeline(COMPILER, max_slots=2, mode="inline") as pipeline:
        pipeline.add_request("fine", spec)
        with pytest.raises(RequestError, match="and would end the output there"):
            pipeline.add_request("own", own)


@pytest.mark.slow
def test_too_many_symbols_is_a_limit_with_its_reason():
    members = {}
    for number in range(4000):
        described = {f"q{number}": {"enum": [number, number + 1]}}
        array = {"type": "array", "items": {"const": number}}
        member = {"type": "object", "properties": described}
        members[f"p{number}"] = {"anyOf": [member, array]}
    schema = {"type": "object", "properties": members}
    with pytest.raises(CompileLimitError, match="65,525") as caught:
        COMPILER.compile(OutputSpec.json_schema(schema, strict=False))
    assert caught.value.where == "#"
