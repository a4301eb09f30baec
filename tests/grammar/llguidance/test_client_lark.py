"""Lark of clients: inner schemas are compiled as `json_schema` compiles them; switches
and stop tokens are refused with their line."""

from __future__ import annotations

import dataclasses
import json

import pytest
from instances import laid_out

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import GuidedConfig
from guided_plugin.errors import (
    GrammarError,
    GuidedError,
    RequestError,
    UnsupportedSpecError,
)
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.pipeline.pipeline import StepPipeline
from guided_plugin.plugins import Plugins
from guided_plugin.spec import OutputSpec

END = 256
TURN = 257
THINK = 258
THOUGHT = 259
NAMES = [b"<|im_end|>", b"<|eot|>", b"<think>", b"</think>"]


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    """Over single bytes, with two stop tokens and two other control tokens."""
    tokens = [*(bytes([byte]) for byte in range(256)), *NAMES]
    vocabulary = Vocabulary(tuple(tokens), (END, TURN), frozenset({THINK, THOUGHT}))
    config = GuidedConfig(threads=1, isolate_compiles=False, max_nodes=100_000)
    return GrammarCompiler(
        vocabulary, config=config, plugins=Plugins(entry_points=False)
    )


def lark(source: str, **options: str) -> OutputSpec:
    return OutputSpec.grammar(source, "lark", **options)


def taken(compiler: GrammarCompiler, spec: OutputSpec, texts: list[str]) -> list[str]:
    grammar = compiler.compile(spec)
    matchers = [
        (text, compiler.backend(grammar.backend).start(grammar, (END, TURN)))
        for text in texts
    ]
    return [
        text
        for text, matcher in matchers
        if matcher.accept_text(text.encode()) and matcher.complete
    ]


