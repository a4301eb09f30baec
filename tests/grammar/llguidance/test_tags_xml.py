"""Schemas in tags whose properties are XML elements: part of what xgrammar takes, with
the same values."""

import json
from random import Random

import numpy as np
import pytest
from raw_xgrammar import RAW, compiler_with_raw
from tag_forms import VOCABULARY, follows, json_of, tag

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import GuidedConfig
from guided_plugin.errors import UnsupportedSpecError
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.plugins import Plugins
from guided_plugin.spec import OutputSpec

STYLES = {
    "qwen_xml": ("<parameter=KEY>", "</parameter>"),
    "minimax_xml": ('<parameter name="KEY">', "</parameter>"),
    "glm_xml": ("<arg_key>KEY</arg_key>\n<arg_value>", "</arg_value>"),
    "deepseek_xml": (
        '<｜DSML｜parameter name="KEY" string="RAW">',
        "</｜DSML｜parameter>",
    ),
    "deepseek_v4_1_xml": (
        '<｜DSML｜ parameter name="KEY" string="RAW">',
        "</｜DSML｜ parameter>",
    ),
}
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "n": {"type": "integer"},
        "unit": {"enum": ["C", "F", "Fx"]},
        "more": {"$ref": "#/$defs/more"},
    },
    "required": ["n"],
    "$defs": {"more": {"type": "object", "properties": {"s": {"type": "string"}}}},
}


@pytest.fixture(scope="module")
def compiler():
    return compiler_with_raw(VOCABULARY)


def compiled(
    compiler, style, schema=SCHEMA, backend="llguidance", end="\n</f>", **options
):
    form = tag("<f>\n", json_of(schema, style=style), end)
    return compiler.compile(
        OutputSpec.structural_tag({"format": form}, backend=backend, **options)
    )


def written(style, *pairs, end="\n</f>"):
    """A call as models write it; texts are given with their type."""
    begin, close = STYLES[style]
    parts = []
    for key, value, raw in pairs:
        parts.append(
            begin.replace("KEY", key).replace("RAW", "true" if raw else "false")
            + value
            + close
        )
    return "<f>\n" + "\n".join(parts) + end


CITY = ("city", "a <b>\nc", True)
N = ("n", "12", False)
UNIT = ("unit", "Fx", True)
MORE = ("more", '{"s":"x"}', False)
RIGHT = [(N,), (CITY, N), (CITY, N, UNIT, MORE), (N, MORE)]
WRONG = [
    *(
        (),
        (CITY,),
        (N, CITY),
        (N, N),
        (N, ("other", "1", False)),
        (("n", '"12"', False),),
    ),
    *(
        (N, ("unit", "D", True)),
        (N, ("more", '{"s":1}', False)),
        (N, ("more", '{"t":"x"}', False)),
    ),
]


@pytest.mark.parametrize("end", ["\n</f>", "</f>"])
@pytest.mark.parametrize("style", STYLES)
class TestStyles:
    def test_verdicts_are_those_of_xgrammar(self, compiler, style, end):
        for backend in ("llguidance", RAW):
            grammar = compiled(compiler, style, backend=backend, end=end)
            for pairs in RIGHT:
                assert follows(compiler, grammar, written(style, *pairs, end=end))[1], (
                    backend,
                    pairs,
                )
            for pairs in WRONG:
                assert not follows(compiler, grammar, written(style, *pairs, end=end))[
                    1
                ], (backend, pairs)

    def test_xgrammar_takes_whatever_is_written(self, compiler, style, end):
        grammar = compiled(compiler, style, end=end)
        theirs = compiled(compiler, style, backend=RAW, end=end)
        for seed in range(12):
            text, complete = wandered(compiler, grammar, Random(seed))
            assert follows(compiler, theirs, text) == (True, complete), text


