"""Lark of clients: inner schemas are compiled as `json_schema` compiles them; switches
and stop tokens are refused with their line.

Of random schemas inside of grammars test_fuzz.py says that they mean the same.
"""

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
        'start: "<" x ">"\nx: %json {\n"oneOf": [{"type": "integer"},\n{"minimum": 2, "type": "number"}]}',
        ["<1>", "<2.5>"],
        ["<2>", "<1.5>", "1"],
    ),
    (
        'start: a | b "!"\na: %json {"const":{"k":1}}\nb: %json {"const":{"k":12}}',
        ['{"k":1}', '{"k":12}!'],
        ['{"k":12}', '{"k":1}!'],
    ),
    (
        'start: "a" %json {"type": "array", "items": {"enum": ["b"]}, "uniqueItems": true}',
        ['a["b"]', "a[]"],
        ['a["b","b"]'],
    ),
    ('start: json0-0 %json {"const": 1}\njson0-0: "%json"', ["%json1"], ["1"]),
    (
        'start: "<|im_end|>" /<[a-z]>/ // <|eot|>\n# <|eot|>\n',
        ["<|im_end|><b>"],
        ["<|im_end|><b>\n"],
    ),
    ('start: "a" "a"\n// distinct\n', ["aa"], ["a"]),
    ('%llguidance {}\nstart: "ab"', ["ab"], []),
    ('%llguidance {"no_forcing": false}\nstart: "ab"', ["ab"], []),
    ('%llguidance {\n"no_forcing":\ntrue}\nstart: "ab"', ["ab"], []),
]


@pytest.mark.parametrize(("source", "good", "bad"), TAKEN)
def test_what_is_taken(source, good, bad):
    assert taken_of(COMPILER, lark(source), good + bad) == good


UNIQUE = '{"type": "array", "items": {"type": "integer"}, "uniqueItems": true}'
IN_THE_MIDDLE = "a stop token in the middle"
NOT_JSON = "what follows %json is not JSON"
REFUSED = [
    (f'start: "a"\n  | %json {UNIQUE}', "2, column 5", "inside a grammar"),
    (
        'start: x\nx: "b" %json {"minimum": "a"}',
        "2, column 8, #/minimum",
        "must be a number",
    ),
    (
        'start: x\nx: "b" %json {"x-guidance": {"lenient": true}}',
        "2, column 8, #/x-guidance",
        "how one backend reads",
    ),
    (
        'start: x\nx: "b" %json {"$ref": "other:#x"}',
        "2, column 8, #/$ref",
        "never fetched",
    ),
    ("\nstart: %json ", "2, column 8", NOT_JSON),
    ("\nstart: %json {", "2, column 8", NOT_JSON),
    ("\nstart: %json {'a': 1}", "2, column 8", NOT_JSON),
    ('\nstart: %json {"const": NaN}', "2, column 8", NOT_JSON),
    ("\nstart: %json " + "[" * 5000, "2, column 8", NOT_JSON),
    (
        'start: %json {\n"type":\n"null"\n} x\n  | "b"\nx: y\n',
        "6, column 4",
        "unknown name",
    ),
    ("%llguidance {}\nstart: x", "2, column 8", "unknown name"),
    (
        '%llguidance {\n"no_forcing":\ntrue}\nstart: x',
        "4, column 8",
        "unknown name",
    ),
    ('start: "a" <|im_end|> "b"', "1, column 12", IN_THE_MIDDLE),
    ('start: "a" x\nx: "c" | <|eot|> "b"', "2, column 10", IN_THE_MIDDLE),
    ('start: "a" <[257]> "b"', "1, column 12", IN_THE_MIDDLE),
    ('start: "a" <[3,256]> "b"', "1, column 12", IN_THE_MIDDLE),
    ('start: "a" <[^1-3]> "b"', "1, column 12", IN_THE_MIDDLE),
    ("start: <[*]>+", "1, column 8", IN_THE_MIDDLE),
    ('start: "a" <|im_end|>', "1, column 12", IN_THE_MIDDLE),
    (
        '%llguidance {"allow_invalid_utf8": true}\nstart: "a"',
        "1, column ",
        "'allow_invalid_utf8'",
    ),
    (
        'start: "a"\n%llguidance {"allow_initial_skip": true}',
        "2, column ",
        "'allow_initial_skip'",
    ),
    ('%llguidance [1]\nstart: "a"', "1, column ", "[1]"),
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


def test_inner_schemas_leave_out_what_the_operator_does_not_want_enforced():
    compiler = compiler_of(VOCABULARY, unenforced_keywords=("uniqueItems",))
    source = lark(f"start: %json {UNIQUE}")
    assert taken_of(compiler, source, ["[1,1]"]) == ["[1,1]"]
    assert compiler.compile(source).unenforced == ("uniqueItems",)


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