SCHEMAS = [
    (
        {"type": "object", "properties": {"a": {"minimum": 3, "type": "integer"}}},
        ['{"a":3}', '{"a":2}', '{"a":3,"b":1}', '{ "a" : 3 }', "{}"],
    ),
    (
        {"oneOf": [{"type": "integer"}, {"minimum": 2, "type": "number"}]},
        ["1", "2", "2.5", "1.5"],
    ),
    (
        {"type": "string", "pattern": "^[{}]+$", "maxLength": 2},
        ['"{}"', '"{}}"', '"x"'],
    ),
    (
        {
            "$ref": "#/$defs/a",
            "$defs": {"a": {"type": "array", "items": {"$ref": "#"}}},
        },
        ["[[],[[]]]", "[1]"],
    ),
]
UNIQUE = json.dumps(
    {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
)


class TestInnerSchemas:
    @pytest.mark.parametrize(
        "options",
        [{}, {"whitespace": "spaced"}, {"whitespace": "flexible"}, {"strict": False}],
        ids=str,
    )
    @pytest.mark.parametrize(
        ("schema", "texts"), SCHEMAS, ids=lambda value: json.dumps(value)[:30]
    )
    def test_take_what_json_schema_takes(self, compiler, schema, texts, options):
        texts = [
            *dict.fromkeys([*texts, *(laid_out(text, "spaced") for text in texts)])
        ]
        alone = taken(compiler, OutputSpec.json_schema(schema, **options), texts)
        assert 0 < len(alone) <= len(texts)
        source = f'start: "<" x ">"\nx: %json {json.dumps(schema, indent=1)}'
        assert taken(
            compiler, lark(source, **options), [f"<{text}>" for text in texts]
        ) == [f"<{text}>" for text in alone]

    @pytest.mark.parametrize(
        "schema", [json.loads(UNIQUE), {"type": "object", "minProperties": 2}]
    )
    def test_must_not_need_the_check_for_distinct_items(self, compiler, schema):
        source = f'start: "a"\n  | %json {json.dumps(schema)}'
        with pytest.raises(UnsupportedSpecError, match="inside a grammar") as caught:
            compiler.compile(lark(source))
        assert caught.value.where == "grammar, line 2, column 5"

    def test_leave_out_what_the_operator_does_not_want_enforced(self, compiler):
        config = GuidedConfig(
            threads=1, isolate_compiles=False, unenforced_keywords=("uniqueItems",)
        )
        other = GrammarCompiler(
            compiler.vocabulary, config=config, plugins=Plugins(entry_points=False)
        )
        source = lark(f"start: %json {UNIQUE}")
        assert taken(other, source, ["[1,1]"]) == ["[1,1]"]
        assert other.compile(source).unenforced == ("uniqueItems",)

    def test_begin_alike(self, compiler):
        source = (
            'start: a | b "!"\na: %json {"const":{"k":1}}\nb: %json {"const":{"k":12}}'
        )
        texts = ['{"k":1}', '{"k":12}!', '{"k":12}', '{"k":1}!']
        assert taken(compiler, lark(source), texts) == texts[:2]

    def test_names_that_are_taken(self, compiler):
        source = 'start: json0-0 %json {"const": 1}\njson0-0: "%json"'
        assert taken(compiler, lark(source), ["%json1", "1"]) == ["%json1"]

    @pytest.mark.parametrize(
        ("schema", "where", "says"),
        [
            ({"minimum": "a"}, "#/minimum", "must be a number"),
            (
                {"x-guidance": {"lenient": True}},
                "#/x-guidance",
                "how one backend reads",
            ),
            ({"$ref": "other:#x"}, "#/$ref", "never fetched"),
        ],
    )
    def test_are_refused_with_line_and_keyword(self, compiler, schema, where, says):
        source = f'start: "a"\n  | x\nx: "b" %json {json.dumps(schema)}'
        with pytest.raises(GrammarError, match=says) as caught:
            compiler.compile(lark(source))
        assert caught.value.where == f"grammar, line 3, column 8, {where}"

    @pytest.mark.parametrize(
        "text", ["", "{", "{'a': 1}", '{"const": NaN}', "[" * 5000]
    )
    def test_must_be_json(self, compiler, text):
        with pytest.raises(
            GrammarError, match="what follows %json is not JSON"
        ) as caught:
            compiler.compile(lark(f"\nstart: %json {text}"))
        assert caught.value.where == "grammar, line 2, column 8"

    def test_errors_behind_one_keep_their_line(self, compiler):
        with pytest.raises(GrammarError, match="unknown name") as caught:
            compiler.compile(
                lark('start: %json {\n"type":\n"null"\n} x\n  | "b"\nx: y\n')
            )
        assert caught.value.where == "grammar, line 6, column 4"


STOPS = {
    "name": ('start: "a" <|im_end|> "b"', 1, 12),
    "the other stop token": ('start: "a" x\nx: "c" | <|eot|> "b"', 2, 10),
    "id": ('start: "a" <[257]> "b"', 1, 12),
    "list": ('start: "a" <[3,256]> "b"', 1, 12),
    "range": ('start: "a" <[200-300]> "b"', 1, 12),
    "negated": ('start: "a" <[^1-3]> "b"', 1, 12),
    "any": ("start: <[*]>+", 1, 8),
    "at the end": ('start: "a" <|im_end|>', 1, 12),
}


class TestStopTokens:
    @pytest.mark.parametrize(("source", "line", "column"), STOPS.values(), ids=STOPS)
    def test_are_refused(self, compiler, source, line, column):
        with pytest.raises(GuidedError) as caught:
            compiler.compile(lark(source))
        if "300" not in source:  # there is no such token
            assert "a stop token in the middle" in caught.value.what
            assert caught.value.where == f"grammar, line {line}, column {column}"

    def test_in_quotes_regexes_and_comments_are_text(self, compiler):
        source = 'start: "<|im_end|>" /<[a-z]>/ // <|eot|>\n# <|eot|>\n'
        assert taken(compiler, lark(source), ["<|im_end|><b>"]) == ["<|im_end|><b>"]

    @pytest.mark.parametrize(
        "spec",
        [
            lark("start: <think> /[a-z]*/ </think>"),
            lark("start: <[258-259]> /[a-z]*/"),
            OutputSpec.structural_tag(
                {
                    "format": {
                        "type": "tag",
                        "begin": "<think>",
                        "content": {"type": "regex", "pattern": "a"},
                        "end": "x",
                    }
                }
            ),
        ],
        ids=["name", "range", "tag"],
    )
    def test_of_a_request_are_refused_where_the_grammar_names_them(
        self, compiler, spec
    ):
        assert THINK in compiler.compile(spec).named
        own = dataclasses.replace(spec, stop_token_ids=(THINK,))
        with StepPipeline(compiler, max_slots=2, mode="inline") as pipeline:
            pipeline.add_request("fine", spec)
            with pytest.raises(
                RequestError,
                match="named in the grammar, and would end the output there",
            ):
                pipeline.add_request("own", own)


@pytest.mark.parametrize(
    ("source", "line", "says"),
    [
        (
            '%llguidance {"allow_invalid_utf8": true}\nstart: "a"',
            1,
            "'allow_invalid_utf8'",
        ),
        (
            'start: "a"\n%llguidance {"allow_initial_skip": true}',
            2,
            "'allow_initial_skip'",
        ),
        ('%llguidance [1]\nstart: "a"', 1, r"\[1\]"),
        ('start: a "b"\na[stop=""]: /a/', 2, "`stop=`"),
        ('start: a "b"\na[capture, stop = "c"]: /a*/', 2, "`stop =`"),
        ("start: a\na[temperature=0.5]: /a/", 2, "`temperature=`"),
        ('start: "a"\n  | %lark {\nstart: <|im_end|>\n}', 2, "%lark"),
    ],
)
def test_switches_of_llguidance_are_refused(compiler, source, line, says):
    with pytest.raises(UnsupportedSpecError, match=says) as caught:
        compiler.compile(lark(source))
    assert caught.value.where.startswith(f"grammar, line {line}, column ")


@pytest.mark.parametrize(
    "options", ["{}", '{"no_forcing": false}', '{\n"no_forcing":\ntrue}']
)
def test_what_every_grammar_has_may_be_said(compiler, options):
    assert taken(compiler, lark(f'%llguidance {options}\nstart: "ab"'), ["ab"]) == [
        "ab"
    ]
    with pytest.raises(GrammarError, match="unknown name") as caught:
        compiler.compile(lark(f"%llguidance {options}\nstart: x"))
    assert caught.value.where == f"grammar, line {2 + options.count(chr(10))}, column 8"


@pytest.mark.slow
def test_too_many_symbols_is_a_limit_with_its_reason(compiler):
    def member(n: int) -> dict[str, object]:
        inner = {"type": "object", "properties": {f"q{n}": {"enum": [n, n + 1]}}}
        return {"anyOf": [inner, {"type": "array", "items": {"const": n}}]}

    members = {f"p{n}": member(n) for n in range(4000)}
    with pytest.raises(GuidedError) as caught:
        compiler.compile(
            OutputSpec.json_schema(
                {"type": "object", "properties": members}, strict=False
            )
        )
    assert (type(caught.value).__name__, caught.value.where) == (
        "CompileLimitError",
        "#",
    )
    assert "65,525" in caught.value.what