def wandered(compiler, grammar, chance):
    """A text at random, and whether it is whole."""
    backend = compiler.backend("llguidance")
    matcher = backend.start(grammar, (256,))
    batch = backend.batch([matcher])
    mask = np.zeros((1, VOCABULARY.words), np.int32)
    text = bytearray()
    for _ in range(250):
        batch.fill(mask, [0])
        allowed = np.flatnonzero(
            np.unpackbits(mask.view(np.uint8), bitorder="little")
        ).tolist()
        assert allowed
        assert (256 in allowed) == matcher.complete
        likely = [
            token
            for token in allowed
            if token < 128 and chr(token) in '</>parmetvlu_g\n"}1'
        ]
        if matcher.complete or not (
            likely := likely or [token for token in allowed if token < 256]
        ):
            break
        token = chance.choice(likely)
        text.append(token)
        assert batch.accept([token]) == [True]
    while text and text[-1] > 127:
        text.pop()
    decoded = text.decode()
    return decoded, follows(compiler, grammar, decoded)[1]


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"type": "object"},
        {"type": "object", "properties": {}, "additionalProperties": True},
        {"type": "object", "properties": {}, "minProperties": 1},
        {"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}},
        {"type": "object", "properties": {"a": {"type": ["string", "null"]}}},
        {
            "type": "object",
            "properties": {"a": {"anyOf": [{"type": "string"}, {"type": "integer"}]}},
        },
        {"type": "object", "properties": {"a": {}}},
        {"type": "object", "properties": {"a>b": {"type": "integer"}}},
        {"type": "object", "properties": {}, "required": ["a"]},
    ],
)
def test_what_has_no_one_spelling_is_refused(compiler, schema):
    with pytest.raises(UnsupportedSpecError, match=r"^#/format/content/json_schema"):
        compiled(compiler, "qwen_xml", schema)


def test_open_objects_have_no_form_in_xml(compiler):
    with pytest.raises(UnsupportedSpecError, match=r"style.*use strict: true"):
        compiled(compiler, "qwen_xml", strict=False)


@pytest.mark.parametrize("style", STYLES)
def test_values_that_are_json_are_laid_out_as_asked(compiler, style):
    value = {"s": "x: y, z", "t": [1, 2]}
    more = {
        "type": "object",
        "properties": {"s": {"type": "string"}, "t": {"items": {"type": "integer"}}},
    }
    schema = {**SCHEMA, "$defs": {"more": more}}
    layouts = {"compact": (",", ":"), "spaced": (", ", ": ")}
    for whitespace in layouts:
        grammar = compiled(compiler, style, schema, whitespace=whitespace)
        taken = []
        for name, separators in layouts.items():
            pairs = [CITY, N, ("more", json.dumps(value, separators=separators), False)]
            if follows(compiler, grammar, written(style, *pairs))[1]:
                taken.append(name)
        assert taken == [whitespace]


def test_places_in_definitions(compiler):
    schema = {
        **SCHEMA,
        "$defs": {"more": {"not": {"type": "array", "uniqueItems": True}}},
    }
    with pytest.raises(UnsupportedSpecError) as caught:
        compiled(compiler, "qwen_xml", schema)
    assert (
        caught.value.where == "#/format/content/json_schema/$defs/more/not/uniqueItems"
    )


def test_a_control_token_in_the_middle_of_an_end():
    vocabulary = Vocabulary.from_tokens(
        [*(bytes([byte]) for byte in range(256)), b"</s>", "｜DSML｜".encode()],
        [256],
        [257],
    )
    config = GuidedConfig(threads=1, isolate_compiles=False)
    compiler = GrammarCompiler(
        vocabulary, config=config, plugins=Plugins(entry_points=False)
    )
    grammar = compiled(compiler, "deepseek_xml")
    for name in ("\x01", "｜DSML｜"):
        text = (
            f'<f>\n<{name}parameter name="n" string="false">1</{name}parameter>\n</f>'
        )
        assert follows(compiler, grammar, text)[1]
        text = text.replace(
            "<f>\n",
            f'<f>\n<{name}parameter name="city" string="true">a</b</{name}parameter>\n',
        )
        assert follows(compiler, grammar, text)[1]
        assert not follows(compiler, grammar, text.replace("</b</", "</b"))[1]
